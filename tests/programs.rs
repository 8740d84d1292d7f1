//! Ordinary programs run inside a skill, with the extensions that they need and no others (`[1.4]`, `[2.3]`). Each is run
//! by a real skill under a real `cyberos up`; what is asserted is what the program itself says.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod support;
#[path = "programs/table.rs"]
mod table;

use support::up::{Ran, Skill, Up};

/// Runs its arguments in place of itself.
const ANY: &str = "#!/bin/sh\nexec \"$@\"\n";

/// One skill with no extension, and one each with room for what reserves much or starts many threads.
fn any() -> Up {
    Up::new(|source| {
        for (id, more) in [
            ("plain", ""),
            ("node", "x-memory-mb: 1024\nx-max-processes: 16\n"),
            ("java", "x-memory-mb: 2048\nx-max-processes: 32\n"),
            ("wide", "x-max-processes: 16\n"),
        ] {
            Skill { id, main: ANY, more, ..Skill::default() }.write(source);
        }
    })
}

fn python(up: &Up, skill: &str, script: &str) -> Ran {
    up.run(skill, &["/usr/bin/python3", "-c", script])
}

fn sh(up: &Up, script: &str) -> Ran {
    up.run("plain", &["/bin/sh", "-c", script])
}

/// It ended well, complained of nothing, and said this.
#[track_caller]
fn said(ran: &Ran, stdout: &str) {
    assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, stdout, ""), "{ran}");
}

#[test]
fn case_066_python_multiprocessing_works_by_fork_spawn_and_forkserver() {
    let up = any();
    for method in ["fork", "spawn", "forkserver"] {
        // All within the 8 processes and threads that a skill has by default.
        let script = format!(
            "import multiprocessing as m\nif __name__ == '__main__':\n    m.set_start_method('{method}')\n    \
             with m.Pool(2) as p: print(p.map(abs, [-1, -2]))\n    q = m.Queue(); p = m.Process(target=q.put, args=(3,)); \
             p.start(); print(q.get()); p.join(); print(p.exitcode)"
        );
        said(&python(&up, "plain", &script), "[1, 2]\n3\n0\n");
    }
    // As the field ran it: with all that it starts by itself.
    let script = "import multiprocessing as m;m.set_start_method('forkserver');p=m.Pool(2);print(p.map(abs,[-1,-2]));p.terminate();p.join()";
    said(&python(&up, "plain", script), "[1, 2]\n");
}

#[test]
fn case_066_python_asyncio_works_with_threads_subprocesses_and_unix_sockets() {
    let script = r"
import asyncio, threading, concurrent.futures, os, signal
async def main():
    loop = asyncio.get_running_loop()
    print(await asyncio.gather(*(asyncio.to_thread(lambda n=n: n * n) for n in range(3))))
    p = await asyncio.create_subprocess_exec('echo', 'from a child', stdout=-1)
    print((await p.communicate())[0].decode().strip(), p.returncode)
    p = await asyncio.create_subprocess_shell('cat | tr a-z A-Z', stdin=-1, stdout=-1)
    print((await p.communicate(b'piped'))[0].decode())
    async def answer(r, w):
        w.write((await r.readline()).upper()); await w.drain(); w.close()
    server = await asyncio.start_unix_server(answer, '/tmp/own.sock')
    r, w = await asyncio.open_unix_connection('/tmp/own.sock')
    w.write(b'over a socket\n'); print((await r.readline()).decode().strip()); w.close()
    server.close()
    got = asyncio.Event(); loop.add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1); await asyncio.wait_for(got.wait(), 10); print('signalled')
    await asyncio.wait_for(asyncio.sleep(0), 5)
asyncio.run(main(), debug=True)
";
    said(&python(&any(), "plain", script), "[0, 1, 4]\nfrom a child 0\nPIPED\nOVER A SOCKET\nsignalled\n");
}

#[test]
fn case_067_process_pools_and_posix_semaphores_work_in_a_private_dev_shm() {
    let up = any();
    let script = "
from concurrent.futures import ProcessPoolExecutor as P, ThreadPoolExecutor as T
from multiprocessing import shared_memory, Lock, Value
if __name__ == '__main__':
    with P() as one: first = list(one.map(abs, [-1]))
    with P(2) as two: second = list(two.map(abs, [-2, -3]))
    print(first, second, list(T(2).map(abs, [-4])))
    with Lock(): print(Value('i', 5).value)
    s = shared_memory.SharedMemory(create=True, size=1 << 20); s.buf[0] = 6; print(s.buf[0]); s.close(); s.unlink()
";
    said(&python(&up, "plain", script), "[1] [2, 3] [4]\n5\n6\n");
    let ran = sh(
        &up,
        "stat -c '%n %a %U' /tmp /dev/shm; f=$(mktemp) && echo x >$f && cat $f; d=$(mktemp -d) && stat -c %a $d; \
         mktemp -p /dev/shm >/dev/null && echo made; df -k --output=size,target /tmp /dev/shm | tail -n +2 | tr -s ' '; \
         df --output=iavail /tmp | tail -1 | grep -q '[1-9]' && echo inodes",
    );
    said(&ran, "/tmp 1777 root\n/dev/shm 1777 root\nx\n700\nmade\n 65536 /tmp\n 65536 /dev/shm\ninodes\n");
    // Gone after the run.
    said(&sh(&up, "ls -A /dev/shm; ls -A /tmp | grep -v '^cyberos-skill-broker'; true"), "");
}

