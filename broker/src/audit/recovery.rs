//! What a start finds (`[6.4]`): takes the lock, reads HEAD and the newest segments, cuts a torn tail if it lies above
//! HEAD, and refuses everything else that is not whole. It knows no kind of row: whoever opens the ledger sees the
//! frames pass by. Only [`super::ledger`] calls it.
//!
//! Older segments than the newest two are not read at a start (they may hold years); `cyberos audit verify` reads all.

use super::clock::Month;
use super::frame::{self, CURRENT, FILE_MODE, Frame, FrameFault, FrameReader, Next};
use super::row::{GENESIS, Row, RowFault};
use super::signs::Signs;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a start found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the store was made by this start.
    pub created: bool,
    /// The last seq that was known to be durable.
    pub head: u64,
    /// The last seq that is in the file.
    pub last_seq: u64,
    /// The torn tail that was cut.
    pub cut: Option<Cut>,
}

/// A torn tail: bytes above HEAD that were no frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// In which file.
    pub segment: PathBuf,
    /// From where on.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Why they were no frame.
    pub fault: FrameFault,
}

/// Why the ledger does not open.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The system refused something.
    #[error("the audit ledger cannot {doing} {}: {error}", path.display())]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// Another process writes it.
    #[error(
        "another process writes this audit ledger ({} is locked): only one broker can use a state directory",
        path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// Rows that were durable are gone.
    #[error(
        "the audit ledger has lost rows {from} to {to}: HEAD says that they were on the disk, but {} ends \
         or is damaged at byte {offset} ({fault}). Restore the file, or accept the loss as root: `cyberos \
         audit accept-loss --store {}`",
        segment.display(), store_of(segment)
    )]
    Missing {
        /// First missing seq.
        from: u64,
        /// Last missing seq.
        to: u64,
        /// Where they should be.
        segment: PathBuf,
        /// And at which byte.
        offset: u64,
        /// What is there instead.
        fault: String,
    },
    /// Bytes that no crash leaves.
    #[error(
        "the audit ledger is damaged at byte {offset} of {}, where row {seq} should be: {fault}. A crash \
         does not leave this: find out what did. `cyberos audit verify --store {store}` reads all of it; to \
         go on without what is behind, as root: `cyberos audit accept-loss --store {store}`",
        segment.display(), store = store_of(segment)
    )]
    Damaged {
        /// Which file.
        segment: PathBuf,
        /// Where.
        offset: u64,
        /// The seq that should be there.
        seq: u64,
        /// What is there.
        fault: String,
    },
    /// There are rows, but nobody knows how many there should be.
    #[error(
        "{} is missing or unreadable ({fault}) although the audit ledger has rows: without it a cut-off \
         tail cannot be noticed. Restore it, or accept the loss as root: `cyberos audit accept-loss --store \
         {}`",
        path.display(), path.parent().unwrap_or(path).display()
    )]
    HeadLost {
        /// HEAD's path.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// There is no row, though the state tells of some.
    #[error(
        "the audit ledger in {} is gone or empty, but there must have been one: {found}. Restore it, or \
         accept the loss as root: `cyberos audit accept-loss --store {}`",
        store.display(), store.display()
    )]
    Gone {
        /// STATE/store.
        store: PathBuf,
        /// What tells of it.
        found: String,
    },
}

/// STATE/store, of a file in its `audit`.
fn store_of(segment: &Path) -> std::path::Display<'_> {
    segment.ancestors().nth(2).unwrap_or(segment).display()
}

/// STATE, if `store` is the store of one.
pub(super) fn state_of(store: &Path) -> Option<&Path> {
    store.parent().filter(|_| store.file_name().is_some_and(|name| name == "store"))
}

/// Whether a broker writes it now.
pub(super) fn in_use(store: &Path) -> bool {
    let held = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    frame::open_regular(&store.join(".lock")).is_ok_and(held)
}

pub(super) fn io_error<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> LedgerError + 'a {
    move |error| LedgerError::Io { doing, path: path.to_owned(), error }
}

/// The end of the ledger, where the writer goes on.
#[derive(Debug)]
pub(super) struct End {
    /// Held as long as the ledger is open.
    pub(super) lock: File,
    /// The current segment.
    pub(super) file: File,
    /// Its size.
    pub(super) offset: u64,
    /// Seq of the last row, 0 without rows.
    pub(super) seq: u64,
    /// Its chain.
    pub(super) chain: [u8; 32],
    /// Its time.
    pub(super) ts_ns: u64,
    /// The month that the newest segment but the current one is named after.
    pub(super) named: Option<Month>,
}

