//! Backing files [10.2]: the kernel opens one again with the helper's credentials and asks nobody, so a helper that took
//! anything else than it must would hand out root's files, to read and to write.

use crate::forged::{Delegated, Forger};
use crate::granted::{Place, dir, file, own};
use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper, SKILLFS};
use cyberos_proto::ids::MountId;
use cyberos_proto::link;
use cyberos_proto::message::{FromHelper, MAX_BACKING, Refusal, Reply, Request};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};
use nix::mount::{MsFlags, mount};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PEER: &str = include_str!("backing.py");

fn hex(request: &Request) -> String {
    good(request).iter().map(|b| format!("{b:02x}")).collect()
}

/// SkillFS's process, with its view mounted and served.
struct SkillFs {
    child: Child,
    order: ChildStdin,
    said: BufReader<ChildStdout>,
    mount: MountId,
}

impl SkillFs {
    fn new(helper: &Helper, point: &Path, mount: MountId) -> SkillFs {
        let mut child = Command::new("/usr/bin/python3")
            .args(["-I", "-c", PEER])
            .args([&helper.socket(), point])
            .arg(hex(&Request::Mount { mount }))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(SKILLFS)
            .gid(SKILLFS)
            .spawn()
            .unwrap();
        let order = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut skillfs = SkillFs { child, order, said, mount };
        assert_eq!(skillfs.line(), "ready", "{}", helper.log());
        skillfs
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn tell(&mut self, words: &[&str]) -> String {
        writeln!(self.order, "{}", words.join("\t")).unwrap();
        self.line()
    }

    fn ask(&mut self, request: &Request, names: &[&str]) -> Reply {
        let line = self.tell(&[&["ask", &hex(request)], names].concat());
        let bytes: Vec<u8> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).unwrap()).collect();
        match link::decode::<FromHelper>(&bytes) {
            Ok(FromHelper::Reply(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Opens `target` as this user and offers it.
    fn offer(&mut self, target: &str, flags: i32) -> Reply {
        let opened = self.tell(&["open", "it", &flags.to_string(), target]);
        assert_eq!(opened, "opened", "{target}");
        self.ask(&Request::RegisterBacking { mount: self.mount }, &["it"])
    }
}

impl Drop for SkillFs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A helper with a root for backing files in a place of SkillFS's, and a writable mount point besides.
fn backing() -> (Helper, Place) {
    let place = Place::new();
    fs::set_permissions(&place.0, PermissionsExt::from_mode(0o777)).unwrap();
    for name in ["backing", "outside", "writable"] {
        dir(&place.0.join(name));
        fs::set_permissions(place.0.join(name), PermissionsExt::from_mode(0o777)).unwrap();
    }
    let p = place.0.display();
    (Helper::start(&format!("root backing {p}/backing\nmount 3 rw {p}/writable\n")), place)
}

fn refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::Descriptor(_)))
}

