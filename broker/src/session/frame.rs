//! Frames on one connection (`[3.1]`): bytes in, bodies out, and answers queued until the peer takes them. It knows no
//! JSON. What a peer declares costs nothing; only bytes that have arrived take memory.

use super::foreign::{Beginning, Framing, beginning};
use crate::memory_budget::Held;
use crate::rpc::MAX_REQUEST;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

/// A frame that has begun must be complete after this time; so must the peer take some of an answer that waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes taken from the socket at once.
const CHUNK: usize = 64 * 1024;
/// The same, while little is there.
const SMALL_CHUNK: usize = 8 * 1024;
/// Most answers given to the socket at once.
const GATHER: usize = 16;
/// Length of the header.
pub(super) const HEADER: usize = 4;

/// What arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The body of a request.
    Body(Vec<u8>),
    /// A request of more than [`MAX_REQUEST`] bytes went by unread.
    TooLarge,
    /// It is no frame: the peer speaks something else, and nothing that follows can be read.
    Foreign(Framing),
}

/// Why nothing more will arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer has said all it had to say, at the end of a frame. It may still listen.
    Finished,
    /// The stream makes no sense from here on; there is nobody to answer.
    Broken(&'static str),
}

/// Takes frames off a stream, one at a time: behind a whole one that nobody has taken nothing more is read. Every method
/// can be dropped half-way without losing a byte.
pub(super) struct Reader {
    inbox: Vec<u8>,
    /// The frame that is there.
    whole: Option<Frame>,
    /// Bytes of an oversized body that are still to go by.
    skip: usize,
    begun: Option<Instant>,
    /// Nothing has shown yet that the peer sends frames.
    first: bool,
}

impl Reader {
    pub(super) fn new() -> Self {
        Reader { inbox: Vec::new(), whole: None, skip: 0, begun: None, first: true }
    }

    /// Whether a frame has begun that is not whole: its 30 s run, so it has to be read on.
    pub(super) fn amid(&self) -> bool {
        self.whole.is_none() && self.begun.is_some()
    }

    /// Whether a whole frame is here.
    pub(super) fn has_frame(&self) -> bool {
        self.whole.is_some()
    }

    /// The frame that [`Reader::arrival`] has waited for.
    pub(super) fn take(&mut self) -> Option<Frame> {
        self.whole.take()
    }

    /// Waits until a whole frame is here.
    pub(super) async fn arrival(&mut self, stream: &UnixStream) -> Result<(), Ended> {
        loop {
            if self.gather()? {
                return Ok(());
            }
            let ready = match self.begun {
                None => stream.readable().await,
                Some(at) => match timeout_at(at + PATIENCE, stream.readable()).await {
                    Ok(ready) => ready,
                    Err(_) => return Err(Ended::Broken("a frame was not complete within 30 s")),
                },
            };
            if ready.is_err() {
                return Err(Ended::Broken("the socket failed"));
            }
            self.fill(stream)?;
        }
    }

    fn fill(&mut self, stream: &UnixStream) -> Result<(), Ended> {
        let had = self.inbox.len();
        // Most requests are small, and a chunk is zeroed before it is filled.
        let chunk = if had < CHUNK { SMALL_CHUNK } else { CHUNK };
        self.inbox.resize(had + chunk, 0);
        let got = stream.try_read(&mut self.inbox[had..]);
        self.inbox.truncate(had + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) if self.skip > 0 || !self.inbox.is_empty() => Err(Ended::Broken("closed inside a frame")),
            Ok(0) => Err(Ended::Finished),
            Ok(_) => Ok(()),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            Err(_) => Err(Ended::Broken("the socket failed")),
        }
    }

    /// Makes a frame of what is here; whether there is one.
    fn gather(&mut self) -> Result<bool, Ended> {
        if self.whole.is_some() {
            return Ok(true);
        }
        if self.first {
            match beginning(&self.inbox) {
                Beginning::Other(framing) => {
                    self.begun = None;
                    self.inbox = Vec::new();
                    self.whole = Some(Frame::Foreign(framing));
                    return Ok(true);
                }
                Beginning::Undecided => {
                    self.begun.get_or_insert_with(Instant::now);
                    return Ok(false);
                }
                Beginning::Frames => self.first = self.inbox.len() < HEADER,
            }
        }
        if self.skip > 0 {
            let by = self.skip.min(self.inbox.len());
            self.inbox.drain(..by);
            self.skip -= by;
            if self.skip == 0 {
                self.begun = None;
                self.whole = Some(Frame::TooLarge);
                return Ok(true);
            }
        } else if let Some((header, rest)) = self.inbox.split_first_chunk::<HEADER>() {
            let length = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
            if length == 0 {
                return Err(Ended::Broken("a frame of length 0"));
            }
            if length > MAX_REQUEST {
                self.skip = length;
                self.inbox.drain(..HEADER);
                self.begun.get_or_insert_with(Instant::now);
                return self.gather();
            }
            if rest.len() >= length {
                let body = rest[..length].to_vec();
                self.inbox.drain(..HEADER + length);
                self.inbox.shrink_to(2 * CHUNK);
                self.begun = None;
                self.whole = Some(Frame::Body(body));
                return Ok(true);
            }
        }
        if self.skip > 0 || !self.inbox.is_empty() {
            self.begun.get_or_insert_with(Instant::now);
        }
        Ok(false)
    }
}

