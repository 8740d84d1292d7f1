//! Where an `up` lives: its directories, who owns each, and how all of it goes away again (`[7.5]`, `[0.5]`).
//!
//! ```text
//! STATE/            root 0755   .cyberos-up, locked as long as it lives
//!   bin/ skills/    root 0755   copies that the daemons' users can reach
//!   mount/          root 0755   the view
//!   helper/ keys/   root 0700   ceiling; signing key of the built-in provider
//!   trusted/        root 0755   its public keys
//!   broker/         broker 0700     skillfs/   skillfs 0700
//!   run/            root 0755   helper.sock; broker/ and skillfs/ 2755, group of the operators
//! ```

use crate::grants::UP_MARK;
use crate::terminal::escape_line;
use anyhow::{Context, Result, bail};
use cyberos_proto::invoker;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid};
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Parent of directories made for one `up` that was given none.
const FRESH_PARENT: &str = "/var/tmp";
const FRESH_PREFIX: &str = "cyberos-up-";
/// The socket directory that the CLI looks into without being told.
const WELL_KNOWN_RUN: &str = "/run/cyberos";
const WELL_KNOWN_LOCK: &str = "/run/cyberos-up.lock";

/// The users of the daemons (`[0.3]`): the package's, or numbers of their own where those don't exist.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Users {
    /// The broker.
    pub(in crate::cli) broker: Ids,
    /// SkillFS.
    pub(in crate::cli) skillfs: Ids,
    /// Group of the helper's socket.
    pub(in crate::cli) link: Gid,
    /// Group of the operators.
    pub(in crate::cli) operators: Gid,
}

/// A user and its primary group.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Ids {
    /// User.
    pub(in crate::cli) uid: Uid,
    /// Primary group.
    pub(in crate::cli) gid: Gid,
}

impl Users {
    /// Looks the package's users up.
    pub(in crate::cli) fn find() -> Result<Self> {
        let user = |name: &str, fallback: u32| -> Result<Ids> {
            Ok(match nix::unistd::User::from_name(name)? {
                Some(u) => Ids { uid: u.uid, gid: u.gid },
                None => Ids { uid: Uid::from_raw(fallback), gid: Gid::from_raw(fallback) },
            })
        };
        let group = |name: &str, fallback: u32| -> Result<Gid> {
            Ok(nix::unistd::Group::from_name(name)?.map_or(Gid::from_raw(fallback), |g| g.gid))
        };
        Ok(Users {
            broker: user("cyberos", 1_899_999_001)?,
            skillfs: user("cyberos-skillfs", 1_899_999_002)?,
            link: group("cyberos-link", 1_899_999_003)?,
            operators: group("cyberos", 1_899_999_004)?,
        })
    }
}

/// One `up`'s place. Dropped, it removes what it made.
#[derive(Debug)]
pub(super) struct Place {
    /// STATE.
    pub(super) state: PathBuf,
    /// Directory of the operator's socket.
    pub(super) operator_dir: PathBuf,
    fresh: bool,
    _lock: Flock<File>,
    well_known: Option<Flock<File>>,
}

impl Place {
    /// Takes STATE (a fresh directory if none is given) and the well-known socket directory if it is free.
    pub(super) fn take(state: Option<&Path>, users: &Users) -> Result<Self> {
        sweep_fresh();
        let (state, fresh) = match state {
            Some(dir) => {
                let dir = take_directory(dir)?;
                empty_or_ours(&dir)?;
                (dir, false)
            }
            None => (fresh_directory()?, true),
        };
        let lock = lock(&state.join(UP_MARK), 0o600)?
            .with_context(|| format!("{} is in use by another 'cyberos up'", state.display()))?;
        take_off_dead_views(&state.join("mount"));
        let root = Ids { uid: Uid::from_raw(0), gid: Gid::from_raw(0) };
        for (name, owner, mode) in [
            ("bin", root, 0o755),
            ("mount", root, 0o755),
            ("helper", root, 0o700),
            ("keys", root, 0o700),
            ("trusted", root, 0o755),
            ("broker", users.broker, 0o700),
            ("skillfs", users.skillfs, 0o700),
            ("sealed", users.broker, 0o700),
            ("run", root, 0o755),
            ("run/broker", Ids { uid: users.broker.uid, gid: users.operators }, 0o2755),
            ("run/skillfs", Ids { uid: users.skillfs.uid, gid: users.operators }, 0o2755),
        ] {
            own_directory(&state.join(name), owner, mode)?;
        }
        let well_known = if fresh { take_well_known(users)? } else { None };
        let operator_dir = match &well_known {
            Some(_) => PathBuf::from(WELL_KNOWN_RUN),
            None => state.join("run/broker"),
        };
        let place = Place { state, operator_dir, fresh, _lock: lock, well_known };
        for socket in [place.operator_socket(), place.control_socket(), place.helper_socket()] {
            // sockaddr_un holds 107 bytes; one that only the daemon finds out about would be a riddle.
            if socket.as_os_str().len() > 107 {
                bail!(
                    "{} is too long for a socket's path (107 bytes): choose a shorter --state",
                    socket.display()
                );
            }
        }
        Ok(place)
    }

