//! Serves one invocation on its socket (`[2.2]`, `[3.1]`–`[3.3]`): who may connect, how many, and when that ends. It
//! knows no method and no rule; a run makes one with [`serve`], and `dispatch` answers what it reads.
//!
//! ```text
//! session.rs     accepts, counts connections, deadline and end
//! connection.rs  one connection: reads, works on up to eight requests, writes
//! frame.rs       bytes ↔ frames
//! foreign.rs     what is no frame, by how it begins
//! ```

mod connection;
mod foreign;
mod frame;

pub use crate::dispatch::Serving;
pub use crate::grants::Totals;

use crate::dispatch::Dispatch;
use crate::grants::Phase;
use connection::Connection;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Most connections of one invocation (`[3.3]`).
pub const MAX_CONNECTIONS: usize = 16;
/// How long calls are served after SIGTERM (`[2.4]`).
pub const GRACE: Duration = Duration::from_secs(10);
/// How long accepting rests when the broker is out of descriptors or memory.
const REST: Duration = Duration::from_millis(100);

/// One invocation being served. Dropped, it ends as with [`Session::close`], without waiting.
#[derive(Debug)]
pub struct Session {
    dispatch: Arc<Dispatch>,
    connected: watch::Receiver<bool>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    grace: Mutex<Option<AbortHandle>>,
}

/// Begins to serve on `listener`, a listening Unix stream socket; `uid` is the only peer that may connect. To be called
/// within a tokio runtime.
pub fn serve(listener: OwnedFd, uid: u32, serving: Serving) -> io::Result<Session> {
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let dispatch = Arc::new(Dispatch::new(serving));
    let (connects, connected) = watch::channel(false);
    let accepting = tokio::spawn(accept(listener, uid, dispatch.clone(), connects));
    Ok(Session { dispatch, connected, accepting: Mutex::new(Some(accepting)), grace: Mutex::default() })
}

impl Session {
    /// Waits for the first connection of the right peer; for ever if none comes.
    pub fn first_connection(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut connected = self.connected.clone();
        async move {
            if connected.wait_for(|yes| *yes).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// SIGTERM has been sent: calls are served for [`GRACE`] more, then refused with `deadline_exceeded`, and those in
    /// flight are cut with outcome `timeout`.
    pub fn enter_grace(&self) {
        self.dispatch.state().enter_grace();
        let mut grace = self.grace.lock().unwrap_or_else(PoisonError::into_inner);
        if grace.is_none() {
            let dispatch = self.dispatch.clone();
            let task = tokio::spawn(async move {
                tokio::time::sleep(GRACE).await;
                dispatch.state().enter(Phase::Refusing);
            });
            *grace = Some(task.abort_handle());
        }
    }

    /// The run has ended: nothing more is accepted or read, calls in flight are cut, and every call that started has its
    /// completed row when this returns. The last numbers.
    pub async fn close(&self) -> Totals {
        self.end();
        let accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(accepting) = accepting
            && let Err(e) = accepting.await
        {
            tracing::error!(error = %e, "serving an invocation ended in a panic");
        }
        self.totals()
    }

    /// Calls and refused ones so far.
    pub fn totals(&self) -> Totals {
        self.dispatch.state().totals()
    }

    /// Number and tool of the last call that was asked for.
    pub fn last_tool_call(&self) -> Option<(u64, String)> {
        self.dispatch.state().last_call()
    }

    fn end(&self) {
        self.dispatch.state().enter(Phase::Closed);
        if let Some(grace) = self.grace.lock().unwrap_or_else(PoisonError::into_inner).take() {
            grace.abort();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

async fn accept(listener: UnixListener, uid: u32, dispatch: Arc<Dispatch>, connected: watch::Sender<bool>) {
    let mut phase = dispatch.state().phase();
    let mut connections = JoinSet::new();
    let mut turned_away = TurnedAway::default();
    loop {
        tokio::select! {
            biased;
            () = closed(&mut phase) => break,
            Some(ended) = connections.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if !is_peer(&stream, uid) {
                        turned_away.note(&dispatch, "its peer is not the skill");
                    } else if connections.len() >= MAX_CONNECTIONS {
                        turned_away.note(&dispatch, "there are 16 already");
                    } else {
                        connected.send_replace(true);
                        connections.spawn(Connection::new(stream, dispatch.clone()).serve());
                    }
                }
                Err(e) => {
                    tracing::warn!(invocation = %dispatch.id(), error = %e, "cannot accept a connection");
                    tokio::time::sleep(REST).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

async fn closed(phase: &mut watch::Receiver<Phase>) {
    // An error says that the dispatcher is gone, which is as closed as it gets.
    let _ = phase.wait_for(|p| *p == Phase::Closed).await;
}

fn is_peer(stream: &UnixStream, uid: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == uid)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        tracing::error!(error = %e, "a connection ended in a panic");
    }
}

/// Connections that were closed at once. Whoever makes them must not be able to fill the log: every doubling is said.
#[derive(Default)]
struct TurnedAway(u64);

impl TurnedAway {
    fn note(&mut self, dispatch: &Dispatch, why: &str) {
        self.0 += 1;
        if self.0.is_power_of_two() {
            tracing::warn!(invocation = %dispatch.id(), so_far = self.0, why, "a connection was turned away");
        }
    }
}
