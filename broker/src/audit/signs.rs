//! What else in a state directory tells of rows that there must have been: memory files that MemoryEmit wrote, output of
//! runs, consents. Whoever cuts the ledger's end and sets HEAD back, or removes the store, has to think of all of them
//! (`[6.5]`). `verify` compares them with the rows, and a start looks whether there are any when it finds no row. It
//! believes nothing of what it reads, and never writes.

use super::accept::LOSS_ACCEPTED;
use super::drops::{ROWS_DROPPED, RowsDropped};
use super::frame;
use super::row::Row;
use super::rows::{CALL_COMPLETED, CALL_STARTED, DENIED, DURATION, INVOKED_STARTED, MEMORY_EMIT};
use cyberos_proto::ids::{InvocationId, TenantId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirEntry};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Frontmatter of a memory file that is longer than this is not ours.
const MAX_META: u64 = 64 << 10;
/// A file and its row are dated one after the other; a smaller step of the clock between the two has no row.
const CLOCK_MAY_STEP_NS: u64 = 60 * 1_000_000_000;

/// A memory file, as it says itself when and by which call it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Emitted {
    trace_id: String,
    ts_ns: u64,
}

/// The signs that no row has explained yet.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// By tenant and path.
    emitted: BTreeMap<(String, String), Emitted>,
    /// Runs that printed something, and when they did last, ns since 1970.
    runs: BTreeMap<String, u64>,
    /// Names of consents' files.
    consents: BTreeSet<String>,
    /// Traces of MemoryEmit calls that did not end well, or not at all: their file may be there without its row.
    unsure: HashMap<(String, u64), String>,
    unsure_traces: BTreeSet<String>,
}

impl Signs {
    /// Those in `state` (STATE). With `before_ns`, only what is older: beside a running broker a file may be there a
    /// moment before its row.
    pub fn of(state: &Path, before_ns: Option<u64>) -> Signs {
        let mut signs = Signs::default();
        let settled = |ns: u64| before_ns.is_none_or(|before| ns < before);
        for tenant in entries(&state.join("tenants")) {
            let Some(id) = name(&tenant).filter(|id| id.parse::<TenantId>().is_ok()) else { continue };
            let root = tenant.path();
            each_file(&root.join("memories"), &mut |path| {
                let Ok(below) = path.strip_prefix(&root) else { return };
                let (Some(below), Some(emitted)) = (below.to_str(), emitted(path)) else { return };
                if settled(emitted.ts_ns) {
                    signs.emitted.insert((id.clone(), below.to_owned()), emitted);
                }
            });
        }
        for run in entries(&state.join("logs")) {
            let Some(id) = name(&run).filter(|id| id.parse::<InvocationId>().is_ok()) else { continue };
            // A start that failed leaves a folder too, but nothing has been printed then.
            let printed = |stream| fs::symlink_metadata(run.path().join(stream)).ok().filter(|m| m.len() > 0);
            let when = ["stdout", "stderr"].into_iter().filter_map(printed).map(|m| modified_ns(&m)).max();
            if let Some(when) = when.filter(|when| settled(*when)) {
                signs.runs.insert(id, when);
            }
        }
        let consents = entries(&state.join("approvals"));
        signs.consents = consents.iter().filter_map(name).filter(|n| n.ends_with(".json")).collect();
        signs
    }

