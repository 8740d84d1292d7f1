//! What the system calls of a skill answer, one by one, and that none of them makes a set-id bit.

use crate::support::helper::*;
use cyberos_proto::message::Exit;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

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
