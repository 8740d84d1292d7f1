//! Runs compiled filters as the kernel does. It knows the form of a program and how answers are ranked, and no rule.

use std::path::Path;

/// Numbers by their names.
pub(crate) type Named = &'static [(&'static str, u32)];

pub(crate) const ALLOW: u32 = 0x7fff_0000;
/// SECCOMP_RET_USER_NOTIF.
pub(crate) const ASK: u32 = 0x7fc0_0000;
pub(crate) const KILL_PROCESS: u32 = 0x8000_0000;
pub(crate) const ENOSYS: u32 = 0x0005_0000 + 38;
pub(crate) const fn errno(n: u32) -> u32 {
    0x0005_0000 + n
}

/// What the kernel tells a filter of a call.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    arch: u32,
    number: u32,
    args: [u64; 6],
}

impl Call {
    /// The word at `offset` of a `seccomp_data`, on a machine that stores the lower half first.
    fn word(&self, offset: u32) -> u32 {
        let half =
            |n: u64, upper: bool| u32::try_from(if upper { n >> 32 } else { n & 0xffff_ffff }).unwrap();
        match offset {
            0 => self.number,
            4 => self.arch,
            8 | 12 => 0,
            16..=60 if offset.is_multiple_of(4) => {
                half(self.args[(offset as usize - 16) / 8], offset % 8 == 4)
            }
            _ => panic!("a load at {offset}"),
        }
    }
}

/// One filter: (code, jt, jf, k).
pub(crate) struct Program(Vec<(u16, u8, u8, u32)>);

impl Program {
    fn read(arch: &str, name: &str) -> Program {
        let path = Path::new(env!("OUT_DIR")).join(arch).join(format!("{name}.bpf"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            !bytes.is_empty() && bytes.len().is_multiple_of(8) && bytes.len() / 8 <= 4096,
            "{}",
            path.display()
        );
        let one = |b: &[u8]| {
            (u16::from_ne_bytes([b[0], b[1]]), b[2], b[3], u32::from_ne_bytes([b[4], b[5], b[6], b[7]]))
        };
        Program(bytes.chunks(8).map(one).collect())
    }

    /// As the kernel would: forwards only, so it ends. An instruction that is not one of seccomp's fails the test.
    fn run(&self, call: &Call) -> u32 {
        let (mut at, mut a) = (0, 0u32);
        loop {
            let (code, jt, jf, k) = *self.0.get(at).expect("a jump out of the program");
            let jump = |so: bool| usize::from(if so { jt } else { jf });
            at += 1;
            match code {
                0x20 => a = call.word(k),
                0x54 => a &= k,
                0x05 => at += k as usize,
                0x15 => at += jump(a == k),
                0x25 => at += jump(a > k),
                0x35 => at += jump(a >= k),
                0x45 => at += jump(a & k != 0),
                0x06 => return k,
                _ => panic!("instruction {code:#x}"),
            }
        }
    }
}

/// Filters as they are loaded one after another. The kernel runs all, and takes the most severe answer, of equal ones that
/// of the newest.
pub(crate) struct Stack {
    pub(crate) name: String,
    pub(crate) arch: &'static Arch,
    pub(crate) programs: Vec<Program>,
}

pub(crate) struct Arch {
    pub(crate) name: &'static str,
    pub(crate) audit: u32,
    /// Others that such a machine can execute, and that nobody may use: i386, or 32-bit ARM.
    pub(crate) foreign: u32,
    pub(crate) numbers: Named,
}

pub(crate) const ARCHS: [Arch; 2] = [
    Arch {
        name: "x86_64",
        audit: 0xc000_003e,
        foreign: 0x4000_0003,
        numbers: &[
            ("read", 0),
            ("madvise", 28),
            ("socket", 41),
            ("fcntl", 72),
            ("write", 1),
            ("chmod", 90),
            ("pread64", 17),
            ("fchmod", 91),
            ("fchown", 93),
            ("chown", 92),
            ("lchown", 94),
            ("fchownat", 260),
            ("ptrace", 101),
            ("prctl", 157),
            ("mount", 165),
            ("setxattr", 188),
            ("lsetxattr", 189),
            ("fsetxattr", 190),
            ("ioctl", 16),
            ("openat", 257),
            ("fchmodat", 268),
            ("fallocate", 285),
            ("setns", 308),
            ("memfd_create", 319),
            ("seccomp", 317),
            ("wait4", 61),
            ("bpf", 321),
            ("openat2", 437),
            ("clone3", 435),
            ("unshare", 272),
            ("clone", 56),
        ],
    },
    Arch {
        name: "aarch64",
        audit: 0xc000_00b7,
        foreign: 0x4000_0028,
        numbers: &[
            ("read", 63),
            ("madvise", 233),
            ("socket", 198),
            ("fcntl", 25),
            ("write", 64),
            ("pread64", 67),
            ("fchmod", 52),
            ("fchown", 55),
            ("fchownat", 54),
            ("ptrace", 117),
            ("prctl", 167),
            ("mount", 40),
            ("setxattr", 5),
            ("lsetxattr", 6),
            ("fsetxattr", 7),
            ("ioctl", 29),
            ("openat", 56),
            ("fchmodat", 53),
            ("fallocate", 47),
            ("setns", 268),
            ("memfd_create", 279),
            ("seccomp", 277),
            ("wait4", 260),
            ("bpf", 280),
            ("openat2", 437),
            ("clone3", 435),
            ("unshare", 97),
            ("clone", 220),
        ],
    },
];

impl Arch {
    pub(crate) fn number(&self, syscall: &str) -> u32 {
        self.numbers.iter().find(|(name, _)| *name == syscall).expect(syscall).1
    }
}

impl Stack {
    pub(crate) fn of(arch: &'static Arch, names: &[&str]) -> Stack {
        let programs = names.iter().map(|name| Program::read(arch.name, name)).collect();
        Stack { name: format!("{} of {}", names.join(", then "), arch.name), arch, programs }
    }

