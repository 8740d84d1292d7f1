//! Criterion 24 against the whole machine: of all its sockets, by path and abstract, a skill connects to its own alone
//! (`[2.2]`, `[10.5]`). The listeners outside are real and open to everybody, and so are those of our own daemons and of
//! another invocation.

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrLike, UnixAddr, bind, listen, socket,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use super::support::up::{Folder, Skill, Up, reachable_dir};

/// Tries every name on its standard input in every way, and prints what it reached.
const PROBE: &str = r#"#!/usr/bin/python3 -I
import json, os, socket, sys
own = os.environ["CYBEROS_BROKER_SOCKET"]
print(own, flush=True)
line = sys.stdin.readline()
if not line:
    sys.exit(0)
task = json.loads(line)
tried, reached = 0, []
def attempt(kind, family, how, address, name):
    global tried
    tried += 1
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(5)
            if how == "send":
                s.sendto(b"x", address)
            else:
                s.connect(address)
            reached.append([name, kind, how])
    except OSError:
        pass
for name in task["names"]:
    if name.startswith("@"):
        forms = ["\0" + name[1:]]
    else:
        up = "../" * 12
        forms = [name, "/proc/self/root" + name, "/proc/1/root" + name, f"/proc/{os.getppid()}/root" + name, up[:-1] + name, "/tmp/.." + name]
    for form in forms:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            for how in ("connect", "send"):
                attempt(kind, socket.AF_UNIX, how, form, name)
for port in task["ports"]:
    attempt(socket.SOCK_STREAM, socket.AF_INET, "connect", ("127.0.0.1", port), f"port {port}")
    attempt(socket.SOCK_DGRAM, socket.AF_INET, "send", ("127.0.0.1", port), f"port {port}")
    attempt(socket.SOCK_STREAM, socket.AF_INET6, "connect", ("::1", port), f"port {port}")
print(json.dumps({"tried": tried, "reached": reached}), flush=True)
sys.stdin.readline()
"#;

/// A listener that anybody may connect to, of one type.
struct Listener {
    name: String,
    socket: OwnedFd,
    kind: SockType,
}

impl Listener {
    fn at(name: &str, kind: SockType) -> Listener {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, kind, flags, None).unwrap();
        let address = match name.strip_prefix('@') {
            Some(abstract_name) => UnixAddr::new_abstract(abstract_name.as_bytes()).unwrap(),
            None => UnixAddr::new(name).unwrap(),
        };
        bind(socket.as_raw_fd(), &address).unwrap();
        assert!(address.len() > 0);
        if !name.starts_with('@') {
            std::fs::set_permissions(name, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        if kind != SockType::Datagram {
            listen(&socket, Backlog::new(16).unwrap()).unwrap();
        }
        Listener { name: name.to_owned(), socket, kind }
    }

    /// Whether somebody has connected or sent something since it was asked last.
    fn was_reached(&self) -> bool {
        let mut byte = [0u8; 8];
        if self.kind == SockType::Datagram {
            return nix::sys::socket::recv(
                self.socket.as_raw_fd(),
                &mut byte,
                nix::sys::socket::MsgFlags::empty(),
            )
            .is_ok();
        }
        nix::sys::socket::accept(self.socket.as_raw_fd()).map(nix::unistd::close).is_ok()
    }
}

/// Names of all sockets of this machine, abstract ones with `@`.
fn names_of_the_machine() -> BTreeSet<String> {
    let text = std::fs::read("/proc/net/unix").unwrap();
    String::from_utf8_lossy(&text)
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().nth(7).map(str::to_owned))
        .filter(|n| n.starts_with(['/', '@']))
        .collect()
}

