//! What takes as long as a broker tries again to reach its helper.

use crate::support::binaries::binary;
use crate::support::up::{eventually, reachable_dir, signal};
use crate::system::one;
use nix::sys::signal::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The client looks who it is connected to, after it has connected: a helper that is not root's is none.
#[test]
fn case_159_broker_and_skillfs_take_no_helper_that_is_not_roots() {
    let dir = reachable_dir("cyberos-fake-test-");
    chown(&dir, Some(65534), Some(65534)).unwrap();
    let socket = dir.join("helper.sock");
    // It takes every connection, and says whatever it hears.
    let fake = "import socket,sys,os
s=socket.socket(1,5); s.bind(sys.argv[1]); os.chmod(sys.argv[1],0o777); s.listen(9); print('ready',flush=True)
while True:
  c=s.accept()[0]; c.settimeout(3)
  try: print('heard',len(c.recv(65536)),flush=True)
  except OSError: print('heard silence',flush=True)";
    let mut fake = Command::new("/usr/bin/python3")
        .args(["-I", "-c", fake])
        .arg(&socket)
        .uid(65534)
        .gid(65534)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(fake.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let skills = dir.join("skills");
    let mount = dir.join("mount");
    for d in [&skills, &mount] {
        fs::create_dir(d).unwrap();
    }
    let out = Command::new(binary("skillfs"))
        .args(["mount".as_ref(), skills.as_os_str(), mount.as_os_str()])
        .args(["--decision-command", "/bin/true", "--read-only", "--foreground", "--helper"])
        .arg(&socket)
        .uid(65533)
        .gid(65533)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && text.contains("65534"), "{text}");
    // The broker: a run through a system whose helper's socket has been taken over.
    let up = one("#!/bin/sh\necho ran\n");
    up.shown("demo", "current");
    let real = up.state.join("run/helper.sock");
    fs::rename(&real, up.state.join("run/aside.sock")).unwrap();
    symlink(&socket, &real).unwrap();
    // Its link goes, so that it has to connect again.
    for pid in up.pids("cyberos-broker") {
        signal(pid, Signal::SIGKILL);
    }
    let ran = eventually(std::time::Duration::from_secs(20), || up.cyberos(&["status"]).exit == 0);
    assert!(ran, "{}", up.log());
    let ran = up.run("demo", &[]);
    assert!(ran.exit != 0 && !ran.stdout.contains("ran"), "{ran}");
    assert!(ran.stderr.contains("65534") || ran.stderr.contains("not root"), "{ran}");
    fake.kill().unwrap();
    fake.wait().unwrap();
    let mut heard = String::new();
    said.read_to_string(&mut heard).unwrap();
    // Each that connected left without a word: an end is a length of 0.
    assert!(heard.contains("heard") && heard.lines().all(|l| l == "heard 0"), "{heard}");
    drop(up);
}
