//! What a program finds in its sandbox, asked from inside and checked from outside.

use crate::support::helper::*;
use cyberos_proto::message::{Exit, Refusal};
use cyberos_proto::plan::{Feature, Profile, SandboxPath};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

#[test]
fn the_environment_is_the_plans_and_nothing_else() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let out = broker.start(plan(&["/usr/bin/env"]), &[]).output();
    assert_eq!(out.stdout, "PATH=/usr/local/bin:/usr/bin:/bin\nRUST_LOG=warn\n");
    assert_eq!(out.exit, Exit::Code(0));
}

#[test]
fn case_051_descriptors_are_exactly_three_pipes_and_lead_nowhere() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import os,stat
own=os.open('/proc/self/fd',os.O_RDONLY)
fds=sorted(int(f) for f in os.listdir(own) if int(f)!=own and os.path.exists(f'/proc/self/fd/{f}'))
print(fds,[stat.S_ISFIFO(os.fstat(f).st_mode) for f in fds],[os.isatty(f) for f in fds])
print(os.getcwd(), os.getsid(0)==os.getpid(), os.path.exists('../../../../etc/shadow'), sorted(os.listdir('/')))";
    let out = broker.start(python(script), &[]).output();
    assert_eq!(
        out.stdout,
        "[0, 1, 2] [True, True, True] [False, False, False]\n/tmp True False \
         ['bin', 'dev', 'etc', 'lib', 'lib64', 'opt', 'proc', 'sbin', 'tmp', 'usr']\n",
        "{}",
        out.stderr
    );
    for cwd in ["/proc/self/fd/7", "/nowhere", "/etc/passwd"] {
        let mut strange = plan(&["/bin/true"]);
        strange.cwd = SandboxPath::new(cwd).unwrap();
        let (invocation, ..) = broker.invocation();
        let refusal = broker.refusal(&invocation.prepare(strange), &[]);
        assert!(
            matches!(refusal, Refusal::System { ref step, .. } if step == "working directory"),
            "{refusal:?}"
        );
    }
}

#[test]
fn the_process_has_its_own_uid_and_no_power() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let running = broker.start(plan(&["/bin/cat", "/proc/self/status"]), &[]);
    let out = running.output();
    let field = |k: &str| {
        out.stdout
            .lines()
            .find_map(|l| l.strip_prefix(k))
            .map(|v| v.split_whitespace().collect::<Vec<_>>())
            .unwrap()
    };
    let uid = out.uid.to_string();
    assert!(out.uid > helper.uids.0 && out.uid <= helper.uids.1, "{}", out.uid);
    assert_eq!(field("Uid:"), [&uid; 4]);
    assert_eq!(field("Gid:"), [&uid; 4]);
    assert_eq!(field("Groups:"), [""; 0]);
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "SigBlk:", "SigIgn:", "SigPnd:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Seccomp:"), ["2"]);
    assert_eq!(field("Umask:"), ["0022"]);
    let out = broker.sh("id -un; id -gn; hostname; mkdir d; stat -c %a d");
    assert_eq!(out.stdout, "skill\nskill\nsandbox\n755\n");
}

#[test]
fn case_078_there_is_no_network_and_no_socket_but_unix() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import socket,errno
for f in (2,10,16,17,29,38,40,44):
  for t in (1,2,3):
    try: socket.socket(f,t); print('made',f,t)
    except OSError as e: assert e.errno==errno.EACCES, (f,t,e)
import ctypes; l=ctypes.CDLL(None,use_errno=True)
for f in ((1<<32)|2, (1<<33)|16): assert l.syscall(41,ctypes.c_long(f),1,0)==-1 and ctypes.get_errno()==13
a,b=socket.socketpair(); a.send(b'x'); print(b.recv(1)); socket.socket(1,2)
print(open('/proc/self/net/dev').read().count(':') if __import__('os').path.exists('/proc/self/net/dev') else 1)";
    let out = broker.start(python(script), &[]).output();
    assert_eq!(out.stdout, "b'x'\n1\n", "{}", out.stderr);
    let mut bash = python(
        "import socket
for f,t in ((1,1),(1,5),(2,1)):
  try: socket.socket(f,t); print('made',f,t)
  except OSError as e: print(e.errno)
for t in (1,5,2,3,1|socket.SOCK_CLOEXEC,2|socket.SOCK_NONBLOCK):
  try: socket.socketpair(1,t); print('ok')
  except OSError as e: print(e.errno)",
    );
    bash.profile = Profile::Bash;
    let out = broker.start(bash, &[]).output();
    assert_eq!(out.stdout, "13\n13\n13\nok\nok\n13\n13\nok\n13\n", "{}", out.stderr);
}

