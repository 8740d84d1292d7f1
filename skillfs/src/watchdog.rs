//! The watchdog: a process of SkillFS's own user that ends SkillFS when its view no longer answers (`[9.9]`). It knows
//! nothing of what the view shows, of decisions or of the helper; `daemon.rs` starts it, `main.rs` becomes it.
//!
//! It asks statfs of the mount point again and again, in a thread that alone can hang on the answer. By its path, so
//! that it follows SkillFS to the next mount when one is lost; SkillFS mounts that anew by itself.
//!
//! This is the one thing of SkillFS that is done by the clock while nothing happens. A view that nobody uses looks the same
//! whether its server would answer or is stopped, and a server that is stopped tells nobody: whoever comes first would hang.
//! The kernel tells of waiting questions on the descriptor that serves them alone, and a watchdog that held that would keep
//! a view up whose SkillFS is gone. So it asks, seldom; only while an answer is missing it looks more often.
//! When SkillFS is
//! stopped, or stuck, nothing in it can help. The link to the helper is ended, so that the helper takes the view off and
//! whoever hangs on it gets an error, also when SkillFS is held in the kernel and cannot die; then it is killed, and
//! whoever supervises it starts it again.
//!
//! Its standard input is a pidfd of the SkillFS that started it: what is killed is that process and never another one
//! that has got its number. Its standard output is the link, of which it uses nothing but the end. It has none of
//! SkillFS's other descriptors, and ends with it or with the link.

use crate::bell::Bell;
use crate::spawn;
use cyberos_proto::wait::{hung_up, wait_any};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, statfs};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The subcommand that makes a `skillfs` the watchdog.
pub const COMMAND: &str = "watchdog";
/// How often the view is asked while it answers.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether there is an answer, once one is missing.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// A view that answers nothing for so long is given up (`[9.9]`).
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// So many looks in a row that find no answer are [`SILENCE_LIMIT`]. Looks are counted and not the time: when the whole
/// machine or its container has been frozen, SkillFS gets its time to answer afterwards.
const SILENT_LOOKS: u128 = SILENCE_LIMIT.as_millis().div_ceil(LOOK_EVERY.as_millis());
/// From so many silent looks on, a view that is taken off is not taken for one that was unmounted in good order.
const SUSPECT_LOOKS: u128 = 3;
/// How long the last word may take, should nobody read it.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Before a watchdog that ended is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps a watchdog of this process and the view that was mounted over `link`, in a thread that lives as long as that.
pub fn keep(mount_point: &Path, link: OwnedFd) -> io::Result<()> {
    let mount_point = mount_point.to_owned();
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        while !hung_up(link.as_fd()) {
            // The program that runs now, also when another one has been put in its place.
            let program = Path::new("/proc/self/exe");
            let arguments = [OsStr::new(COMMAND), mount_point.as_os_str()];
            let started = link.try_clone().and_then(|l| spawn::beside(program, "skillfs", &arguments, l));
            match started.and_then(spawn::Beside::wait) {
                Ok(_) if hung_up(link.as_fd()) => return,
                Ok(status) => {
                    tracing::warn!(how = spawn::describe(status), "the watchdog ended; starting it again")
                }
                Err(e) => tracing::warn!(error = %e, "no watchdog; trying again"),
            }
            std::thread::sleep(PAUSE);
        }
    })?;
    Ok(())
}

/// What the watchdog does: returns when the SkillFS whose pidfd standard input is has ended or been killed, or the link
/// that standard output is has ended.
pub fn run(mount_point: &Path) -> anyhow::Result<()> {
    let (input, output) = (io::stdin(), io::stdout());
    let (skillfs, link) = (input.as_fd(), output.as_fd());
    if spawn::signal(skillfs, None).is_err() {
        anyhow::bail!(
            "'{COMMAND}' is for 'skillfs mount' to start, with a pidfd of its own as standard input"
        );
    }
    prctl::set_name(c"skillfs-watch")?;
    prctl::set_dumpable(false)?;
    // Who signals all of a service's processes means SkillFS, which is watched until it has ended.
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]).thread_block()?;
    let mut asker = Asker::of(mount_point)?;
    let mut silence = Silence::default();
    loop {
        let pause = if silence.is_none() { ASK_EVERY } else { LOOK_EVERY };
        if !asker.is_asked() && wait_any(&[skillfs], &[link], Some(pause))? {
            return Ok(());
        }
        asker.ask();
        let seen = if wait_any(&[skillfs, asker.answered.as_fd()], &[link], Some(LOOK_EVERY))? {
            match asker.take() {
                None => return Ok(()),
                seen => seen,
            }
        } else {
            None
        };
        if silence.look(seen) {
            return Ok(give_up(skillfs, link, mount_point)?);
        }
    }
}

/// The thread that asks the view.
struct Asker {
    questions: Sender<()>,
    seen: Receiver<Seen>,
    answered: Arc<Bell>,
    asked: bool,
}

impl Asker {
    fn of(mount_point: &Path) -> anyhow::Result<Self> {
        let answered = Arc::new(Bell::new()?);
        let ((questions, asked), (sender, seen)) = (channel(), channel());
        let (mount_point, bell) = (mount_point.to_owned(), answered.clone());
        let ask = move || {
            let mut told = None;
            while asked.recv().is_ok() && sender.send(statfs_of(&mount_point, &mut told)).is_ok() {
                bell.ring();
            }
        };
        std::thread::Builder::new().name("ask".into()).spawn(ask)?;
        Ok(Asker { questions, seen, answered, asked: false })
    }

