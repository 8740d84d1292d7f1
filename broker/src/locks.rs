//! Record locks (threat A23): the one thing that a sandbox can make the kernel keep without bound, 192 bytes a lock, that
//! neither a control group counts nor a resource limit holds. So they are looked at while sandboxes run, and whoever
//! holds more than any program needs is named here; the skill's run and Bash end it.
//!
//! The list of all locks of the machine costs everybody who takes one, so it is only read when the kernel's memory that
//! cannot be reclaimed has grown, and mostly only its beginning: the newest of a processor come first.
//!
//! A lock in that list names a pid, which may be that of another process by now. So nobody is ended for what was seen
//! once, only sandboxes of this broker are, and locks of processes that are no more are told to who runs the machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Most locks that a sandbox may hold at a look. Databases hold a few each.
pub(crate) const MOST: usize = 1000;
/// Between two looks at the kernel's memory while a sandbox runs.
const EVERY: Duration = Duration::from_millis(100);
/// How much that must have grown, in KiB, before the locks are read: some 43,000 of them.
const GROWN: u64 = 8 << 10;
/// How much of the list is read, in bytes: some 4,500 locks; and if that is not all and names nobody, since it goes
/// processor by processor, some 70,000.
const READ: [u64; 2] = [256 << 10, 4 << 20];

/// Who holds too many, by uid.
type Held = BTreeMap<u32, usize>;

/// A process that is there: its real uid, and when it began, which tells it from a later one of the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    uid: u32,
    start: u64,
}

/// How many locks each pid has, and which process that is now, if any.
type Seen = BTreeMap<u32, (Option<Process>, usize)>;

/// What all sandboxes of this process ask: the machine has one list.
struct Looking {
    found: watch::Sender<Held>,
    wake: Notify,
    /// How many ask about each uid: those of sandboxes that run.
    asked: Mutex<BTreeMap<u32, usize>>,
}

impl Looking {
    fn ask(&'static self, uid: u32) -> Asked {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default() += 1;
        Asked { looking: self, uid }
    }

    fn is_asked(&self, uid: u32) -> bool {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&uid)
    }
}

/// While this is there, somebody asks about the uid.
struct Asked {
    looking: &'static Looking,
    uid: u32,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut asked = self.looking.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match asked.get_mut(&self.uid) {
            Some(times) if *times > 1 => *times -= 1,
            _ => drop(asked.remove(&self.uid)),
        }
    }
}

static LOOKING: OnceLock<Looking> = OnceLock::new();

/// Ends when the processes of `uid`, a sandbox's own, hold more than [`MOST`] record locks; how many were seen.
pub(crate) async fn too_many(uid: u32) -> usize {
    let (_asked, mut found) = subscribe(uid);
    // Not what was found before: the uid was another sandbox's then.
    while found.changed().await.is_ok() {
        if let Some(locks) = found.borrow_and_update().get(&uid) {
            return *locks;
        }
    }
    // Its sender is the static's, which nobody drops.
    std::future::pending().await
}

/// What an end for too many locks is called.
pub(crate) fn told(locks: usize) -> String {
    format!(
        "its processes held at least {locks} record locks (fcntl F_SETLK), and {MOST} are the most: release \
         some"
    )
}

