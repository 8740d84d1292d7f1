//! What a program prints (`[2.6]`): two streams into two files, each at most [`CAP`] bytes and then marked truncated.
//! Followers read the files and are told when there is more, so that none of them holds up the program or loses a
//! byte. Called by `run` (which feeds it) and `control` (which follows it). The bytes are never looked into.
//!
//! ```text
//! capture.rs  one invocation's two streams
//! logs.rs     the folder of all of them: what is kept, and for how long
//! ```

mod logs;

pub use logs::{Keep, Logs};

use crate::disk_guard::DiskGuard;
use logs::Running;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// Most bytes kept of one stream.
pub const CAP: u64 = 10 * 1024 * 1024;
/// Mode of a file that holds less than the program printed, for want of space: a mark that takes none.
const CUT_SHORT: u32 = 0o400;

/// Why a stream has more than its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// More came than [`CAP`].
    Cap,
    /// It could not be written.
    Lost,
}

/// Where one stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in the file.
    pub length: u64,
    /// Not all of it is kept; from then on nothing is.
    pub cut: Option<Cut>,
    /// Nothing will follow.
    pub ended: bool,
}

/// One captured stream.
#[derive(Debug)]
pub struct Stream {
    /// None when there was no space for it from the start.
    file: Option<File>,
    space: Option<DiskGuard>,
    progress: watch::Sender<Progress>,
    /// What [`Cut::Lost`] is owed to.
    why: OnceLock<String>,
}

