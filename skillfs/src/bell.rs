//! Wakes a thread that waits for descriptors: anybody may ring, and however often it was rung it is heard once. It knows not
//! what for; `watch.rs` and `control.rs` wait for it in place of looking again and again.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};

/// A bell.
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    /// One that is silent.
    pub fn new() -> Result<Self, Errno> {
        EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Bell)
    }

    /// Whoever waits for it wakes up, and so does the next one who waits, until it is [silenced](Bell::silence).
    pub fn ring(&self) {
        // It fails when it has been rung as often as can be counted, and then it rings.
        let _ = self.0.write(1);
    }

    /// It has been heard.
    pub fn silence(&self) {
        // It fails when nobody has rung.
        let _ = self.0.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cyberos_proto::wait::readable;
    use std::time::Duration;

    #[test]
    fn it_rings_until_it_is_heard_and_then_no_more() {
        let bell = Bell::new().unwrap();
        assert!(!readable(bell.as_fd(), Duration::ZERO));
        bell.ring();
        bell.ring();
        assert!(readable(bell.as_fd(), Duration::ZERO) && readable(bell.as_fd(), Duration::ZERO));
        bell.silence();
        assert!(!readable(bell.as_fd(), Duration::ZERO));
        bell.silence();
    }
}
