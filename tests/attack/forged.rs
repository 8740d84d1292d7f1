//! threats.md A6: a descriptor's name proves nothing. An ordinary user in a namespace of its own gives any name to
//! anything; the helper takes only what it finds again below its own root, on the same mount.

use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper, skill};
use cyberos_proto::link;
use cyberos_proto::message::{FromHelper, Refusal, Reply, Request};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const PEER: &str = include_str!("forged.py");

/// A control group that a user was given: writing to its cgroup.procs as root would move and kill anybody.
pub(crate) struct Delegated(pub(crate) PathBuf);

impl Delegated {
    pub(crate) fn to(uid: u32) -> Delegated {
        let unified = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let v2 = unified.iter().find(|d| Path::new(d).join("cgroup.controllers").exists());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("attack-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = Path::new(v2.expect("a cgroup2 mount")).join(name);
        fs::create_dir(&group).unwrap();
        for path in [group.clone(), group.join("cgroup.procs")] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
        }
        Delegated(group)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The forger's process.
pub(crate) struct Forger {
    child: Child,
    order: ChildStdin,
    said: BufReader<ChildStdout>,
    /// What it has to send.
    pub(crate) names: Vec<String>,
    _group: Delegated,
}

impl Forger {
    /// One that forges the names of what is below `base`, and has a good directory in that folder of it.
    pub(crate) fn of(helper: &Helper, uid: u32, base: &Path, kind: &str) -> Forger {
        let group = Delegated::to(uid);
        let mut child = Command::new("/usr/bin/python3")
            .args(["-I", "-c", PEER])
            .args([&helper.socket(), base, &group.0, Path::new(kind)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        let order = child.stdin.take().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let names = line.trim().strip_prefix("ready ").expect("the forger could do all that it wanted");
        let names = names.split(',').map(str::to_owned).collect();
        Forger { child, order, said, names, _group: group }
    }

    /// What the helper says to `request` with descriptors of these names.
    pub(crate) fn ask(&mut self, request: &Request, names: &[&str]) -> Option<Reply> {
        let hex: String = good(request).iter().map(|b| format!("{b:02x}")).collect();
        writeln!(self.order, "{}", [&[&*hex][..], names].concat().join(",")).unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        let line = line.trim();
        let bytes: Result<Vec<u8>, _> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16)).collect();
        match link::decode::<FromHelper>(&bytes.ok()?).ok()? {
            FromHelper::Reply(reply) => Some(reply),
            FromHelper::Event(event) => panic!("{event:?}"),
        }
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn threat_a6_forged_names_are_no_sealed_copies() {
    let helper = Helper::start("");
    helper.sealed("good", "#!/bin/sh\nexec sleep 1000\n");
    let other = Other::skillfs(&helper);
    let mut forger = Forger::of(&helper, BROKER, helper.dir.path(), "sealed");
    let id = new_id();
    let request = id.prepare(skill("x"));
    assert!(matches!(forger.ask(&id.create(), &[]), Some(Reply::SocketCreated { .. })));
    // By the second answer, what the first one carried has been closed.
    forger.ask(&request, &["mem"]);
    let before = at_rest(&helper);
    let names = forger.names.clone();
    assert!(names.len() >= 20, "{names:?}");
    for name in names.iter().filter(|n| *n != "good") {
        let said = forger.ask(&request, &[name]);
        assert!(matches!(said, Some(Reply::Refused(Refusal::Descriptor(_)))), "{name}: {said:?}");
        other.answers();
    }
    flat(&helper, &before);
    // The one that is not forged is taken: it was none of the other things that were wrong.
    assert!(matches!(forger.ask(&request, &["good"]), Some(Reply::Done)));
    drop(forger);
    helper.leaves_nothing();
}
