//! Opens things below a descriptor, and nowhere else: every component is looked up by the kernel with no symlink or magic
//! link followed, no `..` above the start and no other mount entered (`[9.6]`). It refuses to know what the things are for.
//! Everything in `certify` that touches a skill's folder comes through here, since that folder's owner may be an attacker
//! who renames and replaces entries while they are looked at.

pub use cyberos_proto::beneath::kind;

use cyberos_proto::beneath::{self, Stay};
use cyberos_proto::terminal::is_unfit;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::mode_t;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::{NixPath, dir::Dir};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

/// Opens `path` below `dir` with `flags` (close-on-exec and no-follow are added).
pub fn open<P: ?Sized + NixPath>(dir: impl AsFd, path: &P, flags: OFlag) -> Result<OwnedFd, Errno> {
    beneath::open(dir, path, flags | OFlag::O_NOFOLLOW, Stay::HERE)
}

/// Opens a directory below `dir` for listing.
pub fn open_dir<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<OwnedFd, Errno> {
    open(dir, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}

/// Opens what should be a regular file for reading. It never waits for a FIFO's writer nor takes a terminal; a thing that
/// is not a regular file is `EINVAL`.
pub fn open_file<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<(File, FileStat), Errno> {
    let fd = open(dir, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
    let stat = fstat(&fd)?;
    if kind(&stat) != SFlag::S_IFREG {
        return Err(Errno::EINVAL);
    }
    Ok((File::from(fd), stat))
}

/// Creates a file below `dir` for writing; it must not exist. Its mode is 0600 until the caller sets another.
pub fn create_file<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> Result<File, Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
    beneath::open_as(dir, path, flags, Mode::S_IRUSR | Mode::S_IWUSR, Stay::HERE).map(File::from)
}

/// Follows the symlink at `path` below `root` as a program in the tree would, and reports `EXDEV` where that leaves the
/// tree. A link that leads nowhere is the caller's to judge.
pub fn follow<P: ?Sized + NixPath>(root: impl AsFd, path: &P) -> Result<(), Errno> {
    beneath::open(root, path, OFlag::O_PATH, Stay::LINKS).map(drop)
}

/// The permission bits of `stat`, with set-id and sticky.
pub fn permissions(stat: &FileStat) -> mode_t {
    stat.st_mode & 0o7777
}

/// What a directory's list says an entry is; `None` where the file system does not tell.
pub type Hint = Option<nix::dir::Type>;

/// The entries of a directory without `.` and `..`, at most `max` of them (more is `E2BIG`), in the order of their names, so
/// that what is reported first does not depend on the file system.
pub fn list(dir: impl AsFd, max: usize) -> Result<Vec<(CString, Hint)>, Errno> {
    // A descriptor of its own: reading a directory moves the position that duplicates share.
    let mut dir = Dir::from_fd(open_dir(dir, ".")?)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() >= max {
            return Err(Errno::E2BIG);
        }
        names.push((name.to_owned(), entry.file_type()));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(names)
}

/// Reads a whole regular file of at most `max` bytes; a larger one is `EFBIG`.
pub fn read<P: ?Sized + NixPath>(dir: impl AsFd, path: &P, max: u64) -> Result<Vec<u8>, Errno> {
    let (file, _) = open_file(dir, path)?;
    read_open(file, max)
}

/// Reads what is left of an open file, at most `max` bytes; more is `EFBIG`.
pub fn read_open(file: impl Read, max: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| errno(&e))?;
    if bytes.len() as u64 > max { Err(Errno::EFBIG) } else { Ok(bytes) }
}

/// The errno inside an I/O error (`EIO` where there is none).
pub fn errno(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Whether the errno says that the thing is there but that this process cannot have it, as against a thing of the wrong
/// kind or none at all, which is what somebody who rearranges the folder leaves behind.
pub fn is_unreadable(e: Errno) -> bool {
    !matches!(
        e,
        Errno::ENOENT
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::ELOOP
            | Errno::EXDEV
            | Errno::EINVAL
            | Errno::ENXIO
            | Errno::EFBIG
            | Errno::E2BIG
            | Errno::ENAMETOOLONG
            | Errno::EAGAIN
    )
}

/// `bytes` as one line of at most `max` characters that is safe on a terminal and in a log: control and direction-changing
/// characters are escaped.
pub fn shown(bytes: &[u8], max: usize) -> String {
    let mut out = String::new();
    let mut room = max;
    for c in String::from_utf8_lossy(bytes).chars() {
        let escaped = (c.is_control() || is_unfit(c)).then(|| c.escape_default());
        let Some(left) = room.checked_sub(escaped.as_ref().map_or(1, |e| e.len())) else {
            out.push('…');
            break;
        };
        room = left;
        match escaped {
            Some(escaped) => out.extend(escaped),
            None => out.push(c),
        }
    }
    out
}

/// `word` as a shell takes it for one.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_holds_no_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\n", 99), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown("x\u{202e}y\u{85}".as_bytes(), 99), "x\\u{202e}y\\u{85}");
        assert_eq!(shown(b"\xff", 99), "\u{fffd}");
        assert_eq!(shown(b"abcdef", 3), "abc…");
        assert_eq!(shown(b"abc", 3), "abc");
        assert_eq!(shown(b"a\x1bbc", 4), "a…");
    }
}
