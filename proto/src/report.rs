//! What a sandbox is really made of on this kernel (`[10.6]`).

use serde::{Deserialize, Serialize};

/// Something a sandbox can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Feature {
    /// pid, mount, network, IPC and UTS namespaces. Never skipped.
    Namespaces,
    /// A uid and gid of its own. Never skipped.
    OwnUid,
    /// no_new_privs. Never skipped.
    NoNewPrivs,
    /// No capability in any set. Never skipped.
    NoCapabilities,
    /// The system-call filter. Never skipped.
    Seccomp,
    /// Resource limits.
    Rlimits,
    /// memory, pids and cpu limits by control group.
    Cgroup,
    /// Landlock rules with scopes.
    Landlock,
}

impl Feature {
    /// The word used in rows, status and `doctor`.
    pub fn as_str(self) -> &'static str {
        match self {
            Feature::Namespaces => "namespaces",
            Feature::OwnUid => "own_uid",
            Feature::NoNewPrivs => "no_new_privs",
            Feature::NoCapabilities => "no_capabilities",
            Feature::Seccomp => "seccomp",
            Feature::Rlimits => "rlimits",
            Feature::Cgroup => "cgroup",
            Feature::Landlock => "landlock",
        }
    }
}

/// Which control groups hold a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cgroup {
    /// None: [`Feature::Cgroup`] is skipped.
    Absent,
    /// Version 1: memory and pids.
    V1,
    /// Version 2: memory, pids and cpu.
    V2,
}

/// How a sandbox is without network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// An empty network namespace of its own.
    Own,
}

/// What the kernel really enforced on one sandbox (`[10.6]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// The leased uid; the gid is the same number.
    pub uid: u32,
    /// Features in force.
    pub enforced: Vec<Feature>,
    /// Features that this kernel or this build does not give.
    pub skipped: Vec<Feature>,
    /// Which control groups.
    pub cgroup: Cgroup,
    /// Landlock's ABI as far as it is used; 0 without Landlock.
    pub landlock: u8,
    /// How it is without network.
    pub network: Network,
}

impl SandboxReport {
    /// The report of a sandbox that runs: it would not, had a step failed that is never skipped. `landlock` is the ABI in
    /// use.
    pub fn new(uid: u32, cgroup: Cgroup, landlock: u8, network: Network) -> Self {
        use Feature::*;
        let mut enforced = vec![Namespaces, OwnUid, NoNewPrivs, NoCapabilities, Seccomp, Rlimits];
        let mut skipped = Vec::new();
        for (feature, is) in [(Feature::Cgroup, cgroup != self::Cgroup::Absent), (Landlock, landlock > 0)] {
            if is { &mut enforced } else { &mut skipped }.push(feature);
        }
        SandboxReport { uid, enforced, skipped, cgroup, landlock, network }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_each_feature_once() {
        for (cgroup, landlock, skipped) in [
            (Cgroup::V1, 6, vec![]),
            (Cgroup::Absent, 6, vec![Feature::Cgroup]),
            (Cgroup::V2, 0, vec![Feature::Landlock]),
            (Cgroup::Absent, 0, vec![Feature::Cgroup, Feature::Landlock]),
        ] {
            let report = SandboxReport::new(7, cgroup, landlock, Network::Own);
            assert_eq!((report.uid, report.skipped.clone()), (7, skipped));
            assert_eq!(report.enforced.len() + report.skipped.len(), 8);
        }
    }
}
