//! Keeps one daemon of an `up` running: starts it, starts it again when it dies, and says when it dies too often.

use crate::cli::output::note;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

/// So many deaths within the window end the `up`.
const DEATHS: usize = 3;
const WINDOW: Duration = Duration::from_secs(30);
/// How long a daemon may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// How one daemon is started.
#[derive(Debug)]
pub(super) struct Daemon {
    /// For messages.
    pub(super) name: &'static str,
    /// Program and arguments, as given to `setpriv`.
    pub(super) argv: Vec<String>,
    /// Descriptor 3 of socket activation: handed over as standard input, moved by a shell.
    pub(super) listener: Option<OwnedFd>,
}

/// A command that starts a daemon with `listener` as descriptor 3.
pub(in crate::cli) fn activated(argv: &[String], listener: &OwnedFd) -> Result<Command> {
    // LISTEN_PID must be the daemon's own, which only a process that becomes it can know.
    let mut c = Command::new("/bin/sh");
    c.args(["-c", "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"", "sh"]);
    c.args(argv).stdin(Stdio::from(listener.try_clone()?));
    Ok(c)
}

impl Daemon {
    fn start(&self) -> Result<Child> {
        let mut command = match &self.listener {
            None => {
                let mut c = Command::new(&self.argv[0]);
                c.args(&self.argv[1..]).stdin(Stdio::null());
                c
            }
            Some(listener) => activated(&self.argv, listener)?,
        };
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8");
        for name in ["RUST_LOG", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        // A group of its own: an interrupt from the terminal is for `up`, which then ends them in order.
        command.stdout(Stdio::null()).process_group(0).kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", self.name))
    }

    /// Runs until told to stop, then ends the daemon. Tells `fatal` when it died too often.
    pub(super) async fn keep(
        self,
        mut stop: watch::Receiver<bool>,
        ready: watch::Receiver<bool>,
        fatal: mpsc::Sender<String>,
        started: mpsc::Sender<()>,
    ) {
        let mut deaths: VecDeque<Instant> = VecDeque::new();
        loop {
            let mut child = match self.start() {
                Ok(child) => child,
                Err(e) => {
                    let _ = fatal.send(format!("{e:#}")).await;
                    return;
                }
            };
            let _ = started.try_send(());
            tokio::select! {
                status = child.wait() => {
                    // One that gives up by itself before all is ready would do so again.
                    if !*ready.borrow() && status.as_ref().is_ok_and(|s| s.code().is_some()) {
                        let _ = fatal.send(format!("{} did not start; its reason is above", self.name)).await;
                        return;
                    }
                    let how = status.map_or_else(|e| e.to_string(), |s| s.to_string());
                    note!("cyberos up: {} ended ({how}); starting it again", self.name);
                }
                () = stopped(&mut stop) => {
                    end(&mut child, self.name, PATIENCE).await;
                    return;
                }
            }
            let now = Instant::now();
            deaths.push_back(now);
            deaths.retain(|at| now.duration_since(*at) < WINDOW);
            if deaths.len() >= DEATHS {
                let _ = fatal
                    .send(format!("{} died {DEATHS} times within {} s", self.name, WINDOW.as_secs()))
                    .await;
                return;
            }
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that `up` is gone: that is a stop too.
    let _ = stop.wait_for(|s| *s).await;
}

/// Ends a daemon, by SIGKILL if it takes longer than `patience`.
pub(in crate::cli) async fn end(child: &mut Child, name: &str, patience: Duration) {
    if let Some(pid) = child.id().and_then(|p| i32::try_from(p).ok()) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
    }
    if tokio::time::timeout(patience, child.wait()).await.is_err() {
        note!("cyberos: {name} did not end within {} s; killing it", patience.as_secs());
        let _ = child.kill().await;
    }
}
