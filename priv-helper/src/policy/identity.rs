//! Who a file is, as the kernel says without asking the server of its file system; what is decided by that alone.

use nix::libc::{S_IFCHR, S_IFMT, S_IFSOCK};

/// Device and inode.
pub(crate) type Key = (u32, u32, u64);

/// What statx tells of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Type and permissions.
    pub(crate) mode: u32,
    /// Its owner.
    pub(crate) uid: u32,
    /// The number of the mount that it was found on.
    pub(crate) mount: u64,
    /// Device and inode.
    pub(crate) key: Key,
    /// What a device node stands for: major and minor number.
    pub(crate) device: (u32, u32),
    /// When it changed last, in seconds and nanoseconds.
    pub(crate) changed: (i64, u32),
    /// Whether it may only grow, or not change at all, whatever its mode says.
    pub(crate) kept: bool,
}

impl Identity {
    /// Whether it is of that type: one of `S_IF…`.
    pub(crate) fn is(&self, kind: u32) -> bool {
        self.mode & S_IFMT == kind
    }

    /// Its inode number.
    pub(crate) fn inode(&self) -> u64 {
        self.key.2
    }

    /// Its permissions, with the set-id bits and the sticky bit.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether anybody but root can write it.
    pub(crate) fn is_open(&self) -> bool {
        self.uid != 0 || self.mode & 0o022 != 0
    }

    /// Whether only who owns a file in this directory, or the directory, can remove it: it must be root's.
    pub(crate) fn is_sticky(&self) -> bool {
        self.uid == 0 && self.mode & 0o1000 != 0
    }

    /// Whether it is the socket of that inode and owner.
    pub(crate) fn is_socket(&self, inode: u64, uid: u32) -> bool {
        self.is(S_IFSOCK) && (self.inode(), self.uid) == (inode, uid)
    }

    /// Whether it is the character device with that major and minor number.
    pub(crate) fn is_device(&self, number: (u32, u32)) -> bool {
        self.is(S_IFCHR) && self.device == number
    }

    /// Whether both are one object on one mount.
    pub(crate) fn same(&self, other: &Identity) -> bool {
        (self.mount, self.key, self.mode) == (other.mount, other.key, other.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Identity = Identity {
        mode: 0o041_777,
        uid: 0,
        mount: 7,
        key: (8, 1, 99),
        device: (0, 0),
        changed: (5, 6),
        kept: false,
    };

    #[test]
    fn type_owner_and_mode_are_told_apart() {
        let with = |mode, uid| Identity { mode, uid, ..DIRECTORY };
        assert!(DIRECTORY.is(nix::libc::S_IFDIR) && !DIRECTORY.is(nix::libc::S_IFREG));
        for (mode, uid, open, sticky) in [
            (0o041_777, 0, true, true),
            (0o041_777, 5, true, false),
            (0o040_777, 0, true, false),
            (0o100_644, 0, false, false),
            (0o100_644, 5, true, false),
            (0o100_664, 0, true, false),
            (0o100_646, 0, true, false),
        ] {
            let it = with(mode, uid);
            assert_eq!((it.is_open(), it.is_sticky()), (open, sticky), "{mode:o} {uid}");
        }
        let socket = with(0o140_600, 5);
        assert!(socket.is_socket(99, 5) && !socket.is_socket(98, 5) && !socket.is_socket(99, 0));
        assert!(!with(0o100_600, 5).is_socket(99, 5));
        let null = Identity { device: (1, 3), ..with(0o020_666, 0) };
        assert!(null.is_device((1, 3)) && !null.is_device((1, 5)));
        assert!(!Identity { device: (8, 3), ..null }.is_device((1, 3)));
        assert!(!Identity { mode: 0o060_666, ..null }.is_device((1, 3)));
    }

    #[test]
    fn the_same_object_is_so_on_one_mount_alone_and_however_it_changes() {
        let later = Identity { changed: (6, 0), ..DIRECTORY };
        assert!(DIRECTORY.same(&later));
        for other in [
            Identity { mount: 8, ..DIRECTORY },
            Identity { key: (8, 2, 99), ..DIRECTORY },
            Identity { key: (8, 1, 98), ..DIRECTORY },
            Identity { mode: 0o040_777, ..DIRECTORY },
        ] {
            assert!(!DIRECTORY.same(&other), "{other:?}");
        }
    }
}