#[test]
fn threat_a6_only_regular_files_inside_the_root_opened_for_as_much_as_the_mount_gives_back_it() {
    let (helper, place) = backing();
    let root = place.0.join("backing");
    let mut other = Dialler::new(&helper.socket(), BROKER);
    let other = other.dial();
    let release = good(&new_id().release());
    file(&root.join("good"), "from the backing file\n");
    file(&place.0.join("outside/file"), "outside\n");
    for f in [root.join("good"), place.0.join("outside/file")] {
        fs::set_permissions(f, PermissionsExt::from_mode(0o666)).unwrap();
    }
    symlink(root.join("good"), root.join("link")).unwrap();
    symlink(place.0.join("outside/file"), root.join("out")).unwrap();
    nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    fs::set_permissions(root.join("fifo"), PermissionsExt::from_mode(0o666)).unwrap();
    let tmpfs = dir(&root.join("tmpfs"));
    mount(Some("none"), &tmpfs, Some("tmpfs"), MsFlags::empty(), Some("mode=777")).unwrap();
    file(&tmpfs.join("file"), "");
    fs::set_permissions(tmpfs.join("file"), PermissionsExt::from_mode(0o666)).unwrap();
    file(&root.join("bound"), "");
    mount(Some("/etc/hostname"), &root.join("bound"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let group = Delegated::to(SKILLFS);
    let mut skillfs = SkillFs::new(&helper, &helper.dir.path().join("view"), first_mount());
    let in_root = |name: &str| root.join(name).display().to_string();
    // What may be: it is read through the view from then on.
    let Reply::Backing { id } = skillfs.offer(&in_root("good"), O_RDONLY) else { panic!("{}", helper.log()) };
    assert_eq!(skillfs.tell(&["serve", &id.to_string()]), "serving");
    let through = || fs::read_to_string(helper.dir.path().join("view/file"));
    assert_eq!(through().unwrap().trim_end_matches('\0'), "from the backing file\n");
    let before = at_rest(&helper);
    for (what, target, flags) in [
        ("a path only", in_root("good"), O_PATH),
        ("write only", in_root("good"), O_WRONLY),
        ("a link itself", in_root("link"), O_PATH | O_NOFOLLOW),
        ("through a link out", in_root("out"), O_RDONLY),
        ("a directory", root.display().to_string(), O_RDONLY),
        ("a fifo", in_root("fifo"), O_RDWR | O_NONBLOCK),
        ("on another mount", in_root("tmpfs/file"), O_RDWR),
        ("another file's bind", in_root("bound"), O_RDONLY),
        ("outside", place.0.join("outside/file").display().to_string(), O_RDWR),
        ("a file that it cannot read", "/etc/shadow".into(), O_PATH),
        ("a file of root's", "/etc/passwd".into(), O_RDONLY),
        ("a device", "/dev/zero".into(), O_RDWR),
        ("a device by path", "/dev/null".into(), O_PATH),
        ("memory", "/proc/self/mem".into(), O_RDWR),
        ("a map of uids", "/proc/self/uid_map".into(), O_RDWR),
        ("a setting", "/proc/sys/kernel/core_pattern".into(), O_RDONLY),
        ("cgroup.procs", group.0.join("cgroup.procs").display().to_string(), O_RDWR),
        ("a memfd", "memfd".into(), O_RDWR),
    ] {
        let reply = skillfs.offer(&target, flags);
        assert!(refused(&reply), "{what}: {reply:?}");
        assert_eq!(other.ask(&release, &[]), Answer::Said(Reply::Done));
    }
    // Files that are not there any more, and the view's own end.
    for name in ["gone", "moved"] {
        file(&root.join(name), "");
        assert_eq!(skillfs.tell(&["open", name, &O_RDONLY.to_string(), &in_root(name)]), "opened");
    }
    fs::remove_file(root.join("gone")).unwrap();
    fs::rename(root.join("moved"), place.0.join("outside/moved")).unwrap();
    for name in ["gone", "moved", "fuse"] {
        let reply = skillfs.ask(&Request::RegisterBacking { mount: first_mount() }, &[name]);
        assert!(refused(&reply), "{name}: {reply:?}");
    }
    flat(&helper, &before);
    assert_eq!(through().unwrap().trim_end_matches('\0'), "from the backing file\n", "it still serves");
    drop(skillfs);
    helper.leaves_nothing();
}

/// Through a writable view a backing file is written as root, however it was opened: so it must have been opened to write.
#[test]
fn threat_a6_a_file_opened_to_read_backs_no_writable_view() {
    let (helper, place) = backing();
    let root = place.0.join("backing");
    file(&root.join("readable"), "as it was\n");
    file(&root.join("own"), "own\n");
    fs::set_permissions(root.join("own"), PermissionsExt::from_mode(0o666)).unwrap();
    let writable = MountId::new(3).unwrap();
    let mut skillfs = SkillFs::new(&helper, &place.0.join("writable"), writable);
    for (name, flags) in [("readable", O_RDONLY), ("own", O_RDONLY), ("own", O_WRONLY), ("own", O_PATH)] {
        let reply = skillfs.offer(&root.join(name).display().to_string(), flags);
        assert!(refused(&reply), "{name} {flags:o}: {reply:?}");
    }
    let reply = skillfs.offer(&root.join("own").display().to_string(), O_RDWR);
    let Reply::Backing { id } = reply else { panic!("{reply:?}\n{}", helper.log()) };
    skillfs.tell(&["serve", &id.to_string()]);
    fs::write(place.0.join("writable/file"), "through\n").unwrap();
    assert!(fs::read_to_string(root.join("own")).unwrap().starts_with("through\n"));
    assert_eq!(fs::read_to_string(root.join("readable")).unwrap(), "as it was\n");
    // A number that was not given leads nowhere.
    for wrong in [id + 1, 0x7fff_ffff] {
        skillfs.tell(&["serve", &wrong.to_string()]);
        let other = fs::OpenOptions::new().write(true).open(place.0.join("writable/file"));
        assert!(other.is_err(), "{wrong}");
    }
    assert_eq!(skillfs.ask(&Request::CloseBacking { mount: writable, id }, &[]), Reply::Done);
    skillfs.tell(&["serve", "0"]);
    drop(skillfs);
    helper.leaves_nothing();
}

#[test]
fn backing_files_are_counted_and_closed_by_their_mount_alone() {
    let (helper, place) = backing();
    let root = place.0.join("backing");
    file(&root.join("good"), "");
    fs::set_permissions(root.join("good"), PermissionsExt::from_mode(0o666)).unwrap();
    let mut skillfs = SkillFs::new(&helper, &helper.dir.path().join("view"), first_mount());
    let unmounted = MountId::new(3).unwrap();
    let good_file = root.join("good").display().to_string();
    let none = Request::CloseBacking { mount: first_mount(), id: 77 };
    assert_eq!(skillfs.ask(&none, &[]), Reply::Done, "closing is idempotent");
    skillfs.tell(&["open", "good", "0", &good_file]);
    let phase = Reply::Refused(Refusal::Phase);
    assert_eq!(skillfs.ask(&Request::RegisterBacking { mount: unmounted }, &["good"]), phase);
    assert_eq!(skillfs.ask(&Request::CloseBacking { mount: unmounted, id: 1 }, &[]), phase);
    let register = Request::RegisterBacking { mount: first_mount() };
    let mut ids = Vec::new();
    for i in 0..MAX_BACKING {
        match skillfs.ask(&register, &["good"]) {
            Reply::Backing { id } => ids.push(id),
            other => panic!("{i}: {other:?}"),
        }
    }
    let over = skillfs.ask(&register, &["good"]);
    assert!(matches!(over, Reply::Refused(Refusal::Ceiling(_))), "{over:?}");
    for _ in 0..2 {
        assert_eq!(
            skillfs.ask(&Request::CloseBacking { mount: first_mount(), id: ids[0] }, &[]),
            Reply::Done
        );
    }
    assert!(matches!(skillfs.ask(&register, &["good"]), Reply::Backing { .. }), "one was closed");
    let over = skillfs.ask(&register, &["good"]);
    assert!(matches!(over, Reply::Refused(Refusal::Ceiling(_))), "twice is once: {over:?}");
    // Another's numbers are not for the broker.
    let mut broker = Dialler::new(&helper.socket(), BROKER);
    let close = good(&Request::CloseBacking { mount: first_mount(), id: ids[1] });
    assert_eq!(broker.dial().ask(&close, &[]), Answer::Said(Reply::Refused(Refusal::Role)));
    drop(skillfs);
    helper.leaves_nothing();
}

/// Names forged in namespaces of the peer's own: uid_map and cgroup.procs would be written as root.
#[test]
fn threat_a6_forged_names_are_no_backing_files() {
    let (helper, place) = backing();
    let real = dir(&place.0.join("backing/good"));
    own(&real);
    let mut forger = Forger::of(&helper, SKILLFS, &place.0, "backing");
    assert_eq!(forger.ask(&Request::Mount { mount: first_mount() }, &[]), Some(Reply::Mounted));
    let register = Request::RegisterBacking { mount: first_mount() };
    forger.ask(&register, &["mem"]);
    let before = at_rest(&helper);
    for name in forger.names.clone() {
        let said = forger.ask(&register, &[&name]);
        assert!(matches!(&said, Some(reply) if refused(reply)), "{name}: {said:?}");
    }
    flat(&helper, &before);
    drop(forger);
    helper.leaves_nothing();
}
