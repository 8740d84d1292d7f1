//! Whom SkillFS speaks with gets what is meant for him and nothing else: the helper, a provider, and whoever comes to
//! the control socket.

use crate::support::skillfs::{Bench, answer, one, read, until};
use cyberos_proto::control::{ControlReply, ControlRequest, MAX_PAGE};
use cyberos_proto::link::Wait;
use nix::sys::signal::Signal;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_helper_that_is_not_root_is_asked_nothing() {
    use std::os::unix::process::CommandExt;
    let bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    let open = bench.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let socket = open.join("helper.sock");
    let script = "import os,socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\nos.umask(0)\ns.bind(sys.argv[1])\ns.listen(1)\nc,_=s.accept()\nsys.stdout.write(repr(c.recv(100)))";
    let mut false_helper = Command::new("python3")
        .args(["-c", script])
        .arg(&socket)
        .uid(61_999)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    until("the false helper listens", || fs::symlink_metadata(&socket).is_ok());
    let mut arguments = bench.arguments(&["--unprotected"]);
    let at = arguments.iter().position(|a| a == "--helper").unwrap();
    arguments[at + 1] = socket.display().to_string();
    let output = bench.command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("not by root"), "{said}");
    let mut heard = String::new();
    false_helper.stdout.take().unwrap().read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "b''");
    false_helper.wait().unwrap();
}

#[test]
fn a_provider_cannot_look_into_skillfs() {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "x");
    bench.says_current("s");
    let probe = "P=$(awk '/^PPid/{print $2}' /proc/self/status); \
        { cat /proc/$PPID/environ /proc/$PPID/maps || ls /proc/$PPID/fd; } >$STUB/../run/loot 2>/dev/null; true";
    fs::write(bench.path("stub/s.scan"), probe).unwrap();
    bench.mount(&[]);
    bench.settle();
    assert_eq!(read(bench.path("run/loot")).unwrap(), "");
}

#[test]
fn garbage_on_the_control_socket_hurts_nobody() {
    let bench = one(&[]);
    let raw = |bytes: &[u8]| {
        use nix::sys::socket::{MsgFlags, recv, send};
        use std::os::fd::{AsFd, AsRawFd};
        let link = bench.control();
        link.set_receive_timeout(Duration::from_secs(10)).unwrap();
        let fd = link.as_fd().as_raw_fd();
        send(fd, bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
        let mut answer = [0; 64];
        let got = recv(fd, &mut answer, MsgFlags::empty()).unwrap();
        let closed = recv(fd, &mut [0; 64], MsgFlags::empty());
        (answer[..got].to_vec(), closed)
    };
    let malformed = cyberos_proto::link::encode(&ControlReply::Malformed).unwrap();
    let long = vec![0xff; 70_000];
    for bytes in [
        &b"\x02"[..],
        b"\x01\x00\x00",
        b"\x02\xff\xff\xff",
        b"GET / HTTP/1.1\r\n",
        b"\x02\x00\x00trailing",
        &long,
    ] {
        assert_eq!(raw(bytes), (malformed.clone(), Ok(0)), "{:?}", &bytes[..bytes.len().min(20)]);
    }
    // Descriptors that nobody asked for are closed, and the link with them.
    let link = bench.control();
    let null = fs::File::open("/dev/null").unwrap();
    let packet = cyberos_proto::link::encode(&ControlRequest::Status { after: None }).unwrap();
    {
        use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
        use std::os::fd::{AsFd, AsRawFd};
        let fds = [null.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let parts = [std::io::IoSlice::new(&packet)];
        sendmsg::<UnixAddr>(link.as_fd().as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
    }
    assert_eq!(link.receive(Wait::Block).unwrap().0, ControlReply::Malformed);
    // Clients that only connect, up to the bound of one user, keep the view and other questions going: those beyond
    // are closed at once.
    let idle: Vec<_> = (0..300).map(|_| bench.control()).collect();
    // They are taken in order: when the last one has been closed, all others have been decided.
    assert!(matches!(idle[299].receive(Wait::Block), Err(cyberos_proto::link::LinkError::Closed)));
    let open = idle
        .iter()
        .filter(|l| matches!(l.receive(Wait::No), Err(cyberos_proto::link::LinkError::WouldBlock)));
    assert_eq!(open.count(), 256);
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "live");
    drop(idle);
    until("there is room again", || {
        let link = bench.control();
        let sent = link.send(&ControlRequest::Status { after: None }, &[], Wait::Block);
        sent.is_ok() && matches!(link.receive(Wait::Block), Ok((ControlReply::Status(_), _)))
    });
}

#[test]
fn status_comes_in_pages_that_fit() {
    let mut bench = Bench::new();
    let count = MAX_PAGE * 2 + 5;
    for n in 0..count {
        let skill = format!("s{n:03}");
        bench.write(&format!("{skill}/SKILL.md"), "x");
        let mut said: serde_json::Value =
            serde_json::from_str(&answer(&skill, "deny", "current", None)).unwrap();
        said["reason"] = "r".repeat(5000).into();
        said["currentVersion"] = "v".repeat(5000).into();
        bench.says(&skill, &said.to_string());
    }
    bench.mount(&["--jobs", "4"]);
    bench.settle();
    let (mut after, mut names) = (None, Vec::new());
    loop {
        let ControlReply::Status(page) = bench.ask(&ControlRequest::Status { after: after.clone() }) else {
            panic!()
        };
        assert_eq!((page.total as usize, page.undecided, page.mounted), (count, 0, true));
        assert!(!page.skills.is_empty() && page.skills.len() <= MAX_PAGE);
        names.extend(page.skills.iter().map(|s| s.skill.to_string()));
        after = page.skills.last().map(|s| s.skill.clone());
        if !page.more {
            break;
        }
    }
    let expected: Vec<String> = (0..count).map(|n| format!("s{n:03}")).collect();
    assert_eq!(names, expected);
}

#[test]
fn the_control_socket_belongs_to_its_directorys_group() {
    let mut bench = one(&[]);
    let socket = fs::metadata(bench.path("run/control.sock")).unwrap();
    let directory = fs::metadata(bench.path("run")).unwrap();
    assert_eq!((socket.mode() & 0o777, socket.gid()), (0o660, directory.gid()));
    bench.signal(Signal::SIGTERM);
    assert!(bench.wait().success());
    assert!(fs::symlink_metadata(bench.path("run/control.sock")).is_err(), "a clean end removes it");
    // After a crash it is replaced; a file of another kind is left alone.
    bench.mount(&[]);
    bench.signal(Signal::SIGKILL);
    bench.wait();
    bench.mount(&[]);
    bench.signal(Signal::SIGTERM);
    bench.wait();
    fs::write(bench.path("run/control.sock"), "precious").unwrap();
    let arguments = bench.arguments(&[]);
    let output = bench.command(&arguments).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("left alone"));
    assert_eq!(read(bench.path("run/control.sock")).unwrap(), "precious");
}
