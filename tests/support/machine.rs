//! What the machine shows of processes and mounts. Of what has ended meanwhile it shows nothing, which is no error.

use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;

/// /proc/PID/status.
pub(crate) fn status(pid: impl Into<i32>) -> String {
    fs::read_to_string(format!("/proc/{}/status", pid.into())).unwrap_or_default()
}

/// Whether it is there and does not only wait for its parent to look.
pub(crate) fn runs(pid: impl Into<i32>) -> bool {
    let status = status(pid);
    !status.is_empty() && !status.contains("\nState:\tZ")
}

/// Whether it has ended and waits for its parent to look.
pub(crate) fn is_zombie(pid: impl Into<i32>) -> bool {
    status(pid).contains("\nState:\tZ")
}

/// How many descriptors it has open.
pub(crate) fn descriptors(pid: impl Into<i32>) -> usize {
    fs::read_dir(format!("/proc/{}/fd", pid.into())).map_or(0, Iterator::count)
}

/// Its children, those that any of its threads made.
pub(crate) fn children(pid: impl Into<i32>) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.into())).into_iter().flatten().flatten();
    let lists = threads.map(|t| fs::read_to_string(t.path().join("children")).unwrap_or_default());
    let numbers: Vec<String> =
        lists.flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    numbers.iter().filter_map(|p| p.parse().ok()).map(Pid::from_raw).collect()
}

/// These processes and all that descend from them.
pub(crate) fn with_descendants(mut pids: Vec<Pid>) -> Vec<Pid> {
    let mut at = 0;
    while at < pids.len() {
        pids.extend(children(pids[at]));
        at += 1;
    }
    pids
}

/// The mounts of this namespace. Others may mount at names that are no text.
pub(crate) fn mountinfo() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned()
}

/// Where each of them is, in the order in which they were made.
pub(crate) fn mount_points() -> Vec<PathBuf> {
    mountinfo().lines().filter_map(|l| Some(l.split(' ').nth(4)?.into())).collect()
}
