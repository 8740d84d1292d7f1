//! What `cyberos status` and `cyberos skill show` say: the broker and one skill, looked at and told. It changes nothing.
//! Called by `control`.

use crate::approvals::{Approval, Wishes};
use crate::call::millis;
use crate::exit::OperatorError;
use crate::grants::{Grants, Limits};
use crate::operator::skill_json;
use crate::run::{self, Shown};
use crate::service::Broker;
use crate::skill::Skill;
use cyberos_proto::ids::SkillName;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;

/// `cyberos status` (`[7.1]`).
pub async fn status(broker: &Broker) -> Value {
    let audit = broker.audit.status();
    let now = Instant::now();
    let invocations: Vec<Value> = broker
        .every()
        .iter()
        .map(|r| {
            let mut about = r.about.clone();
            about["hidden"] = r.hidden().borrow().clone().into();
            about["calls_unrecorded"] = broker.audit.unrecorded(r.invocation.id).total.into();
            about["remaining_ms"] = millis(r.deadline.saturating_duration_since(now)).into();
            about
        })
        .collect();
    let skillfs = match broker.view.status().await {
        Ok(s) => json!({
            "mounted": s.mounted, "mount": s.mount, "sources": s.sources,
            "decision_command": s.decision_command, "skills": s.total, "undecided": s.undecided,
        }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    json!({
        "active_invocations": invocations.len(),
        "tool_calls_today": audit.tool_calls_today,
        "denied_today": audit.denied_today,
        "unrecorded_today": audit.unrecorded_today,
        "invocations": invocations,
        "audit": audit.ledger,
        "skillfs": skillfs,
        "state": broker.config.state,
        "work": broker.config.work,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// `cyberos skill show` (`[4.0]`).
pub async fn show(broker: &Arc<Broker>, name: &SkillName) -> Result<Value, OperatorError> {
    let Shown { state, sealed } = run::shown(broker, name).await?;
    let skill = run::load(name, &sealed)?;
    let approval = broker.approval(&skill)?;
    let approved = approval.as_ref().is_some_and(|a| a.covers(&skill));
    let (skill, grants) = run::compiled(broker, skill, approval).await?;
    let consent = Approval::new(&skill, broker.config.tenant, "", 0);
    let (skill, consented) = run::compiled(broker, skill, Some(consent)).await?;
    let wishes = Wishes::of(&skill);
    let mut answer = skill_json(&state);
    answer["id"] = skill.id.clone().into();
    answer["version"] = skill.version.clone().into();
    answer["description"] = skill.description.clone().into();
    answer["content_digest"] = sealed.digest().into();
    answer["signature"] = "none".into();
    answer["wishes"] = json!(wishes);
    answer["wishes_digest"] = wishes.digest().into();
    answer["approved"] = approved.into();
    answer["granted_tools"] = broker.granted_tools(&grants).into();
    answer["bash_directories"] = bash_directories(&grants);
    answer["with_consent"] = with_consent(&skill, &consented);
    answer["limits"] = limits_json(grants.limits());
    answer["not_granted"] = broker.not_granted(&grants).into();
    Ok(answer)
}

/// What the wishes come to once they are consented to: of that an operator must not lose sight.
fn with_consent(skill: &Skill, grants: &Grants) -> Value {
    let (directories, writable) = grants.directories();
    let directories: Vec<&str> = directories.iter().map(|d| d.path.as_str()).collect();
    let (writes, reads) = if writable { (directories, Vec::new()) } else { (Vec::new(), directories) };
    let patterns = skill.extensions.allowed_files.iter().map(|pattern| &pattern.value);
    json!({ "bash_writes": writes, "bash_reads": reads, "reaches": crate::grants::reaches(patterns) })
}

/// What Bash would see, and what of it it could change.
fn bash_directories(grants: &Grants) -> Value {
    let (directories, writable) = grants.directories();
    let how = if writable { "may write what belongs to user cyberos" } else { "read-only" };
    directories.iter().map(|d| format!("{} ({how})", d.path.as_str())).collect()
}

fn limits_json(limits: Limits) -> Value {
    json!({
        "memory_mb": limits.memory_mb,
        "max_processes": limits.max_processes,
        "tmp_mb": limits.tmp_mb,
        "effort_minutes": limits.effort_minutes,
    })
}
