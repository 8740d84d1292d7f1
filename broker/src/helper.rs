//! Client of the root helper: one async method a request. A task owns the link, keeps the order of requests and
//! answers, brings each sandbox its events, and connects again when the link is lost; what ran over a lost link has been
//! ended by the helper. Called by `sandbox`. It decides nothing and never looks into a plan.

use cyberos_proto::ids::{InvocationId, SandboxId};
use cyberos_proto::link::{Link, LinkError, Wait};
use cyberos_proto::message::{Event, FromHelper, Message, Refusal, Reply, Request, Signal};
use cyberos_proto::plan::SpawnPlan;
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long a request may go unanswered before the link counts as dead. The helper answers each at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The packaged ceiling's uids of sandboxes, all instances' (`[10.3]`).
const PACKAGED_UIDS: RangeInclusive<u32> = 1_900_000_000..=1_900_065_535;
/// How long a request waits for a link to come back.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Why the helper did not do it.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It refused, and left nothing behind.
    #[error("{0}")]
    Refused(Refusal),
    /// It is not there, or went away.
    #[error("the helper at {path} is not reachable: {why} (is cyberos-priv-helper.socket active?)")]
    Gone { path: PathBuf, why: String },
}

/// What the helper tells of one sandbox, with its descriptors. When it ends, the link was lost, and the sandbox with it.
pub type Events = mpsc::UnboundedReceiver<(Event, Vec<OwnedFd>)>;

type Answer = Result<(Reply, Vec<OwnedFd>), HelperError>;
type Tell = mpsc::UnboundedSender<(Event, Vec<OwnedFd>)>;

struct Asked {
    request: Request,
    descriptors: Vec<OwnedFd>,
    events: Option<(SandboxId, Tell)>,
    answer: oneshot::Sender<Answer>,
}

/// Handle to the task that owns the link. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Helper {
    path: PathBuf,
    ask: mpsc::Sender<Asked>,
    uids: Arc<Mutex<Vec<RangeInclusive<u32>>>>,
}

impl Helper {
    /// Starts the task; it connects to the socket at `path` at the first request.
    pub fn new(path: &Path) -> Self {
        Helper::with(path, None)
    }

    /// The same over a link that is there already, made of the socket at `path`.
    pub fn over(path: &Path, link: Link<Request, FromHelper>) -> Self {
        Helper::with(path, Some(link))
    }

    fn with(path: &Path, link: Option<Link<Request, FromHelper>>) -> Self {
        let (ask, asked) = mpsc::channel(64);
        let uids = Arc::new(Mutex::new(vec![PACKAGED_UIDS]));
        let owner = Owner {
            path: path.to_owned(),
            link,
            asked,
            waiting: VecDeque::new(),
            sandboxes: HashMap::new(),
            uids: Arc::clone(&uids),
        };
        tokio::spawn(owner.run());
        Helper { path: path.to_owned(), ask, uids }
    }

