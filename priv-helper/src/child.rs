//! What a sandbox is: its root, built of read-only copies of the system's directories in a tmpfs of its own, and the
//! state in which its program is executed. Runs inside the new namespaces. It asks nothing and refuses nothing: a
//! step that fails ends the sandbox.

use crate::hold::{Inner, Note};
use crate::sys::{self, Sys, flag};
use crate::{CAPABILITIES, step};
use caps::CapSet;
use cyberos_proto::plan::{MemoryLimit, Profile, SpawnPlan};
use cyberos_proto::{link::Wait, message::Refusal};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc::{S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::sys::{prctl, signal::SigSet};
use nix::unistd::{self, Gid, Uid};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{convert::Infallible, fs};

/// What the sandbox may not do of what the helper's own filter, which it inherits, allows.
static SKILL_FILTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/skill.bpf"));
static BASH_FILTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bash.bpf"));

/// What is shown of the system, where the host has it, as it is there: links as links, the rest read-only. `java-*` of
/// /etc besides.
const SYSTEM: &str =
    "usr bin sbin lib lib32 lib64 libx32 etc/localtime etc/ld.so.cache etc/ssl/certs etc/alternatives";
/// Devices, with the minor numbers that they must have; the major is 1.
const DEVICES: [(&str, u32); 5] =
    [("dev/null", 3), ("dev/zero", 5), ("dev/full", 7), ("dev/random", 8), ("dev/urandom", 9)];
const LINKS: [(&str, &str); 4] =
    [("dev/fd", "/proc/self/fd"), ("dev/stdin", "fd/0"), ("dev/stdout", "fd/1"), ("dev/stderr", "fd/2")];
pub(crate) const READ_ONLY: u64 = flag::RDONLY | flag::NOSUID | flag::NODEV;
const SCRATCH: u64 = flag::NOSUID | flag::NODEV;

/// One tree to attach.
pub(crate) struct Attach {
    /// Where, without leading slash.
    pub(crate) target: PathBuf,
    pub(crate) tree: OwnedFd,
}

/// Everything that a sandbox is made of.
pub(crate) struct Boot<'a> {
    pub(crate) plan: &'a SpawnPlan,
    pub(crate) uid: u32,
    pub(crate) init_uid: u32,
    pub(crate) attach: Vec<Attach>,
    pub(crate) link: Inner,
    pub(crate) stdio: [OwnedFd; 3],
    /// Closed by exec.
    pub(crate) until_exec: OwnedFd,
}

/// A word for exec. A plan that was checked holds no NUL.
fn word(text: impl AsRef<[u8]>) -> Result<CString, Refusal> {
    step("a word of the plan", CString::new(text.as_ref()))
}

/// A step without which there is no sandbox (`[10.6]`).
pub(crate) fn never_skipped<T>(name: &str, result: Sys<T>) -> Result<T, Refusal> {
    result.map_err(|e| Refusal::Unavailable { step: name.to_owned(), errno: e as i32 })
}

