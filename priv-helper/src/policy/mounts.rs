//! What the kernel's list of mounts says about a grant, a sealed copy, a backing file and a view. It reads no list.

use cyberos_proto::mounts::{Mount, over, unescaped, waits_for_others};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Whether a call on a mount may wait for somebody. An overlay waits for whom its layers wait for, as far as their names
/// lead anywhere here. Of a container's root they are names outside.
fn waits(mounts: &[Mount], of: &Mount) -> bool {
    let layers = |m: &Mount| if m.kind == OVERLAY { layers(&m.options) } else { Vec::new() };
    // The kernel stacks no more than two on each other.
    let under = |m: &Mount| layers(m).iter().filter_map(|layer| over(mounts, layer)).collect::<Vec<_>>();
    let first = under(of);
    let second: Vec<_> = first.iter().flat_map(|m| under(m)).collect();
    [of].into_iter().chain(first).chain(second).any(|m| waits_for_others(&m.kind))
}

const OVERLAY: &str = "overlay";

/// The directories that an overlay's options name.
fn layers(options: &str) -> Vec<PathBuf> {
    const KEYS: [&str; 5] = ["lowerdir", "lowerdir+", "datadir+", "upperdir", "workdir"];
    let named = options.split(',').filter_map(|option| option.split_once('='));
    let lists = named.filter(|(key, _)| KEYS.contains(key)).map(|(_, list)| unescaped(list.as_bytes()));
    let each = |list: PathBuf| {
        let bytes = list.into_os_string().into_vec();
        bytes.split(|byte| *byte == b':').map(|name| OsStr::from_bytes(name).into()).collect::<Vec<_>>()
    };
    lists.flat_map(each).collect()
}

/// What a view's mount is called: type and source.
const VIEW: (&str, &str) = ("fuse.skillfs", "skillfs");

/// Options of a view's mount as mount(8) writes them, for the server whose end of the connection is descriptor `fd`.
pub(crate) fn view_options(fd: i32, uid: u32, gid: u32, read_only: bool) -> String {
    let mut options =
        String::from("source=skillfs,subtype=skillfs,allow_other,default_permissions,rootmode=40000");
    // Cannot fail.
    let _ = write!(options, ",fd={fd},user_id={uid},group_id={gid}");
    if read_only { options + ",ro" } else { options }
}

/// Whether the mount of that number is a view of ours.
pub(crate) fn is_view(mounts: &[Mount], id: u64) -> bool {
    mounts.iter().any(|m| m.id == id && (m.kind.as_str(), m.source.as_str()) == VIEW)
}

/// Whether files of the mount of that number may back a view: their reads and writes ask nothing but the file's own
/// mode. Else its type.
pub(crate) fn may_back(mounts: &[Mount], id: u64) -> Result<(), String> {
    const KINDS: [&str; 6] = ["btrfs", "ext4", "f2fs", "overlay", "tmpfs", "xfs"];
    let kind = mounts.iter().find(|m| m.id == id).map_or("", |m| m.kind.as_str());
    if KINDS.contains(&kind) { Ok(()) } else { Err(kind.to_owned()) }
}

/// The type of a file system on the way to `name` that can keep who looks there waiting, if there is one.
pub(crate) fn waiting(mounts: &[Mount], name: &Path) -> Option<String> {
    let mut on_the_way = mounts.iter().filter(|m| name.starts_with(&m.point));
    on_the_way.find(|m| waits(mounts, m)).map(|m| m.kind.clone())
}

/// Why no copy of the directory `name`, which is on the mount `id`, is to be given away, if there is a reason: the type
/// of a file system at, above or below it that can keep who looks there waiting; or of a mount at or below it that a
/// copy would leave out, so that it showed what is under that.
pub(crate) fn hindrance(mounts: &[Mount], id: u64, name: &Path) -> Option<String> {
    let copied = |m: &Mount| m.id == id || m.point.starts_with(name);
    let mut touched = mounts.iter().filter(|m| copied(m) || name.starts_with(&m.point));
    touched.find_map(|m| match () {
        () if waits(mounts, m) => Some(m.kind.clone()),
        () if copied(m) && m.unbindable => Some(format!("unbindable {}", m.kind)),
        () => None,
    })
}

