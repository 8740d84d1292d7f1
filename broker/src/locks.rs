//! Record locks (threat A23): the one thing that a sandbox can make the kernel keep without bound, 192 bytes a lock, that
//! neither a control group counts nor a resource limit holds. So they are looked at while sandboxes run, and whoever
//! holds more than any program needs is named here; the skill's run and Bash end it.
//!
//! The list of all locks of the machine costs everybody who takes one, so it is only read when the kernel's memory that
//! cannot be reclaimed has grown, and only its beginning: the newest come first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Most locks that a sandbox may hold at a look. Databases hold a few each.
pub(crate) const MOST: usize = 1000;
/// Between two looks at the kernel's memory while a sandbox runs.
const EVERY: Duration = Duration::from_millis(100);
/// How much that must have grown, in KiB, before the locks are read: some 43,000 of them.
const GROWN: u64 = 8 << 10;
/// How much of the list is read, in bytes: some 4,500 locks.
const READ: u64 = 256 << 10;

/// Who holds too many, by uid.
type Held = BTreeMap<u32, usize>;

/// What all sandboxes of this process ask: the machine has one list.
struct Looking {
    found: watch::Sender<Held>,
    wake: Notify,
}

static LOOKING: OnceLock<Looking> = OnceLock::new();

/// Ends when the processes of `uid`, a sandbox's own, hold more than [`MOST`] record locks; how many were seen.
pub(crate) async fn too_many(uid: u32) -> usize {
    let mut found = subscribe();
    loop {
        if found.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(locks) = found.borrow_and_update().get(&uid) {
            return *locks;
        }
    }
}

/// What an end for too many locks is called.
pub(crate) fn told(locks: usize) -> String {
    format!(
        "its processes held at least {locks} record locks (fcntl F_SETLK), and {MOST} are the most: release some"
    )
}

fn subscribe() -> watch::Receiver<Held> {
    let mut first = false;
    let looking = LOOKING.get_or_init(|| {
        first = true;
        Looking { found: watch::Sender::default(), wake: Notify::new() }
    });
    if first {
        tokio::spawn(look(looking));
    }
    let found = looking.found.subscribe();
    looking.wake.notify_one();
    found
}

/// Looks for as long as the process lives, and rests while nobody asks.
async fn look(looking: &'static Looking) {
    let mut least = u64::MAX;
    loop {
        if looking.found.receiver_count() == 0 {
            looking.wake.notified().await;
            least = u64::MAX;
        }
        let now = unreclaimable().unwrap_or(0);
        least = least.min(now);
        if now >= least.saturating_add(GROWN) {
            least = now;
            match tokio::task::spawn_blocking(holders).await {
                Ok(held) if !held.is_empty() => {
                    for (uid, locks) in &held {
                        tracing::warn!(uid, locks, "one uid holds too many record locks");
                    }
                    looking.found.send_replace(held);
                }
                _ => {}
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The kernel's memory that it cannot give back, in KiB.
fn unreclaimable() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    text.lines().find_map(|line| line.strip_prefix("SUnreclaim:")?.split_whitespace().next()?.parse().ok())
}

/// Who holds more than [`MOST`] of the newest locks.
fn holders() -> Held {
    let mut text = Vec::new();
    let read = File::open("/proc/locks").and_then(|file| file.take(READ).read_to_end(&mut text));
    if let Err(e) = read {
        tracing::error!(error = %e, "record locks cannot be looked at");
    }
    let mut held = Held::new();
    for (pid, locks) in by_pid(&String::from_utf8_lossy(&text)) {
        if let Some(uid) = uid_of(pid) {
            *held.entry(uid).or_default() += locks;
        }
    }
    held.retain(|_, locks| *locks > MOST);
    held
}

/// How many locks each process holds, of lines like `7: POSIX  ADVISORY  WRITE 4711 00:2b:5 0 0`. Who waits for one has
/// `->` there, and one that belongs to no process has no pid.
fn by_pid(list: &str) -> BTreeMap<u32, usize> {
    let mut locks = BTreeMap::new();
    for line in list.lines() {
        let pid = line.split_whitespace().nth(4).and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = pid.filter(|pid| *pid > 0 && !line.contains("->")) {
            *locks.entry(pid).or_default() += 1;
        }
    }
    locks
}

/// The real uid of a process that is there.
fn uid_of(pid: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_counted_by_the_process_that_holds_them() {
        let list = "1: POSIX  ADVISORY  WRITE 4711 00:2b:5 0 0\n2: FLOCK  ADVISORY  WRITE 12 fd:00:1 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 13 fd:00:1 0 EOF\n3: OFDLCK ADVISORY  READ  -1 00:2b:6 0 0\n\
                    4: POSIX  ADVISORY  READ  4711 00:2b:5 2 2\n5: POSIX  ADVISORY  READ  0 00:2b:7 2 2\n6: POS";
        assert_eq!(by_pid(list), BTreeMap::from([(4711, 2), (12, 1)]));
    }

    #[test]
    fn the_machine_can_be_looked_at() {
        assert!(unreclaimable().unwrap() > 1000);
        assert_eq!(uid_of(std::process::id()), Some(nix::unistd::getuid().as_raw()));
        assert_eq!(uid_of(u32::MAX), None);
    }
}
