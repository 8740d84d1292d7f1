//! /proc/self/mountinfo as data. Reading it asks no file system anything, so it is how to tell what a descriptor is on
//! before touching it.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number, which statx tells too.
    pub id: u64,
    /// Its file system's device, as `major:minor`.
    pub device: String,
    /// What of its file system is its root.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// File system type.
    pub kind: String,
    /// What it was mounted from.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// All mounts of the text, in its order; a line that is none is left out.
pub fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let place: Vec<&str> = place.split(' ').collect();
    let mut what = what.splitn(3, ' ');
    let (kind, source, options) = (what.next()?, what.next()?, what.next()?);
    Some(Mount {
        id: place.first()?.parse().ok()?,
        device: (*place.get(2)?).to_owned(),
        root: path(place.get(3)?),
        point: path(place.get(4)?),
        kind: kind.to_owned(),
        source: source.to_owned(),
        options: options.to_owned(),
    })
}

/// A path in which blank, tab, newline and backslash are written as three octal digits.
fn path(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Whether a call on a file system of that type may wait for somebody: a server, a network, a user.
pub fn waits_for_others(kind: &str) -> bool {
    const KINDS: [&str; 12] = [
        "9p", "afs", "autofs", "ceph", "cifs", "coda", "lustre", "ncpfs", "smb3", "smbfs", "virtiofs",
        "vboxsf",
    ];
    kind.starts_with("fuse") || kind.starts_with("nfs") || KINDS.contains(&kind)
}

/// What a view's mount is called: type and source.
const VIEW: (&str, &str) = ("fuse.skillfs", "skillfs");

/// Options of a view's mount as mount(8) writes them, for the server whose end of the connection is descriptor `fd`.
pub fn view_options(fd: i32, uid: u32, gid: u32, read_only: bool) -> String {
    let mut options =
        String::from("source=skillfs,subtype=skillfs,allow_other,default_permissions,rootmode=40000");
    // Cannot fail.
    let _ = write!(options, ",fd={fd},user_id={uid},group_id={gid}");
    if read_only { options + ",ro" } else { options }
}

/// Whether the mount of that number is a view of ours.
pub fn is_view(mounts: &[Mount], id: u64) -> bool {
    mounts.iter().any(|m| m.id == id && (m.kind.as_str(), m.source.as_str()) == VIEW)
}

/// Whether files of the mount of that number may back a view: their reads and writes ask nothing but the file's own
/// mode. Else its type.
pub fn may_back(mounts: &[Mount], id: u64) -> Result<(), String> {
    const KINDS: [&str; 6] = ["btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs"];
    let kind = mounts.iter().find(|m| m.id == id).map_or("", |m| m.kind.as_str());
    if KINDS.contains(&kind) { Ok(()) } else { Err(kind.to_owned()) }
}

/// The type of a file system on the way to `name` that can keep who looks there waiting, if there is one.
pub fn waiting(mounts: &[Mount], name: &Path) -> Option<String> {
    let waits = |m: &&Mount| name.starts_with(&m.point) && waits_for_others(&m.kind);
    mounts.iter().find(waits).map(|m| m.kind.clone())
}

/// The type that takes no idmap, among the mount of that number and those that are mounted below `name`.
pub fn refusing(mounts: &[Mount], id: u64, name: &Path) -> String {
    /// Types that are known to take one: of several mounts, the one that refuses is not of these.
    const MAPPED: [&str; 8] = ["btrfs", "erofs", "exfat", "ext4", "f2fs", "tmpfs", "vfat", "xfs"];
    let below = mounts.iter().filter(|m| m.id != id && m.point.starts_with(name));
    let all: Vec<_> = mounts.iter().filter(|m| m.id == id).chain(below).map(|m| m.kind.as_str()).collect();
    let strange = all.iter().find(|kind| !MAPPED.contains(kind)).or(all.first());
    strange.map_or("unknown", |kind| kind).to_owned()
}

/// The own group below the mount of a control group hierarchy. `version 2`'s controllers are one empty word.
pub fn own_group(mounts: &[Mount], cgroup: &str, controller: &str) -> Option<PathBuf> {
    let kind = if controller.is_empty() { "cgroup2" } else { "cgroup" };
    let has = |m: &&Mount| {
        m.kind == kind && (controller.is_empty() || m.options.split(',').any(|o| o == controller))
    };
    let mount = mounts.iter().find(has)?;
    let own = cgroup.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|c| c == controller).then_some(path)
    })?;
    // A container may have only a part of the hierarchy mounted.
    let below = Path::new(own).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory
38 31 0:33 /docker/a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 27 0:39 /x /a\\040b\\134c ro,nosuid - fuse.skillfs skillfs ro,user_id=1
no mount at all
";

    #[test]
    fn a_table_is_read_as_the_kernel_writes_it() {
        let all = mounts(TABLE);
        assert_eq!(all.iter().map(|m| m.id).collect::<Vec<_>>(), [27, 35, 38, 41, 42]);
        let last = &all[4];
        assert_eq!((last.point.to_str(), last.root.to_str()), (Some("/a b\\c"), Some("/x")));
        assert_eq!((last.kind.as_str(), last.source.as_str()), ("fuse.skillfs", "skillfs"));
        assert!(waits_for_others(&last.kind) && waits_for_others("nfs4") && !waits_for_others("ext4"));
        for line in ["", " - ", "1 2 3 - a b c", "x 1 254:0 / / rw - ext4 a b"] {
            assert_eq!(mount(line), None, "{line}");
        }
    }

    #[test]
    fn the_own_group_is_found_in_either_version() {
        let all = mounts(TABLE);
        let own = "4:memory:/x/y\n1:cpu,cpuacct:/docker/a/z\n0::/me\n";
        let find = |controller| own_group(&all, own, controller).map(|p| p.display().to_string());
        assert_eq!(find("memory").as_deref(), Some("/sys/fs/cgroup/memory/x/y"));
        assert_eq!(find("cpu").as_deref(), Some("/sys/fs/cgroup/cpu/z"));
        assert_eq!(find("").as_deref(), Some("/sys/fs/cgroup/unified/me"));
        assert_eq!(find("pids"), None);
    }

    #[test]
    fn what_a_mount_is_good_for_is_told_by_its_type() {
        let all = mounts(TABLE);
        assert!(is_view(&all, 42) && !is_view(&all, 27) && !is_view(&all, 1));
        assert_eq!(may_back(&all, 27), Ok(()));
        assert_eq!(may_back(&all, 42), Err("fuse.skillfs".into()));
        assert_eq!(may_back(&all, 1), Err(String::new()));
        assert_eq!(waiting(&all, Path::new("/a b\\c/d")).as_deref(), Some("fuse.skillfs"));
        assert_eq!(waiting(&all, Path::new("/a")), None);
        for (id, name, kind) in [
            (27, "/srv", "ext4"),
            (27, "/a b\\c", "fuse.skillfs"),
            (27, "/", "cgroup"),
            (41, "/sys/fs/cgroup/unified", "cgroup2"),
            (1, "/srv", "unknown"),
        ] {
            assert_eq!(refusing(&all, id, Path::new(name)), kind, "{id} {name}");
        }
    }

    #[test]
    fn a_views_options_are_written_as_the_kernel_reads_them() {
        assert_eq!(
            view_options(5, 7, 8, true),
            "source=skillfs,subtype=skillfs,allow_other,default_permissions,rootmode=40000,fd=5,user_id=7,group_id=8,ro"
        );
        assert!(view_options(5, 7, 8, false).ends_with("group_id=8"));
    }
}
