//! threats.md A25: what is used again is proven empty first, by looking: network namespaces, uids, blocks of them.

use crate::requests::new_id;
use crate::support::helper::*;
use cyberos_proto::message::Reply;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// landlock_create_ruleset is answered as by a kernel without Landlock.
const NO_LANDLOCK: Lacking = (nix::libc::SYS_landlock_create_ruleset, None, nix::libc::ENOSYS);

/// Leaves a listening abstract socket in a message on the connection to its own socket, which nobody accepts.
const LEAVES: &str = "import socket,sys
s=socket.socket(1); s.bind('\\0left behind'); s.listen()
c=socket.socket(1); c.connect(sys.argv[1]); socket.send_fds(c,[b'x'],[s.fileno()])
print('sent',flush=True)";
const LOOKS: &str = "import socket
print(open('/proc/self/net/unix').read().count('\\n'))
s=socket.socket(1)
try: s.connect('\\0left behind'); print('connected')
except OSError as e: print(type(e).__name__)";

#[test]
fn threat_a25_a_network_namespace_with_a_socket_left_in_it_is_not_used_again() {
    for lacking in [&[][..], &[NO_LANDLOCK]] {
        let helper = Helper::start_lacking("", lacking);
        let broker = helper.broker();
        let python =
            |script: &str, words: &[&str]| plan(&[&["/usr/bin/python3", "-I", "-c", script], words].concat());
        // The first line of the table and the socket that looks.
        let looked = || {
            let out = broker.start(python(LOOKS, &[]), &[]).output();
            assert_eq!(out.stderr, "");
            out.stdout
        };
        assert_eq!(looked(), "1\nConnectionRefusedError\n");
        let (invocation, uid, listener) = broker.invocation();
        let unread = listener.try_clone().unwrap();
        let path = format!("/tmp/cyberos-skill-broker.{invocation}.sock");
        let run = broker.start_in(invocation, uid, listener, python(LEAVES, &[&path]), &[]);
        let out = run.output();
        assert_eq!(out.stdout, "sent\n", "{}", out.stderr);
        for _ in 0..3 {
            assert_eq!(looked(), "1\nConnectionRefusedError\n", "while it is in flight");
        }
        drop(unread);
        assert_eq!(looked(), "1\nConnectionRefusedError\n");
    }
}

#[test]
fn a_network_namespace_that_is_empty_is_used_again() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let of = || broker.sh("readlink /proc/self/ns/net").stdout;
    let first = of();
    assert!(first.starts_with("net:["), "{first}");
    assert_eq!([of(), of()], [first.clone(), first]);
}

/// A process with a uid of the helper's, which it has not made.
struct Foreign(Child);

impl Foreign {
    fn new(uid: u32) -> Foreign {
        let mut command = Command::new("/bin/sleep");
        Foreign(command.arg("1000").uid(uid).gid(uid).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn threat_a25_a_uid_that_a_process_has_is_leased_to_nobody_again() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let lease = || {
        let (invocation, uid, _listener) = broker.invocation();
        assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
        uid
    };
    let all: Vec<u32> = (0..255).map(|_| lease()).collect();
    let foreign = Foreign::new(all[7]);
    let again: Vec<u32> = (0..254).map(|_| lease()).collect();
    let others: Vec<u32> = all.iter().copied().filter(|uid| *uid != all[7]).collect();
    assert_eq!(again, others, "all the others, in their order");
    assert_eq!(helper.log().matches("is put aside").count(), 1, "{}", helper.log());
    drop(foreign);
    assert_ne!(lease(), all[7]);
}

/// Processes that cannot be ended are a frozen control group's here: to a signal they are what a process is that waits for a
/// file system's server.
#[test]
fn threat_a21_blocks_with_processes_that_do_not_end_are_named_once_and_hold_no_start_up() {
    let helper = Helper::start("");
    let blocks: Vec<u32> = (0..3).map(|n| helper.uids.0 + 256 * n).collect();
    let stuck: Vec<Stuck> = blocks.iter().map(|first| Stuck::new(first + 9)).collect();
    for first in &blocks {
        fs::write(helper.dir.path().join("locks").join(first.to_string()), "").unwrap();
    }
    let named = |helper: &Helper| helper.log().matches("go on after SIGKILL").count();
    let began = Instant::now();
    let first = helper.twin();
    assert!(began.elapsed() < Duration::from_secs(3), "one wait for all: {:?}", began.elapsed());
    assert_eq!(named(&first), 3, "{}", first.log());
    assert!(first.log().lines().count() < 10, "{}", first.log());
    for _ in 0..3 {
        let began = Instant::now();
        let next = helper.twin();
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        assert_eq!(named(&next), 0, "they have been named");
        // Served from the block that is left, without waiting for the others either.
        let began = Instant::now();
        let mut bare = plan(&["/bin/true"]);
        bare.socket = false;
        let broker = next.broker();
        let report = broker.spawn(&new_id().prepare(bare), &[]).unwrap().report;
        assert!(report.uid > helper.uids.0 + 768, "{report:?}");
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    }
    drop(stuck);
    // When they have ended the blocks are used again.
    let next = helper.twin();
    let (_, uid, _listener) = next.broker().invocation();
    assert!(uid < blocks[1], "{uid}");
    for first in &blocks[..1] {
        assert_eq!(fs::read_to_string(helper.dir.path().join("locks").join(first.to_string())).unwrap(), "");
    }
}

/// A process of that uid which SIGKILL does not end: the first of a pid namespace whose child waits for a file system that
/// does not answer would be one; this one waits for its tracer, which holds it at its end.
struct Stuck {
    tracer: Child,
}

const HOLDS: &str = "import ctypes,os,sys,signal
l=ctypes.CDLL(None,use_errno=True); uid=int(sys.argv[1]); PTRACE=lambda r,p,a,d: l.ptrace(r,p,ctypes.c_void_p(a),ctypes.c_void_p(d))
pid=os.fork()
if pid==0:
  os.setresgid(uid,uid,uid); os.setresuid(uid,uid,uid); os.kill(os.getpid(),signal.SIGSTOP); signal.pause()
os.waitpid(pid,os.WUNTRACED)
assert PTRACE(0x4206,pid,0,0x40)==0
print(pid,flush=True)
sys.stdin.read()
os.kill(pid,9); PTRACE(17,pid,0,0); os.waitpid(pid,0)";

impl Stuck {
    fn new(uid: u32) -> Stuck {
        let mut tracer = Command::new("/usr/bin/python3")
            .args(["-I", "-c", HOLDS])
            .arg(uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(tracer.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap());
        // It gets no further than to its end, where it waits for the tracer.
        kill(pid, Signal::SIGKILL).unwrap();
        let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        until("it waits at its end", || status().contains("State:\tt (tracing stop)"));
        Stuck { tracer }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        drop(self.tracer.stdin.take());
        let _ = self.tracer.wait();
    }
}
