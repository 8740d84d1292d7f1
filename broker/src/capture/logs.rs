//! The folder of captured output: one folder an invocation, and which of them stay (`[2.6]`). One that runs always does;
//! of the others the newest, by their ends, within the operator's two bounds.

use super::Capture;
use crate::disk_guard::DiskGuard;
use cyberos_proto::ids::InvocationId;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// How much is kept (`logs.*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Most ended invocations whose output is kept.
    pub runs: usize,
    /// Most bytes of the disk that all captured output takes; what runs counts, and stays.
    pub bytes: u64,
}

/// For how many runs it is remembered why nothing of their output is kept. On a disk that is nearly full there is no
/// place for it but here.
const REMEMBERED: usize = 1024;

/// The names of the folders that are in use.
type Names = Arc<Mutex<HashSet<String>>>;

fn lock(names: &Names) -> MutexGuard<'_, HashSet<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that is in use until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    names: Names,
}

impl Running {
    fn new(name: &str, names: &Names) -> Self {
        lock(names).insert(name.to_owned());
        Running { name: name.to_owned(), names: Arc::clone(names) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.names).remove(&self.name);
    }
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Logs {
    dir: PathBuf,
    keep: Keep,
    space: DiskGuard,
    running: Names,
    /// Invocations that ran without, newest last, and the disk that was nearly full.
    without: Arc<Mutex<VecDeque<(String, String)>>>,
}

impl Logs {
    /// Takes the folder, making it if absent.
    pub fn open(dir: &Path, keep: Keep) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let logs = Logs {
            dir: dir.to_owned(),
            keep,
            space: DiskGuard::open(dir)?,
            running: Names::default(),
            without: Arc::default(),
        };
        logs.prune();
        Ok(logs)
    }

    /// New files for an invocation. On a disk that is nearly full none are made: it runs all the same, and nothing of its
    /// output is kept (`[2.8]`).
    pub fn create(&self, invocation: &str) -> std::io::Result<Capture> {
        if let Some(short) = self.space.lacks(0, 3)? {
            let why = short.to_string();
            let mut without = self.without.lock().unwrap_or_else(PoisonError::into_inner);
            if without.len() == REMEMBERED {
                without.pop_front();
            }
            without.push_back((invocation.to_owned(), why.clone()));
            return Ok(Capture::lost(&why));
        }
        let dir = self.dir.join(invocation);
        // Known as running before there is anything to be removed.
        let running = Running::new(invocation, &self.running);
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Capture::create(dir, &self.space, running)
    }

    /// What an ended invocation printed, if it is still kept. `invocation` must be the text of an id.
    pub fn reopen(&self, invocation: &str) -> std::io::Result<Capture> {
        Capture::reopen(&self.dir.join(invocation))
    }

    /// Removes what an invocation left that never ran.
    pub fn discard(&self, invocation: &str) {
        remove(&self.dir.join(invocation));
    }

    /// Removes the oldest of what has ended, as far as it is beyond what is kept. May wait for a disk.
    pub fn prune(&self) {
        // Asked before and after: what ends meanwhile is listed with the time of its beginning, and what begins meanwhile
        // may be listed.
        let mut running = lock(&self.running).clone();
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        let folders: Vec<_> = entries.flatten().filter_map(|entry| Folder::of(&entry)).collect();
        running.extend(lock(&self.running).iter().cloned());
        let mut bytes: u64 = folders.iter().map(|folder| folder.bytes).sum();
        let mut ended: Vec<_> = folders.into_iter().filter(|f| !running.contains(&f.name)).collect();
        ended.sort_by(|a, b| (b.ended, &b.name).cmp(&(a.ended, &a.name)));
        while let Some(oldest) = ended.last() {
            if ended.len() <= self.keep.runs && bytes <= self.keep.bytes {
                break;
            }
            remove(&self.dir.join(&oldest.name));
            bytes = bytes.saturating_sub(oldest.bytes);
            ended.pop();
        }
    }

