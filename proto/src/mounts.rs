//! /proc/self/mountinfo as data. Reading it asks no file system anything, so it is how to tell what a descriptor is on
//! before touching it.

use std::ffi::OsString;
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
    /// Whether a copy of what it is mounted on leaves it out.
    pub unbindable: bool,
    /// File system type.
    pub kind: String,
    /// What it was mounted from.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// All mounts of the text, in its order; a line that is none is left out. Names are bytes: one that is not UTF-8 must
/// not hide its mount.
pub fn mounts(text: impl AsRef<[u8]>) -> Vec<Mount> {
    text.as_ref().split(|byte| *byte == b'\n').filter_map(mount).collect()
}

fn mount(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    // Optional fields are between the options of the mount and a hyphen.
    let end = 6 + words.get(6..)?.iter().position(|word| *word == b"-")?;
    let (kind, source, options) = (words.get(end + 1)?, words.get(end + 2)?, words.get(end + 3)?);
    Some(Mount {
        id: text(words[0]).parse().ok()?,
        device: text(words[2]),
        root: unescaped(words[3]),
        point: unescaped(words[4]),
        unbindable: words[6..end].contains(&&b"unbindable"[..]),
        kind: text(kind),
        source: text(source),
        options: text(options),
    })
}

/// A path in which blank, tab, newline and backslash are written as three octal digits.
pub fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
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

/// File systems that this kernel serves by itself, from a device or from memory: a call on one waits for nobody. What an
/// overlay is made of is asked besides.
const LOCAL: &str = "\
    bcachefs binfmt_misc bpf btrfs cgroup cgroup2 configfs cpuset debugfs devpts devtmpfs \
    efivarfs erofs exfat ext2 ext3 ext4 f2fs fusectl hfs hfsplus hugetlbfs iso9660 jfs minix \
    mqueue nilfs2 nsfs ntfs3 overlay proc pstore ramfs reiserfs resctrl rootfs securityfs \
    selinuxfs squashfs sysfs tmpfs tracefs udf vfat xfs zfs";

/// Whether a call on a file system of that type may wait for somebody: a server, a network, a user. So may one of a type
/// that nobody here has heard of.
pub fn waits_for_others(kind: &str) -> bool {
    !LOCAL.split_whitespace().any(|local| local == kind)
}

/// The mount that `name` is on: that with the longest name, and of several at one place the last.
pub fn over<'m>(mounts: &'m [Mount], name: &Path) -> Option<&'m Mount> {
    let over = mounts.iter().filter(|m| name.starts_with(&m.point));
    over.max_by_key(|m| m.point.components().count())
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
            assert_eq!(mount(line.as_bytes()), None, "{line}");
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
}
