//! The root part of CyberOS. It makes sockets, sandboxes and mounts for two peers, within a ceiling that root has
//! written, and decides nothing. This file is the start-up list, in order; `parent` accepts, `link` serves.
//!
//! It must run in the mount namespace in which its mounts are to be seen: a unit option that makes another one
//! (PrivateTmp, ProtectSystem, …) would hide views and sockets from everybody else while every call succeeds.

mod ceiling;
mod child;
mod fuse;
mod gate;
mod hold;
mod init;
mod lease;
mod link;
mod parent;
mod socket;
mod spawn;
mod sys;

use caps::{CapSet, Capability, CapsHashSet};
use cyberos_proto::message::Refusal;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use nix::sys::stat::{Mode, umask};
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// What root's work here needs; everything else is given up at once.
const CAPABILITIES: [Capability; 7] = [
    Capability::CAP_SYS_ADMIN,       // namespaces, mounts
    Capability::CAP_SETUID,          // a sandbox's uid
    Capability::CAP_SETGID,          // and gid
    Capability::CAP_SETPCAP,         // an empty bounding set
    Capability::CAP_KILL,            // signals to other uids
    Capability::CAP_DAC_READ_SEARCH, // sealed copies lie in directories of the broker's alone
    Capability::CAP_FOWNER,          // removal of a lease's socket from sticky /tmp
];

fn main() -> ExitCode {
    let Err(why) = start() else { return ExitCode::SUCCESS };
    log(&why);
    ExitCode::FAILURE
}

fn start() -> Result<(), String> {
    activated()?;
    let ceiling = arguments()?;
    sys::clear_environment();
    let listener = listener()?;
    sys::close_all_but(&mut [listener.as_fd()]);
    standard_streams()?;
    named("non-dumpable", prctl::set_dumpable(false))?;
    named("no_new_privs", prctl::set_no_new_privs())?;
    named("subreaper", prctl::set_child_subreaper(true))?;
    sys::reap_children(false);
    umask(Mode::from_bits_truncate(0o077));
    let (_, most) = named("descriptors", getrlimit(Resource::RLIMIT_NOFILE))?;
    named("descriptors", setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most))?;
    let ceiling = named("the ceiling's path", std::path::absolute(ceiling))?;
    // What is looked up in it is found even when something is mounted over it.
    named("/proc", nix::unistd::chdir("/proc"))?;
    let ceiling = ceiling::Ceiling::read(&ceiling)?;
    named("capabilities", drop_capabilities())?;
    named("own filter", sys::load_filter(include_bytes!(concat!(env!("OUT_DIR"), "/helper.bpf"))))?;
    lease::sweep(&ceiling);
    log("ready");
    named("serve", parent::run(&ceiling, &listener))?;
    log("ended");
    Ok(())
}

/// Whether this process was started with exactly one listening socket.
fn activated() -> Result<(), String> {
    let number = |key: &str| std::env::var(key).ok().and_then(|v| v.parse::<u32>().ok());
    match (number("LISTEN_PID") == Some(std::process::id()), number("LISTEN_FDS")) {
        (true, Some(1)) => Ok(()),
        (true, other) => Err(format!("expected one listening socket, got LISTEN_FDS={other:?}")),
        (false, _) => {
            Err("not started by socket activation (LISTEN_PID is not this process): start it with \
                           systemd, or with systemd-socket-activate --seqpacket -l SOCKET"
                .into())
        }
    }
}

fn arguments() -> Result<PathBuf, String> {
    match std::env::args_os().skip(1).collect::<Vec<_>>().as_slice() {
        [] => Ok(PathBuf::from("/etc/cyberos/ceiling")),
        [flag, file] if flag == "--ceiling" => Ok(PathBuf::from(file)),
        _ => Err("usage: cyberos-priv-helper [--ceiling FILE]".into()),
    }
}

/// The activated socket, if it is what it must be.
fn listener() -> Result<OwnedFd, String> {
    let fd = named("descriptor 3", sys::activated_socket())?;
    let kind = named("descriptor 3", getsockopt(&fd, sockopt::SockType))?;
    let listens = named("descriptor 3", getsockopt(&fd, sockopt::AcceptConn))?;
    must(listens && kind == SockType::SeqPacket, "descriptor 3 is not a listening SEQPACKET socket")?;
    named("descriptor 3", fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)))?;
    Ok(fd)
}

/// Nothing that is opened later may become a standard stream.
fn standard_streams() -> Result<(), String> {
    loop {
        let null = named("/dev/null", open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()))?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        std::mem::forget(null);
    }
}

fn drop_capabilities() -> Result<(), caps::errors::CapsError> {
    let wanted = CapsHashSet::from(CAPABILITIES);
    for cap in caps::read(None, CapSet::Bounding)?.difference(&wanted) {
        caps::drop(None, CapSet::Bounding, *cap)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &wanted)?;
    caps::set(None, CapSet::Permitted, &wanted)
}

/// One line of what happened. A closed stderr is nobody's fault here.
pub(crate) fn log(line: &str) {
    let _ = writeln!(io::stderr(), "cyberos-priv-helper: {line}");
}

/// Says of what an error at start is.
pub(crate) fn named<T>(what: impl Display, result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// Unless `right`, `why` is an error at start.
pub(crate) fn must(right: bool, why: impl Into<String>) -> Result<(), String> {
    if right { Ok(()) } else { Err(why.into()) }
}

/// Names the step of a request that failed.
pub(crate) fn step<T>(name: &str, result: Result<T, impl Into<io::Error>>) -> Result<T, Refusal> {
    let errno = |e: io::Error| e.raw_os_error().unwrap_or_default();
    result.map_err(|e| Refusal::System { step: name.to_owned(), errno: errno(e.into()) })
}
