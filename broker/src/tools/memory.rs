//! MemoryRead and MemoryEmit (`[5.3]`): what a memory file looks like inside. Scopes have spoken before; the store keeps
//! the bytes.
//!
//! A file that MemoryEmit writes is
//!
//! ```text
//! ---
//! {"kind":"note.daily","sync_class":"private","trace_id":"…","skill_id":"…","ts":1790000000000000000}
//! ---
//! the payload: text as it is, anything else as JSON
//! ```
//!
//! with `ts` in ns since 1970, as in the ledger.

use super::{CallResources, Deps, InFlight, Work, args};
use crate::audit::clock::Month;
use crate::audit::{Audit, Emitted, Started};
use crate::call::{Access, DISK_LOW, MEMORY_QUOTA, Plan, ToolError, ToolResult, WRITE_QUOTA};
use crate::catalogue::{Asking, Tool};
use crate::memory::{MemoryError, Store};
use crate::rpc;
use cyberos_proto::ids::InvocationId;
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Longest `kind`, in bytes, and most parts: it becomes directories.
const MAX_KIND: usize = 128;
const MAX_KIND_PARTS: usize = 16;
/// Longest frontmatter that is taken for one.
const MAX_META: usize = 64 * 1024;
/// Before and after frontmatter.
const FENCE: &str = "---\n";

/// The tool that reads.
#[derive(Debug)]
pub struct MemoryRead {
    store: Arc<Store>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadArgs {
    /// Path of the memory, beginning with memories/.
    path: String,
}

impl MemoryRead {
    pub(super) fn new(store: Arc<Store>) -> Self {
        MemoryRead { store }
    }
}

impl Tool for MemoryRead {
    type Work = Box<dyn Work>;

    fn name(&self) -> &'static str {
        "MemoryRead"
    }

    fn description(&self) -> &'static str {
        "Reads one memory: {body, content_hash, meta?}. meta is its JSON frontmatter, content_hash the \
         SHA-256 of the whole file."
    }

    fn input_schema(&self) -> Value {
        args::schema::<ReadArgs>()
    }

    fn plan(&self, _: Asking<'_>, args: Map<String, Value>) -> Result<Plan<Box<dyn Work>>, String> {
        let args: ReadArgs = args::read(&args)?;
        Ok(Plan::new(vec![Access::Memory(args.path)], Box::new(Reading { store: self.store.clone() })))
    }
}

struct Reading {
    store: Arc<Store>,
}

impl Work for Reading {
    fn run(self: Box<Self>, mut started: Started, resources: CallResources) -> InFlight {
        Box::pin(async move {
            let scope = started.handles().memory()?;
            // Its size is known only once it has been read.
            resources.room_for(READ_ROOM).await;
            resources
                .blocking(move |_| {
                    let file = scope.read(&self.store).map_err(failed)?;
                    let text = String::from_utf8(file.bytes).map_err(|_| ToolError {
                        reason: "not_utf8",
                        message: format!("{} is not UTF-8 text", scope.path()),
                    })?;
                    let (meta, body) = split(&text);
                    let mut out = Map::new();
                    out.insert("body".to_owned(), body.into());
                    out.insert("content_hash".to_owned(), file.sha256.into());
                    if let Some(meta) = meta {
                        out.insert("meta".to_owned(), meta);
                    }
                    Ok(out)
                })
                .await
        })
    }
}

/// Room for a memory of the size that MemoryEmit can write, and its answer.
const READ_ROOM: usize = 2 * rpc::MAX_REQUEST;

/// The tool that writes.
#[derive(Debug)]
pub struct MemoryEmit {
    store: Arc<Store>,
    audit: Audit,
    tenant_quota: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmitArgs {
    /// What kind of memory it is: two or more words joined by dots.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$"), length(max = 128))]
    kind: String,
    /// The memory: text, or any other JSON. Taken from the call itself: a copy of a large one is large.
    #[serde(rename = "payload")]
    #[schemars(with = "Value")]
    _payload: IgnoredAny,
    /// Path of the memory, beginning with memories/; made from kind and date if absent.
    path: Option<String>,
    /// Narrows the skill's sync_class; that one if absent.
    sync_class: Option<SyncClass>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SyncClass {
    Private,
    Shareable,
}

impl<'de> Deserialize<'de> for SyncClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        args::word(deserializer, &[("private", SyncClass::Private), ("shareable", SyncClass::Shareable)])
    }
}