#[test]
fn case_068_node_starts_with_memory_and_processes_and_fetches_a_data_url() {
    let up = any();
    let node = |script| up.run("node", &["node", "-e", script]);
    said(&node("fetch('data:,x').then(r=>r.text()).then(console.log)"), "x\n");
    let script = "const fs=require('fs'),c=require('child_process'),w=require('worker_threads'),os=require('os');
        (async()=>{console.log((await fs.promises.readFile('/etc/passwd')).length>0);
        console.log(c.execFileSync('/bin/echo',['child']).toString().trim());
        await new Promise(r=>new w.Worker('require(\"worker_threads\").parentPort.postMessage(7)',{eval:true}).on('message',m=>{console.log(m)}).on('exit',r));
        console.log(os.userInfo().username,os.homedir(),os.cpus().length,os.availableParallelism()>0);
        console.log(await WebAssembly.validate(new Uint8Array([0,97,115,109,1,0,0,0])))})()";
    // os.cpus() is read from /proc/cpuinfo, which a skill does not have: SEMANTICS of the sandbox, not a fault of node.
    said(&node(script), "true\nchild\n7\nskill /tmp 0 true\ntrue\n");
    for tool in ["npm", "npx"] {
        let ran = up.run("node", &[tool, "--version"]);
        assert!(ran.exit == 0 && ran.stdout.trim().split('.').count() == 3, "{tool}: {ran}");
    }
}

#[test]
fn case_068_java_and_other_runtimes_that_reserve_much_start() {
    let up = any();
    for (program, args, words) in [
        ("/usr/bin/java", &["-version"][..], "version"),
        ("/usr/bin/perl", &["-e", "print 'perl says ', 6*7"], "perl says 42"),
        ("/usr/bin/python3", &["-c", "print('python says', 42)"], "python says 42"),
    ] {
        let ran = up.run("java", &[&[program], args].concat());
        assert_eq!(ran.exit, 0, "{program}: {ran}");
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(words), "{program}: {ran}");
    }
}

#[test]
fn case_072_a_skill_that_leaves_five_thousand_orphans_goes_on_forking() {
    let script = "
import os
for i in range(5000):
    p = os.fork()
    if p == 0:
        # At the limit, the orphans of before are still being reaped.
        while True:
            try:
                if os.fork() == 0: os._exit(0)
                break
            except BlockingIOError: pass
        os._exit(0)
    os.waitpid(p, 0)
import time
def zombies():
    found = 0
    for p in filter(str.isdigit, os.listdir('/proc')):
        try: found += open(f'/proc/{p}/stat').read().rsplit(')', 1)[1].split()[0] == 'Z'
        except OSError: pass
    return found
end = time.monotonic() + 20
while zombies() and time.monotonic() < end: pass
print(zombies(), os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1])
";
    said(&python(&any(), "plain", script), "0 0\n");
}

#[test]
fn case_076_programs_that_want_a_home_and_a_place_for_temporary_files_work() {
    let up = any();
    let mut names: Vec<String> = sh(&up, "env | cut -d= -f1 | sort | grep -v '^_$\\|^PWD$'")
        .stdout
        .lines()
        .map(str::to_owned)
        .collect();
    names.sort();
    assert_eq!(names, support::up::ENVIRONMENT);
    said(
        &sh(
            &up,
            "cd /tmp; printf '#include <stdio.h>\\n#include <math.h>\\nint main(int n,char**v){printf(\"%%g\\\\n\",sqrt(n*4.0));}' >a.c && \
             cc -O2 -Wall a.c -lm -o a && ./a; printf 'all: b\\nb: a.c\\n\\tcc -c a.c -o b\\n' >Makefile; \
             make -s && test -f b && echo built",
        ),
        "2\nbuilt\n",
    );
    for tool in [&["pip", "--version"][..], &["/usr/bin/python3", "-m", "pip", "--version"]] {
        let ran = up.run("plain", tool);
        assert!(ran.exit == 0 && ran.stdout.starts_with("pip "), "{tool:?}: {ran}");
    }
    let ran = python(
        &up,
        "plain",
        "import tempfile, os, shutil
with tempfile.TemporaryDirectory() as d: print(d.startswith('/tmp/'))
print(os.path.expanduser('~'), tempfile.gettempdir(), shutil.which('cc') is not None)",
    );
    said(&ran, "True\n/tmp /tmp True\n");
    // The same by the passwd entry.
    said(
        &sh(
            &up,
            "cd ~skill && pwd; git init -q x && cd x && git -c user.name=a -c user.email=b commit -qm c --allow-empty \
             && git log --oneline | wc -l && git status --short",
        ),
        "/tmp\n1\n",
    );
}