/// One framed answer, with the room that it takes up until it is gone.
pub(super) struct Answer {
    /// Header and body.
    pub(super) frame: Vec<u8>,
    /// Given back when the last byte is on its way.
    pub(super) _held: Held,
}

/// Answers on their way.
pub(super) struct Outbox {
    queue: VecDeque<Answer>,
    /// Bytes of the first that are already gone.
    gone: usize,
    /// Bytes of all that are not.
    waiting: usize,
    /// When the peer last took something, while something waits.
    moved: Instant,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Outbox { queue: VecDeque::new(), gone: 0, waiting: 0, moved: Instant::now() }
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// When the peer must have taken something.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.waiting > 0).then(|| self.moved + PATIENCE)
    }

    pub(super) fn push(&mut self, answer: Answer) {
        if self.waiting == 0 {
            self.moved = Instant::now();
        }
        self.waiting += answer.frame.len();
        self.queue.push_back(answer);
    }

    /// Waits until the peer takes something, then hands over what it takes.
    pub(super) async fn drain(&mut self, stream: &UnixStream) -> io::Result<()> {
        stream.writable().await?;
        self.flush(stream)
    }

    /// Hands over what the peer takes now.
    pub(super) fn flush(&mut self, stream: &UnixStream) -> io::Result<()> {
        while self.waiting > 0 {
            let mut slices = [IoSlice::new(&[]); GATHER];
            let mut used = 0;
            for (slice, answer) in slices.iter_mut().zip(&self.queue) {
                let from = if used == 0 { self.gone } else { 0 };
                *slice = IoSlice::new(&answer.frame[from..]);
                used += 1;
            }
            match stream.try_write_vectored(&slices[..used]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.went(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Gives up what waits, and the room it takes.
    pub(super) fn clear(&mut self) {
        *self = Outbox::new();
    }

    fn went(&mut self, bytes: usize) {
        self.moved = Instant::now();
        self.waiting = self.waiting.saturating_sub(bytes);
        self.gone += bytes;
        while let Some(first) = self.queue.front() {
            if self.gone < first.frame.len() {
                return;
            }
            self.gone -= first.frame.len();
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(body: &[u8]) -> Vec<u8> {
        let mut out = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(body);
        out
    }

    /// Feeds `bytes` in pieces of the given sizes.
    fn frames(bytes: &[u8], pieces: &[usize]) -> (Vec<Frame>, Option<Ended>, Reader) {
        let mut reader = Reader::new();
        let mut out = Vec::new();
        let mut rest = bytes;
        let mut sizes = pieces.iter().copied().cycle();
        while !rest.is_empty() {
            let n = sizes.next().unwrap_or(1).clamp(1, rest.len());
            reader.inbox.extend_from_slice(&rest[..n]);
            rest = &rest[n..];
            loop {
                match reader.gather() {
                    Ok(true) => out.extend(reader.take()),
                    Ok(false) => break,
                    Err(ended) => return (out, Some(ended), reader),
                }
            }
        }
        (out, None, reader)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn frames_are_the_same_however_their_bytes_arrive(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..8),
            pieces in prop::collection::vec(1usize..400, 1..6),
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|b| framed(b)).collect();
            let (got, ended, reader) = frames(&bytes, &pieces);
            prop_assert_eq!(got, bodies.into_iter().map(Frame::Body).collect::<Vec<_>>());
            prop_assert!(ended.is_none() && !reader.amid() && !reader.has_frame());
        }
    }

    #[test]
    fn an_oversized_body_goes_by_without_being_stored() {
        let mut bytes = framed(&vec![b'x'; MAX_REQUEST + 1]);
        bytes.extend(framed(b"next"));
        let (got, ended, reader) = frames(&bytes, &[50_000]);
        assert_eq!(got, [Frame::TooLarge, Frame::Body(b"next".to_vec())]);
        assert_eq!(ended, None);
        assert!(reader.inbox.capacity() <= 4 * CHUNK, "{}", reader.inbox.capacity());
        let (got, ..) = frames(&framed(&vec![b'x'; MAX_REQUEST]), &[50_000]);
        assert!(matches!(&got[..], [Frame::Body(b)] if b.len() == MAX_REQUEST));
    }

    #[test]
    fn behind_a_frame_that_nobody_has_taken_no_other_is_looked_at() {
        let mut reader = Reader::new();
        reader.inbox = [framed(b"one"), framed(b"two"), vec![0, 0]].concat();
        assert!(reader.gather().unwrap() && reader.gather().unwrap());
        assert!(!reader.amid(), "what follows has not begun before it is looked at");
        assert_eq!(reader.take(), Some(Frame::Body(b"one".to_vec())));
        assert!(!reader.has_frame() && !reader.amid());
        assert!(reader.gather().unwrap());
        assert_eq!(reader.take(), Some(Frame::Body(b"two".to_vec())));
        assert!(!reader.gather().unwrap() && reader.amid());
    }

    #[test]
    fn a_declared_length_takes_no_memory_but_starts_the_clock() {
        for declared in [1u32 << 20, u32::MAX] {
            let mut bytes = declared.to_be_bytes().to_vec();
            bytes.push(b'{');
            let (got, ended, reader) = frames(&bytes, &[1]);
            assert!(got.is_empty() && ended.is_none());
            assert!(reader.inbox.capacity() < 64);
            assert!(reader.amid() && reader.begun.is_some());
        }
        assert_eq!(frames(&[0, 0, 0, 0], &[4]).1, Some(Ended::Broken("a frame of length 0")));
    }
}