/// Builds the root and moves into it. On return nothing of the host is reachable but what was attached.
pub(crate) fn build_root(boot: &Boot<'_>) -> Result<(), Refusal> {
    umask(Mode::from_bits_truncate(0o022));
    step("host name", unistd::sethostname("sandbox"))?;
    let none: Option<&str> = None;
    step("private mounts", mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))?;
    let root = step("root", tmpfs(c"4m", c"2048", c"0755", SCRATCH))?;
    // It must be attached somewhere before anything can be attached to it; only this namespace sees where.
    step(
        "attach the root",
        sys::open_path(Path::new("/tmp")).and_then(|at| sys::attach(root.as_fd(), at.as_fd())),
    )?;
    step("enter the root", unistd::fchdir(&root))?;
    for name in ["etc/ssl", "dev/shm", "proc", "tmp"] {
        step(name, fs::create_dir_all(name))?;
    }
    let mib = word(format!("{}m", boot.plan.limits.tmp_mb))?;
    let inodes = word((1024 + u64::from(boot.plan.limits.tmp_mb) * 128).to_string())?;
    for (name, flags) in [("tmp", SCRATCH), ("dev/shm", SCRATCH | flag::NOEXEC)] {
        let scratch = step(name, tmpfs(&mib, &inodes, c"1777", flags))?;
        step(name, attach(&scratch, Path::new(name)))?;
    }

    // All names come first, in empty file systems of our own; only then is anything of the host's or a peer's attached.
    let mut system = Vec::new();
    for name in SYSTEM.split(' ') {
        show(name.into(), &mut system)?;
    }
    for entry in fs::read_dir("/etc").into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"java-") {
            show(Path::new("etc").join(entry.file_name()), &mut system)?;
        }
    }
    for (name, minor) in DEVICES {
        let node = step(name, sys::open_path(&Path::new("/").join(name)))?;
        let id = step(name, sys::identity(node.as_fd()))?;
        if !id.is(S_IFCHR) || (id.0.stx_rdev_major, id.0.stx_rdev_minor) != (1, minor) {
            return step(name, Err(Errno::ENODEV));
        }
        let tree = step(name, sys::clone_tree(node.as_fd(), flag::NOSUID | flag::NOEXEC))?;
        system.push(Attach { target: name.into(), tree });
    }
    for (name, to) in LINKS {
        step(name, symlink(to, name))?;
    }
    write_etc(boot.uid)?;
    for a in system.iter().chain(&boot.attach) {
        let name = a.target.to_string_lossy();
        if step(&name, sys::identity(a.tree.as_fd()))?.is(S_IFDIR) {
            step(&name, fs::create_dir_all(&a.target))?;
        } else {
            step(&name, fs::File::create_new(&a.target))?;
        }
    }
    for a in system.iter().chain(&boot.attach) {
        step(&a.target.to_string_lossy(), attach(&a.tree, &a.target))?;
    }
    let proc = [(c"hidepid", Some(c"invisible")), (c"subset", Some(c"pid"))];
    let proc = step("proc", sys::new_mount(c"proc", &proc, SCRATCH | flag::NOEXEC))?;
    step("proc", attach(&proc, Path::new("proc")))?;
    step("read-only root", sys::set_mount(&root, READ_ONLY, 0))?;
    step("pivot_root", unistd::pivot_root(".", "."))?;
    step("leave the host's root", umount2(".", MntFlags::MNT_DETACH))?;
    step("enter the root", unistd::chdir("/"))
}

fn tmpfs(size: &CStr, inodes: &CStr, mode: &CStr, flags: u64) -> Sys<OwnedFd> {
    let options = [(c"size", Some(size)), (c"nr_inodes", Some(inodes)), (c"mode", Some(mode))];
    sys::new_mount(c"tmpfs", &options, flags)
}

/// Attaches `tree` at a name below the root being built, found through no link.
fn attach(tree: &OwnedFd, target: &Path) -> Sys<()> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let how = how.resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    sys::attach(tree.as_fd(), openat2(AT_FDCWD, target, how)?.as_fd())
}

/// Shows a name of the host's: a symlink at once, a directory or file as a tree to attach, nothing as nothing.
fn show(name: PathBuf, trees: &mut Vec<Attach>) -> Result<(), Refusal> {
    let (host, shown) = (Path::new("/").join(&name), name.to_string_lossy().into_owned());
    let found = match sys::open_path(&host) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        other => step(&shown, other)?,
    };
    let id = step(&shown, sys::identity(found.as_fd()))?;
    if id.is(S_IFLNK) {
        return step(&shown, fs::read_link(&host).and_then(|to| symlink(to, &name)));
    }
    if id.is(S_IFDIR) || id.is(S_IFREG) {
        let tree = step(&shown, sys::clone_tree(found.as_fd(), READ_ONLY))?;
        trees.push(Attach { target: name, tree });
    }
    Ok(())
}

/// The files of /etc that are the sandbox's own.
fn write_etc(uid: u32) -> Result<(), Refusal> {
    let passwd = format!("root:x:0:0:root:/:/usr/sbin/nologin\nskill:x:{uid}:{uid}:skill:/tmp:/bin/sh\n");
    let group = format!("root:x:0:\nskill:x:{uid}:\n");
    for (name, text) in [
        ("etc/passwd", passwd.as_str()),
        ("etc/group", group.as_str()),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
        ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        ("etc/gitconfig", "[safe]\n\tdirectory = *\n"),
    ] {
        step(name, fs::write(name, text))?;
        step(name, fs::set_permissions(name, fs::Permissions::from_mode(0o444)))?;
    }
    Ok(())
}

