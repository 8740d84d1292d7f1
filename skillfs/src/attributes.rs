//! What `stat` is told of an entry: the source's numbers, with what is the view's own. `lookup.rs` calls it.

use crate::exposure;
use crate::inode::ROOT;
use fuser::{FileAttr, FileType, INodeNo};
use nix::sys::stat::FileStat;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Of an entry with that id; `owner` if all belongs to one.
pub(crate) fn of(id: u64, kind: FileType, st: &FileStat, owner: Option<(u32, u32)>) -> FileAttr {
    let (uid, gid) = owner.unwrap_or((st.st_uid, st.st_gid));
    let time = |s: i64, ns: i64| {
        let nanos = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
        match u64::try_from(s) {
            Ok(s) => UNIX_EPOCH + Duration::from_secs(s) + nanos,
            Err(_) => UNIX_EPOCH - Duration::from_secs(s.unsigned_abs()) + nanos,
        }
    };
    FileAttr {
        ino: INodeNo(id),
        size: u64::try_from(st.st_size).unwrap_or(0),
        blocks: u64::try_from(st.st_blocks).unwrap_or(0),
        atime: time(st.st_atime, st.st_atime_nsec),
        mtime: time(st.st_mtime, st.st_mtime_nsec),
        ctime: time(st.st_ctime, st.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind,
        perm: exposure::permissions(kind, st.st_mode),
        nlink: u32::try_from(st.st_nlink).unwrap_or(u32::MAX),
        uid,
        gid,
        rdev: 0,
        blksize: u32::try_from(st.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

/// Of the mount's root, whose names `changed` last.
pub(crate) fn root(changed: SystemTime, owner: Option<(u32, u32)>) -> FileAttr {
    let own = || (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let (uid, gid) = owner.unwrap_or_else(own);
    FileAttr { atime: changed, mtime: changed, ctime: changed, crtime: changed, uid, gid, ..directory(ROOT) }
}

/// Of a directory of which nothing is told but its number and type.
pub(crate) fn directory(id: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
