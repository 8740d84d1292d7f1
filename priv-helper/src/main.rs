//! The root part of CyberOS. It makes sockets, sandboxes and mounts for two peers, within a ceiling that root has
//! written, and decides nothing. This file is the start-up list, in order; `parent` accepts, `link` serves.
//!
//! ```text
//! link         one peer: receive → gate → act → reply; parent: accepts peers and keeps what they hold
//! views        one link's views; fuse: their mounts
//! sandbox      one link's sandboxes, from a plan to the end of their processes:
//!              prepare (what is taken from the host) → init (their first process) → child (what a sandbox is) → execve
//! hold         what a link owns outside itself
//! ceiling      what root allows, held open; cgroup: control groups
//! lease        uids, and the leases of them; socket: an invocation's socket
//! table        what is mounted; inner: what the helper's own processes tell each other
//! sys, log     the system calls that need unsafe code; lines on standard error, without waiting
//! policy       what is decided on data alone: pure, tried without root; check: what a ceiling says, for people
//! ```
//!
//! Where to look, if you look for where
//!
//! - a request is refused: `policy/gate.rs` for who may ask it and when, `policy/ceiling.rs` and `ceiling.rs` for what root
//!   allows;
//! - a granted directory is refused: `policy/never.rs` for where it lies, `policy/mounts.rs` for a mount at, above or
//!   below it; how it is attached: `sandbox/grant.rs`;
//! - a system call is allowed: `seccomp`;
//! - what is left behind is removed: `hold.rs`, `parent.rs`.
//!
//! It must run in the mount namespace in which its mounts are to be seen: a unit option that makes another one
//! (PrivateTmp, ProtectSystem, …) would hide views and sockets from everybody else while every call succeeds.

mod ceiling;
mod cgroup;
mod check;
mod fuse;
mod hold;
mod inner;
mod lease;
mod link;
mod log;
mod parent;
mod policy;
mod sandbox;
mod socket;
mod sys;
mod table;
mod views;

use caps::{CapSet, Capability, CapsHashSet};
use ceiling::Ceiling;
use cyberos_proto::link::is_listener;
use log::log;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd;
use policy::outcome::{must, named};
use policy::start::{Purpose, activated, purpose};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

/// What root's work here needs; everything else is given up at once.
const CAPABILITIES: [Capability; 7] = [
    Capability::CAP_SYS_ADMIN,       // namespaces, mounts
    Capability::CAP_SYS_CHROOT,      // a template's mount namespace
    Capability::CAP_SETUID,          // a sandbox's uid
    Capability::CAP_SETGID,          // and gid
    Capability::CAP_KILL,            // signals to other uids
    Capability::CAP_DAC_READ_SEARCH, // sealed copies lie in directories of the broker's alone
    Capability::CAP_FOWNER,          // removal of a lease's socket from sticky /tmp
];

/// Open files that the helper may have at once, or fewer where its unit says so.
const OPEN_FILES: u64 = 8192;

fn main() -> ExitCode {
    let done = match purpose(std::env::args_os().skip(1)) {
        Ok(Purpose::Check(file)) if check::check(&file) => Ok(()),
        // It has said what is wrong.
        Ok(Purpose::Check(_)) => return ExitCode::FAILURE,
        Ok(Purpose::Serve(ceiling)) => serve(&ceiling),
        Err(why) => Err(why),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log(&why);
            ExitCode::FAILURE
        }
    }
}

/// The whole life of the helper.
fn serve(ceiling: &Path) -> Result<(), String> {
    // A signal that the log would bring is none: it only loses a line.
    sys::ignore_signals(sandbox::IGNORED);
    log::begin()?;
    activated(std::process::id(), |key| std::env::var(key).ok())?;
    sys::clear_environment();
    let listener = listener()?;
    sys::close_all_but(&mut [listener.as_fd()]);
    inherit_nothing()?;
    let ceiling = named("the ceiling's path", std::path::absolute(ceiling))?;
    not_in_a_chroot()?;
    // What is looked up in it is found even when something is mounted over it.
    named("/proc", unistd::chdir("/proc"))?;
    let ceiling = Ceiling::read(&ceiling)?;
    named("capabilities", drop_capabilities())?;
    named("own filter", sys::load_filter(sandbox::rights::filter!("helper")))?;
    if ceiling.landlock == 0 {
        log("WARN: no Landlock, so sandboxes are held by the rest alone");
    }
    lease::sweep(&ceiling.text);
    log("ready");
    named("serve", parent::run(&ceiling, &listener))?;
    named("capabilities", caps::raise(None, CapSet::Effective, Capability::CAP_DAC_OVERRIDE))?;
    ceiling.groups.end();
    log("ended");
    Ok(())
}

/// What a process has from who starts it, and what else is told of it, as it is to be here.
fn inherit_nothing() -> Result<(), String> {
    named("non-dumpable", prctl::set_dumpable(false))?;
    named("no_new_privs", prctl::set_no_new_privs())?;
    named("subreaper", prctl::set_child_subreaper(true))?;
    sys::default_signals((1..=64).filter(|signal| !sandbox::IGNORED.contains(signal)));
    sys::reap_children(false);
    umask(Mode::from_bits_truncate(0o077));
    let (_, most) = named("descriptors", getrlimit(Resource::RLIMIT_NOFILE))?;
    named("descriptors", setrlimit(Resource::RLIMIT_NOFILE, most.min(OPEN_FILES), most))
}

/// A mount namespace is entered at its own root. In a chroot that is not this process's, and a sandbox that enters its
/// template would find there what is outside the chroot.
fn not_in_a_chroot() -> Result<(), String> {
    let root = || named("root", sys::identity_at(Path::new("/")));
    let own = named("own mount namespace", sys::open("/proc/self/ns/mnt", OFlag::O_RDONLY))?;
    let before = root()?;
    named("own mount namespace", setns(own, CloneFlags::CLONE_NEWNS))?;
    let why = "this is a chroot, which sandboxes would leave: make it a root by pivot_root";
    must(root()?.same(&before), why)
}

/// The activated socket, if it is what it must be.
fn listener() -> Result<OwnedFd, String> {
    let fd = named("descriptor 3", sys::activated_socket())?;
    must(named("descriptor 3", is_listener(&fd))?, "descriptor 3 is not a listening SEQPACKET socket")?;
    named("descriptor 3", fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)))?;
    Ok(fd)
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    let wanted = CapsHashSet::from(CAPABILITIES);
    // Nothing is executed but in sandboxes, and no exec there gains anything.
    caps::clear(None, CapSet::Bounding)?;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &wanted)?;
    // For this instance's control groups at its end, in a directory that may be nobody's to write; links give it up.
    let kept = wanted.into_iter().chain([Capability::CAP_DAC_OVERRIDE]).collect();
    caps::set(None, CapSet::Permitted, &kept)
}
