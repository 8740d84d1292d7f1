//! What the kernel says of itself: everything that can be asked without making anything.

use super::{Finding, read};
use cyberos_proto::beneath::open_anywhere;
use cyberos_proto::mounts::{mounts, own_group};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The first version with everything that the helper cannot do without (mount_setattr is the youngest).
const OLDEST: (u32, u32) = (5, 12);
/// A clock that is further from the machine's own than this is wrong.
const CLOCK_SLACK: Duration = Duration::from_secs(120);

pub(super) fn look(findings: &mut Vec<Finding>) {
    findings.extend([
        version(),
        namespaces(),
        seccomp(),
        openat2_works(),
        fuse(),
        fuse_timeout(),
        cgroup_2(),
        cgroup_1(),
        hardlinks(),
        core_pattern(),
        clock(),
    ]);
}

fn version() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) >= OLDEST {
        return Finding::ok("kernel", release);
    }
    Finding::missing(
        "kernel",
        release,
        "no sandbox can be made",
        format!("use Linux {}.{} or later", OLDEST.0, OLDEST.1),
    )
}

fn namespaces() -> Finding {
    let wanted = ["pid", "mnt", "net", "ipc", "uts", "cgroup"];
    let absent: Vec<_> =
        wanted.iter().filter(|n| !Path::new("/proc/self/ns").join(n).exists()).copied().collect();
    if absent.is_empty() {
        return Finding::ok("namespaces", wanted.join(", "));
    }
    let found = format!("no namespaces of kind {}", absent.join(", "));
    Finding::missing(
        "namespaces",
        found,
        "no skill runs: none is run without them",
        "use a kernel that has them",
    )
}

