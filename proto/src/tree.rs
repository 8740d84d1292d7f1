//! The digest of a tree (`[0.1]`): one definition and one piece of code, for the broker's sealed copies and the
//! provider's `contentDigest`. It knows no file system and no hash function: callers bring both.
//!
//! SHA-256 over `cyberos-tree-1\n`, then for each entry, sorted by the bytes of its whole path: type byte ‖ u32 BE
//! path length ‖ path ‖ u64 BE size ‖ 32 bytes.

/// First bytes of the digested stream.
pub const PREFIX: &[u8] = b"cyberos-tree-1\n";
/// Name of the provider's private folder at the top of a skill; excluded with all below it.
pub const META_DIR: &[u8] = b".skill-meta";
/// Name of a skill's own version control at its top, a folder or, in a worktree, a file; excluded with all below it. It is
/// not the skill, and `git status` writes into it.
pub const VCS_DIR: &[u8] = b".git";
/// The file at the top that `x-content-sha256` leaves out, since it stands in it.
pub const SKILL_FILE: &[u8] = b"SKILL.md";

/// Whether an entry of this name, at the top of a skill, is no part of it: neither digested nor sealed nor in a snapshot.
/// In any letter case, as the view leaves them out: what is not served cannot be in a copy of what is.
pub fn is_left_out(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(META_DIR) || name.eq_ignore_ascii_case(VCS_DIR)
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory: size 0, hash of zeros.
    Directory,
    /// A regular file without any execute bit.
    File,
    /// A regular file with at least one execute bit.
    Executable,
    /// A symlink: size of its target, SHA-256 of its target.
    Symlink,
}

impl Kind {
    /// The type byte.
    pub fn byte(self) -> u8 {
        match self {
            Kind::Directory => b'd',
            Kind::File => b'f',
            Kind::Executable => b'x',
            Kind::Symlink => b'l',
        }
    }
}

/// One entry below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Path below the root, components joined by `/`, no leading slash.
    pub path: Vec<u8>,
    /// Size in bytes of the content or the target; 0 for a directory.
    pub size: u64,
    /// SHA-256 of the content or the target; zeros for a directory.
    pub hash: [u8; 32],
}

impl Entry {
    /// A directory.
    pub fn directory(path: Vec<u8>) -> Self {
        Entry { kind: Kind::Directory, path, size: 0, hash: [0; 32] }
    }
}

/// Sorts the entries and gives the digested bytes to `sink`, piece by piece.
pub fn digest(entries: &mut [Entry], sink: impl FnMut(&[u8])) {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    stream(entries.iter(), sink);
}

/// The same for `x-content-sha256`: of everything but SKILL.md.
pub fn content_digest(entries: &mut [Entry], sink: impl FnMut(&[u8])) {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    stream(entries.iter().filter(|e| e.path != SKILL_FILE), sink);
}

fn stream<'a>(entries: impl Iterator<Item = &'a Entry>, mut sink: impl FnMut(&[u8])) {
    sink(PREFIX);
    for e in entries {
        sink(&[e.kind.byte()]);
        // A path of 4 GiB cannot come from a kernel whose paths end at 4 KiB a call; saturate rather than wrap.
        sink(&u32::try_from(e.path.len()).unwrap_or(u32::MAX).to_be_bytes());
        sink(&e.path);
        sink(&e.size.to_be_bytes());
        sink(&e.hash);
    }
}

/// The written form of a digest: `sha256:` and 64 lower-case hex digits.
pub fn written(sum: &[u8; 32]) -> String {
    use core::fmt::Write;
    let mut out = String::from("sha256:");
    for b in sum {
        let _ = write!(out, "{b:02x}");
    }
    out
}

/// Whether `text` is the written form of a digest.
pub fn is_written(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|h| h.len() == 64 && h.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_sorted_and_framed() {
        let mut entries = [
            Entry { kind: Kind::File, path: b"b/a".to_vec(), size: 3, hash: [7; 32] },
            Entry::directory(b"b".to_vec()),
            Entry { kind: Kind::Executable, path: b"b.c".to_vec(), size: 1, hash: [8; 32] },
        ];
        let mut out = Vec::new();
        digest(&mut entries, |b| out.extend_from_slice(b));
        let mut want = PREFIX.to_vec();
        want.extend_from_slice(b"d\0\0\0\x01b\0\0\0\0\0\0\0\0");
        want.extend_from_slice(&[0; 32]);
        want.extend_from_slice(b"x\0\0\0\x03b.c\0\0\0\0\0\0\0\x01");
        want.extend_from_slice(&[8; 32]);
        want.extend_from_slice(b"f\0\0\0\x03b/a\0\0\0\0\0\0\0\x03");
        want.extend_from_slice(&[7; 32]);
        assert_eq!(out, want);
    }

    #[test]
    fn the_content_is_everything_but_the_text_at_the_top() {
        let file = |path: &[u8]| Entry { kind: Kind::File, path: path.to_vec(), size: 1, hash: [7; 32] };
        let mut with = [file(b"SKILL.md"), file(b"main"), file(b"d/SKILL.md")];
        let mut without = [file(b"d/SKILL.md"), file(b"main")];
        let (mut content, mut whole) = (Vec::new(), Vec::new());
        content_digest(&mut with, |b| content.extend_from_slice(b));
        digest(&mut without, |b| whole.extend_from_slice(b));
        assert_eq!(content, whole);
    }

    #[test]
    fn two_names_at_the_top_are_left_out() {
        assert!(is_left_out(b".git") && is_left_out(b".Git") && is_left_out(b".skill-meta"));
        for kept in [b".gitignore".as_slice(), b".git ", b"git", b"SKILL.md", b""] {
            assert!(!is_left_out(kept), "{kept:?}");
        }
    }

    #[test]
    fn written_digests_are_recognised() {
        assert!(is_written(&written(&[0xab; 32])));
        for bad in
            ["md5:xyz", "sha256:", &written(&[1; 32]).to_uppercase(), &format!("{}0", written(&[1; 32]))]
        {
            assert!(!is_written(bad), "{bad}");
        }
    }
}
