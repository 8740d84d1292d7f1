//! From a permitted path to a descriptor (`[4.4]`). Nobody else opens paths that a skill gave.
//!
//! The name has matched a rule before anything here is called, so nothing outside a grant is touched. What is opened
//! is opened below the rule's root, which has been held since the grants were compiled; it is pinned first (`O_PATH`
//! opens no device and waits for no FIFO), looked at, its name read back and matched again, and only then opened by
//! way of the pin. It knows no rule: [`resolve`] is handed the one that must still admit the name.

use crate::call::ToolError;
use cyberos_proto::beneath::{Stay, again, kind, name_of, open};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{self, FsType, fstatfs};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File systems that are the kernel's own state. Wherever they are mounted they are never granted (`[4.0]`).
const KERNEL_STATE: &[FsType] = &[
    statfs::PROC_SUPER_MAGIC,
    statfs::SYSFS_MAGIC,
    statfs::CGROUP_SUPER_MAGIC,
    statfs::CGROUP2_SUPER_MAGIC,
    statfs::DEBUGFS_MAGIC,
    statfs::TRACEFS_MAGIC,
    statfs::SECURITYFS_MAGIC,
    statfs::SELINUX_MAGIC,
    statfs::DEVPTS_SUPER_MAGIC,
    statfs::BPF_FS_MAGIC,
];

/// A file that matched a rule by name (`[4.4]`). It must still match after it has been opened.
#[derive(Clone, Debug)]
pub struct FileTarget {
    /// The lexically normalised absolute path.
    pub path: PathBuf,
    /// The rule's literal root, as a path.
    pub root: PathBuf,
    /// The root, held open since the grants were compiled; none if it was absent then (then nothing is given).
    pub root_fd: Option<Arc<OwnedFd>>,
    /// The path below the root; empty for the root itself.
    pub below: PathBuf,
}

/// A regular file or directory inside the grant, held.
#[derive(Debug)]
pub struct Pinned {
    pin: OwnedFd,
    stat: FileStat,
    path: PathBuf,
    asked: PathBuf,
}

/// Why there is nothing to work on.
#[derive(Debug)]
pub enum Missed {
    /// It leads out of the grant: a file violation, with the path it led to if that is known (for the ledger; the
    /// skill does not learn it).
    Outside(Option<PathBuf>),
    /// It is inside, and the tool has to say what is wrong with it.
    Failed(ToolError),
}

/// Finds what `target` names and holds it. `admits` is asked whether the grants admit the path that was read back.
/// May wait for a file system: not for an async thread.
pub fn resolve(target: &FileTarget, admits: impl FnOnce(&Path) -> bool) -> Result<Pinned, Missed> {
    let Some(root) = &target.root_fd else {
        return Err(Missed::Outside(None));
    };
    let pin = pin(root.as_fd(), target)?;
    let failed = |errno| Missed::Failed(failure(errno, &target.path));
    let path = name_of(&pin).map_err(failed)?;
    let file_system = fstatfs(&pin).map_err(failed)?.filesystem_type();
    if !admits(&path) || KERNEL_STATE.contains(&file_system) {
        return Err(Missed::Outside(Some(path)));
    }
    let stat = fstat(&pin).map_err(failed)?;
    if stat.st_nlink == 0 {
        // Gone since; its name reads "… (deleted)".
        return Err(failed(Errno::ENOENT));
    }
    let what = match kind(&stat) {
        SFlag::S_IFREG | SFlag::S_IFDIR => return Ok(Pinned { pin, stat, path, asked: target.path.clone() }),
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFCHR | SFlag::S_IFBLK => "a device",
        _ => "something else",
    };
    Err(Missed::Failed(ToolError {
        reason: "not_a_file",
        message: format!("{} is {what}, not a regular file or directory", target.path.display()),
    }))
}

/// The first look-up follows no symlink, so what it says of a path (absent, not readable) it says of that very path.
/// Only a path with a symlink in it is looked up by following them, and then every failure reads the same: else a link
/// would tell of things outside the grant whether they exist.
fn pin(root: BorrowedFd<'_>, target: &FileTarget) -> Result<OwnedFd, Missed> {
    let below = if target.below.as_os_str().is_empty() { Path::new(".") } else { &target.below };
    match open(root, below, OFlag::O_PATH, Stay::MOUNTS) {
        Ok(pin) => return Ok(pin),
        Err(Errno::ELOOP) => {}
        Err(Errno::EXDEV) => return Err(Missed::Outside(None)),
        Err(errno) => return Err(Missed::Failed(failure(errno, &target.path))),
    }
    open(root, below, OFlag::O_PATH, Stay::LINKS_AND_MOUNTS).map_err(|_| Missed::Outside(None))
}

