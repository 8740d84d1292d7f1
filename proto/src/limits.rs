//! What one sandbox may use at most, and the resource limits that follow from it.

use nix::libc;
use serde::{Deserialize, Serialize};

/// Which limit bounds a process's memory (`[1.4]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryLimit {
    /// RLIMIT_AS, the default.
    AddressSpace,
    /// RLIMIT_DATA, for runtimes that reserve address space they never use.
    Data,
}

/// Limits of one sandbox. The ceiling may only lower them; zero is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// MiB of memory: the rlimit that `memory_kind` names, and memory.max where there is a cgroup.
    pub memory_mb: u32,
    /// Which rlimit bounds it.
    pub memory_kind: MemoryLimit,
    /// RLIMIT_CPU, in seconds, of each process with all its threads.
    pub cpu_s: u32,
    /// RLIMIT_NPROC: processes and threads, the program itself included.
    pub processes: u32,
    /// RLIMIT_NOFILE.
    pub open_files: u32,
    /// RLIMIT_FSIZE, in MiB.
    pub file_mb: u32,
    /// Size of the private /tmp and of /dev/shm, each, in MiB.
    pub tmp_mb: u32,
}

/// Address space that a program may have beyond its memory limit where RLIMIT_DATA bounds that and there is no control
/// group: what it can share, or make read-only after filling it, RLIMIT_DATA does not count.
const BEYOND_MB: u32 = 1024;
/// Seconds of processor time from SIGXCPU to SIGKILL.
const AFTER_XCPU_S: u64 = 5;

impl Limits {
    /// The resource limits of its program (`[10.5]`), each with its soft and hard value. `bounded` says whether a control
    /// group bounds the memory of all its processes together.
    pub fn rlimits(&self, bounded: bool) -> Vec<(u32, u64, u64)> {
        let mib = |n: u32| u64::from(n) << 20;
        let mut all: Vec<(u32, u64, u64)> = [
            // 0 would still run a core handler that is a pipe.
            (libc::RLIMIT_CORE, 1),
            (libc::RLIMIT_FSIZE, mib(self.file_mb)),
            (libc::RLIMIT_NOFILE, self.open_files.into()),
            (libc::RLIMIT_NPROC, self.processes.into()),
            (libc::RLIMIT_MEMLOCK, 64 << 10),
            (libc::RLIMIT_SIGPENDING, 256),
            (libc::RLIMIT_MSGQUEUE, 0),
            (libc::RLIMIT_NICE, 0),
            (libc::RLIMIT_RTPRIO, 0),
        ]
        .map(|(resource, most)| (resource, most, most))
        .into();
        all.push((libc::RLIMIT_STACK, 8 << 20, 64 << 20));
        // With both at one value SIGKILL would come without SIGXCPU, which names the limit.
        let cpu_s = u64::from(self.cpu_s);
        all.push((libc::RLIMIT_CPU, cpu_s, cpu_s + AFTER_XCPU_S));
        let memory = mib(self.memory_mb);
        match self.memory_kind {
            MemoryLimit::AddressSpace => all.push((libc::RLIMIT_AS, memory, memory)),
            MemoryLimit::Data => all.push((libc::RLIMIT_DATA, memory, memory)),
        }
        if self.memory_kind == MemoryLimit::Data && !bounded {
            let most = mib(self.memory_mb.saturating_add(BEYOND_MB));
            all.push((libc::RLIMIT_AS, most, most));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            memory_mb: 512,
            memory_kind: MemoryLimit::AddressSpace,
            cpu_s: 1800,
            processes: 8,
            open_files: 256,
            file_mb: 256,
            tmp_mb: 64,
        }
    }

    #[test]
    fn memory_is_bounded_by_the_limit_that_the_plan_names() {
        for (memory_kind, bounded, expected) in [
            (MemoryLimit::AddressSpace, true, vec![(libc::RLIMIT_AS, 512)]),
            (MemoryLimit::AddressSpace, false, vec![(libc::RLIMIT_AS, 512)]),
            (MemoryLimit::Data, true, vec![(libc::RLIMIT_DATA, 512)]),
            (MemoryLimit::Data, false, vec![(libc::RLIMIT_DATA, 512), (libc::RLIMIT_AS, 1536)]),
        ] {
            let all = Limits { memory_kind, ..limits() }.rlimits(bounded);
            let memory = all.into_iter().filter(|(r, ..)| [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(r));
            let found: Vec<_> = memory.map(|(r, _, hard)| (r, hard >> 20)).collect();
            assert_eq!(found, expected, "{memory_kind:?}, bounded {bounded}");
        }
        let core = limits().rlimits(true).into_iter().find(|(r, ..)| *r == libc::RLIMIT_CORE);
        assert_eq!(core, Some((libc::RLIMIT_CORE, 1, 1)));
        let cpu = limits().rlimits(true).into_iter().find(|(r, ..)| *r == libc::RLIMIT_CPU);
        assert_eq!(cpu, Some((libc::RLIMIT_CPU, 1800, 1805)));
    }
}
