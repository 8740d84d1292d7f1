//! The directory that the packaged default grants (`[4.0]`). An `up` makes it if it is absent; the last of several
//! removes it again, unless somebody has put something there.

use super::place::Users;
use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::chown;
use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const WORK: &str = "/srv/cyberos/work";
/// Held shared by every `up`; says also, by its content, that one of them made the directory.
const LOCK: &str = "/run/cyberos-work.lock";

pub(super) struct WorkDirectory {
    lock: Option<Flock<File>>,
}

impl WorkDirectory {
    pub(super) fn take(users: &Users) -> Result<Self> {
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(nix::libc::O_NOFOLLOW)
                .open(LOCK)
        };
        let file = open().with_context(|| format!("cannot open {LOCK}"))?;
        let lock = Flock::lock(file, FlockArg::LockShared)
            .map_err(|(_, e)| e)
            .with_context(|| format!("cannot lock {LOCK}"))?;
        let work = Path::new(WORK);
        if let Some(parent) = work.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        match std::fs::create_dir(work) {
            Ok(()) => {
                std::fs::set_permissions(work, std::fs::Permissions::from_mode(0o755))?;
                chown(work, Some(users.broker.uid), Some(users.broker.gid))?;
                lock.set_len(1)?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("cannot create {WORK}")),
        }
        Ok(WorkDirectory { lock: Some(lock) })
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        let made = lock.metadata().is_ok_and(|m| m.len() > 0);
        if !made || lock.relock(FlockArg::LockExclusiveNonblock).is_err() {
            return;
        }
        // Each fails when somebody has put something there, as it should.
        let work = Path::new(WORK);
        if std::fs::remove_dir(work).is_ok() {
            if let Some(parent) = work.parent() {
                let _ = std::fs::remove_dir(parent);
            }
            let _ = std::fs::remove_file(LOCK);
        }
    }
}
