//! Tools of the tests about grants: a place with trees to grant, a broker that asks for them, a Bash sandbox that tells.

use crate::raw::*;
use crate::support::folders::Folder;
use crate::support::helper::{Asks, BROKER, Helper};
use crate::support::machine::mount_points;
use crate::support::plans;
use cyberos_proto::message::{Refusal, Reply, Request};
use cyberos_proto::plan::SpawnPlan;
use nix::mount::{MntFlags, umount2};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

/// A helper that may grant everything in a place, that place, and who connects as the broker.
pub(crate) fn granting() -> (Helper, Place, Dialler) {
    let place = Place::new();
    own(&place.0);
    let helper = Helper::start(&format!("root grant {}\n", place.0.display()));
    let dialler = Dialler::new(&helper.socket(), BROKER);
    (helper, place, dialler)
}

/// A place that goes with the test, and whatever is mounted in it first.
pub(crate) struct Place(pub(crate) Folder);

impl Place {
    /// An empty one, root's.
    pub(crate) fn new() -> Place {
        Place(Folder::below("/var/tmp", "cyberos-grant-test-"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for point in mount_points().iter().rev().filter(|p| p.starts_with(&self.0)) {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
    }
}

pub(crate) fn own(path: &Path) {
    chown(path, Some(BROKER), Some(BROKER)).unwrap();
}

pub(crate) fn dir(path: &Path) -> PathBuf {
    fs::create_dir_all(path).unwrap();
    own(path);
    path.to_owned()
}

pub(crate) fn file(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    own(path);
}

/// What a Bash tool asks for, with these grants.
pub(crate) fn bash(script: &str, grants: &[(&Path, bool)]) -> SpawnPlan {
    plans::bash(script, grants.iter().map(|(dir, writable)| plans::bind(dir, *writable)).collect())
}

pub(crate) struct Broker<'a> {
    pub(crate) raw: &'a Raw,
}

impl Broker<'_> {
    /// A sandbox's pipes, or why there is none, and the request that releases it.
    pub(crate) fn ask(&self, plan: SpawnPlan, fds: &[RawFd]) -> (Result<Vec<OwnedFd>, Refusal>, Request) {
        let id = new_id();
        (self.raw.spawn(&id.prepare(plan), fds), id.release())
    }

    pub(crate) fn refusal(&self, what: &str, plan: SpawnPlan, fds: &[RawFd]) -> Refusal {
        self.ask(plan, fds).0.expect_err(what)
    }

    /// What a granted script printed.
    pub(crate) fn said(&self, plan: SpawnPlan, fds: &[RawFd]) -> String {
        let (pipes, release) = self.ask(plan, fds);
        let mut text = String::new();
        let mut pipes = pipes.unwrap().into_iter().skip(1);
        File::from(pipes.next().unwrap()).read_to_string(&mut text).unwrap();
        File::from(pipes.next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(self.raw.ask(&good(&release), &[]), Answer::Said(Reply::Done));
        text
    }
}

/// Mounts on what a grant could wrongly be attached to: the place itself, and the host's own directories.
pub(crate) fn mounts(place: &Place) -> usize {
    let hosts = ["/", "/usr", "/etc", "/tmp", "/proc"].map(Path::new);
    mount_points().iter().filter(|p| p.starts_with(&place.0) || hosts.contains(&p.as_path())).count()
}
