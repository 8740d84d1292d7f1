//! Client of SkillFS's control socket: one async method a request. Each question has a connection of its own, so
//! that an `await` of one skill holds up nobody else. It judges nothing.

use cyberos_proto::control::{ControlReply, ControlRequest, MAX_AWAIT_MS, SkillState, Status};
use cyberos_proto::ids::SkillName;
use cyberos_proto::link::{Link, LinkError, Wait};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How much longer than the await itself an answer may take.
const SLACK: Duration = Duration::from_secs(5);
/// Answers of `refresh` wait for the provider: 30 s for scan and resolve, several skills after each other.
const REFRESH_LIMIT: Duration = Duration::from_secs(120);

/// Most questions at a time of either kind, so that a burst of runs waits and none is turned away. SkillFS serves 256 of
/// one user, and closes what is beyond; a place there becomes free a little after its link is closed.
const PLACES: usize = 100;

/// Why SkillFS gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SkillfsError {
    /// Not there, or it went away.
    #[error("SkillFS at {path} does not answer: {why} (is cyberos-skillfs.service running?)")]
    Gone { path: PathBuf, why: String },
    /// It has no such skill.
    #[error("there is no skill '{0}' in the source")]
    NoSuchSkill(SkillName),
}

/// Where SkillFS listens.
#[derive(Clone, Debug)]
pub struct SkillfsClient {
    path: PathBuf,
    /// Places for questions that may wait for a decision, and for those that are answered at once.
    waiting: Arc<Semaphore>,
    quick: Arc<Semaphore>,
}

impl SkillfsClient {
    /// Names the control socket; nothing is connected yet.
    pub fn new(path: &Path) -> Self {
        let places = || Arc::new(Semaphore::new(PLACES));
        SkillfsClient { path: path.to_owned(), waiting: places(), quick: places() }
    }

    async fn ask(&self, request: ControlRequest, limit: Duration) -> Result<ControlReply, SkillfsError> {
        let path = self.path.clone();
        let places =
            if matches!(request, ControlRequest::Await { .. }) { &self.waiting } else { &self.quick };
        let place = Arc::clone(places).acquire_owned().await;
        let asked = tokio::task::spawn_blocking(move || -> Result<ControlReply, LinkError> {
            let link: Link<ControlRequest, ControlReply> = Link::connect(&path)?;
            link.set_send_timeout(SLACK)?;
            link.set_receive_timeout(limit)?;
            link.send(&request, &[], Wait::Block)?;
            let answer = link.receive(Wait::Block)?.0;
            drop((link, place));
            Ok(answer)
        });
        let gone = |why: String| SkillfsError::Gone { path: self.path.clone(), why };
        match asked.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(LinkError::WouldBlock)) => Err(gone(format!("no answer within {} s", limit.as_secs()))),
            Ok(Err(e)) => Err(gone(e.to_string())),
            Err(e) => Err(gone(e.to_string())),
        }
    }

    async fn skill(
        &self,
        name: &SkillName,
        request: ControlRequest,
        limit: Duration,
    ) -> Result<SkillState, SkillfsError> {
        match self.ask(request, limit).await? {
            ControlReply::Skill(state) if state.skill == *name => Ok(state),
            ControlReply::NoSuchSkill => Err(SkillfsError::NoSuchSkill(name.clone())),
            other => Err(SkillfsError::Gone {
                path: self.path.clone(),
                why: format!("unexpected answer {other:?}"),
            }),
        }
    }

    /// The verdict, waiting at most `timeout` for one that is pending.
    pub async fn await_verdict(
        &self,
        skill: &SkillName,
        timeout: Duration,
    ) -> Result<SkillState, SkillfsError> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).min(MAX_AWAIT_MS);
        let limit = Duration::from_millis(timeout_ms.into()) + SLACK;
        self.skill(skill, ControlRequest::Await { skill: skill.clone(), timeout_ms }, limit).await
    }

    /// All that SkillFS knows of one skill.
    pub async fn explain(&self, skill: &SkillName) -> Result<SkillState, SkillfsError> {
        self.skill(skill, ControlRequest::Explain { skill: skill.clone() }, SLACK).await
    }

    /// Lets the provider decide again: how many skills were decided.
    pub async fn refresh(&self, skill: Option<&SkillName>) -> Result<u32, SkillfsError> {
        match self.ask(ControlRequest::Refresh { skill: skill.cloned() }, REFRESH_LIMIT).await? {
            ControlReply::Refreshed { decided } => Ok(decided),
            ControlReply::NoSuchSkill => match skill {
                Some(name) => Err(SkillfsError::NoSuchSkill(name.clone())),
                None => Ok(0),
            },
            other => Err(SkillfsError::Gone {
                path: self.path.clone(),
                why: format!("unexpected answer {other:?}"),
            }),
        }
    }

    /// What SkillFS does, with all its skills (the pages put together).
    pub async fn status(&self) -> Result<Status, SkillfsError> {
        let mut whole: Option<Status> = None;
        let mut after = None;
        loop {
            let page = match self.ask(ControlRequest::Status { after }, SLACK).await? {
                ControlReply::Status(page) => page,
                other => {
                    return Err(SkillfsError::Gone {
                        path: self.path.clone(),
                        why: format!("unexpected answer {other:?}"),
                    });
                }
            };
            let more = page.more;
            after = page.skills.last().map(|s| s.skill.clone());
            let stuck = after.is_none();
            match &mut whole {
                None => whole = Some(page),
                Some(w) => {
                    w.skills.extend(page.skills);
                    w.more = page.more;
                }
            }
            if !more || stuck {
                return whole.ok_or_else(|| SkillfsError::Gone {
                    path: self.path.clone(),
                    why: "an empty answer".into(),
                });
            }
        }
    }
}
