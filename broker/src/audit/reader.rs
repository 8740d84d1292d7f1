//! The one reader of the ledger: walks the frames of all segments in order and believes nothing (`[6.5]`). `verify`,
//! `show`, `tail`, `replay` and `why` all stand on it. It never writes, takes no lock, and works while a broker writes.
//!
//! What lies above HEAD at the very end may be a frame that is being written, or one that a crash tore; that is no fault,
//! and it is said. Everything else that is not exactly as the format says is one, and ends the walk: behind a broken
//! place nothing is worth more than the place.

use super::drops::RowsDropped;
use super::frame::{self, FrameFault, FrameReader, Next};
use super::ledger::Known;
use super::report::{ClockStep, Pairs, Report};
use super::row::{GENESIS, Row};
use super::signs::Signs;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A store, as it was when it was opened: rows that come later may be seen or not.
#[derive(Debug)]
pub struct Reader {
    /// What HEAD says, or why it says nothing.
    head: Result<u64, String>,
    /// Open files keep what they are through a rotation.
    segments: VecDeque<(PathBuf, File)>,
    /// Where rows should be if there is no segment.
    current: PathBuf,
}

/// Where the ledger is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("row {seq}, at byte {offset} of {}: {what}", segment.display())]
pub struct Fault {
    /// Seq of the first row that is wrong or missing.
    pub seq: u64,
    /// The file.
    pub segment: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong, for people.
    pub what: String,
}

/// Why a walk ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The ledger is broken.
    #[error("the audit ledger is broken: {0}")]
    Broken(Fault),
    /// The system refused to read.
    #[error("the audit ledger cannot be read: {0}")]
    Io(io::Error),
}

// By hand: as a `source` it would be printed a second time by whoever prints the chain.
impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        ReadError::Io(error)
    }
}

/// Bytes above HEAD at the end that are no whole frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// The file.
    pub segment: PathBuf,
    /// Where in it.
    pub offset: u64,
}

impl Reader {
    /// Opens the store of `store` (STATE/store) for reading.
    pub fn open(store: &Path) -> io::Result<Reader> {
        // A rotation renames files: what was listed must still be all there is once everything is open.
        for _ in 0..16 {
            // HEAD before the segments: it may only be behind them.
            let head = match frame::read_head(store) {
                Ok(Some(seq)) => Ok(seq),
                Ok(None) => Err("HEAD is missing".to_owned()),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(e.to_string()),
                Err(e) => return Err(e),
            };
            let audit = store.join("audit");
            let list = || {
                frame::segments(store)
                    .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", audit.display())))
            };
            let names = list()?;
            let opened: io::Result<VecDeque<_>> =
                names.iter().map(|name| Ok((name.clone(), frame::open_regular(name)?))).collect();
            let segments = match opened {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if list()? == names {
                return Ok(Reader { head, segments, current: audit.join(frame::CURRENT) });
            }
        }
        Err(io::Error::other(format!("the segments of {} change all the time", store.display())))
    }

    /// All rows, each checked, in order.
    pub fn rows(self) -> Rows {
        self.rows_from(1, 0)
    }

    /// The rows from `seq` and `ts_ns` on. The frames before are walked, but not looked into.
    pub fn rows_from(self, seq: u64, ts_ns: u64) -> Rows {
        Rows {
            head: self.head,
            segments: self.segments,
            current: self.current,
            place: None,
            from: (seq, ts_ns),
            last: Last { seq: 0, chain: Some(GENESIS) },
            unfinished: None,
            done: false,
        }
    }

    /// Checks everything: frames, seqs, chain, HEAD, and that nothing is completed that had not started.
    /// Checkpoints (`[6.6]`) will be compared here.
    pub fn verify(self) -> io::Result<Report> {
        self.verify_against(None, Signs::default())
    }

    /// [`Reader::verify`], and whether the row is there that a running broker wrote last, and those that `signs` tell of.
    pub fn verify_against(self, known: Option<Known>, mut signs: Signs) -> io::Result<Report> {
        let no_head = self.head.as_ref().err().cloned();
        let mut report = Report { head: *self.head.as_ref().unwrap_or(&0), ..Report::default() };
        let mut pairs = Pairs::default();
        let mut rows = self.rows();
        loop {
            match rows.next() {
                None => break,
                Some(Err(ReadError::Io(e))) => return Err(e),
                Some(Err(ReadError::Broken(fault))) => {
                    report.broken = Some(fault);
                    break;
                }
                Some(Ok(row)) => {
                    if let Some(what) = pairs.see(&row) {
                        let (segment, offset) = rows.place_of_last();
                        report.broken = Some(Fault { seq: row.seq, segment, offset, what });
                        break;
                    }
                    if let Some(known) = known.filter(|known| known.seq == row.seq)
                        && row.chain_bytes() != Some(known.chain)
                    {
                        let (segment, offset) = rows.place_of_last();
                        let what = "it is another row than the one that the running broker wrote".to_owned();
                        report.broken = Some(Fault { seq: row.seq, segment, offset, what });
                        break;
                    }
                    signs.see(&row);
                    report
                        .clock_steps
                        .extend(ClockStep::of(&row, (report.rows > 0).then_some(report.last_ts_ns)));
                    report.dropped.extend(RowsDropped::of(&row));
                    report.rows += 1;
                    report.last_ts_ns = row.ts_ns;
                    report.chain = row.chain;
                }
            }
        }
        if report.broken.is_none() {
            let missing = match known {
                Some(known) if known.seq > report.rows => Some(format!(
                    "the running broker has written rows up to {}; from here on they are gone",
                    known.seq
                )),
                _ => signs.unexplained().map(|found| format!("rows are missing at the end: {found}")),
            };
            // A store that was never opened has no HEAD either; whoever verifies it takes it for one that was.
            let missing = missing.or(no_head.filter(|_| report.rows == 0));
            report.broken = missing.map(|what| rows.fault_at_end(what));
        }
        report.unfinished = rows.unfinished;
        report.open_calls = pairs.calls.into_values().collect();
        report.open_calls.sort_unstable_by_key(|open| open.seq);
        report.open_invocations = pairs.runs.into_values().collect();
        report.open_invocations.sort_unstable_by_key(|open| open.seq);
        Ok(report)
    }
}

#[derive(Debug)]
struct Last {
    seq: u64,
    /// None when the row before was not looked into.
    chain: Option<[u8; 32]>,
}

/// The rows of a [`Reader`]. Ends after the last row, or with the first fault.
#[derive(Debug)]
pub struct Rows {
    head: Result<u64, String>,
    segments: VecDeque<(PathBuf, File)>,
    current: PathBuf,
    place: Option<Place>,
    from: (u64, u64),
    last: Last,
    unfinished: Option<Unfinished>,
    done: bool,
}

#[derive(Debug)]
struct Place {
    segment: PathBuf,
    frames: FrameReader<File>,
    /// Where the frame began that was read last.
    began: u64,
}

impl Rows {
    /// What stands above HEAD at the end and is no whole frame, once the walk has come there.
    pub fn unfinished(&self) -> Option<&Unfinished> {
        self.unfinished.as_ref()
    }

