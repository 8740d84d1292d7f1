//! Control groups as data: which values bound a sandbox in either version, and how an instance's directory is called.
//! The helper writes them.

use cyberos_proto::plan::Cgroup;

/// What an instance's directory is called before its pid namespace and pid.
const INSTANCE: &str = "cyberos-sandboxes.";

/// The directory of the helper with that pid in the pid namespace of that inode, in each hierarchy.
pub(crate) fn instance(namespace: u64, pid: u32) -> String {
    format!("{INSTANCE}{namespace}.{pid}")
}

/// The pid in such a name, if it is of that namespace: who lives in another cannot be told from here.
pub(crate) fn pid_of(namespace: u64, name: &str) -> Option<u32> {
    let (of, pid) = name.strip_prefix(INSTANCE)?.split_once('.')?;
    (of.parse() == Ok(namespace)).then(|| pid.parse().ok())?
}

/// Whether a `cgroup.controllers` has what bounds a sandbox.
pub(crate) fn suffices(controllers: &str) -> bool {
    ["memory", "pids"].iter().all(|c| controllers.split_whitespace().any(|has| has == *c))
}

/// One value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// In which hierarchy: 0 for memory and 1 for pids in version 1, 0 for both in version 2.
    pub(crate) hierarchy: usize,
    /// The file in the group.
    pub(crate) file: &'static str,
    /// What it is to hold.
    pub(crate) value: String,
    /// Whether the file may be missing.
    pub(crate) optional: bool,
}

/// What bounds all processes of a sandbox together, in this order; its init is one more than `processes`.
pub(crate) fn settings(version: Cgroup, memory_mb: u32, processes: u32, cpu_percent: u32) -> Vec<Setting> {
    let set = |hierarchy, file, value: &dyn ToString, optional| Setting {
        hierarchy,
        file,
        value: value.to_string(),
        optional,
    };
    let bytes = u64::from(memory_mb) << 20;
    let pids = |hierarchy| set(hierarchy, "pids.max", &processes.saturating_add(1), false);
    // Swap is not limited where the kernel does not count it, nor cpu where that is not handed on.
    match version {
        Cgroup::Absent => Vec::new(),
        Cgroup::V1 => vec![
            pids(1),
            // Memory with swap can never be less than memory without, as after a smaller sandbox of this lease.
            set(0, "memory.memsw.limit_in_bytes", &"-1", true),
            set(0, "memory.limit_in_bytes", &bytes, false),
            set(0, "memory.memsw.limit_in_bytes", &bytes, true),
        ],
        Cgroup::V2 => vec![
            pids(0),
            set(0, "memory.max", &bytes, false),
            set(0, "memory.swap.max", &"0", true),
            set(0, "cpu.max", &format!("{} 100000", u64::from(cpu_percent) * 1000), true),
        ],
    }
}

/// Where a group says how many of its processes were ended for want of memory: hierarchy as above, and file.
pub(crate) fn kills_file(version: Cgroup) -> Option<(usize, &'static str)> {
    match version {
        Cgroup::Absent => None,
        Cgroup::V1 => Some((0, "memory.oom_control")),
        Cgroup::V2 => Some((0, "memory.events")),
    }
}

/// How many, by that file's text.
pub(crate) fn kills(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_memory_are_counted_in_either_versions_words() {
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(kills("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\n"), 0);
        assert_eq!(kills_file(Cgroup::Absent), None);
    }

    #[test]
    fn each_version_is_bounded_in_its_own_words() {
        let said = |version| {
            let all = settings(version, 64, 8, 150);
            let said =
                all.iter().map(|s| format!("{}{}={}", s.file, if s.optional { "?" } else { "" }, s.value));
            said.collect::<Vec<_>>()
        };
        assert_eq!(
            said(Cgroup::V2),
            ["pids.max=9", "memory.max=67108864", "memory.swap.max?=0", "cpu.max?=150000 100000"]
        );
        assert_eq!(
            said(Cgroup::V1),
            [
                "pids.max=9",
                "memory.memsw.limit_in_bytes?=-1",
                "memory.limit_in_bytes=67108864",
                "memory.memsw.limit_in_bytes?=67108864"
            ]
        );
        assert!(said(Cgroup::Absent).is_empty());
        let most = settings(Cgroup::V2, u32::MAX, u32::MAX, u32::MAX);
        assert_eq!((most[0].value.as_str(), most[1].value.as_str()), ("4294967295", "4503599626321920"));
        assert!(
            settings(Cgroup::V1, 1, 1, 1).iter().all(|s| (s.hierarchy == 0) == s.file.starts_with("memory."))
        );
        assert!(settings(Cgroup::V2, 1, 1, 1).iter().all(|s| s.hierarchy == 0));
    }

    #[test]
    fn names_and_controllers_are_read_exactly() {
        assert_eq!(pid_of(5, &instance(5, 7)), Some(7));
        assert_eq!(pid_of(6, &instance(5, 7)), None);
        for other in ["cyberos-sandboxes.", "cyberos-sandboxes.x", "7", "cyberos-sandboxes.-1"] {
            assert_eq!(pid_of(5, other), None, "{other}");
        }
        assert!(suffices("cpu memory pids\n") && !suffices("cpu memory") && !suffices("memory pidsx"));
    }
}