/// The same of a copy that was found without asking anything at or above it: what is below.
pub(crate) fn hindrance_below(mounts: &[Mount], name: &Path) -> Option<String> {
    let below = mounts.iter().filter(|m| m.point.starts_with(name));
    below.filter(|m| m.unbindable || waits(mounts, m)).map(|m| m.kind.clone()).next()
}

/// The type that takes no idmap, among the mount of that number and those that are mounted below `name`.
pub(crate) fn refusing(mounts: &[Mount], id: u64, name: &Path) -> String {
    /// Types that are known to take one: of several mounts, the one that refuses is not of these.
    const MAPPED: [&str; 8] = ["btrfs", "erofs", "exfat", "ext4", "f2fs", "tmpfs", "vfat", "xfs"];
    let below = mounts.iter().filter(|m| m.id != id && m.point.starts_with(name));
    let all: Vec<_> = mounts.iter().filter(|m| m.id == id).chain(below).map(|m| m.kind.as_str()).collect();
    let strange = all.iter().find(|kind| !MAPPED.contains(kind)).or(all.first());
    strange.map_or("unknown", |kind| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cyberos_proto::mounts::mounts;

    const TABLE: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory
38 31 0:33 /docker/a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 27 0:39 /x /a\\040b\\134c ro,nosuid - fuse.skillfs skillfs ro,user_id=1
no mount at all
";

    #[test]
    fn what_a_mount_is_good_for_is_told_by_its_type() {
        let all = mounts(TABLE);
        assert!(is_view(&all, 42) && !is_view(&all, 27) && !is_view(&all, 1));
        assert_eq!(may_back(&all, 27), Ok(()));
        assert_eq!(may_back(&all, 42), Err("fuse.skillfs".into()));
        assert_eq!(may_back(&all, 1), Err(String::new()));
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
    fn what_waits_for_others_or_is_left_out_at_above_or_below_a_directory_hinders_its_grant() {
        let all = mounts(
            &b"1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 0:2 / /srv/nfs rw - nfs4 host:/ rw\n\
            3 2 0:3 / /srv/nfs/local rw - tmpfs none rw\n\
            4 1 0:4 / /srv/a/b/deep rw - fuse.x y rw\n\
            5 1 0:5 / /srv/u/hidden rw unbindable - tmpfs none rw\n\
            6 1 0:6 / /srv/o rw - overlay none rw,lowerdir=/srv/l:/srv/nfs/l\\040x,upperdir=/u,workdir=/w\n\
            7 1 0:7 / /srv/p rw - overlay none rw,lowerdir+=/srv/o/x,lowerdir+=/srv/l\n\
            8 1 0:8 / /srv/q rw - overlay none rw,lowerdir=/srv/l:l/outside,upperdir=/srv/q/u\n\
            9 1 0:9 / /srv/n\xff/x rw - newfs none rw\n\
            10 1 0:10 / /srv/z/gone rw master:3 propagate_from:2 - autofs none rw\n"[..],
        );
        assert_eq!(all.len(), 10);
        for (id, name, why) in [
            (1, "/srv/l", None),
            (1, "/srv/a/bc", None),
            (1, "/srv/a", Some("fuse.x")),
            (1, "/srv/a/b/deep", Some("fuse.x")),
            (4, "/srv/a/b/deep/er", Some("fuse.x")),
            (2, "/srv/nfs/x", Some("nfs4")),
            // Whoever goes there asks the server on the way.
            (3, "/srv/nfs/local/x", Some("nfs4")),
            (1, "/srv/u", Some("unbindable tmpfs")),
            (5, "/srv/u/hidden/x", Some("unbindable tmpfs")),
            (6, "/srv/o/x", Some("overlay")),
            (7, "/srv/p", Some("overlay")),
            (8, "/srv/q", None),
            (1, "/srv/z", Some("autofs")),
            (1, "/srv", Some("nfs4")),
        ] {
            assert_eq!(hindrance(&all, id, Path::new(name)).as_deref(), why, "{id} {name}");
        }
        // Neither does a name hide a mount, nor a type that nobody knows yet.
        assert_eq!(hindrance(&all, 1, Path::new(OsStr::from_bytes(b"/srv/n\xff"))).as_deref(), Some("newfs"));
        for (name, why) in [
            ("/srv/nfs/local", None),
            ("/srv/a", Some("fuse.x")),
            ("/srv/u", Some("tmpfs")),
            ("/srv/l", None),
        ] {
            assert_eq!(hindrance_below(&all, Path::new(name)).as_deref(), why, "{name}");
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
