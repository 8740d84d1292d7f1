//! What is no grant, whatever its name is and however its descriptor was reached.

use crate::granted::*;
use crate::support::helper::*;
use crate::views::Server;
use cyberos_proto::ids::MountId;
use cyberos_proto::message::{Refusal, Request};
use cyberos_proto::plan::{PlanFault, Profile};
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_grant_on_a_file_system_without_idmaps_is_refused_with_its_type_and_never_attached_plain() {
    let work = Work::new();
    let helper = Helper::start("root grant /\n");
    let broker = helper.broker();
    let (good, top, around) = (work.dir("good"), work.dir("top"), work.dir("around"));
    let refused = |dirs: &[&Path]| {
        let fds: Vec<OwnedFd> = dirs.iter().map(|d| path(d)).collect();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        broker.refusal(&spawn(bash("true", dirs.iter().map(|d| bind(d, true)).collect())), &borrowed)
    };
    let unsupported = |bind, fs: &str| Refusal::GrantUnsupported { bind, fs: fs.into() };
    let overlaid = overlay(&work, &top);
    assert_eq!(refused(&[&top]), unsupported(0, "overlay"));
    assert_eq!(refused(&[&good, &top]), unsupported(1, "overlay"));
    drop(overlaid);
    // Below a granted directory, too: all of it, or nothing.
    let below = work.dir("around/below");
    let overlaid = overlay(&work, &below);
    assert_eq!(refused(&[&around]), unsupported(0, "overlay"));
    drop(overlaid);
    mount(Some("proc"), &below, Some("proc"), MsFlags::empty(), None::<&str>).unwrap();
    let proc = Mounted(below.clone());
    assert_eq!(refused(&[&around]), unsupported(0, "proc"));
    drop(proc);
    // A view is not even looked at: its server answers nothing.
    let skillfs = helper.peer(SKILLFS);
    let mounted = skillfs.ask(&Request::Mount { mount: MountId::new(0).unwrap() }, &[]);
    let server = Server::start(mounted.1.into_iter().next().unwrap());
    let view = File::open(helper.dir.path().join("view")).unwrap();
    server.swallow();
    let plan = bash("true", vec![bind(Path::new("/srv/view"), true)]);
    assert_eq!(broker.refusal(&spawn(plan), &[view.as_fd()]), unsupported(0, "fuse.skillfs"));
    // tmpfs has them, and so has what is bound.
    mount(Some("none"), &below, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let _tmpfs = Mounted(below.clone());
    chown(&below, Some(BROKER), Some(BROKER)).unwrap();
    let script = format!("touch {}/x && echo made", below.display());
    assert_eq!(run(&broker, bash(&script, vec![bind(&around, true)]), &[path(&around).as_fd()]), "made\n");
}

#[test]
fn what_is_never_granted_is_refused_by_what_it_is_and_not_by_its_name() {
    let work = Work::new();
    let state = work.dir("state/inner");
    let helper = Helper::start(&format!("root grant /\nnever {}\n", work.at("state").display()));
    let broker = helper.broker();
    let elsewhere = work.dir("elsewhere");
    let refused = |dir: &Path| {
        let plan = bash("true", vec![bind(Path::new("/srv/x"), false)]);
        let refusal = broker.refusal(&spawn(plan), &[path(dir).as_fd()]);
        assert!(
            matches!(&refusal, Refusal::Descriptor(why) if why.contains("never")),
            "{dir:?}: {refusal:?}"
        );
    };
    let d = helper.dir.path();
    for dir in [
        "/",
        "/proc",
        "/proc/self",
        "/sys",
        "/sys/fs",
        "/dev",
        "/dev/shm",
        "/run",
        "/boot",
        "/tmp",
        "/usr",
        "/etc",
        "/var",
    ] {
        if dir == "/var" {
            // Around the state.
            assert!(state.starts_with(dir));
        }
        refused(Path::new(dir));
    }
    for dir in [
        d.join("sealed"),
        d.join("view"),
        d.join("bin"),
        d.to_owned(),
        work.at("state"),
        state.clone(),
        work.at(""),
    ] {
        refused(&dir);
    }
    // By a bind of it under another name, or of what is around it.
    for (from, name) in [(work.at("state"), "1"), (PathBuf::from("/etc"), "2")] {
        let at = work.dir(&format!("elsewhere/{name}"));
        mount(Some(&from), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let _bound = Mounted(at.clone());
        refused(&at);
    }
    // What is in the place of those that are meant as wholes may be granted, and so may what is beside.
    for dir in [elsewhere.as_path(), Path::new("/etc/ssl"), Path::new("/usr/share")] {
        let plan = bash("echo in", vec![bind(Path::new("/srv/x"), false)]);
        assert_eq!(run(&broker, plan, &[path(dir).as_fd()]), "in\n", "{dir:?}");
    }
    let scratch = tempfile::Builder::new().prefix("cyberos-").tempdir().unwrap();
    refused(scratch.path());
    let scratch = tempfile::Builder::new().prefix("granted-").tempdir().unwrap();
    let there = bind(scratch.path(), false);
    let script = format!("ls -d {}", scratch.path().display());
    assert_eq!(
        run(&broker, bash(&script, vec![there]), &[path(scratch.path()).as_fd()]),
        format!("{}\n", scratch.path().display())
    );
}

#[test]
fn attack_a6_only_directories_inside_a_grant_root_are_granted() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let good = work.dir("good");
    work.file("file", "x");
    symlink("/root", work.at("link")).unwrap();
    let removed = work.dir("removed");
    let removed_fd = path(&removed);
    fs::remove_dir(&removed).unwrap();
    // Another mount namespace in which the same names lead elsewhere.
    let script = "mount -t tmpfs none \"$1\" && mkdir \"$1\"/good \"$1\"/evil && mount --bind /root \"$1\"/evil && echo && read x";
    let mut forger = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(work.0.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(forger.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let forged =
        |name: &str| PathBuf::from(format!("/proc/{}/root{}/{name}", forger.id(), work.0.path().display()));
    let any = |p: &Path| open(p, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
    let link = open(&work.at("link"), OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty()).unwrap();
    for (what, fd) in [
        ("outside", any(Path::new("/var/lib"))),
        ("a root of another kind", any(&helper.dir.path().join("sealed"))),
        ("a file", any(&work.at("file"))),
        ("a link", link),
        ("through a link", any(&work.at("link"))),
        ("removed", removed_fd),
        ("the same name in another namespace", any(&forged("good"))),
        ("a new name in another namespace", any(&forged("evil"))),
        ("a device", any(Path::new("/dev/null"))),
        ("/proc/self/ns", any(Path::new("/proc/self/ns"))),
    ] {
        let plan = bash("true", vec![bind(&good, true)]);
        let refusal = broker.refusal(&spawn(plan), &[fd.as_fd()]);
        assert!(matches!(refusal, Refusal::Descriptor(_)), "{what}: {refusal:?}");
    }
    drop(forger.stdin.take());
    forger.wait().unwrap();
    // The root itself may be granted, and a skill is granted nothing.
    let whole = path(work.0.path());
    assert_eq!(
        run(&broker, bash("echo whole", vec![bind(work.0.path(), true)]), &[whole.as_fd()]),
        "whole\n"
    );
    let mut skills = bash("true", vec![bind(&good, true)]);
    skills.profile = Profile::Skill;
    assert_eq!(broker.refusal(&spawn(skills), &[whole.as_fd()]), Refusal::Plan(PlanFault::Binds));
}
