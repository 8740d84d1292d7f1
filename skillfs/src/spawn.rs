//! Starts programs: one run with bounds on everything (time, output, environment, descriptors, rights) for
//! `provider.rs`, and one beside SkillFS for as long as it lives, for `watchdog.rs`. It knows nothing of decisions and
//! of views. It holds the crate's only unsafe code.
//!
//! The child of a run is the leader of a process group of its own. When it has ended, or its time is over, the whole
//! group is killed, so that neither a child that runs on nor one that holds the pipes holds anybody up.

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid, getppid};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of standard output that are taken (`[9.2]`); one more ends the run.
pub const MAX_STDOUT: usize = 1 << 20;
/// Most bytes of standard error that are kept; the rest is read and dropped.
pub const MAX_STDERR: usize = 8 << 10;

/// What is done with the program's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// Nobody reads it.
    Discard,
    /// Up to [`MAX_STDOUT`] bytes of it are given back.
    Capture,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// The program ended by itself.
    Exited(ExitStatus),
    /// Its time was over.
    TimedOut,
    /// It printed more than [`MAX_STDOUT`] bytes.
    TooMuchOutput,
}

/// A finished run.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// What was captured.
    pub stdout: Vec<u8>,
    /// The first bytes of standard error.
    pub stderr: Vec<u8>,
}

/// Runs `program` until `deadline` at the latest. Its environment is `environment` and nothing else.
pub fn run(
    program: &Path,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    stdout: Stdout,
    deadline: Instant,
) -> io::Result<Run> {
    let seconds = deadline.saturating_duration_since(Instant::now()).as_secs() + 2;
    let parent = getpid();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().map(|(k, v)| (k, v)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(if stdout == Stdout::Capture { Stdio::piped() } else { Stdio::null() })
        .stderr(Stdio::piped())
        .process_group(0);
    // JUSTIFICATION: what the child gives up for good (rights, limits, descriptors) can only be given up between
    // fork and exec, and std has no other place for it.
    // SAFETY: the closure runs in the forked child before exec. It allocates nothing, takes no lock, and makes only
    // system calls (prctl, getppid, prlimit, sigprocmask, close_range), which are async-signal-safe.
    unsafe {
        command.pre_exec(move || confine(parent, seconds));
    }
    let (mut child, group) = {
        let mut running = running();
        if running.closed {
            return Err(io::Error::other("SkillFS is stopping"));
        }
        let child = command.spawn()?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        running.groups.insert(group);
        running.leaders.insert(group);
        (child, group)
    };
    let outcome = watch(group, child.stdout.take(), child.stderr.take(), deadline);
    // The leader is not reaped yet, so its number still names this group and no other.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.kill();
    running().groups.remove(&group);
    let status = child.wait();
    running().leaders.remove(&group);
    end_orphans();
    let status = status?;
    let (ended, stdout, stderr) = outcome?;
    Ok(Run { ended: ended.unwrap_or(Ended::Exited(status)), stdout, stderr })
}

/// A program that runs beside this process and ends with it.
#[derive(Debug)]
pub struct Beside(Child);

/// Starts `program`, called `name`, in a process group and with an empty environment. Its standard input is a pidfd of
/// this process, its standard output `given`, its standard error ours, and it has no other descriptor of ours. It ends
/// when the calling thread does.
pub fn beside(program: &Path, name: &str, arguments: &[&OsStr], given: OwnedFd) -> io::Result<Beside> {
    let parent = getpid();
    let mut command = Command::new(program);
    command
        .arg0(name)
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(pidfd(parent)?)
        .stdout(given)
        .process_group(0);
    // JUSTIFICATION: as for a run.
    // SAFETY: as for a run: no allocation, no lock, nothing but prctl, getppid, prlimit and close_range.
    unsafe {
        command.pre_exec(move || bind(parent));
    }
    let mut running = running();
    if running.closed {
        return Err(io::Error::other("SkillFS is stopping"));
    }
    let child = command.spawn()?;
    running.leaders.insert(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)));
    Ok(Beside(child))
}

impl Beside {
    /// Waits for its end.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        let status = self.0.wait();
        running().leaders.remove(&Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX)));
        status
    }
}

/// Sends a signal to the process of a pidfd; none: only finds out whether that would be possible.
pub fn signal(process: BorrowedFd<'_>, signal: Option<Signal>) -> io::Result<()> {
    let number = signal.map_or(0, |s| s as i32);
    let (info, flags) = (std::ptr::null::<libc::siginfo_t>(), 0u32);
    // JUSTIFICATION: nix has no pidfd_send_signal, and a process number may by now be another process's.
    // SAFETY: the descriptor is open for the length of the call, and no siginfo is given to be read.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), number, info, flags) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct Running {
    /// Groups whose leader is not reaped.
    groups: BTreeSet<Pid>,
    /// Children that somebody waits for: leaders of runs, and what runs beside.
    leaders: BTreeSet<Pid>,
    /// Whether every other child of this process is an orphan that it has adopted.
    adopts: bool,
    closed: bool,
}