    /// Whether a sandbox may have this uid: one of the packaged range, or of a ceiling that the helper has told of. It
    /// tells when a link is made, so before there is any sandbox.
    pub fn leases(&self, uid: u32) -> bool {
        self.uids.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|range| range.contains(&uid))
    }

    async fn ask(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        events: Option<(SandboxId, Tell)>,
    ) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.ask.send(Asked { request, descriptors, events, answer }).await.map_err(|_| self.lost())?;
        match answered.await.map_err(|_| self.lost())?? {
            (Reply::Refused(refusal), _) => Err(HelperError::Refused(refusal)),
            answer => Ok(answer),
        }
    }

    fn unexpected(&self, reply: &Reply) -> HelperError {
        HelperError::Gone { path: self.path.clone(), why: format!("unexpected answer {reply:?}") }
    }

    /// Makes the link, which tells which uids sandboxes have here.
    pub async fn reach(&self) -> Result<(), HelperError> {
        self.ask(Request::Describe, vec![], None).await.map(drop)
    }

    /// Leases a uid to a sandbox and makes the invocation's socket: the uid, and the listening descriptor.
    pub async fn create_socket(
        &self,
        sandbox: SandboxId,
        invocation: InvocationId,
    ) -> Result<(u32, OwnedFd), HelperError> {
        match self.ask(Request::CreateSocket { sandbox, invocation }, vec![], None).await? {
            (Reply::SocketCreated { uid }, mut fds) if fds.len() == 1 => Ok((uid, fds.remove(0))),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Begins to build a sandbox of a plan; `descriptors` are its binds', in order. How it goes on, the events tell.
    pub async fn prepare(
        &self,
        sandbox: SandboxId,
        plan: SpawnPlan,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Events, HelperError> {
        let (tell, events) = mpsc::unbounded_channel();
        let request = Request::Prepare { sandbox, plan: Box::new(plan) };
        self.ask(request, descriptors, Some((sandbox, tell))).await.map(|_| events)
    }

    /// Has the program of a sandbox executed that was prepared. Whether it was, the events tell.
    pub async fn go(&self, sandbox: SandboxId) -> Result<(), HelperError> {
        self.ask(Request::Go { sandbox }, vec![], None).await.map(drop)
    }

    /// Signals the program, or ends the sandbox.
    pub async fn signal(&self, sandbox: SandboxId, signal: Signal) -> Result<(), HelperError> {
        self.ask(Request::Signal { sandbox, signal }, vec![], None).await.map(drop)
    }

    /// Ends what still runs, removes the socket, gives the lease back.
    pub async fn release(&self, sandbox: SandboxId) -> Result<(), HelperError> {
        self.ask(Request::Release { sandbox }, vec![], None).await.map(drop)
    }

    /// The error of a sandbox whose link was lost.
    pub(crate) fn lost(&self) -> HelperError {
        HelperError::Gone { path: self.path.clone(), why: "the link was lost".into() }
    }

    pub(crate) fn strange(&self, event: &Event) -> HelperError {
        HelperError::Gone { path: self.path.clone(), why: format!("unexpected event {event:?}") }
    }
}

struct Owner {
    path: PathBuf,
    /// One that is there already, for the first round.
    link: Option<Link<Request, FromHelper>>,
    asked: mpsc::Receiver<Asked>,
    waiting: VecDeque<(oneshot::Sender<Answer>, Instant)>,
    sandboxes: HashMap<SandboxId, Tell>,
    uids: Arc<Mutex<Vec<RangeInclusive<u32>>>>,
}

type HelperLink = AsyncFd<Link<Request, FromHelper>>;

impl Owner {
    async fn run(mut self) {
        // One round a link. Without a question there is no need for one.
        while let Some(first) = self.asked.recv().await {
            let link = match self.connect().await {
                Ok(link) => link,
                Err(why) => {
                    let _ = first.answer.send(Err(self.gone(&why)));
                    continue;
                }
            };
            let why = self.serve(&link, first).await;
            if let Some(why) = why {
                tracing::warn!(path = %self.path.display(), why, "the link to the helper was lost; what ran over it has ended");
                for (answer, _) in std::mem::take(&mut self.waiting) {
                    let _ = answer.send(Err(self.gone(&why)));
                }
                self.sandboxes.clear();
            }
        }
    }

    fn gone(&self, why: &str) -> HelperError {
        HelperError::Gone { path: self.path.clone(), why: why.to_owned() }
    }

    async fn connect(&mut self) -> Result<HelperLink, String> {
        if let Some(link) = self.link.take() {
            return watched(link);
        }
        let until = Instant::now() + CONNECT_LIMIT;
        loop {
            let tried = Link::connect(&self.path).map_err(|e| e.to_string()).and_then(
                |link: Link<Request, FromHelper>| {
                    let peer = link.peer().map_err(|e| e.to_string())?;
                    if peer.uid != 0 {
                        return Err(format!("the socket is served by uid {}, not by root", peer.uid));
                    }
                    watched(link)
                },
            );
            match tried {
                Ok(link) => return Ok(link),
                Err(why) if Instant::now() >= until => return Err(why),
                Err(_) => tokio::time::sleep(CONNECT_PAUSE).await,
            }
        }
    }

    /// Serves one link until it is lost (why) or nobody asks any more (none).
    async fn serve(&mut self, link: &HelperLink, first: Asked) -> Option<String> {
        // Answers come in order, so the uids are known before the first of them is leased.
        let (answer, _nobody_waits) = oneshot::channel();
        let describe = Asked { request: Request::Describe, descriptors: Vec::new(), events: None, answer };
        for asked in [describe, first] {
            if let Err(why) = self.send(link, asked).await {
                return Some(why);
            }
        }
        loop {
            let limit = self.waiting.front().map(|(_, since)| *since + ANSWER_LIMIT);
            let limit_over = async {
                match limit {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                got = receive(link) => match got {
                    Ok((FromHelper::Event(event), descriptors)) => self.tell(event, descriptors),
                    Ok((FromHelper::Reply(reply), descriptors)) => {
                        self.note(&reply);
                        match self.waiting.pop_front() {
                            Some((answer, _)) => drop(answer.send(Ok((reply, descriptors)))),
                            None => return Some("an answer to nothing".into()),
                        }
                    }
                    Err(e) => return Some(e.to_string()),
                },
                asked = self.asked.recv() => match asked {
                    Some(asked) => if let Err(why) = self.send(link, asked).await { return Some(why) },
                    None => return None,
                },
                () = limit_over => return Some(format!("no answer within {} s", ANSWER_LIMIT.as_secs())),
            }
        }
    }

    /// Tells whoever waits for news of a sandbox. Nobody may: it has been let go of.
    fn tell(&mut self, event: Event, descriptors: Vec<OwnedFd>) {
        let told = match &event {
            Event::Prepared { sandbox, .. } | Event::Started { sandbox } => {
                self.sandboxes.get(sandbox).cloned()
            }
            Event::Failed { sandbox, .. } | Event::Exited { sandbox, .. } => self.sandboxes.remove(sandbox),
        };
        if let Some(told) = told {
            let _ = told.send((event, descriptors));
        }
    }

    /// Notes which uids sandboxes have, for [`Helper::leases`].
    fn note(&self, reply: &Reply) {
        if let Reply::Described { uids: (first, last) } = *reply {
            let mut known = self.uids.lock().unwrap_or_else(PoisonError::into_inner);
            if !known.contains(&(first..=last)) {
                known.push(first..=last);
            }
        }
    }

    async fn send(&mut self, link: &HelperLink, asked: Asked) -> Result<(), String> {
        let Asked { request, descriptors, events, answer } = asked;
        if descriptors.len() != request.descriptors() {
            let _ = answer.send(Err(self.gone("a plan with another number of descriptors than binds")));
            return Ok(());
        }
        let borrowed: Vec<_> = descriptors.iter().map(|d| d.as_fd()).collect();
        let sent = link
            .async_io(Interest::WRITABLE, |l| l.send(&request, &borrowed, Wait::No).map_err(into_io))
            .await;
        match sent {
            Ok(()) => {
                if let Some((sandbox, tell)) = events {
                    // Of those that were refused or let go of, nobody will tell any more.
                    self.sandboxes.retain(|_, tell| !tell.is_closed());
                    self.sandboxes.insert(sandbox, tell);
                }
                self.waiting.push_back((answer, Instant::now()));
                Ok(())
            }
            Err(e) => {
                let too_long = e
                    .get_ref()
                    .and_then(|e| e.downcast_ref::<LinkError>())
                    .is_some_and(|e| matches!(e, LinkError::TooLong));
                let why = e.to_string();
                let _ = answer.send(Err(self.gone(&why)));
                if too_long { Ok(()) } else { Err(why) }
            }
        }
    }
}

fn watched(link: Link<Request, FromHelper>) -> Result<HelperLink, String> {
    // Deprecated because a type could change its descriptor while it is registered; a Link owns one descriptor for life,
    // and the replacement would need unsafe code.
    #[expect(deprecated)]
    AsyncFd::new(link).map_err(|e| e.to_string())
}

async fn receive(link: &HelperLink) -> Result<(FromHelper, Vec<OwnedFd>), std::io::Error> {
    link.async_io(Interest::READABLE, |l| l.receive(Wait::No).map_err(into_io)).await
}

fn into_io(e: LinkError) -> std::io::Error {
    match e {
        LinkError::WouldBlock => std::io::ErrorKind::WouldBlock.into(),
        e => std::io::Error::other(e),
    }
}
