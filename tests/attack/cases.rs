//! The field's faults around root helpers, their sockets and their peers' identity, tried on the helper alone. Some of their
//! kind are in `bytes`, `links` and `system`, and beside the promises that they belong to.

use crate::raw::*;
use crate::support::helper::{Asks, BROKER, HAND_OVER, Helper, SKILLFS, STRANGER, ended, skill, until};
use crate::support::machine::mountinfo;
use cyberos_proto::message::{Exit, Refusal, Reply};
use nix::sys::signal::{Signal, kill};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Tries every socket of ours that appears in /tmp, as fast as it can, until its stdin ends; says how often it tried and got in.
const HAMMER: &str = "import os,socket,select
tried=got=0
print('ready',flush=True)
while not select.select([0],[],[],0)[0]:
  for e in os.scandir('/tmp'):
    if e.name.startswith('cyberos-skill-broker.'):
      s=socket.socket(1); tried+=1
      try: s.connect(e.path); got+=1
      except OSError: pass
      s.close()
print(tried,got)";

#[test]
fn case_145_nobody_gets_in_while_sockets_are_being_made() {
    let helper = Helper::start("");
    let hammers: Vec<_> = [STRANGER, BROKER]
        .map(|uid| {
            let mut hammer = Command::new("/usr/bin/python3")
                .args(["-I", "-c", HAMMER])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .uid(uid)
                .gid(uid)
                .spawn()
                .unwrap();
            let mut said = BufReader::new(hammer.stdout.take().unwrap());
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            (hammer, said)
        })
        .into_iter()
        .collect();
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let raw = dialler.dial();
    for _ in 0..2000 {
        let invocation = new_id();
        let made = raw.ask(&good(&invocation.create()), &[]);
        assert!(matches!(made, Answer::Said(Reply::SocketCreated { .. })), "{made:?}");
        let path = format!("/tmp/cyberos-skill-broker.{invocation}.sock");
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(raw.ask(&good(&invocation.release()), &[]), Answer::Said(Reply::Done));
    }
    for (mut hammer, mut said) in hammers {
        drop(hammer.stdin.take());
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        hammer.wait().unwrap();
        let (tried, got) = text.trim().split_once(' ').unwrap();
        assert!(tried.parse::<u32>().unwrap() > 100, "it tried only {tried} times");
        assert_eq!(got, "0");
    }
}

/// Peers are uids. A number that has gone, was somebody else's, or is none here changes nothing.
#[test]
fn case_146_who_a_peer_is_does_not_hang_on_its_pid() {
    let helper = Helper::start("");
    // The process that connected has ended before its first request, and its number may be anybody's.
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let raw = dialler.dial();
    drop(dialler);
    let id = new_id();
    let made = raw.ask(&good(&id.create()), &[]);
    assert!(matches!(made, Answer::Said(Reply::SocketCreated { .. })), "{made:?}");
    drop(raw);
    // From a pid namespace of its own, and sent before it has ever been seen; then it ends at once.
    let script = format!(
        "import socket,sys
s=socket.socket(1,5); s.connect(sys.argv[1]); s.send(bytes.fromhex('{}')); print(s.recv(99).hex())",
        good(&id.release()).iter().map(|b| format!("{b:02x}")).collect::<String>()
    );
    let ask = |uid: u32| {
        let out = Command::new("unshare")
            .args(["-p", "-f", "--kill-child", "setpriv"])
            .args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()])
            .args(["/usr/bin/python3", "-I", "-c", &script])
            .arg(helper.socket())
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    let expected = |reply| {
        let packet = cyberos_proto::link::encode(&cyberos_proto::message::FromHelper::Reply(reply)).unwrap();
        packet.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    for _ in 0..20 {
        assert_eq!(ask(BROKER), expected(Reply::Done), "{}", helper.log());
    }
    for uid in [STRANGER, 0] {
        let said = ask(uid);
        // Told before its packet was read, a reset may come first.
        assert!(said == expected(Reply::Refused(Refusal::Role)) || said.is_empty(), "{uid}: {said}");
    }
}

