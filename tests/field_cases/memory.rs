//! Memory that no limit of a process counts: all kinds together end at the sandbox's limit (A11, case 68).

use super::ANY;
use super::support::up::{Skill, Up, eventually};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Takes memory of one kind in several processes until there is no more, and tells of every MiB.
const TAKER: &str = r#"#!/usr/bin/python3 -I
import array, ctypes, mmap, os, resource, socket, sys
kind, workers = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MIB = bytes(1 << 20)
held = []
def memfd(n):
    if not held: held.append(os.memfd_create("x"))
    if os.write(held[0], MIB) != len(MIB): raise OSError
def sysv(n):
    segment = libc.shmget(0, 1 << 20, 0o1600)
    if segment < 0: raise OSError(ctypes.get_errno(), "")
    at = libc.shmat(segment, None, 0)
    if at in (None, 2**64 - 1): raise OSError
    ctypes.memset(at, 1, 1 << 20); libc.shmdt(ctypes.c_void_p(at))
def file(path):
    def take(n):
        if not held: held.append(os.open(f"{path}/{os.getpid()}", os.O_CREAT | os.O_RDWR))
        if os.write(held[0], MIB) != len(MIB): raise OSError
    return take
def shared(n):
    held.append(mmap.mmap(-1, 1 << 20)); held[-1].write(MIB)
def private(n):
    held.append(bytearray(MIB))
def pipes(n):
    got = 0
    while got < 1 << 20:
        r, w = os.pipe(); held.append((r, w)); os.set_blocking(w, False)
        try:
            while True: got += os.write(w, MIB[:65536])
        except BlockingIOError: pass
def unix(n):
    got = 0
    while got < 1 << 20:
        a, b = socket.socketpair(); held.append((a, b)); a.setblocking(False)
        try:
            while True: got += a.send(MIB[:65536])
        except BlockingIOError: pass
def flying(n):
    # Sockets that only other sockets hold: more than there are descriptors for.
    got = 0
    while got < 1 << 20:
        a, b = socket.socketpair(); a.setblocking(False)
        try:
            while True: got += a.send(MIB[:65536])
        except BlockingIOError: pass
        if not held: held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        held[0][0].setblocking(False)
        held[0][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [b.fileno()]))])
        a.close(); b.close()
def tables(n):
    # A page of its own and a page table for it, 128 times: a MiB.
    for i in range(128):
        at = libc.mmap((1 << 36) + ((n * 128 + i) << 21), 4096, 3, 0x100022, -1, 0)
        if at in (None, 2**64 - 1): raise MemoryError
        ctypes.memset(at, 1, 1)
take = {"memfd": memfd, "sysv": sysv, "tmp": file("/tmp"), "shm": file("/dev/shm"), "shared": shared, "private": private, "pipes": pipes,
        "unix": unix, "flying": flying, "tables": tables}[kind]
children = []
for worker in range(workers):
    child = os.fork()
    if child == 0:
        n = 0
        try:
            while n < 2000:
                take(n); n += 1; os.write(1, b"got %d\n" % worker)
        except (OSError, MemoryError): pass
        os.write(1, b"stopped %d\n" % worker)
        sys.stdin.read()
        os._exit(0)
    children.append(child)
for _ in children:
    child, status = os.wait()
    if os.WIFSIGNALED(status): os.write(1, b"gone %d\n" % children.index(child))
"#;

/// The machine's shared memory is measured by one test at a time.
static MEASURED: Mutex<()> = Mutex::new(());

/// MiB of shared memory of the whole machine.
fn shmem() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("Shmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn threat_a11_test_7_memory_of_every_kind_together_ends_at_the_limit() {
    let _alone = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    let up = Up::new(|source| drop(Skill { id: "taker", main: TAKER, ..Skill::default() }.write(source)));
    let bounded = {
        let script = "import os; os.memfd_create('x')";
        let any = Up::new(|source| drop(Skill { id: "any", main: ANY, ..Skill::default() }.write(source)));
        any.run("any", &["/usr/bin/python3", "-c", script]).exit == 0
    };
    // One limit for all, or, on a machine without memory control groups, one for each of eight processes.
    let limit = if bounded { 512 } else { 8 * 512 };
    for kind in ["memfd", "sysv", "tmp", "shm", "shared", "private", "pipes", "unix", "flying", "tables"] {
        let before = shmem();
        let mut run = up
            .command(&["skill", "run", "taker", "--stdin", "--", kind, "6"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut held, mut ended, mut most, mut peak) = ([0u64; 6], 0, 0, before);
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        // Until each has been stopped by an error or a signal; those that are stopped hold what they have and wait.
        while let Some(Ok(line)) = lines.next() {
            let (what, worker) = line.split_once(' ').unwrap();
            let worker: usize = worker.parse().unwrap();
            match what {
                "got" => held[worker] += 1,
                "gone" => (held[worker], ended) = (0, ended + 1),
                _ => ended += 1,
            }
            most = most.max(held.iter().sum());
            if what != "got" || most % 16 == 0 {
                peak = peak.max(shmem());
            }
            if ended == 6 || most > 2 * limit {
                run.stdin.take();
            }
        }
        run.stdin.take();
        let status = run.wait().unwrap();
        let rose = peak.saturating_sub(before);
        println!("{kind}: at most {most} MiB at a time, shared memory rose by {rose} MiB, {status}");
        // One that is ended for it lets go of its share before that is heard of.
        let share = limit / 4;
        assert!(most <= limit + share, "{kind}: {most} MiB could be had, of {limit}");
        assert!(rose <= limit + 128, "{kind}: shared memory rose by {rose} MiB");
        let back = eventually(Duration::from_secs(20), || shmem() <= before + 64);
        assert!(back, "{kind}: {} MiB of shared memory before, {} after", before, shmem());
    }
    assert_eq!(up.run("taker", &["private", "0"]).exit, 0, "and the next run goes on");
}

/// Really uses what it asks for, privately or shared.
const HOG: &str = r#"#!/usr/bin/python3 -I
import mmap, sys
for n in range(64):
    if sys.argv[1] == "shared": m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20)); globals()[f"m{n}"] = m
    else: globals()[f"m{n}"] = bytearray(b"x" * (64 << 20))
print("4 GiB")
"#;

#[test]
fn case_068_a_program_that_really_uses_four_gibibytes_is_stopped_and_the_next_runs() {
    let _alone = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    let up = Up::new(|source| {
        let more = "x-memory-mb: 1024\n";
        Skill { id: "hog", main: HOG, more, ..Skill::default() }.write(source);
        Skill { id: "any", main: ANY, ..Skill::default() }.write(source);
    });
    let before = shmem();
    for kind in ["private", "shared"] {
        let ran = up.run("hog", &[kind]);
        assert!(ran.exit != 0 && ran.stdout.is_empty(), "{kind}: {ran}");
        // An error where the program is told, SIGKILL where only the kernel can tell.
        assert!(
            ran.exit == 137 || ran.stderr.contains("MemoryError") || ran.stderr.contains("memory"),
            "{kind}: {ran}"
        );
        let outcome = up.rows("skill.invoked_completed").last().unwrap()["extra"]["outcome"].clone();
        assert!(outcome == "killed" || outcome == "error", "{kind}: {outcome}");
    }
    assert_eq!(up.run("any", &["/bin/echo", "next"]).stdout, "next\n");
    assert!(eventually(Duration::from_secs(20), || shmem() <= before + 64));
}