/// Takes the lock and brings the store of `store` into a state that the writer can go on from. `see` is given every
/// frame of the newest two segments, in order.
pub(super) fn open(store: &Path, see: &mut dyn FnMut(&Frame)) -> Result<(End, Recovery), LedgerError> {
    gone(store)?;
    make_folders(store)?;
    let lock = lock(store)?;
    open_locked(store, lock, see)
}

/// The store's folder and that of the segments.
pub(super) fn make_folders(store: &Path) -> Result<(), LedgerError> {
    for dir in [store, &store.join("audit")] {
        match DirBuilder::new().mode(0o750).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io_error("make", dir)(e)),
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a store without rows where there must have been some: one that somebody removed, or emptied.
pub(super) fn gone(store: &Path) -> Result<(), LedgerError> {
    let Some(state) = state_of(store) else { return Ok(()) };
    let head = frame::read_head(store).ok().flatten();
    let filled = |path: &PathBuf| path.metadata().is_ok_and(|m| m.len() > 0);
    // A HEAD that promises rows, and rows without a HEAD, are refused by whoever reads them.
    if head.is_some_and(|seq| seq > 0) || frame::segments(store).is_ok_and(|all| all.iter().any(filled)) {
        return Ok(());
    }
    match Signs::of(state, None).of_a_lost_store(head.is_some()) {
        Some(found) => Err(LedgerError::Gone { store: store.to_owned(), found }),
        None => Ok(()),
    }
}

/// From the lock on.
pub(super) fn open_locked(
    store: &Path,
    lock: File,
    see: &mut dyn FnMut(&Frame),
) -> Result<(End, Recovery), LedgerError> {
    let audit = store.join("audit");
    let mut recovery = Recovery::default();
    recovery.head = head(store, &mut recovery.created)?;
    let current = audit.join(CURRENT);
    match frame::make_own(&current) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error("open", &current)(e)),
        _ => {}
    }
    let found = scan(store, &mut recovery, see)?;

    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let file = frame::open_own(&mut options, &current).map_err(io_error("open", &current))?;
    // What was read is durable by now; it goes into HEAD before anything follows it: from now on it can't be cut.
    file.sync_all().map_err(io_error("sync", &current))?;
    for dir in [&audit, store] {
        frame::sync_dir(dir).map_err(io_error("sync", dir))?;
    }
    frame::write_head(store, found.seq).map_err(io_error("replace", &store.join("HEAD")))?;
    frame::sync_dir(store).map_err(io_error("sync", store))?;
    recovery.last_seq = found.seq;
    let offset = file.metadata().map_err(io_error("read", &current))?.len();
    let months = segments(store)?;
    let named = months.iter().filter_map(|path| Month::parse(path.file_stem()?.to_str()?)).max();
    let Found { seq, chain, ts_ns } = found;
    Ok((End { lock, file, offset, seq, chain, ts_ns, named }, recovery))
}

pub(super) fn lock(store: &Path) -> Result<File, LedgerError> {
    let path = store.join(".lock");
    // Readable by the broker's user alone, unlike the rows: who can open it can lock it, and hold it for ever.
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = frame::open_own(&mut options, &path).map_err(io_error("open", &path))?;
    make_private(&file).map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LedgerError::Locked { path }),
        Err(TryLockError::Error(e)) => Err(io_error("lock", &path)(e)),
    }
}

/// Gives a lock mode 0600. A file that has a second name may be somebody's who would like that mode to be changed.
fn make_private(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.mode() & 0o7777 == 0o600 {
        return Ok(());
    }
    if meta.nlink() != 1 {
        let said =
            "it has a second name (a hard link), and is not mode 0600: remove it, a start makes it anew";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
    }
    file.set_permissions(PermissionsExt::from_mode(0o600))
}