    pub(crate) fn raw(&self, arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let call = Call { arch, number, args };
        let severity = |answer: &u32| (answer & 0xffff_0000).cast_signed();
        self.programs.iter().rev().map(|program| program.run(&call)).min_by_key(severity).unwrap()
    }

    pub(crate) fn ask(&self, syscall: &str, args: [u64; 6]) -> u32 {
        self.raw(self.arch.audit, self.arch.number(syscall), args)
    }

    /// With one argument set, whatever its upper half is.
    pub(crate) fn value(&self, syscall: &str, index: usize, value: u32) -> u32 {
        let with = |upper: u64| {
            let mut args = [0; 6];
            args[index] = upper << 32 | u64::from(value);
            self.ask(syscall, args)
        };
        let plain = with(0);
        for upper in [1, 0x8000_0000, 0xffff_ffff] {
            assert_eq!(with(upper), plain, "{}: {syscall} of {value:#x} with {upper:#x} above it", self.name);
        }
        plain
    }
}

/// Those of programs; the refusing ones where nobody can be asked.
pub(crate) const PROFILES: [&str; 8] = [
    "skill",
    "skill_bounded",
    "bash",
    "bash_bounded",
    "skill_refusing",
    "skill_bounded_refusing",
    "bash_refusing",
    "bash_bounded_refusing",
];

/// All that a program ever runs under, and the helper and its inits.
pub(crate) fn sandboxes() -> Vec<Stack> {
    ARCHS.iter().flat_map(|arch| PROFILES.map(|p| Stack::of(arch, &["helper", p]))).collect()
}

pub(crate) fn helpers() -> Vec<Stack> {
    ARCHS.iter().map(|arch| Stack::of(arch, &["helper"])).collect()
}
