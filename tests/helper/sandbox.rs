//! What a program finds in its sandbox, asked from inside and checked from outside.

use crate::support::helper::*;
use cyberos_proto::message::{Exit, Refusal, Request};
use cyberos_proto::plan::{Feature, Profile, SandboxPath};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::collections::BTreeMap;
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
        let refusal = broker.refusal(&Request::Spawn { invocation, plan: Box::new(strange) }, &[]);
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
fn limits_are_the_plans() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let out = broker.start(plan(&["/bin/cat", "/proc/self/limits"]), &[]).output();
    let mib = 1u64 << 20;
    for (name, soft, hard) in [
        // SIGXCPU first, so that it can be named.
        ("Max cpu time", 60, 65),
        ("Max file size", 256 * mib, 256 * mib),
        ("Max stack size", 8 * mib, 64 * mib),
        ("Max core file size", 1, 1),
        ("Max processes", 8, 8),
        ("Max open files", 256, 256),
        ("Max locked memory", 65536, 65536),
        ("Max address space", 512 * mib, 512 * mib),
        ("Max msgqueue size", 0, 0),
        ("Max nice priority", 0, 0),
        ("Max realtime priority", 0, 0),
    ] {
        let line = out.stdout.lines().find(|l| l.starts_with(name)).unwrap();
        let words: Vec<u64> = line[name.len()..].split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert_eq!(words, [soft, hard], "{name}");
    }
}

#[test]
fn a_gibibyte_and_a_ninth_process_are_too_much() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import os,errno
try: bytearray(1<<30); print('got it')
except MemoryError: print('no memory')
n=1
try:
  while n<16:
    if os.fork()==0: import signal; signal.pause()
    n+=1
except OSError as e: print(n, errno.errorcode[e.errno])
os.write(1,b''); os.kill(-1,9)";
    let out = broker.start(python(script), &[]).output();
    assert_eq!(out.stdout, "no memory\n8 EAGAIN\n", "{}", out.stderr);
    let mut big = python("import resource;print(resource.getrlimit(resource.RLIMIT_DATA));bytearray(1<<30)");
    big.limits.memory_kind = cyberos_proto::plan::MemoryLimit::Data;
    let out = broker.start(big, &[]).output();
    assert!(out.stdout.contains("536870912") && out.stderr.contains("MemoryError"), "{out:?}");
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
    broker.ask(&Request::Release { invocation: other.invocation }, &[]);
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
fn case_067_scratch_space_is_private_and_bounded() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let mut small = python(
        "import os
def fill(d):
  n=0
  try:
    with open(d+'/big','wb') as f:
      while True: n+=f.write(bytes(1<<16)); f.flush()
  except OSError as e: return n,e.errno
def files(d):
  n=0
  try:
    while True: open(f'{d}/{n}','w').close(); n+=1
  except OSError as e: return n<2000,e.errno
for d in ('/tmp','/dev/shm'): print(fill(d)); os.unlink(d+'/big'); print(files(d))",
    );
    small.limits.tmp_mb = 2;
    let out = broker.start(small, &[]).output();
    assert_eq!(out.stdout, "(2097152, 28)\n(True, 28)\n".repeat(2), "{}", out.stderr);
    assert_eq!(broker.sh("ls -A /tmp | grep -v sock; ls -A /dev/shm").stdout, "", "nothing outlives a run");
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
    let (reply, _pipes) =
        broker.ask(&Request::Spawn { invocation, plan: Box::new(plan(&["/bin/true"])) }, &[]);
    let cyberos_proto::message::Reply::Spawned { report } = reply else { panic!("{reply:?}") };
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
        let request = Request::Spawn { invocation, plan: Box::new(skill(name)) };
        assert_eq!(broker.refusal(&request, &[fd]), Refusal::Exec { errno }, "{name}");
        // The invocation still stands: a spawn that failed left nothing.
        let again = Request::Spawn { invocation, plan: Box::new(plan(&["/no/program"])) };
        assert_eq!(broker.refusal(&again, &[]), Refusal::Exec { errno: nix::libc::ENOENT });
        broker.ask(&Request::Release { invocation }, &[]);
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

