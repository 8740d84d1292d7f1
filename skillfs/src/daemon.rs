//! `skillfs mount`: puts the parts together, asks the helper for the mount, and keeps it up.
//!
//! What is known of the skills outlives a mount: when the mount or the helper goes, another one is made and the
//! kernel starts with an empty cache (`[9.9]`). This process never touches the mount point itself, so that a dead
//! mount cannot hang it; its watchdog does that, and ends it when the view no longer answers.

use crate::bell::Bell;
use crate::cli::Mount;
use crate::control::{self, Control, Listener};
use crate::counters::Counters;
use crate::exposure::OnChange;
use crate::flips::Flips;
use crate::fs::Fs;
use crate::helper::{Helper, HelperError};
use crate::inode::Inodes;
use crate::lookup::ViewFs;
use crate::mapping::Mapping;
use crate::notify::{Mounted, Notify};
use crate::provider::Provider;
use crate::queue::Queue;
use crate::resolver::Resolver;
use crate::source::{Sources, absolute};
use crate::watch::Watch;
use crate::watchdog;
use anyhow::{Context, bail};
use cyberos_proto::message::Refusal;
use fuser::{Session, SessionACL};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// First and longest pause between two tries to mount, and after how many in a row SkillFS gives up.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const MAX_TRIES: u32 = 40;
/// A mount that lasts so long counts as a success.
const STEADY: Duration = Duration::from_secs(2);
/// How long a clean stop waits for the kernel to let the session go.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

enum Event {
    Stop,
    DecideAgain,
    LinkClosed(u64),
    SessionEnded(u64),
}

/// The parts that live as long as the process.
struct Parts {
    mapping: Arc<Mapping>,
    watch: Arc<Watch>,
    queue: Arc<Queue>,
    notify: Arc<Notify>,
    counters: Arc<Counters>,
}

/// Runs until SIGTERM or SIGINT.
pub fn run(mount: &Mount) -> anyhow::Result<()> {
    if nix::unistd::geteuid().is_root() || nix::unistd::getuid().is_root() {
        bail!(
            "SkillFS does not run as root: it and the provider read what others wrote. Start it as a user of \
             its own"
        );
    }
    confine_self()?;
    crate::spawn::adopt_orphans().context("cannot adopt what providers leave behind")?;
    // Before the first thread, so that every thread has them blocked and one alone receives them.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    let (sources, mount_point) = mount.sources_and_mount_point();
    let mount_point = absolute(mount_point)?;
    let sources = Arc::new(Sources::open(sources, &mount_point)?);
    if mount.strict
        && let Some(why) = sources.shared().first()
    {
        bail!(
            "--strict: {why}; let the source and every directory on the way to it belong to root or to \
             SkillFS's user, and be writable by nobody else"
        );
    }
    let provider = match &mount.decision_command {
        Some(command) => Some(Provider::configure(command, mount.timeout(), &mount.provider_env)?),
        None => None,
    };
    let listener = mount.control.as_deref().map(Listener::bind).transpose()?;
    // A working directory on the view would make this process wait for itself.
    std::env::set_current_dir("/")?;

    let parts = start(mount, &sources, provider)?;
    let (sender, events) = channel();
    let from_signals = sender.clone();
    std::thread::spawn(move || pass_signals(&signals, &from_signals));
    parts.watch.discover();
    let result = serve_all(mount, &mount_point, &sources, &parts, listener, &sender, &events);
    parts.watch.stop();
    parts.queue.close();
    crate::spawn::kill_all();
    result
}

