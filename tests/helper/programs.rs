//! Ordinary programs work in a sandbox, and end with it.

use crate::support::helper::*;
use cyberos_proto::message::{Exit, Signal};
use cyberos_proto::plan::MemoryLimit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

#[test]
fn cases_066_067_python_multiprocessing_asyncio_and_subprocess_work() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import asyncio,multiprocessing as m,subprocess,threading,tempfile,pwd,os
from concurrent.futures import ProcessPoolExecutor as P
async def main():
  p=await asyncio.create_subprocess_exec('echo','from asyncio',stdout=-1); print((await p.communicate())[0].decode().strip())
  r,w=await asyncio.wait_for(asyncio.gather(asyncio.sleep(0,1),asyncio.to_thread(lambda:2)),5); print(r,w)
if __name__=='__main__':
  asyncio.run(main())
  print(subprocess.run('ls /usr | grep lib$ | sort | head -1',shell=True,capture_output=True,text=True).stdout.strip())
  with P(2) as p: print(list(p.map(abs,[-1])))
  t=threading.Thread(target=lambda:print(5)); t.start(); t.join()
  with tempfile.NamedTemporaryFile() as f: print(f.name.startswith('/tmp/'))
  print(pwd.getpwuid(os.getuid()).pw_dir, os.path.expanduser('~'))
";
    let sealed = helper.sealed("py", &format!("#!/usr/bin/python3\n{script}"));
    let out = broker.start(skill("py"), &[sealed.as_fd()]).output();
    assert_eq!(out.stdout, "from asyncio\n1 2\nlib\n[1]\n5\nTrue\n/tmp /tmp\n", "{}", out.stderr);
    assert_eq!((out.exit, out.stderr.as_str()), (Exit::Code(0), ""));
    // Each needs all of the 8 processes and threads of the default limit.
    for how in ["fork", "forkserver", "spawn"] {
        let script = format!(
            "import multiprocessing as m\nif __name__=='__main__':\n m.set_start_method('{how}')\n \
             p=m.Pool(2);print(p.map(abs,[-1,-2]));p.terminate();p.join()"
        );
        let sealed = helper.sealed(how, &format!("#!/usr/bin/python3\n{script}"));
        let out = broker.start(skill(how), &[sealed.as_fd()]).output();
        assert_eq!(out.stdout, "[1, 2]\n", "{how}: {}", out.stderr);
    }
}

#[test]
fn case_068_node_and_java_start_with_a_data_limit_and_more_processes() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let roomy = |words: &[&str], processes| {
        let mut p = plan(words);
        p.limits.memory_kind = MemoryLimit::Data;
        p.limits.processes = processes;
        p
    };
    let script = "const fs=require('fs'),c=require('child_process');
        fs.promises.readFile('/etc/passwd').then(b=>console.log(b.length>0));
        fetch('data:,x').then(r=>r.text()).then(console.log);
        console.log(c.execFileSync('/bin/echo',['child']).toString().trim());
        c.exec('echo piped | cat',(e,o)=>console.log(o.trim()))";
    let out = broker.start(roomy(&["/usr/bin/node", "-e", script], 16), &[]).output();
    let mut lines: Vec<&str> = out.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["child", "piped", "true", "x"], "{}", out.stderr);
    let out = broker.start(roomy(&["/usr/bin/java", "-version"], 64), &[]).output();
    assert!(out.stderr.contains("openjdk version"), "{out:?}");
}

#[test]
fn cases_076_077_shells_compilers_and_git_work() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let out = broker.sh(
        "printf 'b\\na\\n' | sort | head -1 | tr a-z A-Z; cd; pwd; mktemp >/dev/null && echo made; \
         printf '#include <stdio.h>\\nint main(){puts(\"compiled\");}' >a.c && cc a.c -o a && ./a; \
         git --version | cut -d' ' -f1; git init -q r && cd r && git -c user.name=x -c user.email=y commit -q \
         --allow-empty -m m && git log --oneline | wc -l; nproc >/dev/null && echo counted; ls -la / >/dev/null; \
         awk 'BEGIN{print 6*7}'; tar cf - /etc/passwd 2>/dev/null | tar tf -; ulimit -c 0; echo $?; echo out >/dev/stdout; echo err >/dev/stderr; \
         cat /proc/self/oom_score_adj; cat </dev/stdin",
    );
    let want = "A\n/tmp\nmade\ncompiled\ngit\n1\ncounted\n42\netc/passwd\n0\nout\n200\n";
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), (want, "err\n"));
    // The system's git: one built with another prefix reads no /etc/gitconfig.
    let repo = helper.dir.path().join("sealed/repo");
    let made = std::process::Command::new("git").args(["init", "-q"]).arg(&repo).status().unwrap();
    assert!(made.success());
    let fd: OwnedFd = std::fs::File::open(&repo).unwrap().into();
    let mut p = plan(&["/usr/bin/git", "-C", "/opt/cyberos/skills/repo", "status", "--short"]);
    p.binds = skill("repo").binds;
    let out = broker.start(p, &[fd.as_fd()]).output();
    assert_eq!((out.exit, out.stderr.as_str()), (Exit::Code(0), ""), "no complaint of ownership");
}