/// Runs a C program, compiled here, in a sandbox.
fn c_program(helper: &Helper, broker: &Peer, name: &str, source: &str) -> Output {
    let dir = helper.dir.path().join("sealed").join(name);
    fs::create_dir(&dir).unwrap();
    let file = helper.dir.path().join(format!("{name}.c"));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").arg("-o").arg(dir.join("main")).arg(&file).status().unwrap();
    assert!(built.success());
    let fd: OwnedFd = File::open(&dir).unwrap().into();
    broker.start(skill(name), &[fd.as_fd()]).output()
}

#[test]
fn cases_055_062_064_system_calls_answer_as_measured_in_a_real_skill() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let enosys = "memfd_secret msgget semget mq_open clone3 openat2 open_tree move_mount \
        fsopen fsconfig fsmount fspick mount_setattr mount umount2 pivot_root chroot setns unshare ptrace \
        process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp keyctl add_key request_key bpf \
        perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register name_to_handle_at \
        open_by_handle_at kexec_load init_module finit_module delete_module reboot swapon settimeofday clock_settime \
        adjtimex iopl ioperm modify_ldt seccomp acct quotactl syslog sethostname setdomainname fanotify_init \
        lookup_dcookie migrate_pages move_pages vhangup";
    let calls: String = enosys
        .split_whitespace()
        .map(|n| format!("errno=0; r=syscall(SYS_{n},0,0,0,0,0,0); printf(\"{n} %ld %d\\n\",r,errno);\n"))
        .collect();
    let source = format!(
        "#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#define T(name, call) errno=0; r=(call); printf(name \" %ld %d\\n\", r, errno);
int main(void) {{ long r; char c='i'; struct rlimit l={{0,0}}, now;
{calls}
T(\"memfd_create\", syscall(SYS_memfd_create,0,0))
T(\"shmget\", syscall(SYS_shmget,0,0,0))
T(\"shmat\", syscall(SYS_shmat,0,0,0))
T(\"fchmodat2\", syscall(452,AT_FDCWD,\"x\",04755,0))
T(\"x32 getpid\", syscall(0x40000000|SYS_getpid))
T(\"TIOCSTI\", syscall(SYS_ioctl,0,0x5412,&c))
T(\"TIOCSTI+2^32\", syscall(SYS_ioctl,0,0x100005412,&c))
T(\"TIOCLINUX+2^32\", syscall(SYS_ioctl,0,0x10000541c,&c))
T(\"PR_SET_SECCOMP\", prctl(PR_SET_SECCOMP,1,0,0,0))
T(\"PR_SET_SECCOMP+2^32\", syscall(SYS_prctl,0x100000016,1,0,0,0))
T(\"clone user\", syscall(SYS_clone,CLONE_NEWUSER|SIGCHLD,0,0,0,0))
T(\"clone mount\", syscall(SYS_clone,CLONE_NEWNS|SIGCHLD,0,0,0,0))
T(\"clone net+2^32\", syscall(SYS_clone,0x100000000|CLONE_NEWNET|SIGCHLD,0,0,0,0))
T(\"personality\", syscall(SYS_personality,0x0400000))
T(\"personality?\", syscall(SYS_personality,0xffffffff))
T(\"core\", setrlimit(RLIMIT_CORE,&l)) getrlimit(RLIMIT_CORE,&now); printf(\"core is %d %d\\n\",(int)now.rlim_cur,(int)now.rlim_max);
T(\"core+2^32\", syscall(SYS_prlimit64,0,0x100000004,&l,0)) getrlimit(RLIMIT_CORE,&now); printf(\"core is %d %d\\n\",(int)now.rlim_cur,(int)now.rlim_max);
}}"
    );
    let out = c_program(&helper, &broker, "table", &source);
    let got: BTreeMap<&str, &str> = out
        .stdout
        .lines()
        .filter_map(|l| l.rsplitn(3, ' ').nth(2).map(|name| (name, &l[name.len() + 1..])))
        .collect();
    let mut want: BTreeMap<&str, &str> = enosys.split_whitespace().map(|n| (n, "-1 38")).collect();
    want.extend([
        // With a control group that counts them; asked for nothing.
        ("memfd_create", "-1 14"),
        ("shmget", "-1 22"),
        ("shmat", "-1 22"),
        ("fchmodat2", "-1 38"),
        ("x32 getpid", "-1 38"),
        ("TIOCSTI", "-1 1"),
        ("TIOCSTI+2^32", "-1 1"),
        ("TIOCLINUX+2^32", "-1 1"),
        ("PR_SET_SECCOMP", "-1 1"),
        ("PR_SET_SECCOMP+2^32", "-1 1"),
        ("clone user", "-1 1"),
        ("clone mount", "-1 1"),
        ("clone net+2^32", "-1 1"),
        ("personality", "-1 38"),
        ("personality?", "0 0"),
        ("core", "0 0"),
        ("core is", "1 1"),
        ("core+2^32", "0 0"),
    ]);
    assert_eq!(got, want, "{}", out.stderr);

    let i386 = "int main(void){int r; __asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(20)); return r>0?0:1;}";
    assert_eq!(c_program(&helper, &broker, "i386", i386).exit, Exit::Signal(31), "SIGSYS");
}

#[test]
fn no_set_id_bit_can_be_made_in_any_way() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import os,stat
os.umask(0); open('f','w').close(); d=os.open('.',os.O_RDONLY); f=os.open('f',os.O_RDWR)
def t(name,call):
  try: call(); print(name)
  except PermissionError: pass
def c(name,call):  # done without the bits
  call()
  if stat.S_IMODE(os.stat('f').st_mode)!=b&0o1777: print(name,oct(b),oct(os.stat('f').st_mode))
  os.chmod('f',0o640)
for b in (0o4755,0o2755,0o6755,0o4000,0o2000,(1<<32)|0o4755):
  b32=b&0xffffffff
  c('chmod',lambda: os.chmod('f',b32)); c('fchmod',lambda: os.fchmod(f,b32)); c('fchmodat',lambda: os.chmod('f',b32,dir_fd=d))
  os.mkdir('d%o'%b,b32); os.mkdir('e%o'%b,b32,dir_fd=d)  # made, as mkdir(2) always leaves these bits out
  t('open',lambda: os.open('o%o'%b,os.O_CREAT|os.O_WRONLY,b32)); t('openat',lambda: os.open('p%o'%b,os.O_CREAT|os.O_WRONLY,b32,dir_fd=d))
  t('tmpfile',lambda: os.open('.',os.O_TMPFILE|os.O_WRONLY,b32))
  t('mknod',lambda: os.mknod('n%o'%b,b32|stat.S_IFREG)); t('mkfifo',lambda: os.mkfifo('q%o'%b,b32))
import ctypes; l=ctypes.CDLL(None,use_errno=True)
for nr,args,right in ((90,(b'f',(1<<32)|0o4755),(0,0o755)),(91,(f,(1<<40)|0o6711),(0,0o711)),(2,(b'z',0o101,(1<<32)|0o4755),(-1,0o711)),(85,(b'y',0o4755),(-1,0o711))):
  a=[ctypes.c_long(x) if isinstance(x,int) else x for x in args]
  done=l.syscall(nr,*a),stat.S_IMODE(os.stat('f').st_mode)
  if done!=right or done[0]==-1 and ctypes.get_errno()!=1: print('raw',nr,done)
# What is no mode is left alone; what is harmless works.
os.chmod('f',0o1777); os.open('f',os.O_RDONLY,0o4755); os.mkdir('ok',0o777); os.system('cp -p f g; tar cf t f g; tar xpf t')
print([n for n in os.listdir('.') if os.lstat(n).st_mode & 0o6000])";
    let out = broker.start(python(script), &[]).output();
    assert_eq!(out.stdout, "[]\n", "{}", out.stderr);
    assert_eq!(out.stderr, "");
}

/// Each takes about a KiB of the kernel's, whatever is in it (threat A23).
#[test]
fn entries_in_memory_are_bounded_by_the_memory_that_there_may_be() {
    let helper = Helper::start("");
    let broker = helper.broker();
    for (tmp_mb, memory_mb, entries) in [(64, 512, 9216), (512, 64, 9216), (1024, 512, 66_560)] {
        let mut plan = plan(&["/usr/bin/stat", "-f", "-c", "%c", "/tmp", "/dev/shm"]);
        (plan.limits.tmp_mb, plan.limits.memory_mb) = (tmp_mb, memory_mb);
        let out = broker.start(plan, &[]).output();
        assert_eq!(out.stdout, format!("{entries}\n{entries}\n"), "{}", out.stderr);
    }
}
