//! The helper's log: standard error, a line for what happened. Root waits for no reader: a line that cannot be written at
//! once is dropped and counted, and the next one that can be says how many were. Lines that a peer can cause as often as
//! it likes are limited a second besides. All processes of the helper count together.

use crate::prelude::*;
use cyberos_proto::terminal::is_unfit;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::{MsgFlags, send};
use std::io;
use std::panic::set_hook;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// What all processes of the helper share: lines that were dropped; whether the last line was cut short by whoever took it;
/// and, for each kind of [`Often`], the last second that had such a line and how many it had.
static SHARED: OnceLock<&'static [AtomicU64; 6]> = OnceLock::new();

/// Makes standard error something that nobody is kept waiting by. Called once, before any other process is made.
pub(crate) fn begin() -> Result<(), String> {
    let shared = named("memory for the log", sys::shared())?;
    let _ = SHARED.set(shared);
    // A panic's words are a line like any other.
    set_hook(Box::new(|what| log(&what.to_string())));
    // A pipe or terminal may be others' too, and only our own opening of it is not to wait. Where there is none to be had,
    // theirs is not to wait either. A socket is told with each line; a file and a device wait for nobody.
    let own = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let reopened = sys::identity(io::stderr()).is_ok_and(|is| is.is(libc::S_IFIFO) || is.is(libc::S_IFCHR))
        && sys::open("/proc/self/fd/2", own).and_then(unistd::dup2_stderr).is_err();
    if reopened {
        let flags = named("standard error", fcntl(io::stderr(), FcntlArg::F_GETFL))?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        named("standard error", fcntl(io::stderr(), FcntlArg::F_SETFL(flags)))?;
    }
    Ok(())
}

/// One line of what happened.
pub(crate) fn log(line: &str) {
    let Some([dropped, cut, ..]) = SHARED.get() else {
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
    let Some([dropped, _, refused, refusals, came, comings]) = SHARED.get() else { return log(line) };
    let (second, count) = match kind {
        Often::Refusal => (refused, refusals),
        Often::Coming => (came, comings),
    };
    let now = unix_time();
    if second.swap(now, Relaxed) != now {
        count.store(0, Relaxed);
    }
    if count.fetch_add(1, Relaxed) < OFTEN {
        log(line);
    } else {
        dropped.fetch_add(1, Relaxed);
    }
}

fn unix_time() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

/// Whether all of it was taken.
fn write(line: &str, cut: &AtomicU64) -> bool {
    let taken = put(line, cut.load(Relaxed) > 0);
    if let Some((count, length)) = taken {
        cut.store(u64::from(count < length), Relaxed);
    }
    taken.is_some_and(|(count, length)| count == length)
}

/// Writes a line once, after the end of one that is still open; how much of how much was taken, if anything.
fn put(line: &str, after_cut: bool) -> Option<(usize, usize)> {
    // Names in it may be anybody's.
    let shown: String = line.chars().map(|c| if c.is_control() || is_unfit(c) { '?' } else { c }).collect();
    let shown = &shown[..shown.floor_char_boundary(LONGEST)];
    let text = format!("{}cyberos-priv-helper: {shown}\n", if after_cut { "\n" } else { "" });
    let how = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let taken = match send(io::stderr().as_raw_fd(), text.as_bytes(), how) {
        Err(Errno::ENOTSOCK) => unistd::write(io::stderr(), text.as_bytes()),
        other => other,
    };
    taken.ok().map(|count| (count, text.len()))
}
