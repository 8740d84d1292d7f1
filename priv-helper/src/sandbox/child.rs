//! What a sandbox is: its own copy of a template with what it has alone, and the state in which its program is
//! executed. Runs inside the new namespaces. It asks nothing and refuses nothing: a step that fails ends the sandbox.

use super::attach::{Attach, attach};
use super::rights::{become_uid, filter};
use crate::ceiling::Ceiling;
use crate::inner::{Inner, Note};
use crate::sys;
use cyberos_proto::link::Wait;
use cyberos_proto::message::{Refusal, never_skipped, step};
use cyberos_proto::plan::{BindKind, Cgroup, Profile, SpawnPlan};
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr};
use landlock::{RulesetError, RulesetStatus, Scope, path_beneath_rules};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::unistd;
use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

/// Signals that the helper ignores, for a sandbox's program to have again: its log's reader has gone, its log is full, and
/// its log's terminal belongs to another group of processes.
pub(crate) const IGNORED: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU];

/// Everything that a sandbox is made of.
pub(crate) struct Boot<'a> {
    pub(crate) ceiling: &'a Ceiling,
    pub(crate) plan: &'a SpawnPlan,
    pub(crate) uid: u32,
    pub(crate) template: OwnedFd,
    pub(crate) network: OwnedFd,
    pub(crate) attach: Vec<Attach>,
    pub(crate) stdio: [OwnedFd; 3],
}

/// Enters a copy of the template and adds what this sandbox has alone.
pub(crate) fn enter_view(boot: &Boot<'_>) -> Result<(), Refusal> {
    step("enter the control group", boot.ceiling.groups.enter(boot.uid))?;
    never_skipped("mount namespace", setns(&boot.template, CloneFlags::CLONE_NEWNS))?;
    never_skipped("network namespace", setns(&boot.network, CloneFlags::CLONE_NEWNET))?;
    never_skipped("mount namespace", unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP))?;
    umask(Mode::from_bits_truncate(0o022));
    let new = |kind: &str, at: &str, more: MsFlags, options: &str| {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | more;
        step(at, mount(Some(kind), at, Some(kind), flags, Some(options)))
    };
    let (mib, memory) = (boot.plan.limits.tmp_mb, boot.plan.limits.memory_mb);
    // An entry without content is about a KiB of the kernel's, so those of a file system take an eighth of the memory at most.
    let scratch = format!("mode=1777,size={mib}m,nr_inodes={}", 1024 + u64::from(mib.min(memory)) * 128);
    // In a root that nobody can write, so these paths are what they say.
    new("tmpfs", "/tmp", MsFlags::empty(), &scratch)?;
    new("tmpfs", "/dev/shm", MsFlags::MS_NOEXEC, &scratch)?;
    // Its terminals, for what is run on one inside: `script`, `tmux`. Not NODEV.
    let terminals = format!("newinstance,max=8,ptmxmode=0666,mode=0620,gid={}", boot.uid);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    step("/dev/pts", mount(Some("devpts"), "/dev/pts", Some("devpts"), flags, Some(terminals.as_str())))?;
    // Read-only: without Landlock its files of a process are that process's to write, and what they set (loginuid,
    // oom_score_adj, the memory of its own code) is nothing that a skill needs.
    let read_only = MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    new("proc", "/proc", read_only, "hidepid=invisible,subset=pid")?;
    attach(&boot.attach, |a| a.target.starts_with("tmp"))
}

/// Becomes the program, in its own process, whose memory is the init's until then: everything up to execve, then a
/// wait for the word to go, then execve.
pub(crate) fn execute(boot: &Boot<'_>, link: &Inner) -> Result<Infallible, Refusal> {
    // A plan that was checked holds no NUL.
    let word = |text: &[u8]| step("a word of the plan", CString::new(text));
    let words = |list: &[Vec<u8>]| list.iter().map(|text| word(text)).collect::<Result<Vec<_>, Refusal>>();
    let (args, env) = (words(&boot.plan.args)?, words(&boot.plan.env)?);
    let program = word(boot.plan.program.as_str().as_bytes())?;
    step("session", unistd::setsid())?;
    step("stdin", unistd::dup2_stdin(&boot.stdio[0]))?;
    step("stdout", unistd::dup2_stdout(&boot.stdio[1]))?;
    step("stderr", unistd::dup2_stderr(&boot.stdio[2]))?;
    become_uid(boot.uid)?;
    step("working directory", unistd::chdir(boot.plan.cwd.as_str()))?;
    // The others are so since the helper's start.
    sys::default_signals(IGNORED);
    step("signal mask", SigSet::empty().thread_set_mask())?;
    if boot.ceiling.landlock > 0 {
        let confined = confine(boot).map_err(|_| Errno::EPERM);
        step("Landlock", confined.and_then(|all| if all { Ok(()) } else { Err(Errno::ENOSYS) }))?;
    }
    sys::close_all_but(&mut [link.as_fd()]);
    let bounded = boot.ceiling.groups.version != Cgroup::Absent;
    for (resource, soft, hard) in boot.plan.limits.rlimits(bounded) {
        step("resource limits", sys::set_limit(resource, soft, hard))?;
    }
    let (asking, refusing) = match (boot.plan.profile, bounded) {
        (Profile::Skill, true) => (filter!("skill_bounded"), filter!("skill_bounded_refusing")),
        (Profile::Skill, false) => (filter!("skill"), filter!("skill_refusing")),
        (Profile::Bash, true) => (filter!("bash_bounded"), filter!("bash_bounded_refusing")),
        (Profile::Bash, false) => (filter!("bash"), filter!("bash_refusing")),
    };
    let listener = match sys::load_asking_filter(asking) {
        Ok(listener) => Some(listener),
        Err(Errno::EINVAL) => {
            never_skipped("seccomp", sys::load_filter(refusing))?;
            None
        }
        Err(e) => return never_skipped("seccomp", Err(e)),
    };
    let prepared = Note::Prepared { asks: listener.is_some() };
    let asks: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
    step("tell that it is prepared", link.send(&prepared, &asks, Wait::Block))?;
    match link.receive(Wait::Block) {
        Ok((Note::Go, _)) => {}
        _ => return step("wait for the word to go", Err(Errno::EPIPE)),
    }
    // The listener and the link are closed with exec.
    unistd::execve(&program, &args, &env).map_err(|e| Refusal::Exec { errno: e as i32 })
}

/// Landlock on this process, as far as the kernel has it: everything in the view may be read and executed; what is the
/// sandbox's own may be changed and devices written; no device be controlled but its terminals, no port used, and no
/// abstract socket or process outside be reached. Whether anything is in force.
fn confine(boot: &Boot<'_>) -> Result<bool, RulesetError> {
    let abi = ABI::V6;
    let (all, run) = (AccessFs::from_all(abi), AccessFs::from_read(abi));
    let own = all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let grants = boot.plan.binds.iter().filter(|b| b.kind == BindKind::Grant { writable: true });
    // Of /dev only what is in /dev/shm can be changed at all, and the devices written.
    let written = ["/tmp", "/dev"].into_iter().chain(grants.map(|b| b.target.as_str()));
    let rules = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .no_new_privs(false)
        .add_rules(path_beneath_rules(written, own))?
        .add_rules(path_beneath_rules(["/dev/pts", "/dev/tty"], AccessFs::IoctlDev))?
        .add_rules(path_beneath_rules(["/"], run))?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}
