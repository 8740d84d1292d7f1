//! A kernel that lacks something, for real: what may never be skipped refuses the spawn, all else is said.

use crate::support::helper::*;
use cyberos_proto::message::{Exit, Refusal, Reply};
use cyberos_proto::plan::{Cgroup, Feature, MemoryLimit};
use nix::libc::{self, EPERM};

#[test]
fn what_may_never_be_skipped_refuses_the_spawn_and_leaves_nothing() {
    for (step, call) in [
        ("network namespace", (libc::SYS_setns, Some((1, libc::CLONE_NEWNET as u32)), EPERM)),
        ("mount namespace", (libc::SYS_unshare, None, EPERM)),
        ("own uid", (libc::SYS_setresuid, None, EPERM)),
        ("own gid", (libc::SYS_setresgid, None, EPERM)),
        ("no groups", (libc::SYS_setgroups, None, EPERM)),
        ("no_new_privs", (libc::SYS_prctl, Some((0, libc::PR_GET_NO_NEW_PRIVS as u32)), EPERM)),
    ] {
        let helper = Helper::start_lacking("", &[call]);
        let broker = helper.broker();
        let (invocation, ..) = broker.invocation();
        let spawn = invocation.prepare(plan(&["/bin/true"]));
        let refusal = broker.refusal(&spawn, &[]);
        assert_eq!(refusal, Refusal::Unavailable { step: step.into(), errno: EPERM }, "{call:?}");
        drop(broker);
        helper.leaves_nothing();
    }
}

/// A question to a device's own code that gets through the filter: how wide /dev/random is. It knows no such thing.
const CONTROL: &str = "import fcntl,errno
try: print(len(fcntl.ioctl(open('/dev/random'),0x5413,bytes(8))))
except OSError as e: print(errno.errorcode[e.errno])";

#[test]
fn without_landlock_sandboxes_run_and_their_report_says_so() {
    let helper = Helper::start_lacking("", &[(libc::SYS_landlock_create_ruleset, None, libc::ENOSYS)]);
    assert!(helper.log().contains("WARN: no Landlock"), "{}", helper.log());
    let broker = helper.broker();
    let report = report(&broker);
    assert_eq!((report.skipped, report.landlock), (vec![Feature::Landlock], 0));
    assert!(report.enforced.contains(&Feature::Cgroup));
    let out = broker.start(python(CONTROL), &[]).output();
    assert_eq!(out.stdout, "EINVAL\n", "{}", out.stderr);
}

#[test]
fn landlock_keeps_devices_from_being_controlled_and_ordinary_files_work_under_it() {
    let helper = Helper::start("");
    let broker = helper.broker();
    assert!(report(&broker).enforced.contains(&Feature::Landlock));
    let out = broker.start(python(CONTROL), &[]).output();
    assert_eq!(out.stdout, "EACCES\n", "{}", out.stderr);
    let out = broker.sh(
        "(echo 300 >/proc/self/oom_score_adj) 2>/dev/null || echo x >/dev/null && echo null; \
         echo x >/tmp/x && echo x >/dev/shm/x && mkdir /tmp/d && mv /tmp/x /tmp/d/y && ln -s y /tmp/d/z && cat /tmp/d/z; \
         mkfifo /tmp/f && echo fifo; cp /bin/echo /tmp/e && /tmp/e ran",
    );
    assert_eq!(out.stdout, "null\nx\nfifo\nran\n", "{}", out.stderr);
}

fn without_groups() -> Helper {
    Helper::start_in_namespace("", "mount -t tmpfs none /sys/fs/cgroup")
}

#[test]
fn a_mount_at_a_name_that_is_no_text_takes_no_control_groups_away() {
    let mount =
        "mount -t tmpfs none /mnt; d=/mnt/$(printf \"a\\\\377b\"); mkdir \"$d\"; mount -t tmpfs none \"$d\"";
    let helper = Helper::start_in_namespace("", mount);
    let broker = helper.broker();
    assert_eq!(report(&broker).skipped, vec![], "{}", helper.log());
}

#[test]
fn without_control_groups_sandboxes_run_and_their_report_says_so() {
    let helper = without_groups();
    assert!(helper.log().contains("WARN: no control groups"), "{}", helper.log());
    let broker = helper.broker();
    let report = report(&broker);
    assert_eq!((report.skipped, report.cgroup), (vec![Feature::Cgroup], Cgroup::Absent));
    assert_eq!(broker.sh("echo runs").stdout, "runs\n");
}

