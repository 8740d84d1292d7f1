//! What a lease's uid owns, as names: its invocation's socket (`[2.2]`), locks, processes. It opens none of them.

use cyberos_proto::ids::InvocationId;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

const PREFIX: &str = "cyberos-skill-broker.";
const SUFFIX: &str = ".sock";

/// The socket of an invocation.
pub(crate) fn socket(invocation: InvocationId) -> PathBuf {
    Path::new("/tmp").join(format!("{PREFIX}{invocation}{SUFFIX}"))
}

/// Whether a file of that name in /tmp has exactly the name of some invocation's socket.
pub(crate) fn is_socket(name: &str) -> bool {
    let id = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)?.parse().ok());
    id.is_some_and(|id| socket(id) == Path::new("/tmp").join(name))
}

/// The name of a mount point's lock among those of blocks, which are numbers.
pub(crate) fn mount_lock(point: &Path) -> Option<String> {
    point.to_str().map(|name| format!("mount{}", name.replace('/', "+")))
}

/// The uids in `range` that the process has of which /proc/PID/status is this, unless it is a zombie.
pub(crate) fn runs_as(status: &str, range: &RangeInclusive<u32>) -> Vec<u32> {
    let field = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)).map_or("", str::trim);
    let found = field("Uid:").split_whitespace().filter_map(|u| u.parse().ok()).filter(|u| range.contains(u));
    if field("State:").starts_with(['Z', 'X']) { Vec::new() } else { found.collect() }
}

/// The uids in `range` that have keys, of what /proc/key-users says.
pub(crate) fn with_keys(users: &str, range: &RangeInclusive<u32>) -> Vec<u32> {
    let uids = users.lines().filter_map(|line| line.split(':').next()?.trim().parse().ok());
    uids.filter(|uid| range.contains(uid)).collect()
}

/// The processes that a block's lock remembers, one a line, and how they are written there.
pub(crate) fn remembered(lock: &str) -> Vec<i32> {
    lock.lines().filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_socket_is_known_by_its_name(bytes: [u8; 16]) {
            let path = socket(InvocationId::from_random(bytes));
            prop_assert!(is_socket(path.file_name().unwrap().to_str().unwrap()));
        }

        #[test]
        fn no_other_name_is_one(name in "(cyberos-skill-broker\\.)?[0-9a-f/.-]{0,40}(\\.sock)?") {
            let right = |n: &str| n.parse().is_ok_and(|id| socket(id).ends_with(&name));
            prop_assert_eq!(is_socket(&name), name.get(21..57).is_some_and(right));
        }
    }

    #[test]
    fn only_the_canonical_name_counts() {
        let name = "cyberos-skill-broker.00000000-0000-4000-8000-00000000000a.sock";
        assert!(is_socket(name));
        for other in
            [&name.to_uppercase(), &name.replace("00a", "00A"), "cyberos-skill-broker.x.sock", &name[1..]]
        {
            assert!(!is_socket(other), "{other}");
        }
    }

    #[test]
    fn locks_of_mount_points_are_one_name_and_no_number() {
        let name = mount_lock(Path::new("/a/b")).unwrap();
        assert_eq!(name, "mount+a+b");
    }

    #[test]
    fn a_process_counts_by_any_of_its_uids_until_it_is_a_zombie() {
        let status =
            |state: &str, uids: &str| format!("Name:\tx\nState:\t{state}\nUid:\t{uids}\nGid:\t5 5 5 5\n");
        for (state, uids, is) in [
            ("S (sleeping)", "5\t5\t5\t5", true),
            ("R (running)", "0\t0\t0\t6", true),
            ("R (running)", "0\t0\t0\t0", false),
            ("Z (zombie)", "5\t5\t5\t5", false),
            ("X (dead)", "5\t5\t5\t5", false),
        ] {
            assert_eq!(!runs_as(&status(state, uids), &(5..=6)).is_empty(), is, "{state} {uids}");
        }
        assert!(runs_as("", &(0..=6)).is_empty());
        assert_eq!(runs_as(&status("S", "5 7 6 4"), &(5..=6)), [5, 6]);
    }

    #[test]
    fn users_with_keys_and_remembered_processes_are_read() {
        let users = "    0:     9 8/8 8/1000000 150/25000000\n 1900000005:     1 1/1 1/200 9/20000\n";
        assert_eq!(with_keys(users, &(1_900_000_000..=1_900_000_255)), [1_900_000_005]);
        assert!(with_keys("", &(0..=9)).is_empty());
        assert_eq!(remembered("7\nx\n\n90\n"), [7, 90]);
    }
}
