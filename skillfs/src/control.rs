//! The control socket (`[9.11]`): what the broker and the operator's CLI ask. One thread a client, so that one that
//! waits holds up nobody; the number of clients is bounded, for each user apart, so that operators cannot keep the
//! broker out. It decides nothing.

use crate::bell::Bell;
use crate::counters::Counters;
use crate::decision::SkillId;
use crate::mapping::Mapping;
use crate::notify::Notify;
use crate::queue::Queue;
use crate::source::Sources;
use crate::watch::Watch;
use cyberos_proto::control::{ControlReply, ControlRequest, MAX_AWAIT_MS, SkillState, Status, bounded};
use cyberos_proto::ids::SkillName;
use cyberos_proto::link::{self, Link, LinkError, Wait};
use cyberos_proto::wait::{readable, wait_any};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most clients of one user at a time, and in all.
const MAX_CLIENTS_OF_ONE: usize = 256;
const MAX_CLIENTS: usize = 512;
/// A client that does not take its answer for so long is dropped.
const SEND_PATIENCE: Duration = Duration::from_secs(5);
/// Until a client that could not be accepted is tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest refresh.
const MAX_REFRESH: Duration = Duration::from_secs(900);

/// A control socket that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Someone answers there, or someone else's socket cannot be asked.
    #[error("{0}: this socket is in use")]
    Served(PathBuf),
    /// Something else has the name.
    #[error("{0} exists and is not a socket; it was left alone")]
    NotASocket(PathBuf),
    /// A call failed.
    #[error("{0}: {1}")]
    Os(PathBuf, io::Error),
}

/// What answers are made of.
#[derive(Debug)]
pub struct Control {
    /// The mapping.
    pub mapping: Arc<Mapping>,
    /// The watch.
    pub watch: Arc<Watch>,
    /// Where decisions are asked for.
    pub queue: Arc<Queue>,
    /// What has happened how often.
    pub counters: Arc<Counters>,
    /// Knows whether the mount is up.
    pub notify: Arc<Notify>,
    /// As configured.
    pub mount: String,
    /// As configured.
    pub sources: Arc<Sources>,
    /// As configured.
    pub decision_command: Option<String>,
    /// Time that one decision may take.
    pub decision_time: Duration,
}

/// The listening socket; its name is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Binds at `path`, mode 0660, with the group of the directory. A socket that nobody serves is replaced.
    pub fn bind(path: &Path) -> Result<Self, ControlError> {
        let os = |e: io::Error| ControlError::Os(path.to_owned(), e);
        match std::fs::symlink_metadata(path) {
            Ok(m) if !m.file_type().is_socket() => return Err(ControlError::NotASocket(path.to_owned())),
            Ok(_) => match Link::<ControlRequest, ControlReply>::connect(path) {
                Err(LinkError::Os(nix::errno::Errno::ECONNREFUSED)) => {
                    std::fs::remove_file(path).map_err(os)?;
                }
                _ => return Err(ControlError::Served(path.to_owned())),
            },
            Err(_) => {}
        }
        let fd = link::listen(path).map_err(|e| os(io::Error::other(e.to_string())))?;
        let listener = Listener { fd, path: path.to_owned() };
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let group = std::fs::metadata(directory).map_err(os)?.gid();
        if std::fs::metadata(path).map_err(os)?.gid() != group
            && let Err(e) = std::os::unix::fs::chown(path, None, Some(group))
        {
            tracing::warn!(path = %path.display(), group, error = %e,
                "the control socket cannot get its directory's group; only SkillFS's user can use it");
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(os)?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

type Clients = Arc<Mutex<HashMap<u32, usize>>>;

/// A client's seat, given back when it is dropped.
struct Seat {
    clients: Clients,
    uid: u32,
}

impl Seat {
    fn take(clients: &Clients, uid: u32) -> Option<Self> {
        let mut seated = clients.lock().unwrap_or_else(PoisonError::into_inner);
        if seated.values().sum::<usize>() >= MAX_CLIENTS {
            return None;
        }
        let of_one = seated.entry(uid).or_default();
        if *of_one >= MAX_CLIENTS_OF_ONE {
            return None;
        }
        *of_one += 1;
        Some(Seat { clients: clients.clone(), uid })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seated = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = seated.get_mut(&self.uid) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                seated.remove(&self.uid);
            }
        }
    }
}

/// Accepts clients until `stop` is rung.
pub fn serve(control: &Arc<Control>, listener: &Listener, stop: &Bell) {
    let clients = Clients::default();
    let stopped = |limit| readable(stop.as_fd(), limit);
    while wait_any(&[listener.fd.as_fd(), stop.as_fd()], &[], None).is_ok() && !stopped(Duration::ZERO) {
        let Ok(fd) = link::accept(listener.fd.as_fd()) else {
            // Out of descriptors: what waits in the backlog would make this loop spin.
            stopped(PAUSE);
            continue;
        };
        let link = Link::<ControlReply, ControlRequest>::new(fd);
        let Ok(peer) = link.peer() else { continue };
        let Some(seat) = Seat::take(&clients, peer.uid) else { continue };
        let control = control.clone();
        let client = move || {
            control.client(&link);
            drop(seat);
        };
        if let Err(e) = std::thread::Builder::new().name("control".into()).spawn(client) {
            tracing::error!(error = %e, "no thread for a control client");
        }
    }
}