/// No exec from here on gains anything. The helper itself keeps no other capability in its bounding set.
pub(crate) fn give_up_privileges() -> Result<(), Refusal> {
    let dropped = CAPABILITIES.iter().try_for_each(|cap| caps::drop(None, CapSet::Bounding, *cap));
    never_skipped("no capabilities: bounding set", dropped.map_err(|_| Errno::EPERM))?;
    let set = prctl::set_no_new_privs().and_then(|()| prctl::get_no_new_privs());
    never_skipped("no_new_privs", set.and_then(|set| set.then_some(()).ok_or(Errno::EPERM)))
}

/// Becomes `uid` and the gid of the same number, in no other group, with no capability in any set.
pub(crate) fn become_uid(uid: u32) -> Result<(), Refusal> {
    let (u, g) = (Uid::from_raw(uid), Gid::from_raw(uid));
    never_skipped("no groups", unistd::setgroups(&[]))?;
    never_skipped("own gid", unistd::setresgid(g, g, g))?;
    never_skipped("own uid", unistd::setresuid(u, u, u))?;
    let mut cleared = caps::clear(None, CapSet::Ambient).is_ok();
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let left = caps::clear(None, set).and_then(|()| caps::read(None, set));
        cleared &= left.is_ok_and(|left| left.is_empty());
    }
    never_skipped("no capabilities", if cleared { Ok(()) } else { Err(Errno::EPERM) })
}

/// Runs in the program's process. Answers only if the program could not be executed.
pub(crate) fn program(boot: &Boot<'_>, go: &OwnedFd) -> i32 {
    let Err(refusal) = execute(boot, go);
    let _ = boot.link.send(&Note::Failed(refusal), &[], Wait::Block);
    1
}

fn execute(boot: &Boot<'_>, go: &OwnedFd) -> Result<Infallible, Refusal> {
    let words = |list: &[Vec<u8>]| list.iter().map(word).collect::<Result<Vec<_>, _>>();
    let (program, args, env) = (boot.plan.program.as_str(), &boot.plan.args, &boot.plan.env);
    let (program, args, env) = (word(program)?, words(args)?, words(env)?);
    step("session", unistd::setsid())?;
    step("stdin", unistd::dup2_stdin(&boot.stdio[0]))?;
    step("stdout", unistd::dup2_stdout(&boot.stdio[1]))?;
    step("stderr", unistd::dup2_stderr(&boot.stdio[2]))?;
    let l = &boot.plan.limits;
    let mib = |n: u32| u64::from(n) << 20;
    let limit = |resource, soft, hard| step("resource limits", setrlimit(resource, soft, hard));
    #[rustfmt::skip]
    let limits = [
        // 0 would still run a core handler that is a pipe.
        (Resource::RLIMIT_CORE, 1),
        (Resource::RLIMIT_CPU, l.cpu_s.into()),          (Resource::RLIMIT_FSIZE, mib(l.file_mb)),
        (Resource::RLIMIT_NOFILE, l.open_files.into()),  (Resource::RLIMIT_NPROC, l.processes.into()),
        (Resource::RLIMIT_MEMLOCK, 64 << 10),            (Resource::RLIMIT_SIGPENDING, 256),
        (Resource::RLIMIT_MSGQUEUE, 0),                  (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
    ];
    limits.into_iter().try_for_each(|(resource, most)| limit(resource, most, most))?;
    limit(Resource::RLIMIT_STACK, 8 << 20, 64 << 20)?;
    become_uid(boot.uid)?;
    step("working directory", unistd::chdir(boot.plan.cwd.as_str()))?;
    sys::default_signals();
    step("signal mask", SigSet::empty().thread_set_mask())?;
    // Until the init has given everything up.
    if step("init", unistd::read(go, &mut [0u8]))? != 1 {
        return step("init", Err(Errno::ECHILD));
    }
    sys::close_all_but(&mut [boot.link.as_fd(), boot.until_exec.as_fd()]);
    let memory = match l.memory_kind {
        MemoryLimit::AddressSpace => Resource::RLIMIT_AS,
        MemoryLimit::Data => Resource::RLIMIT_DATA,
    };
    limit(memory, mib(l.memory_mb), mib(l.memory_mb))?;
    let filter = if boot.plan.profile == Profile::Skill { SKILL_FILTER } else { BASH_FILTER };
    never_skipped("seccomp", sys::load_filter(filter))?;
    unistd::execve(&program, &args, &env).map_err(|e| Refusal::Exec { errno: e as i32 })
}