    /// The broker's socket.
    pub(super) fn operator_socket(&self) -> PathBuf {
        self.operator_dir.join("broker.sock")
    }

    /// SkillFS's socket.
    pub(super) fn control_socket(&self) -> PathBuf {
        self.state.join("run/skillfs/control.sock")
    }

    /// The helper's socket.
    pub(super) fn helper_socket(&self) -> PathBuf {
        self.state.join("run/helper.sock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.well_known.is_some() {
            let _ = std::fs::remove_dir_all(WELL_KNOWN_RUN);
        }
        // The helper's lock of this mount point, which no other instance has.
        let lock = self.state.join("mount").display().to_string().replace('/', "+");
        let _ = std::fs::remove_file(Path::new("/run/cyberos-uid").join(format!("mount{lock}")));
        if self.fresh {
            let _ = std::fs::remove_dir_all(&self.state);
        } else {
            let _ = std::fs::remove_dir_all(self.state.join("run"));
        }
    }
}

/// Refuses a path that someone else could replace or change: each directory on it must be root's (or the invoking
/// user's, who gave the path), and writable by nobody else unless sticky.
pub(super) fn trusted_path(path: &Path) -> Result<()> {
    trusted(path, invoker::uid())
}

fn trusted(path: &Path, invoker: Option<u32>) -> Result<()> {
    for part in path.ancestors() {
        let Ok(meta) = std::fs::symlink_metadata(part) else { continue };
        let ours = meta.uid() == 0 || Some(meta.uid()) == invoker;
        // In a sticky directory others can add names and not take this one.
        let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
        let writable = meta.mode() & 0o022 != 0 && !sticky;
        if !ours || (writable && !meta.file_type().is_symlink()) {
            bail!(
                "{} can be changed by others (owner {}, mode {:o}): choose a path that only root can change, \
                 or chown and chmod it",
                part.display(),
                meta.uid(),
                meta.mode() & 0o7777
            );
        }
    }
    Ok(())
}

fn take_directory(dir: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(dir)?;
    // What root writes here nobody else may have prepared, the invoking user neither.
    trusted(&absolute, None)?;
    if !absolute.exists() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&absolute)
            .with_context(|| format!("cannot create {}", absolute.display()))?;
    }
    let real = absolute.canonicalize().with_context(|| format!("cannot open {}", absolute.display()))?;
    trusted(&real, None)?;
    Ok(real)
}

/// Refuses a directory in which somebody keeps other things: an `up` gives parts of STATE to its daemons' users, and
/// would fill it with a dozen of its own.
fn empty_or_ours(dir: &Path) -> Result<()> {
    let mark = std::fs::symlink_metadata(dir.join(UP_MARK));
    if mark.is_ok_and(|m| m.is_file() && m.uid() == 0) {
        return Ok(());
    }
    let mut others = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let name = entry?.file_name();
        // Of a disk of its own.
        if name != "lost+found" {
            others.push(escape_line(&name.to_string_lossy()).into_owned());
        }
    }
    others.sort();
    let more = others.len().saturating_sub(3);
    others.truncate(3);
    if others.is_empty() {
        return Ok(());
    }
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    bail!(
        "--state {}: is not empty, and is no state of an earlier 'cyberos up' (it holds {}{more}): name a \
         directory of its own",
        dir.display(),
        others.join(", ")
    )
}

