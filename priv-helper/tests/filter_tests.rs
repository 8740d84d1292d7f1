//! The compiled filters themselves, of both architectures, run by an interpreter of classic BPF: whatever machine this is,
//! no value that is not on a list gets through, and no argument's upper half changes that (`[10.5]`). What the kernel
//! then makes of a call is measured elsewhere, in real sandboxes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

#[path = "filter/interpreter_tests.rs"]
mod interpreter;
use interpreter::{
    ALLOW, ARCHS, ASK, ENOSYS, KILL_PROCESS, Named, PROFILES, Stack, errno, helpers, sandboxes,
};

/// A list of values: which argument, what is on it, what is on it for the helper besides, and the errno of all others.
struct List {
    index: usize,
    values: BTreeMap<u32, String>,
    helpers: BTreeMap<u32, String>,
    errno: u32,
}

/// The lists as they are kept, by system call.
fn lists() -> BTreeMap<String, List> {
    let mut all = BTreeMap::new();
    for file in ["ioctls", "values"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/seccomp/{file}.json"));
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let number = |v: &Value| u32::try_from(v.as_u64().unwrap()).unwrap();
        for rule in file["filter"].as_array().unwrap() {
            let list = &rule["none_of"];
            let values = |of: &Value| match of.as_object() {
                Some(of) => of.iter().map(|(name, v)| (number(v), name.clone())).collect(),
                None => BTreeMap::new(),
            };
            let list = List {
                index: number(&list["index"]) as usize,
                values: values(&list["values"]),
                helpers: values(&list["helper"]),
                errno: number(&file["match_action"]["errno"]),
            };
            assert!(list.values.len() > 10, "{rule}");
            for syscall in rule["syscalls"].as_array().unwrap() {
                assert!(all.insert(syscall.as_str().unwrap().to_owned(), List { ..copy(&list) }).is_none());
            }
        }
    }
    assert_eq!(all.keys().collect::<Vec<_>>(), ["fcntl", "ioctl", "madvise", "prctl"]);
    all
}

fn copy(list: &List) -> List {
    List { values: list.values.clone(), helpers: list.helpers.clone(), ..*list }
}

#[test]
fn a_listed_value_gets_through_and_nothing_beside_it() {
    for (syscall, list) in lists() {
        let known = list.values.keys().chain(list.helpers.keys());
        let near = known.flat_map(|v| [*v, v.wrapping_sub(1), v.wrapping_add(1), v ^ 1 << 31, v ^ 1 << 16]);
        let tried: Vec<u32> = near.chain(0..4096).chain([u32::MAX]).collect();
        for stack in sandboxes() {
            for value in &tried {
                let answer = stack.value(&syscall, list.index, *value);
                let right = list.values.contains_key(value) == (answer == ALLOW) && answer != KILL_PROCESS;
                assert!(right, "{}: {syscall} of {value:#x} is answered {answer:#x}", stack.name);
            }
        }
        for stack in helpers() {
            for value in &tried {
                let listed = list.values.contains_key(value) || list.helpers.contains_key(value);
                let wanted = if listed { ALLOW } else { errno(list.errno) };
                assert_eq!(
                    stack.value(&syscall, list.index, *value),
                    wanted,
                    "{}: {syscall} {value:#x}",
                    stack.name
                );
            }
        }
    }
}