/// A running probe, and the path of its own socket.
fn begin(up: &Up) -> (Child, BufReader<ChildStdout>, String) {
    let mut command = up.command(&["skill", "run", "probe", "--stdin"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut own = String::new();
    out.read_line(&mut own).unwrap();
    (child, out, own.trim().to_owned())
}

/// Tells a probe what to try, and what it has reached.
fn tell(child: &mut Child, out: &mut BufReader<ChildStdout>, task: &Value) -> Value {
    writeln!(child.stdin.as_mut().unwrap(), "{task}").unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn end(mut child: Child, mut out: BufReader<ChildStdout>) {
    drop(child.stdin.take());
    out.read_to_end(&mut Vec::new()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// A folder in each place where sockets are made.
fn places() -> Vec<Folder> {
    let made = ["/tmp", "/run", "/dev/shm"].map(|place| {
        let dir = Folder::below(place, "cyberos-listeners-");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        dir
    });
    made.into_iter().chain([reachable_dir("cyberos-listeners-")]).collect()
}

#[test]
fn criterion_24_threat_a2_of_all_sockets_of_the_machine_a_skill_connects_to_its_own_alone() {
    let up = Up::new(|source| {
        Skill { id: "probe", main: PROBE, ..Skill::default() }.write(source);
    });
    let places = places();
    let kinds = [(SockType::Stream, "s"), (SockType::Datagram, "d"), (SockType::SeqPacket, "q")];
    let mut listeners = Vec::new();
    for (kind, letter) in kinds {
        for dir in places.iter().map(|p| &**p).chain([&*up.skills, up.dir()]) {
            listeners.push(Listener::at(&format!("{}/{letter}", dir.display()), kind));
        }
        listeners.push(Listener::at(&format!("@cyberos-test-{}-{letter}", std::process::id()), kind));
        listeners.push(Listener::at(&format!("@/tmp/.X11-{}-{letter}", std::process::id()), kind));
    }
    // The control experiment: outside, each can be reached by anybody.
    let names: Vec<&str> = listeners.iter().map(|l| l.name.as_str()).collect();
    let outside = std::process::Command::new("/usr/bin/setpriv")
        .args(["--reuid=1899999077", "--regid=1899999077", "--clear-groups", "/usr/bin/python3", "-I", "-c"])
        .arg(PROBE)
        .env("CYBEROS_BROKER_SOCKET", "none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            writeln!(child.stdin.take().unwrap(), "{}\n", json!({"names": names, "ports": []}))?;
            child.wait_with_output()
        })
        .unwrap();
    let outside = String::from_utf8(outside.stdout).unwrap();
    for listener in &listeners {
        assert!(outside.contains(&format!("\"{}\"", listener.name)), "{} cannot be reached", listener.name);
        while listener.was_reached() {}
    }

    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (mut a, mut a_out, a_own) = begin(&up);
    let (b, b_out, b_own) = begin(&up);
    let mut names = names_of_the_machine();
    // Our own daemons' are among them, and those whose name is not listed as it would be looked up.
    assert!(names.contains(&up.socket().display().to_string()) && names.contains(&b_own), "{names:?}");
    for daemon in sockets_below(&up.state) {
        names.insert(daemon.display().to_string());
    }
    names.extend(listeners.iter().map(|l| l.name.clone()));
    assert!(names.remove(&a_own), "its own is one of the machine's");
    let ports = json!([tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()]);
    let said = tell(&mut a, &mut a_out, &json!({"names": names, "ports": ports}));
    assert_eq!(said["reached"], json!([]), "{said}");
    assert!(said["tried"].as_u64().unwrap() > 8 * names.len() as u64, "{said}");
    for listener in &listeners {
        assert!(!listener.was_reached(), "{} was reached", listener.name);
    }
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    assert!(tcp.accept().is_err() && udp.recv(&mut [0]).is_err());
    end(a, a_out);
    end(b, b_out);

    // That the probe can tell: its own, and nothing but it.
    let (mut c, mut c_out, c_own) = begin(&up);
    let said = tell(&mut c, &mut c_out, &json!({"names": [c_own, a_own, b_own], "ports": []}));
    let reached = said["reached"].as_array().unwrap();
    assert!(!reached.is_empty() && reached.iter().all(|r| r[0] == json!(c_own) && r[1] == 1), "{said}");
    end(c, c_out);
}

/// Sockets in a tree.
fn sockets_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if std::os::unix::fs::FileTypeExt::is_socket(&kind) {
            found.push(entry.path());
        } else if kind.is_dir() {
            found.extend(sockets_below(&entry.path()));
        }
    }
    found
}
