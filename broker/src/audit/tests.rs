use super::replay::{replay, why};
use super::report::Report;
use super::rows::{
    CALL_COMPLETED, CALL_STARTED, CALLS_UNRECORDED, DENIED, INVOKED_COMPLETED, INVOKED_STARTED, NO_CONNECT,
    TIMEOUT,
};
use super::*;
use crate::call::{Call, Denial, DenialClass, Invocation, Refusal, TraceId};
use cyberos_proto::ids::TenantId;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::{self, File};

fn invocation(n: u8) -> Invocation {
    Invocation {
        id: InvocationId::from_random([n; 16]),
        skill_id: "memory-capture".into(),
        version: "1.0.0".into(),
        tenant: TenantId::NIL,
        trace: TraceId::new([7; 16]).unwrap(),
        sync_private: true,
    }
}

fn call(number: u64, tool: &str) -> Call {
    let args_hash = canonical::hash(&json!({"path": "memories/x"}));
    Call { number, tool: tool.into(), args: Map::new(), args_hash, traceparent: None, wrong: None }
}

fn started<'a>() -> InvokedStarted<'a> {
    InvokedStarted {
        caller: "uid 0",
        uid: 1_900_000_001,
        args_hash: "aa",
        verdict: "current",
        epoch: "0000000000000001-4",
        content_digest: "sha256:bb",
        sandbox: json!({"seccomp": true}),
    }
}

fn ended(outcome: Outcome) -> Ended {
    Ended { outcome, exit_code: Some(0), signal: None, duration_ms: 5 }
}

fn denial() -> Refusal {
    one_denial().into()
}

fn one_denial() -> Denial {
    Denial {
        class: DenialClass::ScopeViolation,
        reason: "scope_violation",
        asked: Some("memories/people/../people/y.md".into()),
        subject: "memories/people/y.md".into(),
        rule: "allowed_memory_scopes, line 6".into(),
        sentence: "memories/people/y.md is outside; add it".into(),
    }
}

fn asked(number: u64, tool: &str) -> Asked<'_> {
    Asked { call: number, tool, args_hash: "cc", trace: TraceId::new([9; 16]).unwrap() }
}

fn open(dir: &Path) -> Audit {
    Audit::open(dir, AuditOptions::default()).unwrap()
}

fn rows_of(store: &Path) -> Vec<Row> {
    filter::show(store, Filter::default()).unwrap().map(Result::unwrap).collect()
}

fn verify(store: &Path) -> Report {
    Reader::open(store).unwrap().verify().unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

impl Audit {
    /// What `started` does, without the permit that only grants can make.
    fn begin_now(&self, i: &Invocation, call: &Call) -> Result<OpenCall, AuditUnavailable> {
        self.begin(i, call, i.trace, usize::from(call.tool == "MemoryEmit")).map(|(open, _)| open)
    }
}

fn success() -> CallOutcome {
    CallOutcome::Success { result_hash: "dd".into() }
}

/// Writes to this file fail, and so do its syncs.
fn break_disk(audit: &Audit, device: &str) -> Arc<File> {
    let broken = File::options().read(true).write(true).open(device).unwrap();
    let mut tail = audit.inner.ledger.shared.lock().unwrap();
    std::mem::replace(&mut tail.file, Arc::new(broken))
}

fn mend_disk(audit: &Audit, file: Arc<File>) {
    audit.inner.ledger.shared.lock().unwrap().file = file;
}

mod outage;
mod quota;
mod told;