#[test]
fn case_063_only_its_own_processes_exist() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let other = broker.start(plan(&["/bin/sleep", "1000"]), &[]);
    let out = broker
        .sh("ls /proc | grep -c '^[0-9]'; kill -0 1; kill -9 1; kill -TERM 1; ls /proc/1 /proc/sys /sys; \
         cat /proc/1/environ; kill -9 -1; echo not reached");
    // The shell, and of the pipeline what was there when it was looked at.
    let seen: u32 = out.stdout.lines().next().unwrap_or_default().parse().unwrap();
    assert!((1..=4).contains(&seen), "{out:?}");
    assert_eq!(out.stderr.matches("No such file").count(), 4, "{out:?}");
    // What is sent to all spares the sender, and there is nobody else.
    assert_eq!(out.exit, Exit::Code(0), "{out:?}");
    broker.ask(&other.invocation.release(), &[]);
}

#[test]
fn case_052_nothing_of_the_system_can_be_written() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let before = fs::read(binary()).unwrap();
    let sealed = helper.sealed("x", "#!/bin/sh\nexit 0\n");
    let mut all = skill("x");
    all.program = SandboxPath::new("/bin/sh").unwrap();
    let script = "for d in / /usr /usr/bin /etc /dev /proc /opt /opt/cyberos /opt/cyberos/bin \
          /opt/cyberos/skills/x /etc/ssl /lib; do (: >$d/new) 2>/dev/null && echo wrote $d; mkdir $d/new 2>/dev/null \
          && echo made $d; done; \
        for f in /etc/passwd /usr/bin/env /opt/cyberos/skills/x/main /dev/random /proc/1/exe /proc/self/exe; do \
          (: >>$f) 2>/dev/null && echo opened $f; chmod 777 $f 2>/dev/null && echo chmod $f; done; \
        rm -rf /opt/cyberos/skills/x /usr/bin /tmp/*.sock 2>/dev/null; \
        echo a >/tmp/a && echo b >/dev/shm/b && cat /tmp/a /dev/shm/b; ls /tmp | wc -l; ls -a /opt/cyberos/skills/x; \
        stat -c %a /tmp /dev/shm; ls /var /home /root /run /srv /mnt 2>/dev/null";
    all.args = vec![b"sh".to_vec(), b"-c".to_vec(), script.into()];
    let out = broker.start(all, &[sealed.as_fd()]).output();
    assert_eq!(out.stdout, "opened /dev/random\na\nb\n2\n.\n..\nmain\n1777\n1777\n", "{}", out.stderr);
    assert_eq!(fs::read(binary()).unwrap(), before);
}

#[test]
fn a_skill_runs_from_its_sealed_copy() {
    let helper = Helper::start("");
    fs::write(helper.dir.path().join("bin/cyberos-call"), "#!/bin/sh\necho called\n").unwrap();
    let executable = fs::Permissions::from_mode(0o555);
    fs::set_permissions(helper.dir.path().join("bin/cyberos-call"), executable).unwrap();
    let broker = helper.broker();
    let sealed =
        helper.sealed("greet", "#!/usr/bin/env python3\nimport os,sys\nprint(os.getcwd(), sys.argv)\n");
    let mut greet = skill("greet");
    greet.args.extend([b"--bind".to_vec(), b"-rf".to_vec()]);
    let out = broker.start(greet, &[sealed.as_fd()]).output();
    let dir = "/opt/cyberos/skills/greet";
    assert_eq!(out.stdout, format!("{dir} ['{dir}/main', '--bind', '-rf']\n"), "{}", out.stderr);
    assert_eq!(broker.sh("/opt/cyberos/bin/cyberos-call; ls /opt/cyberos").stdout, "called\nbin\n");
}

