//! Waiting for descriptors: links, pidfds, pipes.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Waits until one of `news` can be read, or the other end of one of `others` has gone; whether that came about before
/// `limit` was over. A pidfd can be read when its process has ended, a link also when its other end has gone.
pub fn wait_any(
    news: &[BorrowedFd<'_>],
    others: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> Result<bool, Errno> {
    let until = limit.map(|limit| Instant::now() + limit);
    let mut all: Vec<_> = news.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Hanging up is told without being asked for.
    all.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::empty())));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = match left {
            // Poll counts milliseconds, and must not end before the time is over.
            Some(left) => {
                PollTimeout::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        match poll(&mut all, timeout) {
            Err(Errno::EINTR) => {}
            Ok(0) if left.is_none_or(|left| !left.is_zero()) => {}
            other => return other.map(|count| count > 0),
        }
    }
}

/// Whether `fd` can be read, or becomes so within `limit`. What cannot be waited for is said to be readable: reading it
/// will tell.
pub fn readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    wait_any(&[fd], &[], Some(limit)) != Ok(false)
}

/// Whether the other end has gone.
pub fn hung_up(fd: BorrowedFd<'_>) -> bool {
    wait_any(&[], &[fd], Some(Duration::ZERO)) != Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{pipe, write};
    use std::os::fd::AsFd;

    #[test]
    fn what_is_ready_and_what_has_gone_is_told_and_a_limit_is_kept() {
        let (out, into) = pipe().unwrap();
        let began = Instant::now();
        assert!(!readable(out.as_fd(), Duration::from_millis(20)));
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert!(!hung_up(out.as_fd()));
        write(&into, b"x").unwrap();
        assert!(readable(out.as_fd(), Duration::ZERO) && !hung_up(out.as_fd()));
        assert_eq!(wait_any(&[out.as_fd()], &[], None), Ok(true));
        assert_eq!(wait_any(&[], &[out.as_fd()], Some(Duration::from_micros(10))), Ok(false));
        drop(into);
        assert!(hung_up(out.as_fd()));
        assert_eq!(wait_any(&[], &[out.as_fd()], None), Ok(true));
    }
}
