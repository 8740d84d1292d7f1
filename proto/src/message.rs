//! What passes between the helper and its two peers, and how many descriptors each message carries.
//!
//! One request is answered by exactly one reply, in order and at once; events may come between. No request carries a path
//! that the helper opens for its peer (`[10.2]`).

use crate::ids::{InvocationId, MountId, SandboxId};
use crate::plan::{PlanFault, SandboxReport, SpawnPlan};
use core::fmt;
use core::time::Duration;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// A message of one direction of a link.
pub trait Message: Serialize + for<'de> Deserialize<'de> {
    /// How many descriptors travel with it; a packet with another number is refused.
    fn descriptors(&self) -> usize;
}

/// What the broker or SkillFS asks of the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Broker: lease a uid to a sandbox and make the socket of the invocation that will run in it (`[2.2]`). Answer:
    /// [`Reply::SocketCreated`].
    CreateSocket {
        /// Whose lease.
        sandbox: SandboxId,
        /// Whose socket.
        invocation: InvocationId,
    },
    /// Broker: build a sandbox from `plan`, up to the moment before its program is executed. Carries one descriptor for
    /// each bind. Answer: [`Reply::Done`] when the plan was checked and its building has begun; then comes
    /// [`Event::Prepared`] or [`Event::Failed`], and other requests are answered meanwhile.
    ///
    /// A plan with the socket needs a sandbox that holds one and has no processes. A plan without may also name a fresh
    /// id: it leases a uid by itself (the report says which), and is released like any other.
    Prepare {
        /// Which sandbox.
        sandbox: SandboxId,
        /// What to run.
        plan: Box<SpawnPlan>,
    },
    /// Broker: execute the program of a sandbox that was prepared. Answer: [`Reply::Done`]; then comes
    /// [`Event::Started`] or [`Event::Failed`].
    Go {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// Broker: signal the program (TERM) or end the whole sandbox (KILL). Answer: [`Reply::Done`], also when it
    /// has already ended.
    Signal {
        /// Which sandbox.
        sandbox: SandboxId,
        /// Which signal.
        signal: Signal,
    },
    /// Broker: end what still runs, remove the socket, give the lease back. Answer: [`Reply::Done`].
    Release {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// SkillFS: mount the mount point of that number. Answer: [`Reply::Mounted`].
    Mount {
        /// Which.
        mount: MountId,
    },
    /// SkillFS: unmount it. Answer: [`Reply::Done`].
    Unmount {
        /// Which.
        mount: MountId,
    },
    /// SkillFS: let the kernel read (and on a writable mount write) the file that this carries in place of the mount's
    /// server. Answer: [`Reply::Backing`]. The file must be regular, opened with at least the access that the mount
    /// gives, and inside a root of kind `backing` (`[10.2]`); at most [`MAX_BACKING`] on one mount.
    RegisterBacking {
        /// On which mount.
        mount: MountId,
    },
    /// SkillFS: forget a backing file. Answer: [`Reply::Done`], also when there is none of that number.
    CloseBacking {
        /// On which mount.
        mount: MountId,
        /// The number that [`Reply::Backing`] gave.
        id: u32,
    },
    /// Broker: what do sandboxes have here? Answer: [`Reply::Described`].
    Describe,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A sandbox.
    Sandbox(SandboxId),
    /// A mount point.
    Mount(MountId),
    /// The helper itself.
    Helper,
}

impl Request {
    /// The one thing that it is about.
    pub fn subject(&self) -> Subject {
        match *self {
            Request::Describe => Subject::Helper,
            Request::CreateSocket { sandbox, .. }
            | Request::Prepare { sandbox, .. }
            | Request::Go { sandbox }
            | Request::Signal { sandbox, .. }
            | Request::Release { sandbox } => Subject::Sandbox(sandbox),
            Request::Mount { mount }
            | Request::Unmount { mount }
            | Request::RegisterBacking { mount }
            | Request::CloseBacking { mount, .. } => Subject::Mount(mount),
        }
    }
}

/// Most backing files of one mount (`[10.2]`).
pub const MAX_BACKING: usize = 4096;

/// The signals that may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM to the program itself.
    Term,
    /// SIGKILL to everything in the sandbox.
    Kill,
}

/// The helper's one answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The socket listens; carries the listening descriptor (stream, non-blocking).
    SocketCreated {
        /// Leased uid (and gid): the only peer that may connect.
        uid: u32,
    },
    /// Mounted; carries the FUSE descriptor, INIT not yet read.
    Mounted,
    /// Done.
    Done,
    /// Not done, and nothing left behind.
    Refused(Refusal),
    /// The file is registered.
    Backing {
        /// Its number, for FUSE_OPEN's answer and for closing it.
        id: u32,
    },
    /// What sandboxes have here.
    Described {
        /// First and last uid that a sandbox may lease: the ceiling's `uid_range`.
        uids: (u32, u32),
    },
}

/// How long a sandbox may take to be prepared, may then wait for [`Request::Go`], and may take to execute its program,
/// each (`[10.2]`). One that takes longer is ended, and [`Event::Failed`] says so.
pub const PHASE_LIMIT: Duration = Duration::from_secs(10);

