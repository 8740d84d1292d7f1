//! Who makes a sandbox's calls with set-id bits (`[10.5]`): it can be led nowhere that the skill could not go, and nothing
//! of it is left.

use crate::support::helper::*;
use cyberos_proto::message::Exit;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Eight threads set modes of a path whose memory two others change all the time; what is set is looked at all the while.
const RACE: &str = r#"
import ctypes, os, threading, time
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/tmp")
names = [b"aaa", b"bbb", b"/usr/bin/env", b"../tmp/aaa", b"/proc/self/fd/9", b"nothing"]
for n in ("aaa", "bbb"): open(n, "w").close()
os.dup2(os.open("aaa", os.O_RDONLY), 9)
path, set_bits, refused, done = ctypes.create_string_buffer(64), set(), set(), [0]
until = time.monotonic() + 2
def change():
    n = 0
    while time.monotonic() < until:
        ctypes.memmove(path, names[n % 6] + b"\0", len(names[n % 6]) + 1); n += 1
def ask():
    while time.monotonic() < until:
        ctypes.set_errno(0)
        if libc.chmod(path, 0o6755): refused.add(ctypes.get_errno())
        else: done[0] += 1
        for n in ("aaa", "bbb"):
            if os.stat(n).st_mode & 0o6000: set_bits.add(n)
all = [threading.Thread(target=t) for t in [ask] * 8 + [change] * 2]
for t in all: t.start()
for t in all: t.join()
print(sorted(set_bits), done[0] > 100, refused <= {2, 13, 20, 30}, os.stat("/usr/bin/env").st_mode & 0o6000)
"#;

#[test]
fn threat_a1_no_race_on_the_path_of_a_mode_stores_a_set_id_bit() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let mut race = plan(&["/usr/bin/python3", "-I", "-c", RACE]);
    race.limits.processes = 32;
    let out = broker.start(race, &[]).output();
    assert_eq!((out.stdout.as_str(), out.exit), ("[] True True 0\n", Exit::Code(0)), "{}", out.stderr);
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn who_sets_modes_is_neither_seen_nor_signalled_and_reaches_no_further_than_the_skill() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let outside = helper.dir.path().join("theirs");
    fs::write(&outside, "x").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "import os, signal, errno
def tried(path, mode=0o4777):
    try: os.chmod(path, mode); return 'ok'
    except OSError as e: return errno.errorcode[e.errno]
os.chdir('/tmp'); open('f', 'w').close()
print(tried('f'), [p for p in os.listdir('/proc') if p.isdigit()] == [str(os.getpid())])
print(tried({outside:?}), tried('../../../..{0}'), tried('/usr/bin/env'), tried('/etc/passwd'), tried('/dev/null'), tried('/proc/self/comm'))
print(tried('/proc/self/fd/../../1/comm'), tried('/proc/self/root/tmp/f'), tried('/proc/1/comm'), tried('/dev/fd/99'))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# All that it may signal is itself, which ignores it.
os.kill(-1, signal.SIGTERM) if os.fork() else os._exit(0)
print(tried('f'), oct(os.stat('f').st_mode))",
        outside.display()
    );
    let out = broker.start(plan(&["/usr/bin/python3", "-I", "-c", &script]), &[]).output();
    let said = "ok True\nENOENT ENOENT EROFS EROFS EROFS ENOENT\nENOENT ENOENT ENOENT EBADF\nok 0o100777\n";
    assert_eq!((out.stdout.as_str(), out.exit), (said, Exit::Code(0)), "{}", out.stderr);
    assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o7777, 0o666);
    drop(broker);
    helper.leaves_nothing();
}

/// As many as there may be, all of which set modes all the time.
const STORM: &str = r#"
import os
os.chdir("/tmp"); open("f", "w").close(); os.chmod("f", 0o4755)
try:
    while os.fork(): pass
except OSError: os.write(1, b"full")
while True: os.chmod("f", 0o4755)
"#;

#[test]
fn a_storm_of_modes_ends_with_its_sandbox_and_leaves_nothing() {
    let mut helper = Helper::start("");
    for end in ["killed", "released", "link", "helper"] {
        let broker = helper.broker();
        let running = broker.start(plan(&["/usr/bin/python3", "-I", "-c", STORM]), &[]);
        running.said("full");
        let began = std::time::Instant::now();
        let invocation = running.invocation;
        match end {
            "killed" => {
                let kill = cyberos_proto::message::Signal::Kill;
                broker.ask(&invocation.signal(kill), &[]);
                assert_eq!(broker.exit(invocation), Exit::Signal(9));
            }
            "released" => drop(broker.ask(&invocation.release(), &[])),
            "link" => {
                let links = helper.children();
                assert!(!links.is_empty());
                links.iter().for_each(|link| kill(*link, Signal::SIGKILL).unwrap());
            }
            _ => {
                helper.signal(Signal::SIGKILL);
                helper.restart();
            }
        }
        assert!(began.elapsed() < SOON, "{end}");
        drop(running);
        drop(broker);
        helper.leaves_nothing();
    }
}

#[test]
fn where_the_kernel_can_ask_nobody_modes_with_set_id_bits_are_refused() {
    // SECCOMP_FILTER_FLAG_NEW_LISTENER and _WAIT_KILLABLE_RECV, as before Linux 5.19.
    let helper = Helper::start_lacking("", &[(libc::SYS_seccomp, Some((1, 8 | 32)), libc::EINVAL)]);
    let broker = helper.broker();
    let out =
        broker.sh("cd /tmp; touch f; chmod 640 f; chmod 4755 f; echo $?; chmod u+s,g+s f; stat -c %a f");
    assert_eq!(out.stdout, "1\n640\n", "{}", out.stderr);
    drop(broker);
    helper.leaves_nothing();
}
