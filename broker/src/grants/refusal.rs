//! Refusals that no grant is behind, and the parts that all have. Only this room makes a [`Denial`]: what a refusal says
//! to the skill, to the ledger and to the operator is worded here and in [`super::decide`], and nowhere else.

use crate::beneath::FileTarget;
use crate::call::{DISK_LOW, Denial, DenialClass, MEMORY_QUOTA, ToolError, WRITE_QUOTA};
use std::path::Path;

/// `data.reason` of a call that the run's rows leave no room for (`[3.4]`).
const LEDGER_QUOTA: &str = "ledger_quota";

/// A refusal whose reason is its class.
fn plain(class: DenialClass, sentence: String) -> Denial {
    Denial {
        class,
        reason: class.as_str(),
        asked: None,
        subject: String::new(),
        rule: class.as_str().to_owned(),
        sentence,
    }
}

/// One for a quota; the reason says which.
fn quota(reason: &'static str, sentence: String) -> Denial {
    Denial { reason, rule: reason.to_owned(), ..plain(DenialClass::QuotaExceeded, sentence) }
}

/// The deadline has passed (`[2.4]`).
pub(super) fn deadline() -> Denial {
    plain(DenialClass::DeadlineExceeded, "the deadline has passed; no call is served any more".to_owned())
}

/// A request that nobody has read.
pub(super) fn unread(sentence: String) -> Denial {
    plain(DenialClass::RequestTooLarge, sentence)
}

/// A call that comes after the rows of its run have used up their quota (`[2.8]`).
pub(super) fn ledger_quota() -> Denial {
    quota(LEDGER_QUOTA, "the rows of its calls have used up quota.invocation_ledger_mb".to_owned())
}

/// A call that would write more than is left.
pub(super) fn write_quota(most: u64) -> Denial {
    quota(WRITE_QUOTA, format!("an invocation may write {most} bytes (quota.invocation_write_mb)"))
}

/// The row of a call cannot be taken: nothing runs unrecorded.
pub fn unavailable(why: String) -> Denial {
    plain(DenialClass::AuditUnavailable, why)
}

/// The refusal that a tool's failure is: a quota turned out to be used up once the call ran (`[2.8]`).
pub fn late(failed: &ToolError) -> Option<Denial> {
    [WRITE_QUOTA, MEMORY_QUOTA, DISK_LOW]
        .contains(&failed.reason)
        .then(|| quota(failed.reason, failed.message.clone()))
}

/// A granted name that leads to something else; `judged` is what the rules say of that, if it is known what it is. To the
/// skill all of them look the same, else a link would tell what there is outside.
pub(super) fn led_outside(target: &FileTarget, led_to: Option<&Path>, judged: Option<Denial>) -> Denial {
    let denial = judged.unwrap_or_else(|| Denial {
        asked: Some(target.path.to_string_lossy().into_owned()),
        subject: led_to.unwrap_or(&target.path).to_string_lossy().into_owned(),
        rule: format!("beneath {}", target.root.display()),
        ..plain(
            DenialClass::FileViolation,
            format!(
                "{:?} is granted by its name, but leads out of {:?} (a symlink, or kernel state mounted \
                 there). Name the file by its real path and grant that.",
                target.path, target.root
            ),
        )
    });
    Denial { reason: DenialClass::FileViolation.as_str(), ..denial }
}

/// What is still to be filled in of a refusal of a tool.
pub(super) fn tool_denial(reason: &'static str) -> Denial {
    Denial { reason, rule: String::new(), ..plain(DenialClass::ToolNotAllowed, String::new()) }
}

/// The same of a path or host.
pub(super) fn path_denial(class: DenialClass, reason: &'static str, asked: &str) -> Denial {
    Denial { class, asked: Some(asked.to_owned()), ..tool_denial(reason) }
}