fn seccomp() -> Finding {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |action: &str| actions.split_whitespace().any(|a| a == action);
    if has("errno") && has("kill_process") && has("allow") {
        return Finding::ok("seccomp", actions);
    }
    let found = if actions.is_empty() { "no filters".to_owned() } else { actions };
    Finding::missing(
        "seccomp",
        found,
        "no skill runs: none is run without the filter",
        "use a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn openat2_works() -> Finding {
    match open_anywhere(Path::new("/"), OFlag::O_PATH | OFlag::O_DIRECTORY) {
        Ok(_) => Finding::ok("openat2", "works"),
        Err(e) => Finding::missing(
            "openat2",
            e.desc(),
            "no file of a grant can be opened safely, so none is",
            "use Linux 5.6 or later, and a container runtime whose filter knows openat2",
        ),
    }
}

fn fuse() -> Finding {
    let missing = |found: String| {
        let remedy = "load the module fuse (modprobe fuse); in a container, pass /dev/fuse in";
        Finding::missing("fuse", found, "there is no view of skills, so none is seen or run", remedy)
    };
    match open("/dev/fuse", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(_) => Finding::ok("fuse", "/dev/fuse can be opened"),
        // The helper opens it, as root.
        Err(Errno::EACCES | Errno::EPERM) if !nix::unistd::geteuid().is_root() => {
            Finding::ok("fuse", "/dev/fuse is there (as root it would be opened too)")
        }
        Err(e) => missing(format!("/dev/fuse: {}", e.desc())),
    }
}

/// Whether the kernel itself ends a view whose server takes a request and never answers it.
fn fuse_timeout() -> Finding {
    const CHECK: &str = "fuse_timeout";
    let limit = |name: &str| {
        read(Path::new("/proc/sys/fs/fuse").join(name)).and_then(|text| text.trim().parse::<u32>().ok())
    };
    match (limit("default_request_timeout"), limit("max_request_timeout")) {
        // Zero is none, in both.
        (Some(0), Some(0)) => Finding::weak(
            CHECK,
            "the kernel has a limit for requests to FUSE servers, and it is not set",
            "a SkillFS that was taken over can make everybody who looks into the view wait, until you unmount it",
            "sysctl fs.fuse.max_request_timeout=60 (and in /etc/sysctl.d); it holds for every FUSE file \
             system that is mounted afterwards",
        ),
        (None, _) | (_, None) => Finding::ok(CHECK, "this kernel has no limit for requests to FUSE servers"),
        (default, most) => {
            let seconds = [default, most].into_iter().flatten().filter(|s| *s > 0).min().unwrap_or_default();
            Finding::ok(
                CHECK,
                format!("a view whose server is silent for {seconds} s is ended by the kernel"),
            )
        }
    }
}

/// This process's group in the hierarchy of a controller; of version 2 for the empty word.
fn own_group_of(controller: &str) -> Option<PathBuf> {
    let table = mounts(read("/proc/self/mountinfo").unwrap_or_default());
    own_group(&table, &read("/proc/self/cgroup").unwrap_or_default(), controller)
}

fn cgroup_2() -> Finding {
    const CHECK: &str = "cgroup_v2";
    const WEAKENS: &str = "without version 2 a sandbox as a whole has no limit of cpu";
    let Some(dir) = own_group_of("") else {
        let remedy = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 at /sys/fs/cgroup";
        return Finding::weak(CHECK, "not mounted", WEAKENS, remedy);
    };
    let controllers = read(dir.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &str| controllers.split_whitespace().any(|c| c == name);
    let lacks: Vec<_> = ["memory", "pids", "cpu"].into_iter().filter(|c| !has(c)).collect();
    if lacks.is_empty() {
        return Finding::ok(CHECK, format!("{} has memory, pids and cpu", dir.display()));
    }
    Finding::weak(
        CHECK,
        format!("{} has no {}", dir.display(), lacks.join(", ")),
        WEAKENS,
        "give the helper's group these controllers (systemd: Delegate=yes); version 2 cannot have those \
         that version 1 uses",
    )
}

fn cgroup_1() -> Finding {
    const CHECK: &str = "cgroup_v1";
    match (own_group_of("memory"), own_group_of("pids")) {
        (Some(memory), Some(pids)) => {
            Finding::ok(CHECK, format!("{} and {}", memory.display(), pids.display()))
        }
        _ => Finding::ok(CHECK, "no hierarchies for memory and pids, which is well where version 2 has them"),
    }
}

fn hardlinks() -> Finding {
    const CHECK: &str = "protected_hardlinks";
    match read("/proc/sys/fs/protected_hardlinks").as_deref() {
        Some("1") => Finding::ok(CHECK, "1"),
        other => Finding::weak(
            CHECK,
            other.unwrap_or("cannot be read"),
            "a local user can link a file of somebody else's into a granted tree, and a skill reaches it \
             there if user cyberos may",
            "sysctl -w fs.protected_hardlinks=1, and the same line in /etc/sysctl.d",
        ),
    }
}

fn core_pattern() -> Finding {
    const CHECK: &str = "core_pattern";
    match read("/proc/sys/kernel/core_pattern") {
        Some(pattern) if pattern.starts_with('|') => Finding::weak(
            CHECK,
            pattern,
            "crashes go to a handler that runs as root; RLIMIT_CORE alone keeps it from those in a sandbox",
            "where no core dumps are wanted, sysctl -w kernel.core_pattern=core",
        ),
        Some(pattern) => Finding::ok(CHECK, pattern),
        None => Finding::ok(CHECK, "cannot be read"),
    }
}

fn clock() -> Finding {
    const CHECK: &str = "clock";
    let now = SystemTime::now();
    let weak = |found: String| {
        let weakens = "times of ledger rows, and what counts as today, are wrong; deadlines are not affected";
        Finding::weak(
            CHECK,
            found,
            weakens,
            "set it, and have a time service (chrony, systemd-timesyncd) keep it",
        )
    };
    let built = std::fs::metadata("/proc/self/exe").and_then(|m| m.modified()).ok();
    if built.is_some_and(|built| built > now + CLOCK_SLACK) {
        return weak("earlier than this program was built".to_owned());
    }
    let hardware =
        read("/sys/class/rtc/rtc0/since_epoch").and_then(|t| t.parse().ok()).map(Duration::from_secs);
    let Some(hardware) = hardware else {
        return Finding::ok(
            CHECK,
            "later than this program's build; there is no hardware clock to compare with",
        );
    };
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match since.abs_diff(hardware) {
        apart if apart > CLOCK_SLACK => weak(format!("{} s from the hardware clock", apart.as_secs())),
        _ => Finding::ok(CHECK, "agrees with the hardware clock"),
    }
}