fn running() -> MutexGuard<'static, Running> {
    static RUNNING: Mutex<Running> = Mutex::new(Running {
        groups: BTreeSet::new(),
        leaders: BTreeSet::new(),
        adopts: false,
        closed: false,
    });
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the parent of what its providers leave behind in sessions of their own. To be called once, before
/// the first run.
pub fn adopt_orphans() -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    running().adopts = true;
    Ok(())
}

/// Kills the adopted: processes that left their provider's group before it ended. They come to us when it has.
fn end_orphans() {
    // Those that an orphan leaves behind come next; the bound is for a kernel that would go on giving.
    for _ in 0..64 {
        let orphans: Vec<Pid> = {
            let running = running();
            if !running.adopts {
                return;
            }
            children().into_iter().filter(|pid| !running.leaders.contains(pid)).collect()
        };
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}

/// The children of this process, whichever thread they hang on.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok().map(Pid::from_raw)).collect::<Vec<_>>()
        })
        .collect()
}

/// Kills whatever runs, with its children, and starts nothing more: a provider does not outlive SkillFS.
pub fn kill_all() {
    let mut running = running();
    running.closed = true;
    for group in &running.groups {
        let _ = killpg(*group, Signal::SIGKILL);
    }
}

/// What a provider may never have or do, set in the child (`[9.2]`).
fn confine(parent: Pid, cpu_seconds: u64) -> io::Result<()> {
    bind(parent)?;
    setrlimit(Resource::RLIMIT_CPU, cpu_seconds, cpu_seconds)?;
    setrlimit(Resource::RLIMIT_NOFILE, 1024, 1024)?;
    setrlimit(Resource::RLIMIT_FSIZE, 1 << 30, 1 << 30)?;
    setrlimit(Resource::RLIMIT_DATA, 4 << 30, 4 << 30)?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// What holds for every child: it ends with us, and has nothing of ours.
fn bind(parent: Pid) -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != parent {
        return Err(Errno::ESRCH.into());
    }
    prctl::set_no_new_privs()?;
    // A soft and hard limit of one byte: with 0 the kernel would still feed a core handler.
    setrlimit(Resource::RLIMIT_CORE, 1, 1)?;
    // JUSTIFICATION: nix has no close_range. Every descriptor of ours is close-on-exec already; this holds also for
    // those that someone handed to us.
    // SAFETY: the call takes three integers and touches no memory.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A descriptor that becomes readable when the process has ended.
fn pidfd(process: Pid) -> io::Result<OwnedFd> {
    // JUSTIFICATION: nix has no pidfd_open, and without it a grandchild that holds the pipes hides the child's end.
    // SAFETY: the call takes two integers; on success it gives a new descriptor that nobody else knows.
    unsafe {
        let raw = libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0u32);
        let raw = i32::try_from(raw).unwrap_or(-1);
        if raw < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(raw)) }
    }
}

type Watched = (Option<Ended>, Vec<u8>, Vec<u8>);

/// Reads both pipes until the child has ended, its time is over, or it has printed too much.
fn watch(
    child: Pid,
    mut stdout: Option<std::process::ChildStdout>,
    mut stderr: Option<std::process::ChildStderr>,
    deadline: Instant,
) -> io::Result<Watched> {
    let ended = pidfd(child)?;
    for fd in stdout.iter().map(AsFd::as_fd).chain(stderr.iter().map(AsFd::as_fd)) {
        nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok((Some(Ended::TimedOut), out, err));
        }
        let mut fds = vec![PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        fds.extend(stdout.iter().map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)));
        fds.extend(stderr.iter().map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, timeout(left)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let over = fds[0].revents().is_some_and(|r| !r.is_empty());
        if drain(&mut stdout, &mut out, MAX_STDOUT + 1)? && out.len() > MAX_STDOUT {
            return Ok((Some(Ended::TooMuchOutput), out, err));
        }
        drain(&mut stderr, &mut err, MAX_STDERR)?;
        if over {
            return Ok((None, out, err));
        }
    }
}

fn timeout(left: Duration) -> PollTimeout {
    // One millisecond more, so that a wait never ends just before its deadline and spins.
    PollTimeout::try_from(left.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
}

/// Reads what is there now, keeps at most `keep` bytes in all, and closes the pipe at its end. Bounded work a call,
/// so that a program that never stops printing does not outlive its deadline. Answers whether anything came.
fn drain<P: Read>(pipe: &mut Option<P>, kept: &mut Vec<u8>, keep: usize) -> io::Result<bool> {
    let mut some = false;
    let mut buffer = [0u8; 16 << 10];
    for _ in 0..128 {
        let Some(reader) = pipe.as_mut() else { return Ok(some) };
        match reader.read(&mut buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => {
                some = true;
                let room = keep.saturating_sub(kept.len()).min(n);
                kept.extend_from_slice(&buffer[..room]);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(some),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(some)
}

/// How a program ended, in words.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown way of ending".to_owned(),
    }
}