/// First decisions if they are waited for, the control socket, and the mount.
fn serve_all(
    mount: &Mount,
    mount_point: &Path,
    sources: &Arc<Sources>,
    parts: &Parts,
    listener: Option<Listener>,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> anyhow::Result<()> {
    if mount.strict {
        refuse_failures(parts)?;
    }
    let stop = Arc::new(Bell::new().context("no eventfd")?);
    let serving = listener.map(|listener| {
        let control = Arc::new(Control {
            mapping: parts.mapping.clone(),
            watch: parts.watch.clone(),
            queue: parts.queue.clone(),
            counters: parts.counters.clone(),
            notify: parts.notify.clone(),
            mount: mount_point.display().to_string(),
            sources: sources.clone(),
            decision_command: mount.decision_command.clone(),
            decision_time: mount.timeout(),
        });
        let stop = stop.clone();
        std::thread::spawn(move || control::serve(&control, &listener, &stop))
    });
    let result = keep_mounted(mount, mount_point, parts, sender, events);
    stop.ring();
    // Its end removes the socket.
    if let Some(serving) = serving {
        let _ = serving.join();
    }
    result
}

/// What this process gives up or needs for all that follows.
fn confine_self() -> anyhow::Result<()> {
    // Providers run as the same user and parse what others wrote: they must not be able to read our memory or
    // take our descriptors.
    nix::sys::prctl::set_dumpable(false)?;
    nix::sys::prctl::set_no_new_privs()?;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    // One descriptor for each inode that the kernel knows.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    // A handler that panics would leave a request without an answer; a new process answers.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    Ok(())
}

fn start(mount: &Mount, sources: &Arc<Sources>, provider: Option<Provider>) -> anyhow::Result<Parts> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| anyhow::anyhow!("no random numbers: {e}"))?;
    let on_change = if mount.unprotected { OnChange::Keep } else { mount.on_change };
    let (flips, counters) = (Arc::new(Flips::default()), Arc::new(Counters::default()));
    let start = u64::from_ne_bytes(random);
    let mapping = Arc::new(Mapping::new(start, on_change, mount.on_failure, flips.clone()));
    let queue = Arc::new(Queue::new(mount.jobs.map_or_else(cores, usize::from)));
    let watch = Arc::new(
        Watch::new(sources.clone(), mapping.clone(), queue.clone(), counters.clone())
            .context("no inotify instance")?,
    );
    let notify = Arc::new(Notify::new(mapping.clone(), watch.clone(), flips, counters.clone()));
    let resolver = Arc::new(Resolver::new(
        sources.clone(),
        mapping.clone(),
        watch.clone(),
        queue.clone(),
        provider,
        counters.clone(),
    ));
    for n in 0..queue.takers() {
        let resolver = resolver.clone();
        std::thread::Builder::new().name(format!("decide-{n}")).spawn(move || resolver.work())?;
    }
    let (watcher, notifier) = (watch.clone(), notify.clone());
    std::thread::Builder::new().name("watch".into()).spawn(move || watcher.run())?;
    std::thread::Builder::new().name("notify".into()).spawn(move || notifier.run())?;
    Ok(Parts { mapping, watch, queue, notify, counters })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn pass_signals(signals: &SigSet, events: &Sender<Event>) {
    while let Ok(signal) = signals.wait() {
        let event = if signal == Signal::SIGHUP { Event::DecideAgain } else { Event::Stop };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// With `--strict`, waits for every first decision and refuses to mount when one failed.
fn refuse_failures(parts: &Parts) -> anyhow::Result<()> {
    for id in parts.mapping.ids() {
        while parts
            .mapping
            .wait_decided(id, Instant::now() + Duration::from_secs(60))
            .is_some_and(|s| s.pending)
        {}
    }
    match parts.mapping.failures().first() {
        None => Ok(()),
        Some((name, why)) => bail!("--strict: the first decision about skill {name} failed: {why}"),
    }
}

/// A mount that is served.
struct Served {
    helper: Helper,
    number: u64,
    since: Instant,
}

fn keep_mounted(
    mount: &Mount,
    mount_point: &Path,
    parts: &Parts,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> anyhow::Result<()> {
    let mut served: Option<Served> = None;
    let mut number = 0;
    // The session that notifications go to; it may outlive the link it was mounted by.
    let mut session = 0;
    let mut tries = 0;
    let mut ready = false;
    // When the next try is due; none while mounted.
    let mut due = Some(Instant::now());
    loop {
        if due.is_some_and(|t| t <= Instant::now()) {
            number += 1;
            match serve(mount, parts, sender, number) {
                Ok(new) => {
                    let link = new.helper.copy().context("no descriptor for the watchdog")?;
                    watchdog::keep(mount_point, link).context("no thread for the watchdog")?;
                    (served, session, due) = (Some(new), number, None);
                    tracing::info!(mount = %mount_point.display(), "mounted");
                    if !std::mem::replace(&mut ready, true) {
                        announce(mount_point);
                    }
                }
                Err(e) if tries >= MAX_TRIES || is_final(&e) => return Err(e),
                Err(e) => {
                    tracing::warn!(error = %e, tries, "not mounted; trying again");
                    due = Some(Instant::now() + pause(&mut tries));
                    // What the link of this try still reports is about nothing.
                    number += 1;
                }
            }
        }
        let event = match due {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(t) => events.recv_timeout(t.saturating_duration_since(Instant::now())),
        };
        let lost = match event {
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::DecideAgain) => {
                control::decide_all(&parts.watch, &parts.mapping, &parts.queue);
                None
            }
            // A session that is still served goes on until the new mount takes its place.
            Ok(Event::LinkClosed(n)) if n == number => served.take(),
            Ok(Event::SessionEnded(n)) if n == session => {
                parts.notify.set(None);
                let lost = served.take();
                if let Some(lost) = &lost {
                    let _ = lost.helper.unmount(mount.mount_number);
                }
                lost
            }
            Err(RecvTimeoutError::Timeout) | Ok(Event::LinkClosed(_) | Event::SessionEnded(_)) => None,
        };
        if let Some(lost) = lost {
            tracing::warn!("the mount or the helper is gone; mounting anew");
            // What is lost again at once is not made again at once.
            let wait = if lost.since.elapsed() < STEADY { pause(&mut tries) } else { Duration::ZERO };
            tries = if wait.is_zero() { 0 } else { tries };
            due = Some(Instant::now() + wait);
        }
    }
    let Some(served) = served else { return Ok(()) };
    served.helper.unmount(mount.mount_number).context("the mount could not be removed")?;
    let deadline = Instant::now() + STOP_PATIENCE;
    while let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if matches!(event, Event::SessionEnded(n) if n == served.number) {
            break;
        }
    }
    Ok(())
}

/// The pause before the next try, longer each time.
fn pause(tries: &mut u32) -> Duration {
    *tries += 1;
    PAUSE.saturating_mul(1 << (*tries - 1).min(7)).min(LONGEST_PAUSE)
}

/// Refusals that trying again will not change.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<HelperError>(),
        Some(
            HelperError::NotRoot(..)
                | HelperError::Refused(Refusal::Role | Refusal::Ceiling(_) | Refusal::Malformed)
        )
    )
}

