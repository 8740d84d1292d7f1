//! Names that most parts of the helper use.

pub(crate) use crate::ceiling::Ceiling;
pub(crate) use crate::inner::{Inner, Note, Thing};
pub(crate) use crate::log::{Often, log, log_often};
pub(crate) use crate::policy::start::{must, named};
pub(crate) use crate::sys::{self, Sys};
pub(crate) use cyberos_proto::ids::{InvocationId, MountId, SandboxId};
pub(crate) use cyberos_proto::link::{Link, LinkError, Peer, Wait, pair};
pub(crate) use cyberos_proto::message::{Refusal, step};
pub(crate) use nix::sys::{prctl, signal::Signal, stat::Mode, stat::umask};
pub(crate) use nix::unistd::{self, Pid};
pub(crate) use nix::{errno::Errno, fcntl::OFlag, libc};
pub(crate) use std::fs;
pub(crate) use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::time::{Duration, Instant};

/// What a step of a request comes to.
pub(crate) type Step<T> = Result<T, Refusal>;
