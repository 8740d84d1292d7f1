//! One connection: reads frames, works on up to eight requests at once, and writes each answer when it is there
//! (`[3.3]`). One task does all of it, so nothing is shared and whatever a peer sends or withholds stays here.

use super::frame::{Answer, Ended, Frame, HEADER, Outbox, Reader};
use crate::dispatch::{Dispatch, Replied};
use crate::grants::Phase;
use crate::memory_budget::Held;
use crate::rpc::{self, Body, Encoded, Id, MAX_RESPONSE, Reply};
use cyberos_proto::ids::InvocationId;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Most requests in flight on one connection (`[3.3]`). A batch is one.
const MAX_IN_FLIGHT: usize = 8;
/// Bytes of answers that may wait for a peer before no more requests are read: enough for one that sends a thousand
/// requests before it reads.
const MAX_WAITING: usize = 1 << 20;
/// Bodies and results from this size on are worked on outside the async threads.
const LARGE: usize = 256 * 1024;
/// What a batch keeps free for the errors that are still to come: each is far below 64 KiB, and they are 64 at most.
const BATCH_RESERVE: usize = 4 << 20;

/// A request being worked on.
type Work = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;
/// A request that waits for room, and its place in that queue.
type Entering = (Vec<u8>, Pin<Box<dyn Future<Output = Held> + Send>>);

/// One connection of the skill.
pub(super) struct Connection {
    stream: UnixStream,
    peer: Peer,
    dispatch: Arc<Dispatch>,
    /// Whether more may be read.
    open: bool,
    reader: Reader,
    entering: Option<Entering>,
    /// Requests in flight.
    works: FuturesUnordered<Work>,
    outbox: Outbox,
    /// Turns true when the peer is not there any more.
    gone: watch::Sender<bool>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, dispatch: Arc<Dispatch>) -> Self {
        Connection {
            stream,
            peer: Peer::default(),
            dispatch,
            open: true,
            reader: Reader::new(),
            entering: None,
            works: FuturesUnordered::new(),
            outbox: Outbox::new(),
            gone: watch::Sender::new(false),
        }
    }

    /// Serves it to its end.
    pub(super) async fn serve(mut self) {
        let mut phase = self.dispatch.state().phase();
        loop {
            let closed = *phase.borrow_and_update() == Phase::Closed;
            if closed {
                self.open = false;
                self.entering = None;
                if self.outbox.waiting() > 0 {
                    // What is in flight may wait for the room that this takes.
                    self.lost();
                }
            }
            let gone = *self.gone.borrow();
            let unsent = self.outbox.waiting() > 0;
            if !self.open && self.entering.is_none() && self.works.is_empty() && !unsent {
                return;
            }
            let listening = self.open && self.entering.is_none();
            let idle = self.works.len() < MAX_IN_FLIGHT && self.outbox.waiting() < MAX_WAITING;
            if listening
                && idle
                && let Some(frame) = self.reader.take()
            {
                self.arrived(frame);
                continue;
            }
            // A frame that has begun is read to its end meanwhile, but not taken.
            let reading = listening && !self.reader.has_frame() && (idle || self.reader.amid());
            let due = self.outbox.due().filter(|_| unsent);
            tokio::select! {
                arrived = self.reader.arrival(&self.stream), if reading => match arrived {
                    Ok(()) => {}
                    Err(Ended::Finished) => self.open = false,
                    Err(Ended::Broken(why)) => {
                        tracing::debug!(invocation = %self.dispatch.id(), why, "a connection is closed");
                        self.lost();
                    }
                },
                held = entered(&mut self.entering), if self.entering.is_some() => {
                    if let Some((body, _)) = self.entering.take() {
                        self.begin(body, held);
                    }
                }
                Some(answer) = self.works.next(), if !self.works.is_empty() => self.answered(answer),
                drained = self.outbox.drain(&self.stream), if unsent => {
                    if drained.is_err() {
                        self.lost();
                    }
                }
                () = until(due) => {
                    tracing::debug!(invocation = %self.dispatch.id(), "a connection is closed: no answer was taken for 30 s");
                    self.lost();
                }
                () = self.peer.hung_up(&self.stream), if !reading && !gone => self.lost(),
                _ = phase.changed() => {}
            }
            // A peer that always has something more to say does not keep the thread.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn arrived(&mut self, frame: Frame) {
        match frame {
            Frame::Body(body) => {
                let weight = rpc::weight(&body);
                if weight > self.dispatch.budget.requests.bytes() {
                    let length = body.len();
                    drop(body);
                    return self.refused_unread(move |dispatch| dispatch.too_heavy(length, weight));
                }
                match self.dispatch.budget.requests.try_take(weight) {
                    Some(held) => self.begin(body, held),
                    None => {
                        let room = self.dispatch.budget.requests.clone();
                        self.entering = Some((body, Box::pin(async move { room.take(weight).await })));
                    }
                }
            }
            Frame::TooLarge => self.refused_unread(Dispatch::too_large),
            Frame::Foreign(framing) => {
                self.open = false;
                let dispatch = self.dispatch.clone();
                self.works.push(Box::pin(async move {
                    let reply = dispatch.not_frames(framing.words());
                    let (mut frame, held) =
                        single(Replied { id: Id::Null, reply, held: Held::default() }, dispatch.id());
                    // Whoever reads lines is to have one.
                    frame.push(b'\n');
                    Some(settled(&dispatch, (frame, held)).await)
                }));
            }
        }
    }

    /// Answers a request that nobody has read.
    fn refused_unread(&mut self, why: impl FnOnce(&Dispatch) -> String) {
        let (dispatch, why) = (self.dispatch.clone(), why(&self.dispatch));
        self.works.push(Box::pin(async move {
            let reply = dispatch.unread(why).await;
            let replied = Replied { id: Id::Null, reply, held: Held::default() };
            Some(settled(&dispatch, single(replied, dispatch.id())).await)
        }));
    }

    fn begin(&mut self, body: Vec<u8>, held: Held) {
        let (dispatch, gone) = (self.dispatch.clone(), self.gone.subscribe());
        self.works.push(Box::pin(async move {
            let answer = work(&dispatch, body, &gone).await;
            drop(held);
            answer
        }));
    }

    fn answered(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        if *self.gone.borrow() {
            return;
        }
        self.outbox.push(answer);
        if self.outbox.flush(&self.stream).is_err() {
            self.lost();
        }
    }

    /// Nobody reads answers any more: what is in flight is cut, and nothing new is read.
    fn lost(&mut self) {
        self.open = false;
        self.entering = None;
        self.outbox.clear();
        self.gone.send_replace(true);
    }
}

