//! The bytes of the ledger (`[6.3]`): frames, segments, and HEAD. It knows no row: a payload is bytes here. Writer,
//! recovery and reader stand on it.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes before a payload: u32 length, u32 CRC-32C of the payload, u64 seq, u64 ts_ns, all big-endian.
pub const HEADER: usize = 24;
/// Longest payload that is written or believed. Ours are far shorter; another writer's need not be, but whoever reads a
/// stranger's ledger pays many times the length of a row of small values.
pub const MAX_PAYLOAD: u32 = 1 << 20;
/// The segment that is written.
pub const CURRENT: &str = "current.binlog";
/// Beside HEAD: what it changes places with.
const SPARE_HEAD: &str = ".HEAD.spare";
/// A file of the store that only takes up room, and is removed when HEAD can't be written for want of it.
pub(super) const RESERVE: &str = ".reserve";
/// Mode of every file of the store: the broker writes, its group may read (`[6.3]`, `[0.5]`).
pub const FILE_MODE: u32 = 0o640;

/// One frame, whose CRC was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Position in the ledger, from 1.
    pub seq: u64,
    /// Its time.
    pub ts_ns: u64,
    /// Canonical JSON, as far as this module cares.
    pub payload: Vec<u8>,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// The file ends inside it.
    #[error("the file ends inside a frame")]
    Short,
    /// A length of zero or beyond [`MAX_PAYLOAD`].
    #[error("a frame claims an impossible length of {0} bytes")]
    Length(u32),
    /// Some byte has changed.
    #[error("the CRC-32C of a frame does not match its payload")]
    Crc,
}

/// What stands at the reader's place.
#[derive(Debug)]
pub enum Next {
    /// A whole frame; the reader stands behind it.
    Frame(Frame),
    /// The end of the file, on a frame's border.
    End,
    /// No frame; the reader stands where it would have begun.
    Bad(FrameFault),
}

/// The frame around `payload`. The caller keeps it under [`MAX_PAYLOAD`].
pub fn encode(seq: u64, ts_ns: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(HEADER + payload.len());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&crc32c::crc32c(payload).to_be_bytes());
    out.extend_from_slice(&seq.to_be_bytes());
    out.extend_from_slice(&ts_ns.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Reads the frames of one segment in order. Memory grows with the bytes that are there, not with a claimed length.
#[derive(Debug)]
pub struct FrameReader<F> {
    file: BufReader<F>,
    offset: u64,
}

impl<F: Read + Seek> FrameReader<F> {
    /// From `offset` of `file` on.
    pub fn new(mut file: F, offset: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(offset))?;
        Ok(FrameReader { file: BufReader::with_capacity(1 << 18, file), offset })
    }

    /// Where the next frame begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What comes next. After [`Next::End`] or [`Next::Bad`] a later call looks again: a writer may have gone on.
    pub fn next_frame(&mut self) -> io::Result<Next> {
        let next = self.read_frame()?;
        match &next {
            Next::Frame(frame) => self.offset += (HEADER + frame.payload.len()) as u64,
            Next::End | Next::Bad(_) => {
                self.file.seek(SeekFrom::Start(self.offset))?;
            }
        }
        Ok(next)
    }

    fn read_frame(&mut self) -> io::Result<Next> {
        let mut header = [0u8; HEADER];
        match read_full(&mut self.file, &mut header)? {
            0 => return Ok(Next::End),
            HEADER => {}
            _ => return Ok(Next::Bad(FrameFault::Short)),
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3, rest @ ..] = header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let crc = u32::from_be_bytes([c0, c1, c2, c3]);
        if length == 0 || length > MAX_PAYLOAD {
            return Ok(Next::Bad(FrameFault::Length(length)));
        }
        let mut payload = Vec::new();
        self.file.by_ref().take(u64::from(length)).read_to_end(&mut payload)?;
        if payload.len() as u64 != u64::from(length) {
            return Ok(Next::Bad(FrameFault::Short));
        }
        if crc32c::crc32c(&payload) != crc {
            return Ok(Next::Bad(FrameFault::Crc));
        }
        let (seq, ts) = rest.split_at(8);
        let number = |b: &[u8]| b.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        Ok(Next::Frame(Frame { seq: number(seq), ts_ns: number(ts), payload }))
    }
}