fn subscribe(uid: u32) -> (Asked, watch::Receiver<Held>) {
    let mut first = false;
    let looking = LOOKING.get_or_init(|| {
        first = true;
        Looking { found: watch::Sender::default(), wake: Notify::new(), asked: Mutex::default() }
    });
    if first {
        tokio::spawn(look(looking));
    }
    let asked = (looking.ask(uid), looking.found.subscribe());
    looking.wake.notify_one();
    asked
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
            let ours = |uid| looking.is_asked(uid);
            let looked = tokio::task::spawn_blocking(move || look_twice(&ours)).await;
            let (held, nobodys) = looked.unwrap_or_default();
            if nobodys > MOST {
                tracing::warn!(
                    locks = nobodys,
                    "record locks belong to processes that are no more: whoever shares their files keeps them"
                );
            }
            for (uid, locks) in &held {
                tracing::warn!(uid, locks, "one uid holds too many record locks");
            }
            if !held.is_empty() {
                looking.found.send_replace(held);
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

/// Who of `ours` holds more than [`MOST`], and how many locks are nobody's.
fn look_twice(ours: &impl Fn(u32) -> bool) -> (Held, usize) {
    let first = seen(ours);
    let (held, nobodys) = judge(&first, &first, ours);
    if held.is_empty() && nobodys <= MOST {
        return (held, nobodys);
    }
    judge(&first, &seen(ours), ours)
}

/// What two looks agree about: the same pid was the same process, or none, both times.
fn judge(first: &Seen, second: &Seen, ours: &impl Fn(u32) -> bool) -> (Held, usize) {
    let (mut held, mut nobodys) = (Held::new(), 0);
    for (pid, (process, locks)) in second {
        let Some((before, then)) = first.get(pid).filter(|(before, _)| before == process) else { continue };
        let locks = *then.min(locks);
        match before {
            Some(process) if ours(process.uid) => *held.entry(process.uid).or_default() += locks,
            Some(_) => {}
            None => nobodys += locks,
        }
    }
    held.retain(|_, locks| *locks > MOST);
    (held, nobodys)
}

/// One look: the list's beginning, and more of it where that is not all and names nobody of `ours`.
fn seen(ours: &impl Fn(u32) -> bool) -> Seen {
    let (mut text, mut seen) = (Vec::new(), Seen::new());
    let mut read = || -> std::io::Result<()> {
        let mut file = File::open("/proc/locks")?;
        for most in READ {
            let had = text.len() as u64;
            let read = file.by_ref().take(most - had).read_to_end(&mut text)?;
            let locks = by_pid(&String::from_utf8_lossy(&text));
            seen = locks.into_iter().map(|(pid, locks)| (pid, (process(pid), locks))).collect();
            if had + (read as u64) < most || !judge(&seen, &seen, ours).0.is_empty() {
                break;
            }
        }
        Ok(())
    };
    if let Err(e) = read() {
        tracing::error!(error = %e, "record locks cannot be looked at");
    }
    seen
}

/// How many locks each process holds, of lines like `7: POSIX  ADVISORY  WRITE 4711 00:2b:5 0 0`. Who waits for one has
/// `->` there, and one that belongs to no process has no pid. A last line without its end may have been cut.
fn by_pid(list: &str) -> BTreeMap<u32, usize> {
    let mut locks = BTreeMap::new();
    for line in list.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let pid = line.split_whitespace().nth(4).and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = pid.filter(|pid| *pid > 0 && !line.contains("->")) {
            *locks.entry(pid).or_default() += 1;
        }
    }
    locks
}

/// The process that has this pid now.
fn process(pid: u32) -> Option<Process> {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
    let (stat, status) = (read("stat")?, read("status")?);
    Some(Process {
        start: start(&String::from_utf8_lossy(&stat))?,
        uid: real_uid(&String::from_utf8_lossy(&status))?,
    })
}

/// Field 22 of `/proc/PID/stat`. The second is the program's name, in which there may be anything.
fn start(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The first of `Uid:` in `/proc/PID/status`.
fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_counted_by_the_process_that_holds_them() {
        let list = "1: POSIX  ADVISORY  WRITE 4711 00:2b:5 0 0\n2: FLOCK  ADVISORY  WRITE 12 fd:00:1 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 13 fd:00:1 0 EOF\n3: OFDLCK ADVISORY  READ  -1 00:2b:6 0 0\n\
                    4: POSIX  ADVISORY  READ  4711 00:2b:5 2 2\n5: POSIX  ADVISORY  READ  0 00:2b:7 2 2\n6: POSIX  ADVISORY  READ  47";
        assert_eq!(by_pid(list), BTreeMap::from([(4711, 2), (12, 1)]));
    }

    #[test]
    fn the_machine_can_be_looked_at() {
        assert!(unreclaimable().unwrap() > 1000);
        let me = process(std::process::id()).unwrap();
        assert_eq!(me.uid, nix::unistd::getuid().as_raw());
        assert_eq!(process(std::process::id()), Some(me));
        assert_eq!(process(u32::MAX), None);
    }

    #[test]
    fn a_process_is_told_by_its_beginning_whatever_its_name_is() {
        let numbers = (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["sh", "a b", ") R 1 2 3 (", "1) 2) 3"] {
            assert_eq!(start(&format!("4711 ({name}) S {numbers}\n")), Some(22), "{name}");
        }
        assert_eq!(start("4711 (sh) S 1 2"), None);
        assert_eq!(start(""), None);
        assert_eq!(real_uid("Name:\tx\nUid:\t7\t8\t9\t10\n"), Some(7));
        assert_eq!(real_uid("Name:\tx\n"), None);
    }

    #[test]
    fn only_a_sandbox_that_two_looks_name_is_blamed() {
        let ours = |uid| uid >= 100;
        let held = |uid, start, locks| (Some(Process { uid, start }), locks);
        let seen = |list: &[(u32, (Option<Process>, usize))]| list.iter().copied().collect::<Seen>();
        let first = seen(&[
            (1, held(100, 5, 600)),
            (2, held(100, 6, 700)),
            (3, held(0, 1, 9000)),
            (4, held(101, 7, 5000)),
            (5, (None, 2000)),
            (6, (None, 2000)),
            (7, held(103, 8, 5000)),
        ]);
        // Pid 4 is another process of the same uid by now, 6 is used again, and 7 has gone.
        let second = seen(&[
            (1, held(100, 5, 600)),
            (2, held(100, 6, 900)),
            (3, held(0, 1, 9000)),
            (4, held(101, 9, 5000)),
            (5, (None, 2000)),
            (6, held(102, 9, 2000)),
            (7, (None, 5000)),
        ]);
        assert_eq!(judge(&first, &second, &ours), (Held::from([(100, 1300)]), 2000));
        let few = seen(&[(1, held(100, 5, MOST))]);
        assert_eq!(judge(&few, &few, &ours), (Held::new(), 0));
    }

    #[tokio::test]
    async fn a_uid_is_ours_while_somebody_asks_about_it() {
        let (first, found) = subscribe(4711);
        let second = subscribe(4711).0;
        let looking = LOOKING.get().unwrap();
        drop(first);
        assert!(looking.is_asked(4711));
        drop((second, found));
        assert!(!looking.is_asked(4711));
    }
}
