//! What a sandbox is really made of, as the helper says (`[10.6]`): in words.

use cyberos_proto::ids::InvocationId;
use cyberos_proto::plan::{Cgroup, Feature, Network, SandboxReport};
use serde_json::{Value, json};

/// A sandbox's report as rows, `status` and `run --json` have it.
pub fn report_json(report: &SandboxReport) -> Value {
    let cgroup = match report.cgroup {
        Cgroup::Absent => "absent",
        Cgroup::V1 => "v1",
        Cgroup::V2 => "v2",
    };
    let network = match report.network {
        Network::Own => "own",
    };
    json!({
        "enforced": words(&report.enforced),
        "skipped": words(&report.skipped),
        "cgroup": cgroup,
        "landlock_abi": report.landlock,
        "network": network,
    })
}

fn words(features: &[Feature]) -> Vec<&'static str> {
    features.iter().map(|f| f.as_str()).collect()
}

/// Says in the log what a sandbox runs without.
pub(super) fn warn_of_skipped(invocation: InvocationId, report: &SandboxReport) {
    if !report.skipped.is_empty() {
        let skipped = words(&report.skipped).join(", ");
        tracing::warn!(%invocation, skipped, "the sandbox lacks what this machine does not give; `cyberos doctor` says what that weakens");
    }
}