#[test]
fn case_071_term_reaches_a_program_that_has_not_asked_for_it() {
    let helper = Helper::start("");
    let broker = helper.broker();
    for words in [&["/bin/sleep", "1000"][..], &["/usr/bin/python3", "-c", "import time;time.sleep(1e3)"][..]]
    {
        let running = broker.start(plan(words), &[]);
        let invocation = running.invocation;
        let began = Instant::now();
        broker.ask(&invocation.signal(Signal::Term), &[]);
        assert_eq!(running.output().exit, Exit::Signal(15), "{words:?}");
        assert!(began.elapsed() < SOON);
        // It has ended, and been released.
        broker.ask(&invocation.release(), &[]);
    }
}

#[test]
fn kill_ends_the_whole_sandbox_whatever_it_ignores() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "trap '' TERM HUP INT; (trap '' TERM; setsid sleep 1000) & (setsid sh -c 'trap \"\" TERM; sleep 1000') & \
                  echo ready; while :; do sleep 1000; done";
    let running = broker.start(plan(&["/bin/sh", "-c", script]), &[]);
    running.said("ready");
    let invocation = running.invocation;
    broker.ask(&invocation.signal(Signal::Term), &[]);
    broker.ask(&invocation.signal(Signal::Kill), &[]);
    broker.ask(&invocation.signal(Signal::Kill), &[]);
    assert_eq!(running.output().exit, Exit::Signal(9));
    until("all are gone", || helper.leftovers().is_empty());
}

#[test]
fn grandchildren_end_with_the_program_and_hold_nobody_up() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let began = Instant::now();
    // It holds stdout and stderr, and is in a session of its own.
    let out = broker.sh("setsid sleep 1000 & echo done; exit 5");
    assert_eq!((out.stdout.as_str(), out.exit), ("done\n", Exit::Code(5)));
    assert!(began.elapsed() < Duration::from_secs(60));
    helper.leaves_nothing();
}

#[test]
fn case_072_orphans_are_reaped_and_fill_no_limit() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let script = "import os
for i in range(500):
  p=os.fork()
  if p==0:
    if os.fork()==0: os._exit(0)
    os._exit(0)
  os.waitpid(p,0)
import time
def zombies():
  for p in os.listdir('/proc'):
    try:
      if p.isdigit() and open(f'/proc/{p}/stat').read().split()[2]=='Z': return True
    except OSError: pass
end=time.monotonic()+10
while zombies(): assert time.monotonic()<end
print('ok')";
    let mut p = python(script);
    p.limits.processes = 32;
    let out = broker.start(p, &[]).output();
    assert_eq!(out.stdout, "ok\n", "{}", out.stderr);
}

/// Prints the median from request to exit, for whoever reads the output.
#[test]
fn two_hundred_spawns_leave_no_descriptor_behind() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let count = || {
        let all = [vec![helper.pid()], helper.children()].concat();
        all.into_iter().map(descriptors).sum::<usize>()
    };
    broker.start(plan(&["/bin/true"]), &[]).output();
    // An init that waits for the next sandbox may come to it, with some 20. A leak of one each would be 200.
    let before = count() + 40;
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let (invocation, uid, listener) = broker.invocation();
            let began = Instant::now();
            let running = broker.start_in(invocation, uid, listener, plan(&["/bin/true"]), &[]);
            assert_eq!(broker.exit(invocation), Exit::Code(0));
            let took = began.elapsed();
            drop(running);
            broker.ask(&invocation.release(), &[]);
            took
        })
        .collect();
    times.sort_unstable();
    println!("spawn to exit: median {:?}", times[100]);
    until("descriptors are as before", || count() <= before);
}
