//! What a program prints (`[2.6]`): two streams into two files, each at most [`CAP`] bytes and then marked truncated.
//! Followers read the files and are told when there is more, so that none of them holds up the program or loses a
//! byte. Called by `run` (which feeds it) and `control` (which follows it). The bytes are never looked into.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// Most bytes kept of one stream.
pub const CAP: u64 = 10 * 1024 * 1024;
/// Most invocations whose output is kept after their end.
const KEPT: usize = 64;

/// Where one stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in the file.
    pub length: u64,
    /// More came than is kept.
    pub truncated: bool,
    /// Nothing will follow.
    pub ended: bool,
}

/// One captured stream.
#[derive(Debug)]
pub struct Stream {
    file: File,
    progress: watch::Sender<Progress>,
}

impl Stream {
    fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Stream { file, progress: watch::Sender::new(Progress::default()) })
    }

    fn reopen(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let progress = Progress { length, truncated: length >= CAP, ended: true };
        Ok(Stream { file, progress: watch::Sender::new(progress) })
    }

    /// Where it stands now, and how to wait for more.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// At most 64 KiB from `offset`; empty at the end of what is there.
    pub fn read_at(&self, offset: u64) -> std::io::Result<Vec<u8>> {
        let mut buffer = vec![0u8; 64 * 1024];
        let n = self.file.read_at(&mut buffer, offset)?;
        buffer.truncate(n);
        Ok(buffer)
    }

    fn keep(&self, bytes: &[u8]) {
        let at = *self.progress.borrow();
        let room = usize::try_from(CAP - at.length).unwrap_or(usize::MAX).min(bytes.len());
        // A full disk costs output, which then counts as truncated; it never stops the run.
        let written = (&self.file).write_all(&bytes[..room]).is_ok();
        self.progress.send_modify(|p| {
            if written {
                p.length += room as u64;
            }
            p.truncated |= !written || room < bytes.len();
        });
    }

    /// Reads the pipe to its end; what is beyond the cap is read and dropped, so that the program goes on.
    async fn pump(&self, pipe: OwnedFd) {
        if let Ok(mut pipe) = pipe::Receiver::from_owned_fd(pipe) {
            let mut buffer = vec![0u8; 64 * 1024];
            while let Ok(n) = pipe.read(&mut buffer).await {
                if n == 0 {
                    break;
                }
                self.keep(&buffer[..n]);
            }
        }
        self.end();
    }

    fn end(&self) {
        self.progress.send_modify(|p| p.ended = true);
    }
}

/// Both streams of one invocation.
#[derive(Debug)]
pub struct Capture {
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
}

impl Capture {
    /// Reads both pipes to their ends. Runs until the last writer is gone.
    pub async fn pump(self: Arc<Self>, stdout: OwnedFd, stderr: OwnedFd) {
        tokio::join!(self.stdout.pump(stdout), self.stderr.pump(stderr));
    }

    /// Declares both streams ended, whoever may still hold a pipe.
    pub fn end(&self) {
        self.stdout.end();
        self.stderr.end();
    }
}

/// The folder of captured output: one folder an invocation.
#[derive(Clone, Debug)]
pub struct Logs {
    dir: PathBuf,
}

impl Logs {
    /// Takes the folder, making it if absent.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Logs { dir: dir.to_owned() })
    }

    /// New files for an invocation; the oldest folders beyond what is kept are removed.
    pub fn create(&self, invocation: &str) -> std::io::Result<Capture> {
        self.prune();
        let dir = self.dir.join(invocation);
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Capture {
            stdout: Stream::create(&dir.join("stdout"))?,
            stderr: Stream::create(&dir.join("stderr"))?,
        })
    }

    /// What an ended invocation printed, if it is still kept. `invocation` must be the text of an id.
    pub fn reopen(&self, invocation: &str) -> std::io::Result<Capture> {
        let dir = self.dir.join(invocation);
        Ok(Capture {
            stdout: Stream::reopen(&dir.join("stdout"))?,
            stderr: Stream::reopen(&dir.join("stderr"))?,
        })
    }

    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        let mut folders: Vec<_> =
            entries.flatten().filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
        folders.sort();
        let surplus = folders.len().saturating_sub(KEPT);
        for (_, path) in &folders[..surplus] {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_byte_beyond_the_cap_is_marked_truncated_and_the_writer_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(&dir.path().join("logs")).unwrap();
        for (surplus, truncated) in [(0usize, false), (1, true)] {
            let id = format!("run-{surplus}");
            let capture = Arc::new(logs.create(&id).unwrap());
            let (out, out_writer) = std::io::pipe().unwrap();
            let (err, err_writer) = std::io::pipe().unwrap();
            let writer = std::thread::spawn(move || {
                let mut w = out_writer;
                w.write_all(&vec![b'x'; usize::try_from(CAP).unwrap() + surplus]).unwrap();
                drop(err_writer);
            });
            nix::fcntl::fcntl(&out, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            nix::fcntl::fcntl(&err, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            Arc::clone(&capture).pump(out.into(), err.into()).await;
            writer.join().unwrap();
            let at = *capture.stdout.progress().borrow();
            assert_eq!(at, Progress { length: CAP, truncated, ended: true });
            assert_eq!(logs.reopen(&id).unwrap().stdout.read_at(CAP - 3).unwrap(), b"xxx");
        }
    }
}