impl SyncClass {
    fn as_str(self) -> &'static str {
        match self {
            SyncClass::Private => "private",
            SyncClass::Shareable => "shareable",
        }
    }
}

impl MemoryEmit {
    pub(super) fn new(deps: Deps) -> Self {
        MemoryEmit { store: deps.store, audit: deps.audit, tenant_quota: deps.tenant_quota }
    }
}

impl Tool for MemoryEmit {
    type Work = Box<dyn Work>;

    fn name(&self) -> &'static str {
        "MemoryEmit"
    }

    fn description(&self) -> &'static str {
        "Writes one memory: {row_id, seq, path, trace_id}. An existing one of that path is replaced. kind \
         has at most 128 bytes and 16 parts."
    }

    fn input_schema(&self) -> Value {
        args::schema::<EmitArgs>()
    }

    fn plan(&self, asking: Asking<'_>, mut given: Map<String, Value>) -> Result<Plan<Box<dyn Work>>, String> {
        let args: EmitArgs = args::read(&given)?;
        if !is_kind(&args.kind) {
            return Err(format!(
                "args.kind: {:?} is not two or more words of a-z, 0-9 and _ (each beginning with a letter) \
                 joined by dots, at most {MAX_KIND} bytes and {MAX_KIND_PARTS} words",
                shortened(&args.kind)
            ));
        }
        let narrowest = asking.invocation.sync_private;
        if narrowest && args.sync_class == Some(SyncClass::Shareable) {
            return Err("args.sync_class: it may only narrow, and the skill's own is private".to_owned());
        }
        let own = if narrowest { SyncClass::Private } else { SyncClass::Shareable };
        // As it was sent, and as it was hashed: a number that goes through serde may lose its spelling (-0).
        let payload = match given.swap_remove("payload") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => return Err("args.payload: it is missing".to_owned()),
        };
        let row_id = row_id(asking.invocation.id, asking.number);
        let access = match args.path {
            Some(path) => Access::Memory(path),
            None => {
                let month = Month::of(self.audit.now_ns()).to_string().replace('-', "/");
                let tree = format!("memories/{}", args.kind.replace('.', "/"));
                Access::NewMemory {
                    path: format!("{tree}/{month}/{row_id}.md"),
                    pattern: format!("{tree}/**"),
                }
            }
        };
        let writes = payload.len() as u64;
        let emitting = Emitting {
            store: self.store.clone(),
            audit: self.audit.clone(),
            tenant_quota: self.tenant_quota,
            kind: args.kind,
            sync_class: args.sync_class.unwrap_or(own),
            payload,
            row_id,
        };
        Ok(Plan { accesses: vec![access], writes, rows_owed: 1, work: Box::new(emitting) })
    }
}

struct Emitting {
    store: Arc<Store>,
    audit: Audit,
    tenant_quota: u64,
    kind: String,
    sync_class: SyncClass,
    /// Text as it is, anything else as JSON.
    payload: String,
    row_id: String,
}

impl Work for Emitting {
    fn run(self: Box<Self>, started: Started, resources: CallResources) -> InFlight {
        Box::pin(async move {
            // Once the file is there its row has to follow, whether or not somebody still waits for the answer.
            let emit = tokio::spawn(self.emit(started, resources));
            emit.await.unwrap_or_else(|_| Err(ToolError::internal()))
        })
    }
}

impl Emitting {
    async fn emit(self, mut started: Started, resources: CallResources) -> ToolResult {
        let Emitting { store, audit, tenant_quota, kind, sync_class, payload, row_id } = self;
        let scope = started.handles().memory()?;
        let path = scope.path().to_owned();
        let invocation = resources.invocation().clone();
        let trace_id = started.trace().to_string();
        let meta = json!({
            "kind": kind, "sync_class": sync_class, "trace_id": trace_id, "skill_id": invocation.skill_id,
            "ts": audit.now_ns(),
        });
        let content = format!("{FENCE}{meta}\n{FENCE}{payload}").into_bytes();
        drop(payload);
        let bytes = content.len() as u64;
        let written =
            resources.blocking(move |_| scope.write(&store, &content, tenant_quota).map_err(failed)).await?;
        let emitted = Emitted {
            kind: &kind,
            row_id: &row_id,
            sync_class: sync_class.as_str(),
            path: &path,
            content_sha256: &written.sha256,
            bytes,
        };
        let seq =
            audit.memory_emit(&invocation, &started, &emitted).await.map_err(|unavailable| ToolError {
                reason: "audit_unavailable",
                message: format!("{path} has been written, but its row could not: {unavailable}"),
            })?;
        let answer = [
            ("row_id", row_id.into()),
            ("seq", seq.into()),
            ("path", path.into()),
            ("trace_id", trace_id.into()),
        ];
        Ok(answer.into_iter().map(|(key, value): (&str, Value)| (key.to_owned(), value)).collect())
    }
}

