//! The helper's log: standard error, a line for what happened. Root waits for no reader: a line that cannot be written at
//! once is dropped and counted, and the next one that can be says how many were. Lines that a peer can cause as often as
//! it likes are limited a second besides. All processes of the helper count together.

use crate::policy::outcome::named;
use crate::sys;
use cyberos_proto::terminal::is_unfit;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{S_IFCHR, S_IFIFO};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::set_hook;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// Longest line, in bytes. A pipe takes so much at once or not at all.
const LONGEST: usize = 1024;
/// Lines of one kind that peers may cause in a second.
const OFTEN: u64 = 20;

/// What a peer can cause as often as it likes. Each kind has its own allowance, so that a flood of refusals does not hide
/// that a link has ended.
#[derive(Clone, Copy)]
pub(crate) enum Often {
    /// A request, or a peer, was refused.
    Refusal,
    /// A link or a view came or went.
    Coming,
}

/// What all processes of the helper share.
struct Shared {
    /// Lines that were dropped since the last one that was not.
    dropped: &'static AtomicU64,
    /// 1 if the last line was cut short by whoever took it.
    cut: &'static AtomicU64,
    refusals: Allowance,
    comings: Allowance,
}

/// What is left of [`OFTEN`] for one kind of lines.
struct Allowance {
    /// The last second that had such a line.
    second: &'static AtomicU64,
    /// How many it had.
    lines: &'static AtomicU64,
}

impl Allowance {
    /// Takes one line of it, if there is one left.
    fn take(&self) -> bool {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        if self.second.swap(now, Relaxed) != now {
            self.lines.store(0, Relaxed);
        }
        self.lines.fetch_add(1, Relaxed) < OFTEN
    }
}

static SHARED: OnceLock<Shared> = OnceLock::new();

/// Makes standard error something that nobody is kept waiting by. Called once, before any other process is made.
pub(crate) fn begin() -> Result<(), String> {
    let [dropped, cut, refused, refusals, came, comings] = named("memory for the log", sys::shared())?;
    let refusals = Allowance { second: refused, lines: refusals };
    let comings = Allowance { second: came, lines: comings };
    let _ = SHARED.set(Shared { dropped, cut, refusals, comings });
    // A panic's words are a line like any other.
    set_hook(Box::new(|what| log(&what.to_string())));
    // A socket is told with each line not to wait; a file and a device wait for nobody.
    let may_wait = sys::identity(io::stderr()).is_ok_and(|is| is.is(S_IFIFO) || is.is(S_IFCHR));
    if may_wait { named("standard error", wait_for_no_reader()) } else { Ok(()) }
}

/// A pipe or terminal may be others' too, and only our own opening of it is not to wait. Where there is none to be had,
/// theirs is not to wait either.
fn wait_for_no_reader() -> sys::Sys<()> {
    let own = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    if sys::open("/proc/self/fd/2", own).and_then(unistd::dup2_stderr).is_ok() {
        return Ok(());
    }
    let flags = OFlag::from_bits_retain(fcntl(io::stderr(), FcntlArg::F_GETFL)?);
    fcntl(io::stderr(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// One line of what happened.
pub(crate) fn log(line: &str) {
    let Some(Shared { dropped, cut, .. }) = SHARED.get() else {
        put(line, false);
        return;
    };
    let lost = dropped.swap(0, Relaxed);
    if lost > 0 && !write(&format!("{lost} lines dropped"), cut) {
        dropped.fetch_add(lost + 1, Relaxed);
    } else if !write(line, cut) {
        dropped.fetch_add(1, Relaxed);
    }
}

/// The same for what a peer can cause as often as it likes.
pub(crate) fn log_often(kind: Often, line: &str) {
    let Some(shared) = SHARED.get() else { return log(line) };
    let allowance = match kind {
        Often::Refusal => &shared.refusals,
        Often::Coming => &shared.comings,
    };
    if allowance.take() {
        log(line);
    } else {
        shared.dropped.fetch_add(1, Relaxed);
    }
}

/// Whether all of it was taken.
fn write(line: &str, cut: &AtomicU64) -> bool {
    let Some(Taken { bytes, of }) = put(line, cut.load(Relaxed) > 0) else { return false };
    cut.store(u64::from(bytes < of), Relaxed);
    bytes == of
}

/// How much of a line was taken.
struct Taken {
    bytes: usize,
    of: usize,
}

/// Writes a line once, after the end of one that is still open; None if nothing of it was taken.
fn put(line: &str, after_cut: bool) -> Option<Taken> {
    // Names in it may be anybody's.
    let shown: String = line.chars().map(|c| if c.is_control() || is_unfit(c) { '?' } else { c }).collect();
    let shown = &shown[..shown.floor_char_boundary(LONGEST)];
    let text = format!("{}cyberos-priv-helper: {shown}\n", if after_cut { "\n" } else { "" });
    let how = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let bytes = match send(io::stderr().as_raw_fd(), text.as_bytes(), how) {
        Err(Errno::ENOTSOCK) => unistd::write(io::stderr(), text.as_bytes()),
        other => other,
    };
    Some(Taken { bytes: bytes.ok()?, of: text.len() })
}