impl Control {
    fn client(&self, link: &Link<ControlReply, ControlRequest>) {
        if link.set_send_timeout(SEND_PATIENCE).is_err() {
            return;
        }
        loop {
            let reply = match link.receive(Wait::Block) {
                Ok((request, _)) => self.answer(request),
                Err(LinkError::Malformed | LinkError::Descriptors | LinkError::TooLong) => {
                    let _ = link.send(&ControlReply::Malformed, &[], Wait::Block);
                    return;
                }
                Err(_) => return,
            };
            if link.send(&reply, &[], Wait::Block).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: ControlRequest) -> ControlReply {
        // What had changed before the question is part of the answer.
        match &request {
            ControlRequest::Status { .. } | ControlRequest::Refresh { skill: None } => {
                self.watch.catch_up_all()
            }
            ControlRequest::Counters => {}
            ControlRequest::Explain { skill }
            | ControlRequest::Await { skill, .. }
            | ControlRequest::Refresh { skill: Some(skill) } => {
                self.watch.catch_up_roots();
                if let Some(id) = self.find(skill) {
                    self.watch.catch_up(id);
                }
            }
        }
        match request {
            ControlRequest::Status { after } => self.status(after.as_ref()),
            ControlRequest::Explain { skill } => {
                known(self.find(&skill).and_then(|id| self.mapping.state(id)).map(|s| self.with_source(s)))
            }
            ControlRequest::Await { skill, timeout_ms } => {
                let limit = Duration::from_millis(u64::from(timeout_ms.min(MAX_AWAIT_MS)));
                let id = self.find(&skill);
                known(id.and_then(|id| self.mapping.wait_decided(id, Instant::now() + limit)))
            }
            ControlRequest::Refresh { skill } => self.refresh(skill.as_ref()),
            ControlRequest::Counters => ControlReply::Counters(self.counters.read()),
        }
    }

    /// Adds who can change what its source is.
    fn with_source(&self, mut state: SkillState) -> SkillState {
        if let Some(why) = self.sources.shared_of(&state.skill) {
            let also = state.warning.map(|warning| format!("; {warning}")).unwrap_or_default();
            state.warning = Some(bounded(&format!("{why}{also}")));
        }
        state
    }

    fn find(&self, skill: &SkillName) -> Option<SkillId> {
        self.mapping.find(skill.as_str())
    }

    fn status(&self, after: Option<&SkillName>) -> ControlReply {
        let (skills, total, undecided, more) = self.mapping.page(after);
        let skills = skills.into_iter().map(|state| self.with_source(state)).collect();
        let mut status = Status {
            mount: bounded(&self.mount),
            sources: self
                .sources
                .paths()
                .iter()
                .take(16)
                .map(|p| bounded(&p.display().to_string()))
                .collect(),
            decision_command: self.decision_command.as_deref().map(bounded),
            mounted: self.notify.is_mounted(),
            total,
            undecided,
            skills,
            more,
        };
        // Long reasons may fill a packet before the page is full.
        loop {
            let reply = ControlReply::Status(status);
            if link::encode(&reply).is_ok() {
                return reply;
            }
            let ControlReply::Status(mut long) = reply else { return ControlReply::Malformed };
            if long.skills.pop().is_none() {
                return ControlReply::Malformed;
            }
            long.more = true;
            status = long;
        }
    }

    fn refresh(&self, skill: Option<&SkillName>) -> ControlReply {
        let ids = match skill {
            Some(name) => match self.find(name).filter(|id| self.mapping.state(*id).is_some()) {
                Some(id) => vec![id],
                None => return ControlReply::NoSuchSkill,
            },
            None => {
                self.watch.discover();
                self.mapping.ids().into_iter().filter(|id| self.mapping.state(*id).is_some()).collect()
            }
        };
        let runs: Vec<(SkillId, u64)> = ids.iter().map(|id| (*id, self.mapping.next_run(*id))).collect();
        match skill {
            Some(_) => ids.iter().for_each(|id| self.watch.release(*id)),
            None => ids.iter().for_each(|id| self.queue.now(*id)),
        }
        let each = self.decision_time.saturating_mul(4);
        let whole = each.saturating_mul(u32::try_from(ids.len()).unwrap_or(u32::MAX)).min(MAX_REFRESH);
        let deadline = Instant::now() + whole;
        let decided = runs.iter().filter(|(id, run)| self.mapping.wait_run(*id, *run, deadline)).count();
        ControlReply::Refreshed { decided: u32::try_from(decided).unwrap_or(u32::MAX) }
    }
}

fn known(state: Option<SkillState>) -> ControlReply {
    state.map_or(ControlReply::NoSuchSkill, ControlReply::Skill)
}

/// Decides everything again, without waiting for it (SIGHUP).
pub fn decide_all(watch: &Watch, mapping: &Mapping, queue: &Queue) {
    watch.discover();
    mapping.ids().into_iter().for_each(|id| queue.now(id));
}