impl Stream {
    fn create(path: &Path, space: &DiskGuard) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Stream::new(Some(file), Some(space.clone()), Progress::default()))
    }

    fn reopen(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        let cut = match meta.permissions().mode() & 0o777 {
            CUT_SHORT => Some(Cut::Lost),
            _ => (meta.len() >= CAP).then_some(Cut::Cap),
        };
        Ok(Stream::new(Some(file), None, Progress { length: meta.len(), cut, ended: true }))
    }

    /// One of which nothing is kept.
    fn lost(why: &str) -> Self {
        let progress = Progress { cut: Some(Cut::Lost), ..Progress::default() };
        let stream = Stream::new(None, None, progress);
        stream.why.get_or_init(|| why.to_owned());
        stream
    }

    fn new(file: Option<File>, space: Option<DiskGuard>, progress: Progress) -> Self {
        Stream { file, space, progress: watch::Sender::new(progress), why: OnceLock::new() }
    }

    /// Where it stands now, and how to wait for more.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Where and why it was cut, to be said after "it was truncated"; none if all of it is kept.
    pub fn cut(&self) -> Option<String> {
        let at = *self.progress.borrow();
        Some(match at.cut? {
            Cut::Cap => "at 10 MiB".to_owned(),
            Cut::Lost => {
                let why = self.why.get().map_or("the disk was nearly full, or failed", |why| why);
                format!("after {} bytes: {why}", at.length)
            }
        })
    }

    /// At most 64 KiB from `offset`; empty at the end of what is there.
    pub fn read_at(&self, offset: u64) -> std::io::Result<Vec<u8>> {
        let mut buffer = vec![0u8; 64 * 1024];
        let n = self.file.as_ref().map_or(Ok(0), |file| file.read_at(&mut buffer, offset))?;
        buffer.truncate(n);
        Ok(buffer)
    }

    fn keep(&self, bytes: &[u8]) {
        let at = *self.progress.borrow();
        let Some(file) = self.file.as_ref().filter(|_| at.cut.is_none()) else { return };
        let room = usize::try_from(CAP - at.length).unwrap_or(usize::MAX).min(bytes.len());
        // A full disk costs output, and never stops the run. Nothing follows a gap.
        match self.write(file, &bytes[..room], at.length) {
            Ok(()) => self.progress.send_modify(|p| {
                p.length += room as u64;
                p.cut = (room < bytes.len()).then_some(Cut::Cap);
            }),
            Err(why) => {
                self.why.get_or_init(|| why);
                // Neither needs space; without the mark a reader later takes the rest for all of it.
                let marked = file
                    .set_len(at.length)
                    .and_then(|()| file.set_permissions(std::fs::Permissions::from_mode(CUT_SHORT)));
                if let Err(error) = marked {
                    tracing::warn!(%error, "captured output that is cut could not be marked as such");
                }
                self.progress.send_modify(|p| p.cut = Some(Cut::Lost));
            }
        }
    }

    /// The error says for the operator what it is owed to.
    fn write(&self, file: &File, bytes: &[u8], at: u64) -> Result<(), String> {
        let short = self.space.as_ref().and_then(|space| space.lacks(bytes.len() as u64, 0).ok().flatten());
        if let Some(short) = short {
            return Err(short.to_string());
        }
        file.write_all_at(bytes, at).map_err(|e| match (e.kind(), &self.space) {
            (std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded, Some(space)) => {
                space.full().to_string()
            }
            _ => format!("it could not be kept: {e}"),
        })
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

/// Both streams of one invocation. Until its end nothing of what it has kept is removed; who reads it then has it open.
#[derive(Debug)]
pub struct Capture {
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
    /// While it runs: its folder.
    running: Mutex<Option<(Running, PathBuf)>>,
}

impl Capture {
    fn create(dir: PathBuf, space: &DiskGuard, running: Running) -> std::io::Result<Self> {
        Ok(Capture {
            stdout: Stream::create(&dir.join("stdout"), space)?,
            stderr: Stream::create(&dir.join("stderr"), space)?,
            running: Mutex::new(Some((running, dir))),
        })
    }

    fn reopen(dir: &Path) -> std::io::Result<Self> {
        Ok(Capture {
            stdout: Stream::reopen(&dir.join("stdout"))?,
            stderr: Stream::reopen(&dir.join("stderr"))?,
            running: Mutex::default(),
        })
    }

    /// One of which nothing is kept.
    fn lost(why: &str) -> Self {
        Capture { stdout: Stream::lost(why), stderr: Stream::lost(why), running: Mutex::default() }
    }

    /// Reads both pipes to their ends. Runs until the last writer is gone.
    pub async fn pump(self: Arc<Self>, stdout: OwnedFd, stderr: OwnedFd) {
        tokio::join!(self.stdout.pump(stdout), self.stderr.pump(stderr));
    }

    /// Declares both streams ended, whoever may still hold a pipe.
    pub fn end(&self) {
        self.stdout.end();
        self.stderr.end();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_running, dir)) = running.take() {
            logs::ended_now(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// [2.8]: below 5 % free no output is kept; what was kept before is, and both say which disk it was.
    #[test]
    fn on_a_disk_that_is_nearly_full_output_is_cut_and_the_disk_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, dir.path(), tmpfs, nix::mount::MsFlags::empty(), Some("size=1m"))
            .expect("this test needs root, to mount a small file system");
        let named = format!("the disk at {} is nearly full", dir.path().display());
        let logs = Logs::open(&dir.path().join("logs"), Keep { runs: 9, bytes: u64::MAX }).unwrap();
        let capture = logs.create("first").unwrap();
        for _ in 0..100 {
            capture.stdout.keep(&[b'x'; 64 * 1024]);
            capture.stderr.keep(b"e");
        }
        let at = *capture.stdout.progress().borrow();
        assert_eq!(at.cut, Some(Cut::Lost));
        let free = nix::sys::statvfs::statvfs(dir.path()).unwrap();
        assert!(free.blocks_available() * 100 >= free.blocks() * 5, "{free:?}");
        assert!(at.length > 700 << 10, "{at:?}");
        let cut = capture.stdout.cut().unwrap();
        assert!(cut.starts_with(&format!("after {} bytes: {named}", at.length)), "{cut}");
        capture.end();
        drop(capture);
        let again = logs.reopen("first").unwrap();
        assert_eq!(again.stdout.progress().borrow().length, at.length);
        let cut = again.stdout.cut().unwrap();
        assert!(cut.contains("the disk was nearly full"), "{cut}");
        std::fs::write(dir.path().join("filler"), vec![0; 100 << 10]).unwrap_err();
        let none = logs.create("second").unwrap();
        none.stdout.keep(b"x");
        assert!(none.stdout.cut().unwrap().contains(&named));
        assert_eq!(none.stdout.read_at(0).unwrap(), b"");
        assert!(logs.reopen("second").is_err(), "nothing was made");
        let why = logs.why_not("second");
        assert!(why.ends_with(&none.stdout.why.get().unwrap()[..]) && why.contains(&named), "{why}");
        let why = logs.why_not("another");
        assert!(why.contains("unknown, or older") && why.contains("logs.keep: 9"), "{why}");
        drop((logs, again, none));
        nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }

    #[tokio::test]
    async fn one_byte_beyond_the_cap_is_marked_truncated_and_the_writer_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(&dir.path().join("logs"), Keep { runs: 9, bytes: u64::MAX }).unwrap();
        for (surplus, cut) in [(0usize, None), (1, Some(Cut::Cap))] {
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
            assert_eq!(at, Progress { length: CAP, cut, ended: true });
            assert_eq!(logs.reopen(&id).unwrap().stdout.read_at(CAP - 3).unwrap(), b"xxx");
        }
    }
}