/// HEAD; makes one of 0 in a store without rows, before the first row can be written.
fn head(store: &Path, created: &mut bool) -> Result<u64, LedgerError> {
    let path = store.join("HEAD");
    let lost = |fault: String| LedgerError::HeadLost { path: path.clone(), fault };
    match frame::read_head(store) {
        Ok(Some(seq)) => Ok(seq),
        Ok(None) => {
            for segment in segments(store)? {
                if segment.metadata().map_err(io_error("read", &segment))?.len() > 0 {
                    return Err(lost("no such file".into()));
                }
            }
            frame::write_head(store, 0).map_err(io_error("replace", &path))?;
            frame::sync_dir(store).map_err(io_error("sync", store))?;
            *created = true;
            Ok(0)
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(lost(e.to_string())),
        Err(e) => Err(io_error("read", &path)(e)),
    }
}

fn segments(store: &Path) -> Result<Vec<PathBuf>, LedgerError> {
    frame::segments(store).map_err(io_error("list", &store.join("audit")))
}

struct Found {
    seq: u64,
    chain: [u8; 32],
    ts_ns: u64,
}

fn scan(store: &Path, recovery: &mut Recovery, see: &mut dyn FnMut(&Frame)) -> Result<Found, LedgerError> {
    let mut filled = Vec::new();
    for segment in segments(store)? {
        let size = segment.metadata().map_err(io_error("read", &segment))?.len();
        if size > 0 {
            filled.push((segment, size));
        }
    }
    let older = filled.len().saturating_sub(2);
    let mut last: Option<(Frame, PathBuf, u64)> = None;
    let mut seq = 0;
    for (i, (segment, size)) in filled.iter().enumerate().skip(older) {
        let newest = i + 1 == filled.len();
        if newest {
            // It may be cut below.
            frame::make_own(segment).map_err(io_error("copy", segment))?;
        }
        let file = frame::open_own(File::options().read(true).write(newest), segment)
            .map_err(io_error("open", segment))?;
        let mut frames = FrameReader::new(file, 0).map_err(io_error("read", segment))?;
        loop {
            let offset = frames.offset();
            let damaged = |seq: u64, fault: String| {
                if recovery.head >= seq {
                    let to = recovery.head;
                    LedgerError::Missing { from: seq, to, segment: segment.clone(), offset, fault }
                } else {
                    LedgerError::Damaged { segment: segment.clone(), offset, seq, fault }
                }
            };
            match frames.next_frame().map_err(io_error("read", segment))? {
                Next::End => break,
                Next::Frame(frame) => {
                    // The first row that is read may follow older segments, which nobody has counted here.
                    let expected = if last.is_none() && older > 0 { frame.seq } else { seq + 1 };
                    if frame.seq != expected {
                        return Err(damaged(expected, format!("there is row {}", frame.seq)));
                    }
                    seq = frame.seq;
                    see(&frame);
                    last = Some((frame, segment.clone(), offset));
                }
                Next::Bad(fault) if newest && recovery.head <= seq => {
                    let cut = Cut { segment: segment.clone(), offset, bytes: size - offset, fault };
                    tracing::warn!(
                        segment = %segment.display(), offset, bytes = cut.bytes, after_row = seq, %fault,
                        "cut a torn tail of the audit ledger: rows above HEAD that had not reached the disk"
                    );
                    frame::open_own(File::options().write(true), segment)
                        .and_then(|f| f.set_len(offset))
                        .map_err(io_error("cut the torn tail of", segment))?;
                    recovery.cut = Some(cut);
                    break;
                }
                Next::Bad(fault) => return Err(damaged(seq + 1, fault.to_string())),
            }
        }
    }
    if let Some((newest, _)) = filled.last() {
        // HEAD is about to vouch for what was read here.
        File::open(newest).and_then(|f| f.sync_all()).map_err(io_error("sync", newest))?;
    }
    if seq < recovery.head {
        let segment = filled.pop().map_or_else(|| store.join("audit").join(CURRENT), |(segment, _)| segment);
        let offset = segment.metadata().map_or(0, |m| m.len());
        let fault = "the file ends".to_owned();
        return Err(LedgerError::Missing { from: seq + 1, to: recovery.head, segment, offset, fault });
    }
    let Some((frame, segment, offset)) = last else {
        return Ok(Found { seq: 0, chain: GENESIS, ts_ns: 0 });
    };
    // Whoever goes on from a row stands for its chain; the rows before it are for `verify`.
    Row::parse(&frame)
        .and_then(|row| row.chain_bytes().ok_or(RowFault::Chain))
        .map(|chain| Found { seq, chain, ts_ns: frame.ts_ns })
        .map_err(|fault| LedgerError::Damaged { segment, offset, seq, fault: fault.to_string() })
}