#[test]
fn threat_a11_without_control_groups_nothing_is_memory_that_no_limit_counts() {
    let helper = without_groups();
    let broker = helper.broker();
    let calls = "import ctypes; l=ctypes.CDLL(None,use_errno=True)
for nr in (319,29,30,31,67): print(l.syscall(nr,0,0,0,0), ctypes.get_errno())";
    assert_eq!(broker.start(python(calls), &[]).output().stdout, "-1 38\n".repeat(5));
    // Shared anonymous memory, also of /dev/zero; private memory made read-only after it was filled; stacks.
    let fill = "import mmap,ctypes,sys,os
l=ctypes.CDLL(None,use_errno=True); l.mmap.restype=ctypes.c_void_p
l.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t]+[ctypes.c_int]*3+[ctypes.c_long]; l.mprotect.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int]
z=os.open('/dev/zero',os.O_RDWR); M=64<<20; bad=ctypes.c_void_p(-1).value
for flags,fd in ((0x21,-1),(0x1,z),(0x22,-1),(0x122,-1)):
  n=0; got=[]
  while n<64:
    p=l.mmap(None,M,3,flags,fd,0)
    if p==bad: break
    if flags==0x22: l.mprotect(p,M,1)
    got.append(p); n+=1
  print(n*64 <= 640+1024)
  l.munmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t]
  for p in got: l.munmap(p,M)";
    let mut data = python(fill);
    data.limits.memory_kind = MemoryLimit::Data;
    let out = broker.start(data, &[]).output();
    assert_eq!(out.stdout, "True\n".repeat(4), "{}", out.stderr);
}

#[test]
fn threat_a11_with_a_control_group_all_memory_of_a_sandbox_together_is_bounded() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let shmem = || {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = info.lines().find(|l| l.starts_with("Shmem:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() / 1024
    };
    let block =
        "b=bytes(1<<20)\nimport os,sys,mmap,ctypes\ndef said(n):\n  if n%16==0: os.write(1,b'%d\\n'%n)\n";
    for (what, fill) in [
        ("memfd", "f=os.memfd_create('x')\nfor n in range(400): os.write(f,b); said(n)"),
        (
            "SysV",
            "l=ctypes.CDLL(None); l.shmat.restype=ctypes.c_void_p; l.shmdt.argtypes=[ctypes.c_void_p]
for n in range(400):
  a=l.shmat(l.shmget(0,1<<20,0o1600),None,0); ctypes.memset(a,1,1<<20); l.shmdt(a); said(n)",
        ),
        ("shared", "m=mmap.mmap(-1,400<<20)\nfor n in range(400): m[n<<20:(n+1)<<20]=b; said(n)"),
        (
            "many processes",
            "for p in range(4):
  if os.fork()==0:
    x=[]
    for n in range(100): x.append(bytearray(b)); said(n)
    import signal; signal.pause()
os.wait(); os._exit(9)",
        ),
        (
            "both tmpfs",
            "for d in ('/tmp/x','/dev/shm/x'):
  f=open(d,'wb',0)
  try:
    for n in range(400): f.write(b); said(n)
  except OSError: pass
m=bytearray(100<<20); os.write(1,b'all')",
        ),
    ] {
        let mut p = python(&format!("{block}{fill}"));
        p.limits.memory_mb = 160;
        p.limits.memory_kind = MemoryLimit::Data;
        let before = shmem();
        let running = broker.start(p, &[]);
        let out = running.output();
        let most = out.stdout.lines().filter_map(|l| l.parse::<i64>().ok()).max().unwrap_or(0);
        assert!(most <= 160 && !out.stdout.contains("all"), "{what}: {out:?}");
        assert!(matches!(out.exit, Exit::Signal(9) | Exit::Code(9)), "{what}: {out:?}");
        until("the memory is free again", || shmem() - before < 100);
    }
    assert_eq!(broker.sh("echo goes on").stdout, "goes on\n");
}

#[test]
fn a_control_group_holds_the_whole_sandbox_and_goes_with_it() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let of = |uid: u32| {
        let name = std::ffi::OsString::from(uid.to_string());
        groups().into_iter().filter(|g| g.file_name() == Some(&name)).collect::<Vec<_>>()
    };
    let running = broker.start(plan(&["/bin/sh", "-c", "sleep 1000 & echo ready; read x"]), &[]);
    running.said("ready");
    let (uid, invocation) = (running.uid, running.invocation);
    let held = of(uid);
    assert!(!held.is_empty());
    for group in &held {
        let procs = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(procs.lines().count(), 3, "init, sh and sleep in {}", group.display());
    }
    let limit = |file: &str| {
        held.iter().find_map(|g| std::fs::read_to_string(g.join(file)).ok()).map(|t| t.trim().to_owned())
    };
    let memory = limit("memory.max").or(limit("memory.limit_in_bytes"));
    assert_eq!((memory, limit("pids.max")), (Some((512 << 20).to_string()), Some("9".into())));
    assert_eq!(broker.ask(&invocation.release(), &[]).0, Reply::Done);
    assert_eq!(of(uid), [""; 0].map(std::path::PathBuf::from));
    // A lease's second sandbox may have more than its first, and less.
    let (invocation, ..) = broker.invocation();
    for memory_mb in [64, 512, 128] {
        let mut p = plan(&["/bin/true"]);
        p.limits.memory_mb = memory_mb;
        let _pipes = broker.spawn(&invocation.prepare(p), &[]).unwrap();
        assert_eq!(broker.exit(invocation), Exit::Code(0));
    }
    let pid = helper.pid().to_string();
    drop(broker);
    drop(helper);
    let base = format!("cyberos-sandboxes.{pid}");
    until("the helper's own directories are gone", || {
        !groups().iter().any(|g| g.components().any(|c| c.as_os_str() == base.as_str()))
    });
}

