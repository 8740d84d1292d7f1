//! The typed client of the root helper: one method a request. It knows nothing of what is mounted; `daemon.rs`
//! calls it.

use cyberos_proto::ids::MountId;
use cyberos_proto::link::{Link, LinkError, Wait};
use cyberos_proto::message::{FromHelper, Refusal, Reply, Request};
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long a request may take; the helper's own calls are short.
const PATIENCE: Duration = Duration::from_secs(15);

/// What went wrong with the helper.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// Not reachable, or gone.
    #[error("the helper at {0}: {1}")]
    Link(String, LinkError),
    /// Someone else listens there.
    #[error("the socket {0} is served by uid {1}, not by root; nothing was asked of it")]
    NotRoot(String, u32),
    /// It said no.
    #[error("{0}")]
    Refused(Refusal),
    /// It gave no answer, or another one than was asked for.
    #[error("the helper gave no fitting answer")]
    NoReply,
}

/// A live link.
#[derive(Debug)]
pub struct Helper {
    link: Arc<Link<Request, FromHelper>>,
    replies: Receiver<(Reply, Vec<OwnedFd>)>,
    path: String,
}

impl Helper {
    /// Connects, and makes sure that root is on the other side. `closed` is called once, when the link ends.
    pub fn connect(path: &Path, closed: impl FnOnce() + Send + 'static) -> Result<Self, HelperError> {
        let named = path.display().to_string();
        let link = Link::<Request, FromHelper>::connect(path);
        let link = Arc::new(link.map_err(|e| HelperError::Link(named.clone(), e))?);
        let peer = link.peer().map_err(|e| HelperError::Link(named.clone(), e))?;
        if peer.uid != 0 {
            return Err(HelperError::NotRoot(named, peer.uid));
        }
        let (sender, replies) = channel();
        let reader = link.clone();
        std::thread::spawn(move || {
            // Events are for the broker; SkillFS has none.
            while let Ok((message, descriptors)) = reader.receive(Wait::Block) {
                if let FromHelper::Reply(reply) = message
                    && sender.send((reply, descriptors)).is_err()
                {
                    break;
                }
            }
            closed();
        });
        Ok(Helper { link, replies, path: named })
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), HelperError> {
        self.link.send(request, &[], Wait::Block).map_err(|e| HelperError::Link(self.path.clone(), e))?;
        match self.replies.recv_timeout(PATIENCE) {
            Ok((Reply::Refused(why), _)) => Err(HelperError::Refused(why)),
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                Err(HelperError::Link(self.path.clone(), LinkError::Closed))
            }
            Err(RecvTimeoutError::Timeout) => Err(HelperError::NoReply),
        }
    }

    /// Mounts; answers the FUSE descriptor.
    pub fn mount(&self, mount: MountId) -> Result<OwnedFd, HelperError> {
        match self.ask(&Request::Mount { mount })? {
            (Reply::Mounted, mut fds) => fds.pop().ok_or(HelperError::NoReply),
            _ => Err(HelperError::NoReply),
        }
    }

    /// Unmounts.
    pub fn unmount(&self, mount: MountId) -> Result<(), HelperError> {
        match self.ask(&Request::Unmount { mount })? {
            (Reply::Done, _) => Ok(()),
            _ => Err(HelperError::NoReply),
        }
    }
}

impl Helper {
    /// Another descriptor of the link; whoever has it can end the link.
    pub fn copy(&self) -> std::io::Result<OwnedFd> {
        self.link.as_fd().try_clone_to_owned()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Ends the reader, which holds the socket too.
        let _ = shutdown(self.link.as_fd().as_raw_fd(), Shutdown::Both);
    }
}