#[test]
fn what_reserves_merges_shares_or_types_is_refused_in_every_profile() {
    let refused: [(&str, usize, Named); 4] = [
        (
            "ioctl",
            1,
            &[
                ("FS_IOC_RESVSP", 0x4030_5828),
                ("FS_IOC_RESVSP64", 0x4030_582a),
                ("FS_IOC_UNRESVSP64", 0x4030_582b),
                ("FS_IOC_ZERO_RANGE", 0x4030_5839),
                ("XFS_IOC_ALLOCSP64", 0x4030_5824),
                ("XFS_IOC_FREESP64", 0x4030_5825),
                ("EXT4_IOC_MOVE_EXT", 0xc028_660f),
                ("EXT4_IOC_SWAP_BOOT", 0x6611),
                ("FICLONE", 0x4004_9409),
                ("FICLONERANGE", 0x4020_940d),
                ("FIDEDUPERANGE", 0xc018_9436),
                ("FS_IOC_SETFLAGS", 0x4008_6602),
                ("FS_IOC_FSSETXATTR", 0x401c_5820),
                ("FS_IOC_ENABLE_VERITY", 0x4080_6685),
                ("FIFREEZE", 0xc004_5877),
                ("FIBMAP", 1),
                ("FS_IOC_FIEMAP", 0xc020_660b),
                ("TIOCSTI", 0x5412),
                ("TIOCLINUX", 0x541c),
                ("TIOCSETD", 0x5423),
                ("TIOCCONS", 0x541d),
                ("NS_GET_USERNS", 0xb701),
                ("FUSE_DEV_IOC_CLONE", 0x8004_e500),
                ("FUSE_DEV_IOC_BACKING_OPEN", 0x4010_e501),
                ("UFFDIO_API", 0xc018_aa3f),
                ("EPIOCSPARAMS", 0x4008_8a01),
                ("PIDFD_GET_NET_NAMESPACE", 0xff04),
                ("SIOCETHTOOL", 0x8946),
                ("SIOCSIFFLAGS", 0x8914),
            ],
        ),
        (
            "prctl",
            0,
            &[
                ("PR_SET_MEMORY_MERGE", 67),
                ("PR_SET_MM", 35),
                ("PR_SET_VMA", 0x5356_4d41),
                ("PR_FUTEX_HASH", 78),
                ("PR_SCHED_CORE", 62),
                ("PR_SET_SECCOMP", 22),
                ("PR_SET_SYSCALL_USER_DISPATCH", 59),
                ("PR_SET_SECUREBITS", 28),
                ("PR_SET_IO_FLUSHER", 57),
                ("PR_SET_PTRACER", 0x5961_6d61),
                ("PR_SET_UNALIGN", 6),
                ("PR_MCE_KILL", 33),
            ],
        ),
        (
            "madvise",
            2,
            &[
                ("MADV_MERGEABLE", 12),
                ("MADV_REMOVE", 9),
                ("MADV_PAGEOUT", 21),
                ("MADV_HWPOISON", 100),
                ("MADV_SOFT_OFFLINE", 101),
            ],
        ),
        (
            "fcntl",
            1,
            &[
                ("F_SETLEASE", 1024),
                ("F_NOTIFY", 1026),
                ("F_OFD_GETLK", 36),
                ("F_OFD_SETLK", 37),
                ("F_OFD_SETLKW", 38),
                ("F_SETSIG", 10),
                ("F_SETOWN_EX", 15),
                ("F_SET_RW_HINT", 1036),
            ],
        ),
    ];
    for stack in sandboxes() {
        for (syscall, index, values) in refused {
            for (name, value) in values {
                let answer = stack.value(syscall, index, *value);
                assert!(answer & 0xffff_0000 == errno(0), "{}: {name} is answered {answer:#x}", stack.name);
            }
        }
    }
}

#[test]
fn a_foreign_architecture_is_killed_and_a_foreign_number_is_none() {
    for stack in sandboxes().into_iter().chain(helpers()) {
        let own = stack.arch.audit;
        for arch in [stack.arch.foreign, own ^ 1, own ^ 1 << 31, own ^ 1 << 30, 0, u32::MAX] {
            for number in 0..=512 {
                assert_eq!(
                    stack.raw(arch, number, [0; 6]),
                    KILL_PROCESS,
                    "{}: {arch:#x} {number}",
                    stack.name
                );
            }
        }
        // x32 has its own numbers, and some without the bit.
        for number in (0..=1024).map(|n| n | 1 << 30).chain([512, 547, 1023, 1 << 31, u32::MAX]) {
            assert_eq!(stack.raw(own, number, [0; 6]), ENOSYS, "{}: {number:#x}", stack.name);
        }
    }
}

#[test]
fn a_sandbox_has_no_call_that_only_the_helper_needs() {
    for arch in &ARCHS {
        let helper = Stack::of(arch, &["helper"]);
        let calls = |stack: &Stack| -> Vec<u32> {
            (0..=600).filter(|n| stack.raw(arch.audit, *n, [0; 6]) != ENOSYS).collect()
        };
        let all = calls(&helper);
        assert!(all.len() > 150, "{}: {all:?}", arch.name);
        for number in
            ["mount", "setns", "unshare", "openat2", "seccomp", "clone3"].map(|name| arch.number(name))
        {
            assert!(all.contains(&number), "{}: the helper has not {number}", arch.name);
        }
        for number in ["ptrace", "bpf"].map(|name| arch.number(name)) {
            assert!(!all.contains(&number), "{}: the helper has {number}", arch.name);
        }
        for profile in PROFILES {
            let stack = Stack::of(arch, &["helper", profile]);
            let its = calls(&stack);
            assert!(its.iter().all(|n| all.contains(n)), "{}: {its:?}", stack.name);
            for name in ["mount", "setns", "unshare", "openat2", "seccomp", "clone3"] {
                assert_eq!(stack.ask(name, [0; 6]), ENOSYS, "{}: {name}", stack.name);
            }
            assert_eq!(
                stack.ask("memfd_create", [0; 6]) == ALLOW,
                profile.contains("_bounded"),
                "{}",
                stack.name
            );
        }
        let init = Stack::of(arch, &["helper", "init"]);
        for (name, _) in arch.numbers {
            let expected = ["write", "wait4", "madvise"].contains(name);
            assert_eq!(init.ask(name, [0; 6]) == ALLOW, expected, "{}: {name}", init.name);
        }
    }
}