    /// What an operator is told who asks for what is not there.
    pub fn why_not(&self, invocation: &str) -> String {
        let without = self.without.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, short)) = without.iter().find(|(id, _)| id == invocation) {
            return format!(
                "nothing is kept of what invocation {invocation} printed: when it began, {short}"
            );
        }
        let Keep { runs, bytes } = self.keep;
        format!(
            "nothing is kept of invocation {invocation}: it is unknown, or older than what the configuration \
             keeps (logs.keep: {runs}, logs.max_mb: {}), or the disk was nearly full when it began",
            bytes >> 20
        )
    }
}

/// What is kept of one invocation.
struct Folder {
    name: String,
    /// When it ended; while it runs, when it began.
    ended: SystemTime,
    /// What it takes of the disk.
    bytes: u64,
}

impl Folder {
    /// None if it is no invocation's.
    fn of(entry: &std::fs::DirEntry) -> Option<Self> {
        let name = entry.file_name().into_string().ok().filter(|n| n.parse::<InvocationId>().is_ok())?;
        let meta = entry.metadata().ok().filter(std::fs::Metadata::is_dir)?;
        let files = std::fs::read_dir(entry.path()).ok()?.flatten();
        let bytes = files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512)).sum();
        Some(Folder { name, ended: meta.modified().ok()?, bytes })
    }
}

/// Marks the time of an end, by which folders are ordered.
pub(super) fn ended_now(dir: &Path) {
    if let Err(error) = File::open(dir).and_then(|dir| dir.set_modified(SystemTime::now())) {
        tracing::warn!(dir = %dir.display(), %error, "the end of captured output is not marked");
    }
}

fn remove(dir: &Path) {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), %error, "captured output cannot be removed");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> String {
        InvocationId::from_random([n; 16]).to_string()
    }

    fn kept(logs: &Logs) -> HashSet<String> {
        std::fs::read_dir(&logs.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Runs one from its beginning to its end.
    fn ran(logs: &Logs, n: u8, bytes: usize) {
        let capture = logs.create(&id(n)).unwrap();
        capture.stdout.keep(&vec![b'x'; bytes]);
        capture.end();
        drop(capture);
        logs.prune();
    }

    #[test]
    fn what_runs_is_never_removed_and_what_has_ended_goes_in_the_order_of_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(&dir.path().join("logs"), Keep { runs: 3, bytes: u64::MAX }).unwrap();
        std::fs::create_dir(logs.dir.join("not-ours")).unwrap();
        let long = logs.create(&id(0)).unwrap();
        for n in 1..=66 {
            ran(&logs, n, 1);
        }
        let with = |names: &[u8]| -> HashSet<String> {
            names.iter().map(|n| id(*n)).chain(["not-ours".to_owned()]).collect()
        };
        assert_eq!(kept(&logs), with(&[0, 64, 65, 66]));
        long.stdout.keep(b"all");
        long.end();
        logs.prune();
        assert_eq!(kept(&logs), with(&[0, 65, 66]), "it began first, and ended last");
        for n in 67..=69 {
            ran(&logs, n, 1);
        }
        assert_eq!(kept(&logs), with(&[67, 68, 69]));
        assert_eq!(long.stdout.read_at(0).unwrap(), b"all", "whoever has it open reads it to its end");
        // A start finds what the one before left, and no more than is kept now.
        Logs::open(&logs.dir, Keep { runs: 1, bytes: u64::MAX }).unwrap();
        assert_eq!(kept(&logs), with(&[69]));
    }

    #[test]
    fn all_captured_output_together_is_bounded_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(&dir.path().join("logs"), Keep { runs: 64, bytes: 1 << 20 }).unwrap();
        let long = logs.create(&id(0)).unwrap();
        long.stderr.keep(&vec![b'x'; 500 << 10]);
        for n in 1..=4 {
            ran(&logs, n, 300 << 10);
        }
        assert_eq!(kept(&logs), [id(0), id(4)].into(), "500 KiB that run, and 300 of 524 that are left");
        long.stdout.keep(&vec![b'x'; 2 << 20]);
        logs.prune();
        assert_eq!(kept(&logs), [id(0)].into());
    }
}
