//! Ways out of a command line: files that are more on the host than in the sandbox, and sockets.

use super::*;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Threat A1: whatever a command does, on the host no file of the granted directory has a set-id bit, none is a device,
/// and none belongs to anyone but the broker.
#[test]
fn threat_a1_no_set_id_file_and_no_device_reaches_the_host() {
    let bash = Bash::new();
    let archive = bash.dir.join("set-id.tar");
    // Made on the host, with the bits in it.
    let made = bash.up.dir().join("bits");
    std::fs::create_dir(&made).unwrap();
    std::fs::copy("/bin/true", made.join("suid")).unwrap();
    let mode = |m| std::os::unix::fs::PermissionsExt::from_mode(m);
    std::fs::set_permissions(made.join("suid"), mode(0o6755)).unwrap();
    let tar =
        std::process::Command::new("tar").arg("-cpf").arg(&archive).arg("-C").arg(&made).arg("suid").status();
    assert!(tar.unwrap().success());
    bash.give(&archive);
    let python = r#"
import os, ctypes
os.umask(0)
libc = ctypes.CDLL(None, use_errno=True)
def t(f):
    try: f()
    except OSError: pass
for n, m in enumerate((0o4755, 0o2755, 0o6755, 0o7777)):
    t(lambda: os.close(os.open(f"o{n}", os.O_CREAT | os.O_WRONLY, m)))
    t(lambda: os.mkdir(f"d{n}", m))
    t(lambda: os.mknod(f"n{n}", 0o100000 | m))
    t(lambda: os.mkfifo(f"f{n}", m))
    open(f"x{n}", "w").close()
    t(lambda: os.chmod(f"x{n}", m))
    t(lambda: os.fchmod(os.open(f"x{n}", os.O_RDONLY), m))
    t(lambda: os.chmod(f"x{n}", m, dir_fd=os.open(".", os.O_RDONLY)))
    libc.syscall(452, -100, f"x{n}".encode(), m, 0)
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, m, 0)
    libc.syscall(437, -100, f"q{n}".encode(), how, 24)
    libc.syscall(437, -100, f"t{n}".encode(), how, 24)
    t(lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, m))
for kind in (0o020000, 0o060000):
    t(lambda: os.mknod(f"dev{kind}", kind | 0o666, os.makedev(1, 3)))
t(lambda: os.setxattr("x0", "security.capability", b"\x01\x00\x00\x02\x01" + bytes(15)))
"#;
    let shell = "cp /bin/true s1; chmod 4755 s1; cp /bin/true s2; chmod 2755 s2; chmod u+s,g+s s2; cp /bin/true s3; chmod 6755 s3; \
        install -m 4755 /bin/true s4; cp -p /usr/bin/su s5; cp -p /usr/bin/passwd s6; cp -a /usr/bin/chage s7; tar -xpf set-id.tar; \
        mkdir -m 2777 g1; mkdir g2; chmod g+s g2; mknod null c 1 3; mknod -m 666 disk b 8 0; rsync -a /usr/bin/su s8; \
        perl -e 'chmod 06755, \"s1\"'; ln s1 s9";
    let dir = bash.dir.display();
    let ran =
        bash.run("writer", &format!("cd {dir} && python3 -c '{}'; {shell}", python.replace('\'', "'\\''")));
    let all = below(&bash.dir);
    let names: Vec<_> =
        all.iter().map(|(p, _)| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert!(
        ["x0", "s1", "s5", "g2"].iter().all(|n| names.iter().any(|m| m == n)),
        "the attempts were made: {names:?} {ran}"
    );
    for (path, meta) in all {
        assert_eq!(meta.mode() & 0o6000, 0, "{} has mode {:o}: {ran}", path.display(), meta.mode());
        assert!(!matches!(meta.mode() & 0o170000, 0o020000 | 0o060000), "{} is a device", path.display());
        assert_eq!((meta.uid(), meta.gid()), bash.broker(), "{}", path.display());
    }
}

/// Threat A2: no socket of any kind, and none that listens in a granted tree or in the abstract.
#[test]
fn threat_a2_no_socket_connects_also_inside_a_granted_directory() {
    let bash = Bash::new();
    let path = bash.dir.join("host.sock");
    let named = UnixListener::bind(&path).unwrap();
    bash.give(&path);
    let datagram = std::os::unix::net::UnixDatagram::bind(bash.dir.join("host.dgram")).unwrap();
    bash.give(&bash.dir.join("host.dgram"));
    let name = format!("cyberos-test-{}", std::process::id());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let loopback = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = loopback.local_addr().unwrap().port();
    for listener in [&named, &hidden] {
        listener.set_nonblocking(true).unwrap();
    }
    datagram.set_nonblocking(true).unwrap();
    loopback.set_nonblocking(true).unwrap();
    let python = format!(
        r#"
import socket, os
def t(name, f):
    try: f(); print(name, "OPEN")
    except OSError as e: print(name, e.errno)
for family in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        t(f"{{family}} {{kind}}", lambda: socket.socket(getattr(socket, family), kind))
t("pair dgram", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
t("pair raw", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW))
a, b = socket.socketpair()
for name, where in (("path", "{path}"), ("abstract", "\0{name}"), ("datagram", "{dgram}")):
    t("connect pair " + name, lambda: a.connect(where))
    t("sendto pair " + name, lambda: a.sendto(b"x", where))
t("connect pair taken", lambda: b.connect("{path}"))
try:
    b.bind("{path}.new")
    t("listen pair", b.listen)
except OSError as e: print("listen pair", e.errno)
"#,
        path = path.display(),
        dgram = bash.dir.join("host.dgram").display(),
    );
    let seen = bash.run("writer", &format!("python3 -c '{python}'; (echo x > /dev/tcp/127.0.0.1/{port}) 2>&1; (echo x > /dev/udp/127.0.0.1/53) 2>&1"));
    let printed = seen["stdout"].as_str().unwrap();
    assert!(!printed.contains("OPEN") && printed.contains("listen pair"), "{printed}");
    // One end of a pair can take a name, but nobody can reach it there.
    let new = std::os::unix::net::UnixStream::connect(bash.dir.join("host.sock.new"));
    assert!(new.is_err(), "a socket of the sandbox's can be connected to");
    assert_eq!(
        printed.lines().filter(|l| l.starts_with("AF_") && l.ends_with(" 13")).count(),
        28,
        "EACCES: {seen}"
    );
    assert!(printed.contains("pair dgram 13") && printed.contains("pair raw 13"), "{printed}");
    for accepted in [named.accept(), hidden.accept()] {
        assert_eq!(accepted.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "somebody connected");
    }
    assert!(loopback.accept().is_err() && datagram.recv(&mut [0; 8]).is_err());
}

/// Case 51: no descriptor, no directory and no process of the host's is within reach.
#[test]
fn case_051_no_descriptor_leads_out() {
    let bash = Bash::new();
    let seen = bash.run(
        "reader",
        "ls /proc/self/fd /proc/1/fd 2>&1; for i in $(seq 3 64); do ls -d /proc/self/fd/$i/.. 2>/dev/null; done; \
         pwd -P; cat ../../../../etc/shadow; cat /proc/1/environ; cat /proc/sys/kernel/core_pattern; nsenter -t 1 -a true; \
         kill -0 1 && echo CAN; unshare -U true && echo CAN",
    );
    let printed = seen["stdout"].as_str().unwrap();
    assert!(printed.ends_with("/tmp\n") && !printed.contains("CAN") && !printed.contains("/.."), "{seen}");
}
