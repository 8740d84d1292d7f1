//! What is mounted where, as the kernel lists it: so that a directory is known by what it is, under whatever name it is
//! mounted a second time. It opens nothing that is mounted.

use cyberos_proto::mounts::{Mount, mounts, over, waits_for_others};
use std::path::{Path, PathBuf};

/// A place on a file system: its device, and the path from the file system's own root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    device: String,
    path: PathBuf,
}

impl Place {
    /// Whether this is `other`, or holds it.
    pub(super) fn holds(&self, other: &Place) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// All mounts of this process's namespace, in the order in which they were made.
#[derive(Debug)]
pub(super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// As they are now.
    pub(super) fn read() -> std::io::Result<Self> {
        std::fs::read("/proc/self/mountinfo").map(|text| Mounts(mounts(text)))
    }

    /// Where `path` (absolute, real) is.
    pub(super) fn place(&self, path: &Path) -> Option<Place> {
        let mount = over(&self.0, path)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        Some(Place { device: mount.device.clone(), path: mount.root.join(below) })
    }

    /// Whether looking at `path` may wait for somebody: a server, a network. The helper grants nothing there.
    pub(super) fn waits(&self, path: &Path) -> bool {
        over(&self.0, path).is_some_and(|m| waits_for_others(&m.kind))
    }

    /// What is mounted somewhere below `path`: the mount points, and where each really is.
    pub(super) fn below(&self, path: &Path) -> impl Iterator<Item = (&Path, Place)> {
        let below = self.0.iter().filter(move |m| m.point != path && m.point.starts_with(path));
        below.map(|m| (m.point.as_path(), Place { device: m.device.clone(), path: m.root.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "21 1 254:0 / / rw - ext4 /dev/vda rw\n\
        22 21 0:30 / /run rw shared:3 - tmpfs tmpfs rw\n\
        23 21 0:30 /cyberos /srv/a\\040b ro - tmpfs tmpfs rw\n\
        24 23 0:31 / /srv/a\\040b/deep ro master:1 propagate_from:2 - fuse.x y rw\n";

    #[test]
    fn a_directory_is_known_by_what_it_is() {
        let all = Mounts(mounts(TEXT));
        let place = |path: &str| all.place(Path::new(path)).unwrap();
        assert!(place("/run/cyberos").holds(&place("/srv/a b")));
        assert!(place("/srv/a b").holds(&place("/run/cyberos/broker.sock")));
        assert!(!place("/srv/a b").holds(&place("/run/other")));
        assert!(all.waits(Path::new("/srv/a b/deep/x")) && !all.waits(Path::new("/srv/a b")));
        assert!(!place("/srv").holds(&place("/srv/a b")), "another file system");
        let below: Vec<_> = all.below(Path::new("/srv/a b")).collect();
        assert_eq!(below.len(), 1);
        assert_eq!(below[0].0, Path::new("/srv/a b/deep"));
    }

    #[test]
    fn what_this_machine_has_mounted_can_be_read() {
        let mounts = Mounts::read().unwrap();
        assert!(mounts.place(Path::new("/")).is_some() && mounts.place(Path::new("/proc/self")).is_some());
    }
}