    /// Takes off what `row` explains.
    pub(super) fn see(&mut self, row: &Row) {
        let call = || Some((row.text("invocation_id")?.to_owned(), row.number("call")?));
        match row.op.as_str() {
            INVOKED_STARTED => drop(row.text("invocation_id").and_then(|id| self.runs.remove(id))),
            MEMORY_EMIT => {
                let key = (row.text("tenant_id").unwrap_or_default().to_owned(), row.path.clone());
                let known = |e: &Emitted| {
                    row.text("trace_id") == Some(e.trace_id.as_str())
                        && row.ts_ns.saturating_add(CLOCK_MAY_STEP_NS) >= e.ts_ns
                };
                if self.emitted.get(&key).is_some_and(known) {
                    self.emitted.remove(&key);
                }
            }
            CALL_STARTED if row.text("tool_name") == Some("MemoryEmit") && !self.emitted.is_empty() => {
                if let (Some(call), Some(trace)) = (call(), row.text("trace_id")) {
                    self.unsure.insert(call, trace.to_owned());
                }
            }
            CALL_COMPLETED | DENIED if !self.unsure.is_empty() => {
                let Some(trace) = call().and_then(|call| self.unsure.remove(&call)) else { return };
                let well = row.text("outcome") == Some("success")
                    || row.extra.contains_key(DURATION) && row.op == DENIED;
                if !well {
                    self.unsure_traces.insert(trace);
                }
            }
            // Whoever accepted a loss saw that these had no rows.
            LOSS_ACCEPTED => {
                self.emitted.retain(|_, e| e.ts_ns > row.ts_ns);
                self.runs.retain(|_, when| *when > row.ts_ns);
            }
            // What happened while the operator preferred calls to rows has none; what did before or after must have one.
            ROWS_DROPPED => {
                let Some(dropped) = RowsDropped::of(row) else { return };
                self.emitted.retain(|_, e| !dropped.covers(e.ts_ns));
                for run in &dropped.runs {
                    self.runs.remove(run);
                }
                if dropped.more_runs > 0 {
                    self.runs.retain(|_, when| !dropped.covers(*when));
                }
            }
            _ => {}
        }
    }

    /// What no row has explained, in words; none if nothing is left.
    pub(super) fn unexplained(&self) -> Option<String> {
        let open: BTreeSet<&String> = self.unsure.values().chain(&self.unsure_traces).collect();
        let mut left = self.emitted.iter().filter(|(_, e)| !open.contains(&e.trace_id));
        let memory = left.next().map(|((tenant, path), _)| {
            let more = left.count();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("the memory {path} of tenant {tenant}{more} was written by a call that no row tells of")
        });
        let run = self.runs.keys().next().map(|id| {
            let n = self.runs.len();
            format!("{n} runs have printed something that no row tells of, e.g. {id}")
        });
        let found: Vec<String> = memory.into_iter().chain(run).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// What tells, without a single row, that there were some. Consents leave no row: they tell of a store, not of rows.
    pub(super) fn of_a_lost_store(&self, had_head: bool) -> Option<String> {
        let consents = self.consents.len();
        match self.unexplained() {
            Some(found) => Some(found),
            None if consents > 0 && !had_head => Some(format!("there are {consents} consents (approvals/)")),
            None => None,
        }
    }
}

fn entries(dir: &Path) -> Vec<DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten().collect()
}

fn name(entry: &DirEntry) -> Option<String> {
    entry.file_name().into_string().ok()
}

fn modified_ns(meta: &fs::Metadata) -> u64 {
    let (s, ns) = (u64::try_from(meta.mtime()).unwrap_or(0), u64::try_from(meta.mtime_nsec()).unwrap_or(0));
    s.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Every regular file below `dir`; no link is followed.
fn each_file(dir: &Path, each: &mut dyn FnMut(&Path)) {
    let mut open: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in entries(&dir) {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => each(&entry.path()),
                _ => {}
            }
        }
    }
}

/// What MemoryEmit wrote at the head of a file; none for a file that somebody else put there.
fn emitted(path: &Path) -> Option<Emitted> {
    let mut head = Vec::new();
    frame::open_regular(path).ok()?.take(MAX_META).read_to_end(&mut head).ok()?;
    let meta = head.strip_prefix(b"---\n")?;
    let end = meta.windows(5).position(|w| w == b"\n---\n")?;
    let meta: Value = serde_json::from_slice(&meta[..end]).ok()?;
    let (trace_id, ts_ns) = (meta["trace_id"].as_str()?.to_owned(), meta["ts"].as_u64()?);
    meta["skill_id"].is_string().then_some(Emitted { trace_id, ts_ns })
}