    /// Whether the last question has not been answered.
    fn is_asked(&self) -> bool {
        self.asked
    }

    /// Asks, unless it has been asked; whoever asks hangs when the view does.
    fn ask(&mut self) {
        if !self.asked {
            self.asked = self.questions.send(()).is_ok();
        }
    }

    /// What was found, if it was.
    fn take(&mut self) -> Option<Seen> {
        self.answered.silence();
        let seen = self.seen.try_recv().ok();
        self.asked &= seen.is_none();
        seen
    }
}

/// What one question finds. A view that cannot be reached at all is said once.
fn statfs_of(mount_point: &Path, told: &mut Option<Errno>) -> Seen {
    let answer = statfs(mount_point).map(|s| s.filesystem_type() == FUSE_SUPER_MAGIC);
    let now = Seen::of(answer);
    // A view that we cannot reach hangs us never, and others perhaps.
    let unreachable = answer.err().filter(|_| now == Seen::NoView);
    if *told != unreachable {
        if let Some(e) = unreachable {
            say(&format!("{} cannot be watched: {e}", mount_point.display()));
        }
        *told = unreachable;
    }
    now
}

/// Says so, ends the link, and kills SkillFS. In this order, because we end with it; whoever holds standard error without
/// reading it does not hold this up.
fn give_up(skillfs: BorrowedFd<'_>, link: BorrowedFd<'_>, mount_point: &Path) -> io::Result<()> {
    let line = format!(
        "the view at {} has answered nothing for {} s; killing SkillFS (pid {}), and whoever supervises it \
         starts it again",
        mount_point.display(),
        SILENCE_LIMIT.as_secs(),
        nix::unistd::getppid()
    );
    let (done, said) = channel();
    std::thread::spawn(move || {
        say(&line);
        let _ = done.send(());
    });
    let _ = said.recv_timeout(LAST_WORD);
    let _ = shutdown(link.as_raw_fd(), Shutdown::Both);
    spawn::signal(skillfs, Some(Signal::SIGKILL))
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "skillfs: {line}");
}

/// What one question found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A view, served.
    Served,
    /// A view whose server is gone.
    Dead,
    /// No view, so nobody hangs on one: SkillFS is about to mount it again, or to end.
    NoView,
}

impl Seen {
    /// `answer`: whether the mount point is on a view.
    fn of(answer: nix::Result<bool>) -> Seen {
        match answer {
            Ok(true) => Seen::Served,
            Err(Errno::ENOTCONN | Errno::ECONNABORTED | Errno::ECONNREFUSED) => Seen::Dead,
            Ok(false) | Err(_) => Seen::NoView,
        }
    }
}

/// How many looks in a row have found no answer.
#[derive(Debug, Default)]
struct Silence(u128);

impl Silence {
    /// Whether the last look found an answer.
    fn is_none(&self) -> bool {
        self.0 == 0
    }

    /// Takes what was seen since the last look, none if the question has not come back. Answers whether it has lasted
    /// too long.
    ///
    /// An error is no answer, but no end either: a SkillFS that lives mounts anew, and has the same time for that. Once
    /// there is silence, a view's answer alone ends it: a view that was taken off then says nothing of a SkillFS that
    /// is stuck.
    fn look(&mut self, seen: Option<Seen>) -> bool {
        self.0 = match seen {
            Some(Seen::Served) => 0,
            Some(Seen::NoView) if self.0 < SUSPECT_LOOKS => 0,
            None | Some(Seen::Dead | Seen::NoView) => self.0 + 1,
        };
        self.0 >= SILENT_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many looks it is given up, if each sees the next of `seen`, and the last of them for ever.
    fn given_up(seen: &[Option<Seen>]) -> Option<usize> {
        let mut silence = Silence::default();
        let last = std::iter::repeat(seen.last().unwrap());
        seen.iter().chain(last).take(1000).position(|s| silence.look(*s)).map(|n| n + 1)
    }

    #[test]
    fn silence_is_given_up_after_twenty_seconds_and_an_answer_ends_it() {
        assert_eq!(SILENT_LOOKS, 29);
        assert_eq!(given_up(&[None]), Some(29));
        assert_eq!(given_up(&[Some(Seen::Served)]), None);
        let mut late = vec![None; 28];
        late.extend([Some(Seen::Served), None]);
        assert_eq!(given_up(&late), Some(28 + 1 + 29));
    }

    #[test]
    fn a_dead_view_has_the_same_time_to_be_mounted_anew() {
        assert_eq!(given_up(&[Some(Seen::Dead)]), Some(29));
        assert_eq!(given_up(&[Some(Seen::Dead), Some(Seen::NoView)]), None);
        assert_eq!(given_up(&[Some(Seen::Dead), Some(Seen::Dead), Some(Seen::Served)]), None);
    }

    #[test]
    fn a_view_that_is_not_there_is_no_silence_but_ends_none_either() {
        assert_eq!(given_up(&[Some(Seen::NoView)]), None);
        assert_eq!(given_up(&[None, None, None, Some(Seen::NoView)]), Some(29));
    }

    #[test]
    fn errors_that_say_nothing_of_the_server_are_not_its_death() {
        for (answer, seen) in [
            (Ok(true), Seen::Served),
            (Ok(false), Seen::NoView),
            (Err(Errno::ENOTCONN), Seen::Dead),
            (Err(Errno::ECONNABORTED), Seen::Dead),
            (Err(Errno::EACCES), Seen::NoView),
            (Err(Errno::ENOENT), Seen::NoView),
        ] {
            assert_eq!(Seen::of(answer), seen, "{answer:?}");
        }
    }
}
