//! The reader's findings as the operator's commands show them (`[6.5]`): JSON values, and the words of the command
//! line turned into a filter. Used by `control` and, for a store that can be read directly, by the CLI.

use super::accept::LOSS_ACCEPTED;
use super::clock;
use super::drops::ROWS_DROPPED;
use super::filter::{self, Filter};
use super::ledger::Known;
use super::reader::{Fault, Reader};
use super::recovery;
use super::replay;
use super::report::Report;
use super::row::Row;
use super::rows::{
    CALL_COMPLETED, CALL_STARTED, CALLS_UNRECORDED, CLOCK_STEPPED, DENIED, INVOKED_COMPLETED,
    INVOKED_STARTED, MEMORY_EMIT, NO_CONNECT, Span, TIMEOUT,
};
use super::signs::Signs;
use cyberos_proto::ids::InvocationId;
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Beside a running broker a file may be there before its row; after so long it no longer may.
const SETTLED_NS: u64 = 60 * 1_000_000_000;

/// Every kind of row that there is.
const KINDS: [&str; 12] = [
    INVOKED_STARTED,
    CALL_STARTED,
    CALL_COMPLETED,
    DENIED,
    CALLS_UNRECORDED,
    MEMORY_EMIT,
    TIMEOUT,
    NO_CONNECT,
    INVOKED_COMPLETED,
    CLOCK_STEPPED,
    ROWS_DROPPED,
    LOSS_ACCEPTED,
];

/// Walks the whole store, and compares it with what the broker that writes it knows (`known`) and with what else its state
/// directory holds: the report, with `ok`, `first_bad_seq` and `what` for those who ask no more.
pub fn verify(store: &Path, known: Option<Known>) -> Result<Value, String> {
    let unreadable = |e: std::io::Error| format!("the ledger in {} cannot be read: {e}", store.display());
    let written_now = known.is_some() || recovery::in_use(store);
    let before = written_now.then(|| clock::now_ns().saturating_sub(SETTLED_NS));
    // What has its row in the broker's memory, or in a row to come that tells of dropped ones, is not missing.
    let before = before.into_iter().chain(known.and_then(|known| known.waiting_since_ns)).min();
    let signs = recovery::state_of(store).map_or_else(Signs::default, |state| Signs::of(state, before));
    let report = match Reader::open(store) {
        // Who else would ask for it, but somebody who knows that there was one?
        Err(e)
            if e.kind() == io::ErrorKind::NotFound && (known.is_some() || signs.unexplained().is_some()) =>
        {
            let what = format!("there is no ledger any more: {e}");
            let broken = Some(Fault { seq: 1, segment: store.join("audit"), offset: 0, what });
            Report { broken, ..Report::default() }
        }
        opened => opened.and_then(|reader| reader.verify_against(known, signs)).map_err(unreadable)?,
    };
    let mut answer = serde_json::to_value(&report).map_err(|e| e.to_string())?;
    answer["ok"] = report.broken.is_none().into();
    answer["first_bad_seq"] = report.first_bad_seq().into();
    answer["what"] = report.broken.map_or(Value::Null, |fault| fault.to_string().into());
    Ok(answer)
}

/// The filter that these words mean. `since` is RFC 3339, `today`, or a duration back from now.
pub fn filter(
    since: Option<String>,
    skill: Option<String>,
    invocation: Option<String>,
    kind: Option<String>,
    denied: bool,
) -> Result<Filter, String> {
    let since_ns = since.map(|text| since_ns(&text)).transpose()?;
    if let Some(id) = &invocation
        && let Err(e) = id.parse::<InvocationId>()
    {
        return Err(format!("--invocation '{id}': {e}"));
    }
    if let Some(kind) = &kind
        && !KINDS.contains(&kind.as_str())
    {
        return Err(format!("--kind '{kind}': there is no such kind; the kinds are {}", KINDS.join(", ")));
    }
    Ok(Filter { since_ns, skill, invocation, kind, denied })
}

fn since_ns(text: &str) -> Result<u64, String> {
    if text == "today" {
        return Ok(filter::today_ns());
    }
    let at = match humantime::parse_duration(text) {
        Ok(back) => SystemTime::now().checked_sub(back),
        Err(_) => humantime::parse_rfc3339_weak(text).ok(),
    };
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let wrong = || {
        format!(
            "--since '{text}': neither a time (2026-05-16T12:00:00Z), nor 'today', nor a duration (10m, 2h, 3d)"
        )
    };
    u64::try_from(since.ok_or_else(wrong)?.as_nanos()).map_err(|_| wrong())
}

/// Gives each row that passes, as JSON with its time in words, to `each`.
pub fn show(store: &Path, filter: &Filter, mut each: impl FnMut(Value)) -> Result<(), String> {
    let unreadable = |e: std::io::Error| format!("the ledger in {} cannot be read: {e}", store.display());
    for row in filter::show(store, filter.clone()).map_err(unreadable)? {
        each(row_json(&row.map_err(|e| e.to_string())?));
    }
    Ok(())
}

/// A row as JSON, with its time in words.
pub fn row_json(row: &Row) -> Value {
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_nanos(row.ts_ns)).to_string();
    let mut value = json!({ "time": time });
    if let (Value::Object(to), Ok(Value::Object(from))) = (&mut value, serde_json::to_value(row)) {
        to.extend(from);
    }
    value
}

/// An invocation told from its rows; none if the ledger does not know it. `untold` are calls that no row tells of yet.
pub fn replay(store: &Path, invocation: &str, untold: Option<Span>) -> Result<Option<Value>, String> {
    let mut told = replay::replay(store, invocation).map_err(|e| e.to_string())?;
    if let Some(told) = &mut told {
        told.unrecorded.extend(untold);
    }
    told.map(|told| serde_json::to_value(told).map_err(|e| e.to_string())).transpose()
}

/// The refused calls of an invocation (`call`: this one, whatever became of it), as an array.
pub fn why(
    store: &Path,
    invocation: &str,
    call: Option<u64>,
    untold: Option<Span>,
) -> Result<Option<Value>, String> {
    let told = replay::why(store, invocation, call, untold).map_err(|e| e.to_string())?;
    told.map(|told| serde_json::to_value(told).map_err(|e| e.to_string())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_can_name_no_row_are_refused_and_what_could_is_said() {
        let of = |invocation: Option<&str>, kind: Option<&str>| {
            filter(None, None, invocation.map(str::to_owned), kind.map(str::to_owned), false)
        };
        assert!(of(Some("zz"), None).unwrap_err().contains("UUID"));
        let e = of(None, Some("bogus")).unwrap_err();
        assert!(KINDS.iter().all(|kind| e.contains(kind)), "{e}");
        for kind in KINDS {
            assert!(of(Some("019e2e8f-3a2b-4b6d-9c4e-000000000001"), Some(kind)).is_ok(), "{kind}");
        }
    }

    #[test]
    fn since_takes_times_durations_and_today() {
        for good in ["2026-05-16T12:00:00Z", "2026-05-16 12:00:00", "10m", "2h 5m", "3d", "today"] {
            assert!(since_ns(good).is_ok(), "{good}");
        }
        for bad in ["", "yesterday", "2026-13-01T00:00:00Z", "-5m"] {
            assert!(since_ns(bad).unwrap_err().contains("--since"), "{bad}");
        }
    }
}