/// While sandboxes are built, no mount of theirs shows where somebody else could step in; and swapping what is bound changes which copy is run, or refuses, and nothing else.
#[test]
fn case_152_nothing_can_be_swapped_while_a_sandbox_is_built() {
    let helper = Helper::start("");
    let root = helper.dir.path().join("sealed");
    for name in ["a", "b"] {
        helper.sealed(name, &format!("#!/bin/sh\necho {name}; ls /opt/cyberos/skills/x | wc -l\n"));
    }
    fs::create_dir(root.join("etc")).unwrap();
    fs::write(root.join("etc/main"), "#!/bin/sh\necho outside\n").unwrap();
    let swap = "import os,sys,select
os.chdir(sys.argv[1]); n=0
print('ready',flush=True)
while not select.select([0],[],[],0)[0]:
  os.rename('a','x'); os.rename('b','a'); os.rename('x','b')
  os.symlink('/etc','x'); os.unlink('x'); n+=1
print(n)";
    let mut swapper = Command::new("/usr/bin/python3")
        .args(["-I", "-c", swap])
        .arg(&root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(swapper.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    // Others mount things on this machine too. What could leak of a sandbox is on a directory of ours, or where its root
    // is built.
    let own = helper.dir.path().to_str().unwrap();
    let mounts = || {
        let table = mountinfo();
        let at = |l: &str| l.split(' ').nth(4).unwrap_or_default().to_owned();
        let ours = |p: &String| p.starts_with(own) || ["/", "/tmp", "/run", "/dev/shm"].contains(&&**p);
        table.lines().map(at).filter(ours).count()
    };
    let before = mounts();
    let broker = helper.broker();
    let (mut ran, mut refused) = (0, 0);
    while ran + refused < 150 {
        // Between two names it has none.
        let Ok(dir) = File::open(root.join("a")) else { continue };
        let (invocation, uid, listener) = broker.invocation();
        let asked = broker.spawn(&invocation.prepare(skill("x")), &[dir.as_fd()]);
        assert_eq!(mounts(), before, "no mount of it shows outside");
        match asked {
            Ok(pipes) => {
                drop(listener);
                let mut text = String::new();
                File::from(pipes.stdout).read_to_string(&mut text).unwrap();
                assert!(["a\n1\n", "b\n1\n"].contains(&&*text), "{uid}: {text:?}");
                assert_eq!(broker.exit(invocation), Exit::Code(0));
                ran += 1;
            }
            Err(Refusal::Descriptor(_)) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        broker.ask(&invocation.release(), &[]);
    }
    drop(swapper.stdin.take());
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    swapper.wait().unwrap();
    assert!(text.trim().parse::<u32>().unwrap() > 100, "swapped {text}");
    assert!(ran > 10, "{ran} ran, {refused} refused");
}

#[test]
fn case_153_a_mount_point_that_is_swapped_leads_nowhere_else() {
    let helper = Helper::start("");
    let (view, aside) = (helper.dir.path().join("view"), helper.dir.path().join("aside"));
    let victim = helper.dir.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("untouched"), "").unwrap();
    let mut dialler = Dialler::new(&helper.socket(), SKILLFS);
    let raw = dialler.dial();
    let seen = || {
        let table = mountinfo();
        let of = |l: &str| l.split(' ').nth(4).unwrap_or_default().to_owned();
        let dir = helper.dir.path().to_str().unwrap();
        table.lines().map(of).filter(|p| p.starts_with(dir)).collect::<Vec<_>>()
    };
    // Swapped between the helper's start and the request: the view appears on the directory that root had named.
    fs::rename(&view, &aside).unwrap();
    symlink(&victim, &view).unwrap();
    assert!(matches!(
        raw.ask(&good(&of_skillfs()[0]), &[]),
        Answer::Said(Reply::Mounted | Reply::Refused(_))
    ));
    assert!(victim.join("untouched").exists());
    assert!(seen().iter().all(|p| *p == aside.to_str().unwrap()), "{:?}", seen());
    // Swapped again while it is mounted: taking it off takes that one off.
    fs::remove_file(&view).unwrap();
    symlink("/etc", &view).unwrap();
    let _ = raw.ask(&good(&of_skillfs()[1]), &[]);
    drop(raw);
    until("nothing is mounted", || seen().is_empty());
    assert!(fs::metadata("/etc/passwd").is_ok());
    drop(dialler);
    // A helper that starts with a link, a file, or nothing there says so and does not start.
    for kind in ["link", "file"] {
        let _ = fs::remove_file(&view);
        if kind == "link" {
            symlink(&victim, &view).unwrap()
        } else {
            fs::write(&view, "").unwrap()
        }
        let ceiling = helper.dir.path().join("second");
        let text =
            format!("lock_dir {0}/locks2\nmount 0 ro {1}\n", helper.dir.path().display(), view.display());
        fs::write(&ceiling, text).unwrap();
        let out = ended(&ceiling, HAND_OVER);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains("ENOTDIR"), "{kind}: {said}");
    }
    fs::remove_file(&view).unwrap();
    fs::rename(&aside, &view).unwrap();
}

/// It cannot give anything away, since it has not kept the capability, and writes nothing by force once it serves.
#[test]
fn case_155_the_helper_changes_no_owner_or_mode_for_anybody() {
    let helper = Helper::start("");
    let broker = helper.broker();
    assert_eq!(broker.sh(":").exit, Exit::Code(0));
    let (chown_bit, dac_override) = (1u64 << 0, 1u64 << 1);
    for pid in [vec![helper.pid()], helper.children()].concat() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for (set, none) in [
            ("CapEff:", chown_bit | dac_override),
            ("CapPrm:", chown_bit),
            ("CapBnd:", chown_bit),
            ("CapInh:", u64::MAX),
            ("CapAmb:", u64::MAX),
        ] {
            let value = status.lines().find_map(|l| l.strip_prefix(set)).unwrap().trim();
            let value = u64::from_str_radix(value, 16).unwrap();
            assert_eq!(value & none, 0, "{pid} {set} {value:x}");
        }
    }
    // Its directory of locks is root's alone, so nobody swaps what is in it; one that is not is refused.
    let dir = tempfile::tempdir().unwrap();
    let (locks, ceiling) = (dir.path().join("locks"), dir.path().join("ceiling"));
    fs::create_dir(&locks).unwrap();
    fs::write(&ceiling, format!("lock_dir {}\n", locks.display())).unwrap();
    for (owner, mode) in [(STRANGER, 0o700), (0, 0o777)] {
        chown(&locks, Some(owner), Some(0)).unwrap();
        fs::set_permissions(&locks, PermissionsExt::from_mode(mode)).unwrap();
        let out = ended(&ceiling, HAND_OVER);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains("root's alone"), "{said}");
        let meta = fs::metadata(&locks).unwrap();
        assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (owner, mode), "left as it was");
    }
}