/// The id of the row of one call: the same whenever it is asked for, and no other call's.
fn row_id(invocation: InvocationId, call: u64) -> String {
    let hash = Sha256::new()
        .chain_update(b"cyberos-row-1\n")
        .chain_update(invocation.as_bytes())
        .chain_update(call.to_be_bytes())
        .finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    InvocationId::from_random(id).to_string()
}

fn is_kind(kind: &str) -> bool {
    let word = |w: &str| {
        w.starts_with(|c: char| c.is_ascii_lowercase())
            && w.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    let words = kind.split('.').count();
    kind.len() <= MAX_KIND && (2..=MAX_KIND_PARTS).contains(&words) && kind.split('.').all(word)
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_KIND)]
}

/// Frontmatter, if the file begins with a JSON object in fences, and what follows it.
fn split(text: &str) -> (Option<Value>, &str) {
    let fenced = text.strip_prefix(FENCE).and_then(|rest| {
        let head = &rest[..rest.floor_char_boundary(MAX_META)];
        let end = head.find("\n---\n")?;
        let meta = rpc::read_object(&rest[..end])?;
        Some((Value::Object(meta), &rest[end + "\n---\n".len()..]))
    });
    match fenced {
        Some((meta, body)) => (Some(meta), body),
        None => (None, text),
    }
}

fn failed(e: MemoryError) -> ToolError {
    let reason = match &e {
        MemoryError::NotFound { .. } => "not_found",
        MemoryError::BadPath { .. } => "invalid_path",
        MemoryError::NotAFile { .. } => "not_a_file",
        MemoryError::TooLarge { .. } => "too_large",
        MemoryError::TenantFull { .. } => MEMORY_QUOTA,
        MemoryError::InvocationFull { .. } => WRITE_QUOTA,
        MemoryError::DiskFull(_) => DISK_LOW,
        MemoryError::Io { .. } => "io_error",
    };
    if reason == "io_error" {
        tracing::error!(error = %e, "the memory store");
    }
    ToolError { reason, message: e.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_words_joined_by_dots() {
        for good in ["a.b", "note.daily", "a1_.b_2.c"] {
            assert!(is_kind(good), "{good}");
        }
        let long = format!("a.{}", "b".repeat(MAX_KIND));
        let deep = vec!["a"; MAX_KIND_PARTS + 1].join(".");
        for bad in
            ["", "a", "a.", ".a", "a..b", "A.b", "a.1", "a.b-c", "a.b/../c", "a.b\n", "é.b", &long, &deep]
        {
            assert!(!is_kind(bad), "{bad:?}");
        }
    }

    #[test]
    fn frontmatter_is_an_object_in_fences_at_the_very_beginning() {
        let (meta, body) = split("---\n{\"kind\":\"a.b\"}\n---\nbody\n---\n");
        assert_eq!((meta.unwrap()["kind"].clone(), body), (json!("a.b"), "body\n---\n"));
        for whole in [
            "",
            "body",
            "---\nkind: a.b\n---\nbody",
            "---\n[1]\n---\nx",
            "---\n{}",
            " ---\n{}\n---\n",
            "---\n{\"a\":1,\"a\":2}\n---\n",
        ] {
            assert_eq!(split(whole), (None, whole));
        }
        let deep = format!("---\n{{\"a\":{}{}}}\n---\nx", "[".repeat(100), "]".repeat(100));
        assert_eq!(split(&deep).0, None, "a meta that no answer could hold");
    }

    #[test]
    fn a_row_id_is_one_call_s_and_always_the_same() {
        let (one, other) = (InvocationId::from_random([1; 16]), InvocationId::from_random([2; 16]));
        assert_eq!(row_id(one, 1), row_id(one, 1));
        let ids = [row_id(one, 1), row_id(one, 2), row_id(other, 1)];
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert!(ids.iter().all(|id| id.parse::<InvocationId>().is_ok()));
    }
}