/// What the helper tells unasked, or when it comes to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A sandbox is built, and waits for [`Request::Go`]. Carries its program's stdin (to write), stdout and stderr (to
    /// read).
    Prepared {
        /// Which sandbox.
        sandbox: SandboxId,
        /// What is really enforced.
        report: SandboxReport,
    },
    /// The program was executed.
    Started {
        /// Which sandbox.
        sandbox: SandboxId,
    },
    /// A sandbox was not built, or not started, and its processes have been killed. A lease that came with it is given
    /// back.
    Failed {
        /// Which sandbox.
        sandbox: SandboxId,
        /// Why.
        refusal: Refusal,
    },
    /// The program has ended, and with it the whole sandbox.
    Exited {
        /// Which sandbox.
        sandbox: SandboxId,
        /// How.
        exit: Exit,
        /// Whether the kernel ended a process of it because its control group had no memory left.
        out_of_memory: bool,
    },
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// Exit status.
    Code(u8),
    /// Ended by a signal of that number.
    Signal(u8),
}

/// Everything that comes from the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromHelper {
    /// The answer to the oldest request without one.
    Reply(Reply),
    /// Something that happened.
    Event(Event),
}

/// Why the helper refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The packet is not a request of this version; the link is closed after it.
    Malformed,
    /// Not a request of this peer's role; the link is closed after it.
    Role,
    /// Another live link already has this role.
    Busy,
    /// Not now: unknown sandbox, one that has processes already, one that was not prepared, a mount that is mounted.
    Phase,
    /// The plan is not well formed.
    Plan(PlanFault),
    /// Above the ceiling; the text names the key.
    Ceiling(String),
    /// A descriptor is not what it must be; the text says what was found.
    Descriptor(String),
    /// The socket path exists already; nothing was removed.
    Exists,
    /// A never-skipped part of the sandbox is not available (`[10.6]`).
    Unavailable {
        /// Which part.
        step: String,
        /// errno.
        errno: i32,
    },
    /// The program could not be executed: errno of execve (ENOENT, EACCES, ENOEXEC, …).
    Exec {
        /// errno.
        errno: i32,
    },
    /// A system call failed.
    System {
        /// What was being done.
        step: String,
        /// errno.
        errno: i32,
    },
    /// A granted directory cannot be given: its file system, or one mounted below it, has no idmapped mounts; or one at,
    /// above or below it may wait for others; or one below it is left out of copies.
    GrantUnsupported {
        /// Which bind of the plan, from 0.
        bind: u32,
        /// Type of that file system.
        fs: String,
    },
}

/// Names the step of a request that failed.
pub fn step<T>(name: &str, result: Result<T, impl Into<std::io::Error>>) -> Result<T, Refusal> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or_default();
    result.map_err(|e| Refusal::System { step: name.to_owned(), errno: errno(e.into()) })
}

/// A step without which there is no sandbox (`[10.6]`).
pub fn never_skipped<T>(name: &str, result: Result<T, Errno>) -> Result<T, Refusal> {
    result.map_err(|e| Refusal::Unavailable { step: name.to_owned(), errno: e as i32 })
}

/// A process in new namespaces, which a machine that is full refuses too.
pub fn namespaces<T>(made: Result<T, Errno>) -> Result<T, Refusal> {
    match made {
        Err(e @ (Errno::EAGAIN | Errno::ENOMEM | Errno::ENOSPC)) => step("namespaces", Err(e)),
        other => never_skipped("namespaces", other),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = |n: &i32| std::io::Error::from_raw_os_error(*n);
        match self {
            Refusal::Malformed => write!(f, "the helper did not understand the request (another version?)"),
            Refusal::Role => write!(f, "the helper does not take this request from this user"),
            Refusal::Busy => write!(f, "the helper already serves another link of this role"),
            Refusal::Phase => write!(f, "the helper does not take this request now"),
            Refusal::Plan(fault) => write!(f, "{fault} is not acceptable"),
            Refusal::Ceiling(key) => write!(f, "above the helper's ceiling: {key}"),
            Refusal::Descriptor(what) => write!(f, "a descriptor was refused: {what}"),
            Refusal::Exists => write!(f, "the socket path exists already; it was left alone"),
            Refusal::Unavailable { step, errno } => {
                write!(f, "this kernel cannot give what a sandbox may never lack: {step}: {}", os(errno))
            }
            Refusal::Exec { errno } => write!(f, "the program cannot be executed: {}", os(errno)),
            Refusal::System { step, errno } => write!(f, "{step}: {}", os(errno)),
            Refusal::GrantUnsupported { bind, fs } => {
                write!(
                    f,
                    "bind {bind} of the plan cannot be granted: a file system at, above or below it is {fs}, which has \
                     no idmapped mounts or may wait for others"
                )
            }
        }
    }
}

impl Message for Request {
    fn descriptors(&self) -> usize {
        match self {
            Request::Prepare { plan, .. } => plan.binds.len(),
            Request::RegisterBacking { .. } => 1,
            Request::Describe
            | Request::CreateSocket { .. }
            | Request::Go { .. }
            | Request::Signal { .. }
            | Request::Release { .. }
            | Request::Mount { .. }
            | Request::Unmount { .. }
            | Request::CloseBacking { .. } => 0,
        }
    }
}

impl Message for FromHelper {
    fn descriptors(&self) -> usize {
        match self {
            FromHelper::Reply(Reply::SocketCreated { .. } | Reply::Mounted) => 1,
            FromHelper::Event(Event::Prepared { .. }) => 3,
            FromHelper::Reply(
                Reply::Done | Reply::Refused(_) | Reply::Backing { .. } | Reply::Described { .. },
            )
            | FromHelper::Event(Event::Started { .. } | Event::Failed { .. } | Event::Exited { .. }) => 0,
        }
    }
}