/// There is one helper for all links and a process for each, not a unit for each: those that fail leave nothing behind
/// that could be counted.
#[test]
fn case_157_three_hundred_bad_peers_pile_nothing_up() {
    let (helper, other, mut dialler) = attacked("");
    let rest = at_rest(&helper);
    for _ in 0..300 {
        dialler.dial().is_ended_by("bad", b"bad", &[]);
    }
    flat(&helper, &rest);
    let zombies = || {
        helper
            .children()
            .iter()
            .any(|p| fs::read_to_string(format!("/proc/{p}/status")).is_ok_and(|s| s.contains("State:\tZ")))
    };
    until("no zombies", || !zombies());
    other.answers();
    drop(dialler);
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
}

/// It keeps no pids anywhere: what it sweeps, it finds by its own uids, and looks again at what it is about to kill.
#[test]
fn case_160_stale_numbers_in_its_state_kill_nobody() {
    let mut helper = Helper::start("");
    assert_eq!(helper.broker().sh(":").exit, Exit::Code(0));
    let mut bystander = Command::new("/bin/sleep").arg("1000").uid(STRANGER).spawn().unwrap();
    let own = std::process::id().to_string();
    let locks = helper.dir.path().join("locks");
    let block = fs::read_dir(&locks).unwrap().flatten().find(|e| e.file_name() != "mount").unwrap();
    assert_eq!(fs::metadata(block.path()).unwrap().len(), 0, "a lock says nothing by its content");
    for entry in fs::read_dir(&locks).unwrap().flatten() {
        fs::write(entry.path(), format!("{}\n{own}\n", bystander.id())).unwrap();
    }
    for name in
        [bystander.id().to_string(), own, STRANGER.to_string(), "0".into(), "-1".into(), "helper.pid".into()]
    {
        fs::write(locks.join(name), bystander.id().to_string()).unwrap();
    }
    helper.signal(Signal::SIGKILL);
    helper.restart();
    assert!(bystander.try_wait().unwrap().is_none(), "{}", helper.log());
    assert!(kill(nix::unistd::Pid::from_raw(bystander.id().try_into().unwrap()), None).is_ok());
    assert_eq!(helper.broker().sh("echo served").stdout, "served\n");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// A descriptor of the peer's own link, sent over it, neither keeps the link alive nor is kept.
#[test]
fn case_149_a_link_that_is_sent_over_itself_still_ends() {
    let (helper, other, mut dialler) = attacked("");
    let rest = at_rest(&helper);
    for count in [1usize, 253] {
        let raw = dialler.dial();
        let own = raw.link.as_fd().as_raw_fd();
        for _ in 0..20 {
            let _ = raw.send(&good(&new_id().prepare(skill("x"))), &vec![own; count]);
        }
        drop(raw);
    }
    flat(&helper, &rest);
    other.answers();
}
