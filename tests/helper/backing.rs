//! Files that the kernel serves in place of a view's server. It opens them again with root's rights and looks at no
//! permission, so what is taken for one decides who can read and write what.

use crate::support::helper::*;
use crate::views::Server;
use cyberos_proto::ids::MountId;
use cyberos_proto::message::{MAX_BACKING, Refusal, Reply, Request};
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const READ_ONLY: u8 = 0;
const WRITABLE: u8 = 1;

fn register(mount: u8) -> Request {
    Request::RegisterBacking { mount: MountId::new(mount).unwrap() }
}

/// A directory of backing files, and a helper with two mount points; the helper ends first.
fn helper() -> (tempfile::TempDir, Helper) {
    let dir = tempfile::Builder::new().prefix("cyberos-backing-").tempdir_in("/var/tmp").unwrap();
    for name in ["files", "rw", "outside"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("files/good"), "good").unwrap();
    let d = dir.path().display();
    let helper = Helper::start(&format!("root backing {d}/files\nmount 1 rw {d}/rw\n"));
    (dir, helper)
}

fn serve(peer: &Peer, number: u8) -> Server {
    let (reply, mut fds) = peer.ask(&Request::Mount { mount: MountId::new(number).unwrap() }, &[]);
    assert_eq!(reply, Reply::Mounted);
    Server::passing_through(fds.pop().unwrap())
}

fn id(peer: &Peer, mount: u8, fd: BorrowedFd<'_>) -> u32 {
    match peer.ask(&register(mount), &[fd]).0 {
        Reply::Backing { id } => id,
        other => panic!("{other:?}"),
    }
}

fn at(path: &Path, flags: OFlag) -> OwnedFd {
    open(path, flags | OFlag::O_CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn a_backing_file_is_registered_and_closed_and_only_on_a_mount_that_is_there() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let good = at(&dir.path().join("files/good"), OFlag::O_RDONLY);
    assert_eq!(peer.refusal(&register(READ_ONLY), &[good.as_fd()]), Refusal::Phase, "not mounted");
    let _server = serve(&peer, READ_ONLY);
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok(), "INIT is over");
    let first = id(&peer, READ_ONLY, good.as_fd());
    let second = id(&peer, READ_ONLY, good.as_fd());
    assert!(first > 0 && second > 0 && first != second);
    let close = |mount: u8, id| Request::CloseBacking { mount: MountId::new(mount).unwrap(), id };
    for id in [first, first, 999_999, second] {
        assert_eq!(peer.ask(&close(READ_ONLY, id), &[]).0, Reply::Done, "{id}, also twice");
    }
    assert_eq!(peer.refusal(&close(WRITABLE, second), &[]), Refusal::Phase);
    assert!(id(&peer, READ_ONLY, good.as_fd()) > 0, "the link goes on");
    let none = Helper::start("");
    let peer = none.peer(SKILLFS);
    let _server = serve(&peer, READ_ONLY);
    let refusal = peer.refusal(&register(READ_ONLY), &[good.as_fd()]);
    assert!(matches!(refusal, Refusal::Descriptor(_)), "without a root of that kind: {refusal:?}");
}

#[test]
fn what_is_not_open_for_what_the_mount_gives_is_refused() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let _servers = (serve(&peer, READ_ONLY), serve(&peer, WRITABLE));
    let view = [helper.dir.path().join("view"), dir.path().join("rw")];
    assert!(view.iter().all(|v| fs::read_dir(v).is_ok()));
    let good = dir.path().join("files/good");
    for (mount, flags, taken) in [
        (READ_ONLY, OFlag::O_RDONLY, true),
        (READ_ONLY, OFlag::O_RDWR, true),
        (READ_ONLY, OFlag::O_WRONLY, false),
        (READ_ONLY, OFlag::O_PATH, false),
        (WRITABLE, OFlag::O_RDONLY, false),
        (WRITABLE, OFlag::O_WRONLY, false),
        (WRITABLE, OFlag::O_PATH, false),
        (WRITABLE, OFlag::O_PATH | OFlag::O_RDWR, false),
        (WRITABLE, OFlag::O_RDWR, true),
        (WRITABLE, OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW, true),
        // What it was opened for is less than what the mount gives, though it can be written.
        (WRITABLE, OFlag::O_RDWR | OFlag::O_APPEND, false),
        (WRITABLE, OFlag::O_RDWR | OFlag::O_DIRECT, false),
        (WRITABLE, OFlag::O_RDWR | OFlag::O_SYNC, false),
        (WRITABLE, OFlag::O_RDWR | OFlag::O_NOATIME, false),
        (READ_ONLY, OFlag::O_RDWR | OFlag::O_APPEND, false),
    ] {
        let fd = at(&good, flags);
        match peer.ask(&register(mount), &[fd.as_fd()]).0 {
            Reply::Backing { .. } => assert!(taken, "{mount} {flags:?}"),
            Reply::Refused(Refusal::Descriptor(_)) => assert!(!taken, "{mount} {flags:?}"),
            other => panic!("{mount} {flags:?}: {other:?}"),
        }
    }
}