#[test]
fn a_report_says_what_is_enforced_and_what_is_not() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (invocation, uid, _listener) = broker.invocation();
    let report = broker.spawn(&invocation.prepare(plan(&["/bin/true"])), &[]).unwrap().report;
    assert_eq!(report.uid, uid);
    use Feature::*;
    let all = [Namespaces, OwnUid, NoNewPrivs, NoCapabilities, Seccomp, Rlimits, Cgroup, Landlock];
    assert_eq!(report.enforced, all, "of this machine: {}", helper.log());
    assert_eq!(report.skipped, []);
    assert_ne!(report.cgroup, cyberos_proto::plan::Cgroup::Absent);
    assert!(report.landlock >= 1);
}

#[test]
fn how_a_program_ends_is_told_and_why_it_cannot_begin() {
    let helper = Helper::start("");
    let broker = helper.broker();
    assert_eq!(broker.sh("exit 7").exit, Exit::Code(7));
    assert_eq!(broker.sh("kill -SEGV $$").exit, Exit::Signal(11));
    assert_eq!(broker.sh("sleep 1000 & exit 3").exit, Exit::Code(3));
    let text = helper.sealed("text", "no program");
    let none = helper.sealed("none", "#!/no/such/interpreter\n");
    let file = helper.dir.path().join("sealed/plain");
    fs::create_dir(&file).unwrap();
    fs::write(file.join("main"), "#!/bin/sh\n").unwrap();
    let plain: OwnedFd = File::open(&file).unwrap().into();
    let cases: [(&str, BorrowedFd<'_>, i32); 3] = [
        ("text", text.as_fd(), nix::libc::ENOEXEC),
        ("none", none.as_fd(), nix::libc::ENOENT),
        ("plain", plain.as_fd(), nix::libc::EACCES),
    ];
    for (name, fd, errno) in cases {
        let (invocation, ..) = broker.invocation();
        let request = invocation.prepare(skill(name));
        assert_eq!(broker.refusal(&request, &[fd]), Refusal::Exec { errno }, "{name}");
        // The invocation still stands: a spawn that failed left nothing.
        let again = invocation.prepare(plan(&["/no/program"]));
        assert_eq!(broker.refusal(&again, &[]), Refusal::Exec { errno: nix::libc::ENOENT });
        broker.ask(&invocation.release(), &[]);
    }
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn case_145_only_the_skill_can_connect_to_its_socket() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (invocation, uid, listener) = broker.invocation();
    let path = format!("/tmp/cyberos-skill-broker.{invocation}.sock");
    let meta = fs::symlink_metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    for stranger in [BROKER, STRANGER, 65534] {
        let connect = format!("import socket\nsocket.socket(1).connect('{path}')");
        let tried = Command::new("/usr/bin/setpriv")
            .args([&format!("--reuid={stranger}"), &format!("--regid={stranger}"), "--clear-groups"])
            .args(["/usr/bin/python3", "-I", "-c", &connect])
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&tried.stderr).contains("PermissionError"), "{stranger}: {tried:?}");
    }
    let script = format!(
        "import socket,os
s=socket.socket(1); s.connect('{path}'); s.send(b'hello'); print(s.recv(9))
for f in (lambda: os.chmod('{path}',0o666), lambda: os.unlink('{path}'), lambda: os.rename('{path}','/tmp/x')):
  try: f(); print('done')
  except OSError as e: print(e.errno)"
    );
    let running = broker.start_in(invocation, uid, listener, python(&script), &[]);
    let flags = nix::fcntl::fcntl(&running.listener, nix::fcntl::FcntlArg::F_GETFL).unwrap();
    assert_ne!(flags & nix::libc::O_NONBLOCK, 0);
    // A duplicate, as a file of the standard library's, waits as well as it can.
    let listener = UnixListener::from(running.listener.try_clone().unwrap());
    listener.set_nonblocking(false).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(getsockopt(&stream, PeerCredentials).unwrap().uid(), uid);
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    stream.write_all(b"there").unwrap();
    let out = running.output();
    assert_eq!(out.stdout, "b'there'\n30\n1\n1\n", "{}", out.stderr);
    assert!(!Path::new(&path).exists(), "released");
}
