//! Tools of the tests about grants: a work tree of the broker's, and what a Bash sandbox prints on it.

use crate::support::helper::*;
use cyberos_proto::ids::InvocationId;
use cyberos_proto::message::Request;
use cyberos_proto::plan::SpawnPlan;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// A work tree of the broker's, where grants may be. /tmp has sandboxes' own things.
pub(super) struct Work(pub(super) tempfile::TempDir);

impl Work {
    pub(super) fn new() -> Work {
        let dir = tempfile::Builder::new().prefix("cyberos-granted-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let work = Work(dir);
        chown(work.0.path(), Some(BROKER), Some(BROKER)).unwrap();
        work
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A directory of the broker's.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.at(name)).unwrap();
        chown(self.at(name), Some(BROKER), Some(BROKER)).unwrap();
        self.at(name)
    }

    pub(super) fn file(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
        chown(self.at(name), Some(BROKER), Some(BROKER)).unwrap();
    }

    pub(super) fn root(&self) -> String {
        format!("root grant {}\n", self.0.path().display())
    }
}

pub(super) fn path(dir: &Path) -> OwnedFd {
    open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).unwrap()
}

/// For a sandbox of its own.
pub(super) fn spawn(plan: SpawnPlan) -> Request {
    InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes()).prepare(plan)
}

/// Runs to the end: stdout, and stderr after it.
pub(super) fn run(broker: &Peer, plan: SpawnPlan, fds: &[BorrowedFd<'_>]) -> String {
    let invocation = InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes());
    let Pipes { stdin, stdout, stderr, .. } = broker.spawn(&invocation.prepare(plan), fds).unwrap();
    drop(stdin);
    let read = |fd: OwnedFd| std::io::read_to_string(File::from(fd)).unwrap();
    let said = read(stdout) + &read(stderr);
    broker.exit(invocation);
    broker.ask(&invocation.release(), &[]);
    said
}

/// A mount that goes with the test.
pub(super) struct Mounted(pub(super) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

pub(super) fn overlay(work: &Work, at: &Path) -> Mounted {
    let [lower, upper, under] = ["l", "u", "k"].map(|n| work.dir(n));
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), under.display());
    mount(Some("overlay"), at, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
    Mounted(at.to_owned())
}