/// One mount and its session.
fn serve(mount: &Mount, parts: &Parts, sender: &Sender<Event>, number: u64) -> anyhow::Result<Served> {
    let closed = sender.clone();
    let helper = Helper::connect(&mount.helper, move || drop(closed.send(Event::LinkClosed(number))))?;
    let fd = match helper.mount(mount.mount_number) {
        Err(HelperError::Refused(Refusal::Phase)) => {
            let _ = helper.unmount(mount.mount_number);
            helper.mount(mount.mount_number)?
        }
        other => other?,
    };
    let inodes = Arc::new(Inodes::default());
    let view = ViewFs::new(
        parts.mapping.clone(),
        parts.watch.clone(),
        inodes.clone(),
        mount.owner,
        parts.counters.clone(),
    );
    let mut config = fuser::Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(cores().max(2));
    let session = Session::from_fd(Fs::new(view), fd, SessionACL::All, config).context("FUSE")?;
    parts.notify.set(Some(Mounted { notifier: session.notifier(), inodes }));
    let ended = sender.clone();
    std::thread::Builder::new().name("session".into()).spawn(move || {
        if let Err(e) = session.run() {
            tracing::warn!(error = %e, "the session ended");
        }
        let _ = ended.send(Event::SessionEnded(number));
    })?;
    Ok(Served { helper, number, since: Instant::now() })
}

/// The one line on standard output: whoever started us waits for it. It may have closed its end since.
fn announce(mount_point: &Path) {
    let line = serde_json::json!({ "mounted": mount_point.display().to_string() });
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