fn failure(errno: Errno, path: &Path) -> ToolError {
    let path = path.display();
    let (reason, message) = match errno {
        Errno::ENOENT => ("not_found", format!("{path} does not exist")),
        Errno::ENOTDIR => ("not_found", format!("{path} does not exist: a part of it is not a directory")),
        Errno::EACCES | Errno::EPERM => {
            ("permission_denied", format!("user cyberos cannot read {path}; its owner has to let it"))
        }
        Errno::ENAMETOOLONG => ("invalid_path", format!("{path} is too long")),
        errno => ("io_error", format!("{path}: {}", errno.desc())),
    };
    ToolError { reason, message }
}

impl Pinned {
    /// Its canonical path, as read back from the descriptor.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes, when it was pinned.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        kind(&self.stat) == SFlag::S_IFDIR
    }

    /// Opens it for reading. A directory is an error.
    pub fn open(&self) -> Result<File, ToolError> {
        if self.is_directory() {
            return Err(ToolError {
                reason: "is_a_directory",
                message: format!("{} is a directory", self.asked.display()),
            });
        }
        // The magic link leads to the pinned inode itself, whatever has become of its name.
        OpenOptions::new()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
            .open(again(&self.pin))
            .map_err(|e| failure(Errno::from_raw(e.raw_os_error().unwrap_or(0)), &self.asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{Mode, makedev, mknod};
    use nix::unistd::mkfifo;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A granted tree beside a secret one.
    struct Tree {
        dir: tempfile::TempDir,
        root: Arc<OwnedFd>,
    }

    impl Tree {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("grant/a")).unwrap();
            std::fs::create_dir_all(dir.path().join("secret")).unwrap();
            std::fs::write(dir.path().join("grant/a/x"), "open").unwrap();
            std::fs::write(dir.path().join("secret/x"), "SECRET").unwrap();
            let root = Arc::new(OwnedFd::from(File::open(dir.path().join("grant")).unwrap()));
            Tree { dir, root }
        }

        fn path(&self, below: &str) -> PathBuf {
            self.dir.path().join("grant").join(below)
        }

        fn resolve(&self, below: &str) -> Result<Pinned, Missed> {
            let root = self.dir.path().join("grant");
            let target = FileTarget {
                path: root.join(below),
                root: root.clone(),
                root_fd: Some(self.root.clone()),
                below: below.into(),
            };
            resolve(&target, |path| path.starts_with(&root))
        }

        fn read(&self, below: &str) -> Result<String, Missed> {
            let mut text = String::new();
            self.resolve(below)?
                .open()
                .map_err(Missed::Failed)?
                .read_to_string(&mut text)
                .map(|_| text)
                .map_err(|e| panic!("{e}"))
        }

        fn reason(&self, below: &str) -> &'static str {
            match self.read(below) {
                Ok(text) => panic!("{below} is read: {text}"),
                Err(Missed::Outside(_)) => "outside",
                Err(Missed::Failed(e)) => e.reason,
            }
        }
    }

    #[test]
    fn a_file_is_read_by_the_name_it_has() {
        let t = Tree::new();
        assert_eq!(t.read("a/x").unwrap(), "open");
        assert_eq!(t.resolve("a/x").unwrap().path(), t.path("a/x"));
        assert!(t.resolve("").unwrap().is_directory());
        assert_eq!(t.reason("a"), "is_a_directory");
        assert_eq!(t.reason("a/none"), "not_found");
        assert_eq!(t.reason("a/x/y"), "not_found");
    }

    #[test]
    fn case_100_symlinks_that_leave_are_outside_and_those_that_stay_are_followed() {
        let t = Tree::new();
        symlink("x", t.path("a/stays")).unwrap();
        symlink("../../secret/x", t.path("a/leaves")).unwrap();
        symlink(t.dir.path().join("secret/x"), t.path("a/absolute")).unwrap();
        symlink(t.path("a/x"), t.path("a/absolute-inside")).unwrap();
        symlink("/", t.path("slash")).unwrap();
        symlink("loop", t.path("loop")).unwrap();
        symlink("a/leaves", t.path("chain")).unwrap();
        symlink("/proc/self/root", t.path("procroot")).unwrap();
        symlink("/dev/fd/0", t.path("fd0")).unwrap();
        assert_eq!(t.read("a/stays").unwrap(), "open");
        for below in ["a/leaves", "a/absolute", "a/absolute-inside", "slash/etc/passwd", "loop", "chain"] {
            assert_eq!(t.reason(below), "outside", "{below}");
        }
        for below in ["procroot/etc/passwd", "fd0"] {
            assert_eq!(t.reason(below), "outside", "{below}");
        }
    }

    #[test]
    fn a_symlink_does_not_tell_whether_its_target_exists() {
        let t = Tree::new();
        for (name, to) in [("there", "../secret/x"), ("not", "../secret/none"), ("dangling", "nothing")] {
            symlink(to, t.path(name)).unwrap();
            assert!(matches!(t.resolve(name), Err(Missed::Outside(None))), "{name}");
        }
    }

    #[test]
    fn a_symlink_to_a_part_of_the_root_that_no_rule_admits_is_outside() {
        let t = Tree::new();
        symlink("a/x", t.path("public")).unwrap();
        let target = FileTarget {
            path: t.path("public"),
            root: t.path(""),
            root_fd: Some(t.root.clone()),
            below: "public".into(),
        };
        let Err(Missed::Outside(Some(led_to))) = resolve(&target, |p| p.ends_with("public")) else {
            panic!()
        };
        assert_eq!(led_to, t.path("a/x"));
    }

    #[test]
    fn case_103_a_hard_link_is_read_by_the_name_that_is_granted() {
        // Which inode a name means is the file system's to say: who may make a hard link here may copy here too
        // (fs.protected_hardlinks).
        let t = Tree::new();
        std::fs::hard_link(t.dir.path().join("secret/x"), t.path("h")).unwrap();
        assert_eq!(t.resolve("h").unwrap().path(), t.path("h"));
    }

    #[test]
    fn dot_dot_never_leaves() {
        let t = Tree::new();
        for below in ["../secret/x", "a/../../secret/x", "/etc/passwd"] {
            assert_eq!(t.reason(below), "outside", "{below}");
        }
    }

    #[test]
    fn case_111_fifos_devices_and_sockets_are_named_and_never_opened() {
        let t = Tree::new();
        mkfifo(&t.path("fifo"), Mode::S_IRWXU).unwrap();
        mknod(&t.path("zero"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(t.path("socket")).unwrap();
        for below in ["fifo", "zero", "socket"] {
            assert_eq!(t.reason(below), "not_a_file", "{below}");
        }
    }

    #[test]
    fn kernel_state_is_outside_wherever_it_is_mounted() {
        let root = Arc::new(OwnedFd::from(File::open("/proc/self").unwrap()));
        for below in ["environ", "fd/0", "root/etc/passwd", "maps"] {
            let target = FileTarget {
                path: Path::new("/granted").join(below),
                root: "/granted".into(),
                root_fd: Some(root.clone()),
                below: below.into(),
            };
            assert!(matches!(resolve(&target, |_| true), Err(Missed::Outside(_))), "{below}");
        }
    }

    #[test]
    fn a_file_that_the_broker_cannot_read_says_so() {
        use std::os::unix::fs::PermissionsExt;
        let t = Tree::new();
        let closed = |below: &str, mode| {
            std::fs::set_permissions(t.path(below), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::write(t.path("private"), "x").unwrap();
        closed("private", 0o600);
        closed("a", 0o700);
        // For this thread alone, like the broker: neither the owner nor root.
        let nobody = nix::unistd::Uid::from_raw(65534);
        nix::unistd::setfsuid(nobody);
        for below in ["private", "a/x", "a/none"] {
            let e = match t.read(below) {
                Err(Missed::Failed(e)) => e,
                other => panic!("{below}: {other:?}"),
            };
            assert_eq!(e.reason, "permission_denied", "{below}");
            assert!(e.message.contains("user cyberos cannot read"), "{}", e.message);
        }
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(0));
    }

    #[test]
    fn a_root_that_was_absent_gives_nothing() {
        let t = Tree::new();
        let target = FileTarget { path: t.path("a/x"), root: t.path(""), root_fd: None, below: "a/x".into() };
        assert!(matches!(resolve(&target, |_| true), Err(Missed::Outside(None))));
    }

    #[test]
    fn a_file_that_is_gone_is_not_found_even_if_it_is_still_pinned_by_others() {
        let t = Tree::new();
        let held = t.resolve("a/x").unwrap();
        std::fs::remove_file(t.path("a/x")).unwrap();
        std::fs::write(t.path("a/x"), "another").unwrap();
        let mut text = String::new();
        held.open().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "open", "the descriptor decides, not the name");
    }

    #[test]
    fn case_102_a_component_swapped_ten_thousand_times_never_leads_out() {
        let t = Tree::new();
        let (real, link, name) = (t.path("real"), t.path("link"), t.path("swap"));
        std::fs::create_dir(&real).unwrap();
        std::fs::write(real.join("x"), "open").unwrap();
        symlink("../secret", &link).unwrap();
        let done = AtomicBool::new(false);
        let mut read = 0;
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..10_000 {
                    std::fs::rename(&real, &name).unwrap();
                    std::fs::rename(&name, &real).unwrap();
                    std::fs::rename(&link, &name).unwrap();
                    std::fs::rename(&name, &link).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                match t.read("swap/x") {
                    Ok(text) => {
                        assert_eq!(text, "open");
                        read += 1;
                    }
                    Err(Missed::Outside(_)) => {}
                    Err(Missed::Failed(e)) => assert_eq!(e.reason, "not_found"),
                }
            }
        });
        assert!(read > 0, "the swap was never caught in its good state");
    }
}