fn report(broker: &Peer) -> cyberos_proto::plan::SandboxReport {
    let (invocation, ..) = broker.invocation();
    let pipes = broker.spawn(&invocation.prepare(plan(&["/bin/true"])), &[]).unwrap();
    broker.exit(invocation);
    pipes.report
}

/// On an overlay of /etc, in a mount namespace of the helper's own.
#[test]
fn a_template_is_built_again_when_a_name_in_etc_is_replaced() {
    let layers = tempfile::Builder::new().prefix("cyberos-etc-").tempdir_in("/var/tmp").unwrap();
    let d = layers.path().display().to_string();
    let helper = Helper::start_in_namespace(
        "",
        &format!(
            "mkdir {d}/u {d}/w; mount -t overlay overlay -o lowerdir=/etc,upperdir={d}/u,workdir={d}/w /etc"
        ),
    );
    let etc = std::path::PathBuf::from(format!("/proc/{}/root/etc", helper.pid()));
    let broker = helper.broker();
    let seen = || broker.sh("head -c 11 /etc/ld.so.cache; ls -d /etc/java-99* 2>/dev/null").stdout;
    assert_eq!(seen(), "glibc-ld.so", "the host's");
    for text in ["first cache", "other cache"] {
        std::fs::write(etc.join("new"), text).unwrap();
        std::fs::rename(etc.join("new"), etc.join("ld.so.cache")).unwrap();
        assert_eq!(seen(), text);
    }
    std::fs::create_dir(etc.join("java-99-openjdk")).unwrap();
    assert_eq!(seen(), "other cache/etc/java-99-openjdk\n");
}

/// Files of /proc that the kernel lets a process write of itself; each is opened to write, and one or two are tried.
const WRITES: &str = "import os,ctypes
for dir in ['/proc/self','/proc/thread-self','/proc/self/attr']:
  for name in sorted(os.listdir(dir)):
    path=f'{dir}/{name}'
    try: os.close(os.open(path,os.O_WRONLY|os.O_NONBLOCK)); print('opened',path)
    except OSError: pass
for path,text in [('oom_score_adj','500'),('loginuid','0'),('comm','x'),('coredump_filter','0'),('clear_refs','1')]:
  try: open(f'/proc/self/{path}','w').write(text); print('wrote',path)
  except OSError as e: print(path,e.errno)
try: os.chmod('/proc/self/comm',0o777)
except OSError as e: print('chmod',e.errno)
libc=ctypes.CDLL(None)
libc.prctl(15,b'named',0,0,0)
print(open('/proc/self/comm').read().strip(), libc.prctl(16,ctypes.create_string_buffer(16),0,0,0))
import threading
names=[]
t=threading.Thread(target=lambda: (libc.prctl(15,b'of a thread',0,0,0), names.append(open('/proc/thread-self/comm').read().strip())))
t.start(); t.join(); print(names)";

#[test]
fn nothing_of_proc_can_be_written_with_landlock_or_without_and_threads_have_names() {
    for lacking in [&[][..], &[(libc::SYS_landlock_create_ruleset, None, libc::ENOSYS)]] {
        let helper = Helper::start_lacking("", lacking);
        let out = helper.broker().start(plan(&["/usr/bin/python3", "-I", "-c", WRITES]), &[]).output();
        let refused = ["oom_score_adj", "loginuid", "comm", "coredump_filter", "clear_refs", "chmod"]
            .map(|name| format!("{name} {}\n", libc::EROFS));
        let expected = format!("{}named 0\n['of a thread']\n", refused.concat());
        assert_eq!(out.stdout, expected, "{lacking:?}: {}", out.stderr);
    }
}