#[test]
fn modes_with_set_id_bits_families_and_namespaces_are_refused_whatever_stands_above() {
    for stack in sandboxes() {
        let bash = stack.name.contains("bash");
        for mode in [0o4755, 0o2755, 0o6000, 0o2000, 0o4000] {
            // Somebody else makes the call without the bits, or nobody does.
            let wanted = if stack.name.contains("_refusing") { errno(1) } else { ASK };
            for (call, index) in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2)] {
                if call != "chmod" || stack.arch.name == "x86_64" {
                    assert_eq!(stack.value(call, index, mode), wanted, "{}: {call} {mode:o}", stack.name);
                    assert_eq!(stack.value(call, index, 0o1777), ALLOW, "{}: {call}", stack.name);
                }
            }
            let open = |flags: u64| {
                stack.ask("openat", [0, 0, 0xffff_0000_0000_0000 | flags, u64::from(mode), 0, 0])
            };
            assert_eq!((open(0o101), open(0x0041_0000)), (errno(1), errno(1)), "{}: {mode:o}", stack.name);
            assert_eq!(open(0), ALLOW, "{}: without O_CREAT the mode means nothing", stack.name);
        }
        for family in (0..64).filter(|f| *f != 1) {
            assert_eq!(stack.value("socket", 0, family), errno(13), "{}: family {family}", stack.name);
        }
        assert_eq!(stack.value("socket", 0, 1) == ALLOW, !bash, "{}", stack.name);
        for namespace in
            [0x2_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000]
        {
            assert_eq!(stack.value("clone", 0, namespace | 17), errno(1), "{}: {namespace:#x}", stack.name);
        }
    }
}

/// Where an idmapped mount has no such id, the kernel would say EOVERFLOW, which programs that copy take for a failure.
#[test]
fn to_give_a_file_to_somebody_else_is_not_permitted_as_to_anybody_without_privilege() {
    for stack in sandboxes() {
        let calls = [("fchown", 1), ("fchownat", 2), ("chown", 1), ("lchown", 1)];
        for (call, uid) in
            calls.into_iter().filter(|(call, _)| stack.arch.numbers.iter().any(|(name, _)| name == call))
        {
            let own = 1_900_000_001u32;
            let ask = |owner: u32, group: u32| {
                let mut args = [0; 6];
                (args[uid], args[uid + 1]) = (u64::from(owner), u64::from(group));
                stack.ask(call, args)
            };
            for id in [0, 1000, 65_534, 65_535] {
                for (owner, group) in [(id, id), (id, u32::MAX), (u32::MAX, id), (own, id), (id, own)] {
                    assert_eq!(ask(owner, group), errno(1), "{}: {call} to {owner}:{group}", stack.name);
                }
            }
            for (owner, group) in [(own, own), (u32::MAX, u32::MAX), (65_536, u32::MAX), (own, u32::MAX)] {
                assert_eq!(ask(owner, group), ALLOW, "{}: {call} to {owner}:{group}", stack.name);
            }
        }
    }
}

/// Who is asked has less than the sandbox: it reads, and sets modes that have no such bit.
#[test]
fn who_is_asked_about_modes_can_store_no_set_id_bit_and_write_nothing() {
    for arch in &ARCHS {
        let stack = Stack::of(arch, &["helper", "modes"]);
        for mode in 0..0o10000 {
            let wanted = if mode & 0o6000 == 0 { ALLOW } else { errno(1) };
            assert_eq!(stack.value("fchmodat", 2, mode), wanted, "{}: {mode:o}", stack.name);
        }
        let open = |flags: u64| stack.ask("openat", [0, 0, flags, 0, 0, 0]);
        assert_eq!(open(0o2_000_000), ALLOW, "{}: O_CLOEXEC", stack.name);
        for flags in [0o1, 0o2, 0o100, 0o1_000_100, 0x0040_0000] {
            assert_eq!(open(flags), errno(1), "{}: {flags:o}", stack.name);
        }
        for request in [0xc050_2100, 0xc018_2101, 0x4008_2102] {
            assert_eq!(stack.value("ioctl", 1, request), ALLOW, "{}: {request:#x}", stack.name);
        }
        // SECCOMP_IOCTL_NOTIF_ADDFD, and what is on the sandboxes' own list.
        for request in [0x4018_2103, 21531, 21505] {
            assert_ne!(stack.value("ioctl", 1, request), ALLOW, "{}: {request:#x}", stack.name);
        }
        let allowed = ["read", "pread64", "openat", "fchmodat", "madvise"];
        for (name, _) in arch.numbers.iter().filter(|(name, _)| *name != "ioctl") {
            assert_eq!(stack.ask(name, [0; 6]) == ALLOW, allowed.contains(name), "{}: {name}", stack.name);
        }
        for sandbox in sandboxes() {
            assert_ne!(sandbox.value("ioctl", 1, 0xc050_2100), ALLOW, "{}: who asks", sandbox.name);
        }
    }
}

#[test]
fn extended_attributes_are_refused_to_a_skill_and_small_for_bash() {
    for stack in sandboxes() {
        let bash = stack.name.contains("bash");
        for call in ["setxattr", "lsetxattr", "fsetxattr"] {
            for (size, small) in [
                (0, true),
                (1, true),
                (256, true),
                (257, false),
                (65_536, false),
                (1 << 32, false),
                (1 << 63, false),
                (u64::MAX, false),
            ] {
                let answer = stack.ask(call, [0, 0, 0, size, 0, 0]);
                let wanted = if bash && small { ALLOW } else { errno(95) };
                assert_eq!(answer, wanted, "{}: {call} of {size}", stack.name);
            }
        }
    }
}
