//! What a sandbox may use up: memory, processes, files and scratch space, each held to the plan.

use crate::support::helper::*;

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