/// An attribute of a file goes with the test, or the file could not be removed.
struct Attribute(PathBuf, &'static str);

impl Attribute {
    fn set(path: &Path, letter: &'static str) -> Attribute {
        let done = Command::new("chattr").arg(format!("+{letter}")).arg(path).status().unwrap();
        assert!(done.success(), "chattr +{letter} {path:?}");
        Attribute(path.to_owned(), letter)
    }
}

impl Drop for Attribute {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg(format!("-{}", self.1)).arg(&self.0).status();
    }
}

#[test]
fn what_may_only_grow_or_not_change_backs_no_writable_view() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let _servers = (serve(&peer, READ_ONLY), serve(&peer, WRITABLE));
    let view = [helper.dir.path().join("view"), dir.path().join("rw")];
    assert!(view.iter().all(|v| fs::read_dir(v).is_ok()));
    for letter in ["a", "i"] {
        let path = dir.path().join("files").join(letter);
        fs::write(&path, "as it was").unwrap();
        // Opened before it became so; the kernel would open it again without asking.
        let (before, read) = (at(&path, OFlag::O_RDWR), at(&path, OFlag::O_RDONLY));
        let attribute = Attribute::set(&path, letter);
        let mut all = vec![before];
        if letter == "a" {
            all.push(at(&path, OFlag::O_RDWR | OFlag::O_APPEND));
        }
        for fd in &all {
            let refusal = peer.refusal(&register(WRITABLE), &[fd.as_fd()]);
            assert!(matches!(refusal, Refusal::Descriptor(_)), "{letter}: {refusal:?}");
        }
        assert!(id(&peer, READ_ONLY, read.as_fd()) > 0, "{letter}: it may be read");
        drop(attribute);
        assert!(id(&peer, WRITABLE, all[0].as_fd()) > 0, "{letter}: it may be written now");
    }
}