fn read_full(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match from.read(&mut to[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The segments of `STATE/store`, oldest first: months by name, then the current one.
pub fn segments(store: &Path) -> io::Result<Vec<PathBuf>> {
    let audit = store.join("audit");
    let mut months = Vec::new();
    let mut current = None;
    for entry in fs::read_dir(&audit)? {
        let name = entry?.file_name();
        if name == CURRENT {
            current = Some(audit.join(name));
        } else if name.to_str().is_some_and(is_month) {
            months.push(audit.join(name));
        }
    }
    months.sort();
    months.extend(current);
    Ok(months)
}

fn is_month(name: &str) -> bool {
    name.strip_suffix(".binlog").is_some_and(|month| {
        month.len() == 7
            && month.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() })
    })
}

/// Opens a file of a ledger for reading, be it a stranger's: nothing but a regular file, which neither a symlink nor a
/// FIFO is, and without waiting for anybody. What is none is [`io::ErrorKind::InvalidData`].
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let what =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{} is {what}", path.display()));
    match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(what("not a regular file")),
        Err(e) if e.raw_os_error() == Some(Errno::ELOOP as i32) => {
            Err(what("a symlink, and not a regular file"))
        }
        Err(e) if e.raw_os_error() == Some(Errno::ENXIO as i32) => Err(what("not a regular file")),
        Err(e) => Err(e),
    }
}

/// Opens a file of the own ledger for writing, as `options` say: nothing but a regular file, and through no link. A link
/// there is somebody's who wants another file written.
pub(super) fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let what = |what: &str| {
        let said =
            format!("it is {what}, and no file of the ledger: look at who put it there, then remove it");
        io::Error::new(io::ErrorKind::InvalidInput, said)
    };
    match options.custom_flags(flags.bits()).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(what("not a regular file")),
        Err(e) if e.raw_os_error() == Some(Errno::ELOOP as i32) => Err(what("a symlink")),
        Err(e) => Err(e),
    }
}

/// Gives `segment` a file of its own if that has another name too: what is written into it must not go into somebody's
/// copy of it, nor into a file that somebody would like to be written.
pub(super) fn make_own(segment: &Path) -> io::Result<()> {
    let mut file = open_regular(segment)?;
    if file.metadata()?.nlink() == 1 {
        return Ok(());
    }
    let own = segment.with_file_name(".own.binlog");
    let mut to = create_anew(&own)?;
    io::copy(&mut file, &mut to)?;
    to.sync_all()?;
    fs::rename(&own, segment)
}

/// Makes a new file in place of what is left of an earlier try. Only the name is removed, whatever it leads to.
pub(super) fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    File::options().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// The last durable seq as `STATE/store/HEAD` has it; None if there is no such file.
pub fn read_head(store: &Path) -> io::Result<Option<u64>> {
    let file = match open_regular(&store.join("HEAD")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(9).read_to_end(&mut bytes)?;
    match <[u8; 8]>::try_from(bytes.as_slice()) {
        Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes))),
        Err(_) => {
            let length = if bytes.len() > 8 { "more than 8".to_owned() } else { bytes.len().to_string() };
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("HEAD has {length} bytes instead of 8")))
        }
    }
}

/// Replaces HEAD. The new file is on the disk before it gets the name, so that a crash leaves the old or the new one.
///
/// The two files change places, and what was HEAD is written over the next time: that takes no block and no inode, and
/// so works on a full disk. Where a file system can't exchange names, the reserve is given back for the new file.
pub fn write_head(store: &Path, seq: u64) -> io::Result<()> {
    match exchange_head(store, seq) {
        Err(e) if full(&e) && fs::remove_file(store.join(RESERVE)).is_ok() => exchange_head(store, seq),
        done => done,
    }
}

fn exchange_head(store: &Path, seq: u64) -> io::Result<()> {
    let (head, spare) = (store.join("HEAD"), store.join(SPARE_HEAD));
    write_spare(&spare, seq)?;
    match renameat2(AT_FDCWD, &spare, AT_FDCWD, &head, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => return Ok(()),
        // Without a HEAD there is nothing to exchange; the rest are words for "not here".
        Err(Errno::ENOENT | Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {}
        Err(e) => return Err(e.into()),
    }
    fs::rename(&spare, &head)?;
    // For the next time, which may find the disk full; that it is missing then is found then.
    let _ = write_spare(&spare, seq);
    Ok(())
}

/// Writes over what is there: a file that is cut first would have to find its block anew.
fn write_spare(spare: &Path, seq: u64) -> io::Result<()> {
    let mut file = open_own(File::options().write(true).create(true).truncate(false).mode(FILE_MODE), spare)?;
    if file.metadata()?.nlink() != 1 {
        // Its other name is a copy that somebody keeps, or a file that somebody would like to be written.
        file = create_anew(spare)?;
    }
    file.write_all_at(&seq.to_le_bytes(), 0)?;
    if file.metadata()?.len() != 8 {
        file.set_len(8)?;
    }
    file.sync_data()
}

/// Whether an error says that there is no room.
pub(super) fn full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes names of `dir` durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
