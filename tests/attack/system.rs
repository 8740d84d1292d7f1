//! The field's faults around root helpers and sockets, tried on a whole running system.

use crate::support::binaries::binary;
use crate::support::machine::descriptors;
use crate::support::machine::mountinfo;
use crate::support::up::{Options, Ran, Skill, Up, python, reachable_dir};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub(crate) fn one(main: &str) -> Up {
    Up::new(|source| {
        let skill =
            Skill { id: "demo", tools: &["MemoryRead"], scopes: &["memories/note/**"], ..Skill::default() };
        drop(Skill { main, ..skill }.write(source));
    })
}

/// As fast as they come: connect, send, and only then listen. Nobody is turned away by chance.
#[test]
fn case_147_ten_thousand_quick_clients_are_all_answered() {
    let main = python(
        "import socket, struct
body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'broker.status'}).encode()
frame, answered = struct.pack('>I', len(body)) + body, 0
for i in range(10000):
    s = socket.socket(1); s.connect(os.environ['CYBEROS_BROKER_SOCKET']); s.sendall(frame)
    n = struct.unpack('>I', s.recv(4, socket.MSG_WAITALL))[0]
    answered += 'result' in json.loads(s.recv(n, socket.MSG_WAITALL)); s.close()
print(answered)",
    );
    let up = one(&main);
    let ran = up.run("demo", &[]);
    assert_eq!((ran.exit, &*ran.stdout), (0, "10000\n"), "{ran}");
}

/// Descriptors that nobody asked for, 253 with each of ten thousand messages to the broker's two kinds of socket.
#[test]
fn case_149_the_broker_keeps_none_of_the_descriptors_that_it_is_sent() {
    let main = python(
        "import socket, struct
body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'broker.status'}).encode()
frame = struct.pack('>I', len(body)) + body
s = socket.socket(1); s.connect(os.environ['CYBEROS_BROKER_SOCKET'])
null = os.open('/dev/null', os.O_RDONLY)
for i in range(10000):
    socket.send_fds(s, [frame], [null] * 253)
    n = struct.unpack('>I', s.recv(4, socket.MSG_WAITALL))[0]
    assert 'result' in json.loads(s.recv(n, socket.MSG_WAITALL))
print('sent', flush=True); sys.stdin.read()",
    );
    let up = one(&main);
    let broker = up.pids("cyberos-broker")[0];
    assert_eq!(up.cyberos(&["status"]).exit, 0);
    let before = descriptors(broker);
    let mut run =
        up.command(&["skill", "run", "demo"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(run.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "sent\n");
    // One run's own descriptors, and no more.
    assert!(descriptors(broker) < before + 30, "{} after {before}", descriptors(broker));
    run.kill().unwrap();
    run.wait().unwrap();
    let operator = "import socket,sys
null=open('/dev/null')
for i in range(300):
  s=socket.socket(1); s.connect(sys.argv[1])
  try:
    for j in range(3): socket.send_fds(s,[b'\\0\\0\\0\\x02J{}'],[null.fileno()]*253)
    s.recv(4096)
  except (BrokenPipeError,ConnectionResetError): pass
  s.close()";
    let sent =
        Command::new("/usr/bin/python3").args(["-I", "-c", operator]).arg(up.socket()).status().unwrap();
    assert!(sent.success());
    let settled = crate::support::up::eventually(std::time::Duration::from_secs(15), || {
        descriptors(broker) <= before + 2
    });
    assert!(settled, "{} after {before}", descriptors(broker));
    assert_eq!(up.cyberos(&["status"]).exit, 0);
}

/// Runs `cyberos up` with these arguments to its end, which must be a refusal.
fn refused(args: &[&std::ffi::OsStr]) -> Ran {
    let ran = Ran::from(Command::new(binary("cyberos")).arg("up").args(args).output().unwrap());
    assert_eq!(ran.exit, 1, "{ran}");
    ran
}

/// Places that somebody else can change are refused before root makes, chowns or mounts anything in them.
#[test]
fn cases_153_155_up_neither_mounts_nor_chowns_where_others_can_swap_names() {
    let dir = reachable_dir("cyberos-swap-test-");
    let theirs = dir.join("theirs");
    let victim = dir.join("victim");
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("file"), "").unwrap();
    chown(&theirs, Some(65534), Some(65534)).unwrap();
    symlink(&victim, theirs.join("link")).unwrap();
    symlink("/etc", theirs.join("etc")).unwrap();
    let before = |p: &std::path::Path| {
        let meta = fs::metadata(p).unwrap();
        (meta.uid(), meta.gid(), meta.permissions().mode())
    };
    let (was, etc) = (before(&victim), before("/etc".as_ref()));
    for place in ["new", "link", "etc"] {
        let place = theirs.join(place);
        let ran = refused(&["--state".as_ref(), place.as_ref()]);
        assert!(ran.stderr.contains("can be changed by others"), "{ran}");
        let state = dir.join("state");
        let ran = refused(&["--state".as_ref(), state.as_ref(), "--mount".as_ref(), place.as_ref()]);
        assert!(ran.stderr.contains("can be changed by others"), "{ran}");
    }
    // Root's own state directory in which a name has become a link: nothing behind it changes hands.
    let state = dir.join("planted");
    fs::create_dir(&state).unwrap();
    symlink(&victim, state.join("broker")).unwrap();
    let ran = refused(&["--state".as_ref(), state.as_ref()]);
    assert!(ran.stderr.contains("broker"), "{ran}");
    assert_eq!((before(&victim), before("/etc".as_ref())), (was, etc));
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    let table = mountinfo();
    assert!(!table.contains(dir.to_str().unwrap()), "nothing is mounted there");
}

/// An `up` finds what a dead one left by its lock, and never by a number in a file.
#[test]
fn case_160_a_stale_number_in_the_state_directory_ends_nobody() {
    let mut bystander = Command::new("/bin/sleep").arg("1000").uid(65534).spawn().unwrap();
    let up = Up::with(Options::default(), |source| {
        let state = source.parent().unwrap().join("state");
        fs::create_dir(&state).unwrap();
        // The mark of an earlier one: another folder with things in it would be refused.
        for name in [".cyberos-up", ".lock", "pid", "helper.pid", "cyberos.pid"] {
            fs::write(state.join(name), format!("{}\n", bystander.id())).unwrap();
        }
        drop(Skill { id: "demo", main: "#!/bin/sh\necho ran\n", ..Skill::default() }.write(source));
    });
    assert_eq!(up.run("demo", &[]).stdout, "ran\n");
    drop(up);
    assert!(nix::sys::signal::kill(Pid::from_raw(bystander.id().try_into().unwrap()), None).is_ok());
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