    /// A fault behind the last row, once the walk has come there.
    pub(super) fn fault_at_end(&self, what: String) -> Fault {
        let (segment, offset) = self.place_of_last();
        Fault { seq: self.last.seq + 1, segment, offset, what }
    }

    fn place_of_last(&self) -> (PathBuf, u64) {
        self.place.as_ref().map_or_else(|| (self.current.clone(), 0), |p| (p.segment.clone(), p.began))
    }

    fn broken(&self, seq: u64, what: String) -> ReadError {
        let (segment, offset) = self.place_of_last();
        ReadError::Broken(Fault { seq, segment, offset, what })
    }

    /// The next frame of any segment; None at the end.
    fn advance(&mut self) -> Result<Option<frame::Frame>, ReadError> {
        loop {
            let Some(place) = &mut self.place else {
                let Some((segment, file)) = self.segments.pop_front() else { return Ok(None) };
                self.place = Some(Place { segment, frames: FrameReader::new(file, 0)?, began: 0 });
                continue;
            };
            place.began = place.frames.offset();
            match place.frames.next_frame()? {
                Next::Frame(frame) => return Ok(Some(frame)),
                Next::End if self.segments.is_empty() => return Ok(None),
                Next::End => self.place = None,
                Next::Bad(fault) => return self.bad(fault).map(|()| None),
            }
        }
    }

    /// Bytes that are no frame: above HEAD at the very end they are unfinished, elsewhere broken.
    fn bad(&mut self, fault: FrameFault) -> Result<(), ReadError> {
        let next = self.last.seq + 1;
        let mut later = false;
        for (_, file) in &self.segments {
            later |= file.metadata()?.len() > 0;
        }
        if later || self.head.as_ref().map_or(true, |head| *head >= next) {
            return Err(self.broken(next, fault.to_string()));
        }
        let (segment, offset) = self.place_of_last();
        self.unfinished = Some(Unfinished { segment, offset });
        Ok(())
    }

    fn check(&mut self) -> Result<Option<Row>, ReadError> {
        loop {
            let next = self.last.seq + 1;
            let Some(frame) = self.advance()? else {
                return match &self.head {
                    Ok(head) if *head > self.last.seq => {
                        let why = if self.place.is_some() { "" } else { "there is no such file: " };
                        Err(self.broken(
                            next,
                            format!("{why}rows {next} to {head} are missing (HEAD says {head})"),
                        ))
                    }
                    Err(fault) if self.last.seq > 0 => {
                        Err(self.broken(next, format!("{fault}, so nobody knows whether rows are missing")))
                    }
                    _ => Ok(None),
                };
            };
            if frame.seq != next {
                return Err(self.broken(next, format!("row {} stands where row {next} should", frame.seq)));
            }
            self.last.seq = frame.seq;
            if frame.seq < self.from.0 || frame.ts_ns < self.from.1 {
                self.last.chain = None;
                continue;
            }
            let row = Row::parse(&frame).map_err(|fault| self.broken(next, fault.to_string()))?;
            let follows = self.last.chain.is_none_or(|chain| super::canonical::hex(&chain) == row.prev_chain);
            if !follows {
                return Err(
                    self.broken(next, "it does not follow the row before it: the chain is cut".into())
                );
            }
            self.last.chain = row.chain_bytes();
            return Ok(Some(row));
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Row, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.check().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}