#[test]
fn case_077_who_a_skill_is_has_a_name_a_home_and_a_group() {
    let up = any();
    let ran = sh(
        &up,
        "whoami; id -un; id -gn; id -Gn; getent passwd $(id -u) | cut -d: -f1,6,7; test \"$(id -u)\" = \"$(id -g)\" && echo one; hostname; ls -ld /tmp/. | cut -d' ' -f1",
    );
    said(&ran, "skill\nskill\nskill\nskill\nskill:/tmp:/bin/sh\none\nsandbox\ndrwxrwxrwt\n");
    let script = "import os, pwd, grp, getpass, socket
me = pwd.getpwuid(os.getuid()); print(me.pw_name, me.pw_dir, grp.getgrgid(os.getgid()).gr_name, getpass.getuser())
print(socket.gethostname(), pwd.getpwnam('root').pw_uid, os.cpu_count() > 0, len(os.sched_getaffinity(0)) > 0)";
    said(&python(&up, "plain", script), "skill /tmp skill skill\nsandbox 0 True True\n");
}

#[test]
fn case_078_a_program_that_tries_the_network_is_told_so_at_once() {
    let script = "
import socket, time
begun = time.monotonic()
for f in (lambda: socket.create_connection(('127.0.0.1', 80), 60), lambda: socket.socket().bind(('127.0.0.1', 0)),
          lambda: socket.create_connection(('192.0.2.1', 443), 60), lambda: socket.socket(socket.AF_INET6)):
    try: f(); print('connected')
    except PermissionError as e: print(e.errno)
try: print(socket.getaddrinfo('example.org', 443))
except socket.gaierror: print('no such name')
print(time.monotonic() - begun < 5)";
    said(&python(&any(), "plain", script), "13\n13\n13\n13\nno such name\nTrue\n");
}

#[test]
fn case_083_what_reads_from_standard_input_ends_at_once() {
    let up = any();
    said(&sh(&up, "cat; read x || echo nothing; (sleep 1000 & ) ; echo done"), "nothing\ndone\n");
    let ran = sh(
        &up,
        "git clone -q https://localhost/x.git y; echo $?; if command -v sudo >/dev/null; then sudo -n -v; else false; fi; echo $?",
    );
    assert!(ran.exit == 0 && ran.stdout == "128\n1\n", "{ran}");
}

#[test]
fn a_shell_pipeline_of_six_works_within_the_default_limit() {
    let up = any();
    said(
        &sh(&up, "seq 1 1000 | grep 7 | sort -rn | head -100 | awk '{s+=$1} END {print s}' | tr 0-9 a-j"),
        &pipeline(),
    );
    // A shell says what it has to say where it was told to.
    said(
        &sh(
            &up,
            "{ echo one; echo two >&2; } 2>&1 | sort; echo three | tee /dev/null; head -1 </etc/hosts | xargs -n1 echo",
        ),
        "one\ntwo\nthree\n127.0.0.1\nlocalhost\nsandbox\n",
    );
    said(
        &up.run(
            "wide",
            &[
                "/bin/bash",
                "-c",
                "diff <(seq 3) <(seq 3) && for i in 1 2 3 4 5 6 7 8; do sleep 0.01 & done; wait; echo ok",
            ],
        ),
        "ok\n",
    );
}

/// What the pipeline of six prints, computed here.
fn pipeline() -> String {
    let mut sevens: Vec<u64> = (1..=1000).filter(|n: &u64| n.to_string().contains('7')).collect();
    sevens.reverse();
    let sum: u64 = sevens.iter().take(100).sum();
    sum.to_string()
        .chars()
        .map(|c| char::from(b'a' + u8::try_from(c).unwrap() - b'0'))
        .chain(['\n'])
        .collect()
}

#[test]
fn standard_output_and_error_can_be_opened_by_name() {
    let up = any();
    let ran = sh(&up, "echo out >/dev/stdout; echo err >/dev/stderr; echo again >>/dev/fd/1; cat /dev/stdin");
    assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, "out\nagain\n", "err\n"), "{ran}");
}