fn fresh_directory() -> Result<PathBuf> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|e| anyhow::anyhow!("no randomness: {e}"))?;
    let path = Path::new(FRESH_PARENT).join(format!("{FRESH_PREFIX}{:016x}", u64::from_ne_bytes(random)));
    std::fs::DirBuilder::new()
        .mode(0o755)
        .create(&path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Removes what an `up` left that was killed: root's directories of our name whose lock nobody holds.
fn sweep_fresh() {
    let Ok(entries) = std::fs::read_dir(FRESH_PARENT) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(FRESH_PREFIX)
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == 0 && m.mode() & 0o022 == 0);
        if !ours || !entry.path().join(UP_MARK).exists() {
            continue;
        }
        if let Ok(Some(_held)) = lock(&entry.path().join(UP_MARK), 0o600) {
            take_off_dead_views(&entry.path().join("mount"));
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Detaches views of ours that a killed `up` has left there: those whose server is gone. A living one answers, and
/// stays.
pub(super) fn take_off_dead_views(mount: &Path) {
    use nix::errno::Errno;
    use nix::mount::{MntFlags, umount2};
    use nix::sys::statfs::statfs;
    // The second: the server ended while we asked.
    let dead = || statfs(mount).is_err_and(|e| matches!(e, Errno::ENOTCONN | Errno::ECONNABORTED));
    while dead() && umount2(mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
}

fn lock(path: &Path, mode: u32) -> Result<Option<Flock<File>>> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EAGAIN)) => Ok(None),
        Err((_, e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// `/run/cyberos`, unless a packaged service or another `up` has it.
fn take_well_known(users: &Users) -> Result<Option<Flock<File>>> {
    let Some(held) = lock(Path::new(WELL_KNOWN_LOCK), 0o600)? else { return Ok(None) };
    let run = Path::new(WELL_KNOWN_RUN);
    if std::os::unix::net::UnixStream::connect(run.join("broker.sock")).is_ok() {
        return Ok(None);
    }
    own_directory(run, Ids { uid: users.broker.uid, gid: users.operators }, 0o2755)?;
    Ok(Some(held))
}

/// Makes a directory, or takes one that is there, with exactly this owner and mode. By descriptor: a directory that is
/// given away could be replaced by a link under its own name if its parent were not root's, and every parent here is.
pub(super) fn own_directory(path: &Path, owner: Ids, mode: u32) -> Result<()> {
    let act = || -> nix::Result<()> {
        match nix::unistd::mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(e) => return Err(e),
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open(path, flags, Mode::empty())?;
        nix::unistd::fchown(&dir, Some(owner.uid), Some(owner.gid))?;
        nix::sys::stat::fchmod(&dir, Mode::from_bits_truncate(mode))
    };
    act().with_context(|| format!("cannot prepare {}", path.display()))
}

/// Writes a file of root's that `reader` may read: a new one beside it, then renamed, so that nothing that lies there is
/// followed or half-written.
pub(super) fn write_for(path: &Path, reader: Gid, text: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let act = || -> std::io::Result<()> {
        let _ = std::fs::remove_file(&fresh);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        std::io::Write::write_all(&mut file, text)?;
        nix::unistd::fchown(&file, Some(Uid::from_raw(0)), Some(reader))?;
        file.set_permissions(std::fs::Permissions::from_mode(0o640))?;
        std::fs::rename(&fresh, path)
    };
    act().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a file that the operator named, with the rights of whoever called sudo: root's reach is not lent out.
pub(super) fn read_as_invoker(path: &Path) -> Result<Vec<u8>> {
    let told = || format!("cannot read {}", path.display());
    let Some(uid) = invoker::uid().filter(|uid| *uid != 0) else {
        return std::fs::read(path).with_context(told);
    };
    let gid = invoker::gid().unwrap_or(uid);
    let read = std::process::Command::new("setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()])
        .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--", "cat", "--"])
        .arg(path)
        .output()
        .with_context(told)?;
    if !read.status.success() {
        bail!("{}: {}", told(), String::from_utf8_lossy(&read.stderr).trim());
    }
    Ok(read.stdout)
}