/// A mount that goes with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn attack_a6_what_is_no_regular_file_inside_a_backing_root_is_refused() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let _server = serve(&peer, READ_ONLY);
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok());
    let files = dir.path().join("files");
    fs::write(dir.path().join("outside/secret"), "s").unwrap();
    symlink("/etc/shadow", files.join("link")).unwrap();
    fs::create_dir(files.join("tmpfs")).unwrap();
    mount(Some("none"), &files.join("tmpfs"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let _tmpfs = Mounted(files.join("tmpfs"));
    fs::write(files.join("tmpfs/file"), "t").unwrap();
    fs::write(files.join("cover"), "").unwrap();
    mount(Some("/proc/uptime"), &files.join("cover"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let _cover = Mounted(files.join("cover"));
    nix::unistd::mkfifo(&files.join("fifo"), Mode::S_IRWXU).unwrap();
    fs::write(files.join("gone"), "g").unwrap();
    let gone = at(&files.join("gone"), OFlag::O_RDONLY);
    fs::remove_file(files.join("gone")).unwrap();
    let script = "mount -t tmpfs none \"$1\" && echo evil >\"$1\"/evil && echo other >\"$1\"/good && touch \"$1\"/map && \
                  mount --bind /proc/uptime \"$1\"/map && echo && read x";
    let mut forger = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&files)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(forger.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let forged = |name: &str| PathBuf::from(format!("/proc/{}/root{}/{name}", forger.id(), files.display()));
    let read = OFlag::O_RDONLY;
    for (what, fd) in [
        ("outside", at(&dir.path().join("outside/secret"), read)),
        ("through a link", at(&files.join("link"), read)),
        ("on another mount below", at(&files.join("tmpfs/file"), read)),
        ("a bound file of /proc", at(&files.join("cover"), read)),
        ("removed", gone),
        ("a directory", at(&files, read)),
        ("a FIFO", at(&files.join("fifo"), OFlag::O_RDWR)),
        ("a device", at(Path::new("/dev/zero"), OFlag::O_RDWR)),
        ("/proc", at(Path::new("/proc/self/mem"), OFlag::O_RDWR)),
        ("a memfd", memfd_create("good", MFdFlags::MFD_CLOEXEC).unwrap()),
        ("a socket", std::os::unix::net::UnixDatagram::unbound().unwrap().into()),
        ("a new name in another namespace", at(&forged("evil"), read)),
        ("the same name in another namespace", at(&forged("good"), read)),
        ("a file of /proc in another namespace", at(&forged("map"), read)),
    ] {
        let refusal = peer.refusal(&register(READ_ONLY), &[fd.as_fd()]);
        assert!(matches!(refusal, Refusal::Descriptor(_)), "{what}: {refusal:?}");
    }
    drop(forger.stdin.take());
    forger.wait().unwrap();
    assert!(id(&peer, READ_ONLY, File::open(files.join("good")).unwrap().as_fd()) > 0);
}

#[test]
fn no_more_are_taken_than_the_limit_and_closing_makes_room() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let _server = serve(&peer, READ_ONLY);
    assert!(fs::read_dir(helper.dir.path().join("view")).is_ok());
    let good = File::open(dir.path().join("files/good")).unwrap();
    let ids: Vec<u32> = (0..MAX_BACKING).map(|_| id(&peer, READ_ONLY, good.as_fd())).collect();
    let refusal = peer.refusal(&register(READ_ONLY), &[good.as_fd()]);
    assert!(matches!(refusal, Refusal::Ceiling(_)), "{refusal:?}");
    let close = Request::CloseBacking { mount: MountId::new(READ_ONLY).unwrap(), id: ids[7] };
    assert_eq!(peer.ask(&close, &[]).0, Reply::Done);
    id(&peer, READ_ONLY, good.as_fd());
}

#[test]
fn a_dead_server_whose_end_the_helper_has_a_copy_of_hangs_nobody() {
    let (dir, helper) = helper();
    let peer = helper.peer(SKILLFS);
    let (reply, mut fds) = peer.ask(&Request::Mount { mount: MountId::new(READ_ONLY).unwrap() }, &[]);
    assert_eq!(reply, Reply::Mounted);
    let server = fds.pop().unwrap();
    let view = helper.dir.path().join("view");
    // Nobody has answered INIT yet, so this one waits; and only when it does is the server's end dropped.
    let (told, thread) = std::sync::mpsc::channel();
    let waits = std::thread::spawn({
        let view = view.clone();
        move || {
            told.send(nix::unistd::gettid()).unwrap();
            fs::read_dir(view).map(|d| d.count())
        }
    });
    let stat = format!("/proc/self/task/{}", thread.recv().unwrap());
    let opens =
        |call: &str| [nix::libc::SYS_open, nix::libc::SYS_openat].iter().any(|n| call == n.to_string());
    until("it waits in its open", || {
        let call = fs::read_to_string(format!("{stat}/syscall")).unwrap();
        let asleep = fs::read_to_string(format!("{stat}/wchan")).unwrap().contains("fuse");
        asleep && call.split(' ').next().is_some_and(opens)
    });
    let began = Instant::now();
    drop(server);
    peer.kill();
    assert!(waits.join().unwrap().is_err(), "nobody has served it");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    until("unmounted", || helper.leftovers().is_empty());
    assert!(began.elapsed() < SOON);
    let peer = helper.peer(SKILLFS);
    let _server = serve(&peer, READ_ONLY);
    assert!(fs::read_dir(&view).is_ok());
    id(&peer, READ_ONLY, File::open(dir.path().join("files/good")).unwrap().as_fd());
}