/// Waits for the room of a request that has to.
async fn entered(entering: &mut Option<Entering>) -> Held {
    match entering {
        Some((_, room)) => room.await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Sees the peer close its end altogether, which is more than having said all it had to say, while nothing is read.
#[derive(Default)]
struct Peer(Option<AsyncFd<OwnedFd>>);

impl Peer {
    /// Waits for that; for ever where it cannot be seen.
    async fn hung_up(&mut self, stream: &UnixStream) {
        if self.0.is_none() {
            let copy = stream.as_fd().try_clone_to_owned();
            // Nothing is urgent on such a socket: what comes is the hang-up, which is always told. Deprecated because a
            // type could change its descriptor while it is registered; this one does not, and the replacement would need
            // unsafe code.
            #[expect(deprecated)]
            let watched = copy.ok().and_then(|copy| AsyncFd::with_interest(copy, Interest::PRIORITY).ok());
            self.0 = watched;
        }
        let Some(peer) = &self.0 else { return std::future::pending().await };
        while let Ok(mut ready) = peer.ready(Interest::PRIORITY).await {
            if hung_up(stream) {
                return;
            }
            ready.clear_ready();
        }
        std::future::pending().await
    }
}

/// Whether the peer has closed its end altogether.
fn hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().is_some_and(|r| r.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)),
        Err(_) => false,
    }
}

/// From the body of a frame to the frame that answers it; None if nothing in it wants an answer.
async fn work(dispatch: &Dispatch, body: Vec<u8>, gone: &watch::Receiver<bool>) -> Option<Answer> {
    let parsed = if body.len() < LARGE {
        rpc::parse(&body)
    } else {
        tokio::task::spawn_blocking(move || rpc::parse(&body)).await.ok()?
    };
    let items = match parsed {
        Body::One(item) => {
            let replied = dispatch.answer(item, gone).await?;
            let invocation = dispatch.id();
            let made = if replied.held.bytes() < LARGE {
                single(replied, invocation)
            } else {
                tokio::task::spawn_blocking(move || single(replied, invocation)).await.ok()?
            };
            return Some(settled(dispatch, made).await);
        }
        Body::Batch(items) => items,
    };
    let held = dispatch.budget.batch.take(MAX_RESPONSE).await;
    let mut frame = vec![0; HEADER];
    for item in items {
        let Some(replied) = dispatch.answer(item, gone).await else { continue };
        frame.push(if frame.len() == HEADER { b'[' } else { b',' });
        // Results leave room for what is still to come; errors are what they leave it for.
        let reserve = if matches!(replied.reply, Reply::Result(_)) { BATCH_RESERVE } else { 0 };
        let room = MAX_RESPONSE.saturating_sub(reserve + frame.len());
        note(rpc::encode(&mut frame, &replied.id, replied.reply, room), dispatch.id());
    }
    if frame.len() == HEADER {
        return None;
    }
    frame.push(b']');
    Some(settled(dispatch, (frame, held)).await)
}

/// A response, and the room that was taken for it before its length was known.
fn single(replied: Replied, invocation: InvocationId) -> (Vec<u8>, Held) {
    let Replied { id, reply, held } = replied;
    let mut frame = vec![0; HEADER];
    note(rpc::encode(&mut frame, &id, reply, MAX_RESPONSE), invocation);
    (frame, held)
}

/// Writes the header, and takes or keeps just the room that the answer needs: none goes out that no room counts.
async fn settled(dispatch: &Dispatch, (mut frame, held): (Vec<u8>, Held)) -> Answer {
    let length = u32::try_from(frame.len() - HEADER).unwrap_or(u32::MAX);
    frame[..HEADER].copy_from_slice(&length.to_be_bytes());
    frame.shrink_to_fit();
    let held = dispatch.budget.settle(held, frame.len()).await;
    Answer { frame, _held: held }
}

/// The one place of metric skill_broker_response_truncated_total.
fn note(encoded: Encoded, invocation: InvocationId) {
    if encoded != Encoded::Whole {
        tracing::warn!(%invocation, ?encoded, "a response over 16 MiB was cut");
    }
}
