//! The ceiling's text: root's limits for the helper (`[10.2]`), one `key value` a line, `#` for comments. Parsing and
//! comparing are pure; what the names mean on this machine is the helper's to find out.
//!
//! | key | value | without it |
//! | --- | --- | --- |
//! | `broker_uid`, `skillfs_uid` | who has that role | nobody has |
//! | `uid_range` | FIRST-LAST, for sandboxes | 1900000000-1900065535 |
//! | `lock_dir` | where blocks of uids are locked, common to all instances | /run/cyberos-uid |
//! | `root` | `sealed`, `grant` or `backing`, and a directory: descriptors of that kind must lie in it | none are taken |
//! | `never` | a path: no granted directory lies in it or around it | see [`cyberos_proto::ungrantable::TREES`] |
//! | `mount` | NUMBER `ro` or `rw`, and a directory: a place for a view | there is no view |
//! | `bin` | directory shown at /opt/cyberos/bin | nothing is |
//! | `max_sandboxes` | at once, of one link | 64 |
//! | `max_memory_mb` … | see [`LIMITS`] | see there |
//! | `cpu_percent` | of one core, for a sandbox in a control group that can say so | 200 |

use crate::policy::outcome::must;
use core::fmt::{self, Display, Formatter};
use core::str::FromStr;
use cyberos_proto::ids::{MAX_MOUNTS, MountId};
use cyberos_proto::message::Refusal;
use cyberos_proto::plan::Limits;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Longest ceiling file, in bytes.
pub(crate) const MAX_FILE: usize = 4096;
/// Uids of one block; its first serves the block's inits.
pub(crate) const BLOCK: u32 = 256;
/// The keys that bound a plan's limits, and what holds without them; in the order of `values`.
pub(crate) const LIMITS: [(&str, u32); 6] = [
    ("max_memory_mb", 8192),
    ("max_processes", 512),
    ("max_tmp_mb", 1024),
    // A day on 1,024 processors: what bounds a run is its deadline.
    ("max_cpu_s", 88_473_600),
    ("max_file_mb", 4096),
    ("max_open_files", 4096),
];

/// All uids of the block whose first is `first`; that one serves the block's inits, the others are leases.
pub(crate) fn block(first: u32) -> RangeInclusive<u32> {
    first..=first + (BLOCK - 1)
}

/// Who is on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Makes sockets and sandboxes.
    Broker,
    /// Makes views.
    SkillFs,
}

fn values(l: &Limits) -> [u32; 6] {
    [l.memory_mb, l.processes, l.tmp_mb, l.cpu_s, l.file_mb, l.open_files]
}

/// What a descriptor's root is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootKind {
    /// Sealed copies.
    Sealed,
    /// Directories that may be granted to Bash.
    Grant,
    /// Files that a view may be backed by.
    Backing,
}

impl RootKind {
    /// The word in the file.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RootKind::Sealed => "sealed",
            RootKind::Grant => "grant",
            RootKind::Backing => "backing",
        }
    }
}

/// The file's content. Each key is documented above.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table above")]
pub(crate) struct CeilingText {
    pub(crate) uids: (u32, u32),
    pub(crate) broker_uid: Option<u32>,
    pub(crate) skillfs_uid: Option<u32>,
    pub(crate) locks: PathBuf,
    pub(crate) roots: Vec<(RootKind, PathBuf)>,
    pub(crate) never: Vec<PathBuf>,
    /// Name, and whether it is read-only.
    pub(crate) mounts: BTreeMap<MountId, (PathBuf, bool)>,
    pub(crate) bin: Option<PathBuf>,
    pub(crate) max_sandboxes: usize,
    pub(crate) cpu_percent: u32,
    max: [u32; 6],
}

impl Default for CeilingText {
    fn default() -> Self {
        CeilingText {
            uids: (1_900_000_000, 1_900_065_535),
            broker_uid: None,
            skillfs_uid: None,
            locks: "/run/cyberos-uid".into(),
            roots: Vec::new(),
            never: Vec::new(),
            mounts: BTreeMap::new(),
            bin: None,
            max_sandboxes: 64,
            cpu_percent: 200,
            max: LIMITS.map(|(_, max)| max),
        }
    }
}

/// What is wrong with a text: each says in which line, if it is one line's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults(pub(crate) Vec<String>);

impl Display for Faults {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl FromStr for CeilingText {
    type Err = Faults;

    /// Reads and checks the text.
    fn from_str(text: &str) -> Result<Self, Faults> {
        if text.len() > MAX_FILE {
            return Err(Faults(vec![format!("longer than {MAX_FILE} bytes")]));
        }
        let mut ceiling = CeilingText::default();
        let mut seen = Vec::new();
        let mut faults = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let read = ceiling.line(line, &mut seen);
                faults.extend(read.err().map(|fault| format!("line {}: {fault}", n + 1)));
            }
        }
        if faults.is_empty() {
            faults.extend(ceiling.check().err());
        }
        if faults.is_empty() { Ok(ceiling) } else { Err(Faults(faults)) }
    }
}

impl Display for CeilingText {
    /// Every key that holds, in the file's own language; what is read from it is the same again.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "uid_range {}-{}", self.uids.0, self.uids.1)?;
        for (key, uid) in [("broker_uid", self.broker_uid), ("skillfs_uid", self.skillfs_uid)] {
            if let Some(uid) = uid {
                writeln!(f, "{key} {uid}")?;
            }
        }
        writeln!(f, "lock_dir {}", self.locks.display())?;
        for (kind, path) in &self.roots {
            writeln!(f, "root {} {}", kind.as_str(), path.display())?;
        }
        for path in &self.never {
            writeln!(f, "never {}", path.display())?;
        }
        for (id, (path, read_only)) in &self.mounts {
            let access = if *read_only { "ro" } else { "rw" };
            writeln!(f, "mount {} {access} {}", id.get(), path.display())?;
        }
        if let Some(bin) = &self.bin {
            writeln!(f, "bin {}", bin.display())?;
        }
        writeln!(f, "max_sandboxes {}", self.max_sandboxes)?;
        for ((key, _), max) in LIMITS.iter().zip(self.max) {
            writeln!(f, "{key} {max}")?;
        }
        writeln!(f, "cpu_percent {}", self.cpu_percent)
    }
}

impl CeilingText {
    fn line<'t>(&mut self, line: &'t str, seen: &mut Vec<&'t str>) -> Result<(), String> {
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        must(
            matches!(key, "root" | "mount" | "never") || !seen.contains(&key),
            format!("{key} is given twice"),
        )?;
        seen.push(key);
        match key {
            "uid_range" => {
                let (first, last) = value.split_once('-').ok_or("expected uid_range FIRST-LAST")?;
                self.uids = (number(first)?, number(last)?);
            }
            "broker_uid" => self.broker_uid = Some(number(value)?),
            "skillfs_uid" => self.skillfs_uid = Some(number(value)?),
            "lock_dir" => self.locks = absolute(value)?,
            "root" => {
                let (kind, name) = value.split_once(char::is_whitespace).unwrap_or((value, ""));
                let kinds = [RootKind::Sealed, RootKind::Grant, RootKind::Backing];
                let kind = kinds.into_iter().find(|k| k.as_str() == kind);
                self.roots.push((kind.ok_or("expected root sealed|grant|backing PATH")?, absolute(name)?));
            }
            "never" => self.never.push(absolute(value)?),
            "mount" => {
                let words: Vec<_> = value.splitn(3, char::is_whitespace).collect();
                let &[id, access @ ("ro" | "rw"), name] = words.as_slice() else {
                    return Err(format!("expected mount NUMBER ro|rw PATH, NUMBER below {MAX_MOUNTS}"));
                };
                let id = MountId::new(number(id)?).map_err(|e| format!("{id}: {e}"))?;
                let earlier = self.mounts.insert(id, (absolute(name)?, access == "ro"));
                must(earlier.is_none(), "the mount number is given twice")?;
            }
            "bin" => self.bin = Some(absolute(value)?),
            "max_sandboxes" => self.max_sandboxes = number(value)?,
            "cpu_percent" => self.cpu_percent = number(value)?,
            _ => match LIMITS.iter().position(|(name, _)| *name == key) {
                Some(i) => self.max[i] = number(value)?,
                None => return Err(format!("unknown key {key}")),
            },
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let (first, last) = self.uids;
        // The last uid of all means "no change" to the kernel.
        let whole =
            first >= 65_536 && last < u32::MAX && last > first && (last - first + 1).is_multiple_of(BLOCK);
        must(whole, format!("uid_range must lie above 65535 and be a multiple of {BLOCK} long"))?;
        for uid in [self.broker_uid, self.skillfs_uid].into_iter().flatten() {
            let peer = uid != 0 && !(first..=last).contains(&uid);
            must(peer, format!("uid {uid} cannot be a peer: it is root, or in uid_range"))?;
        }
        let differ = self.broker_uid.is_none() || self.broker_uid != self.skillfs_uid;
        must(differ, "broker_uid and skillfs_uid must differ")?;
        must((1..=1000).contains(&self.max_sandboxes), "max_sandboxes must be 1 to 1000")?;
        must((1..=100_000).contains(&self.cpu_percent), "cpu_percent must be 1 to 100000")
    }

    /// Refuses limits above the ceiling, naming the key.
    pub(crate) fn allows(&self, limits: &Limits) -> Result<(), Refusal> {
        for ((asked, max), (key, _)) in values(limits).into_iter().zip(self.max).zip(LIMITS) {
            if asked > max {
                return Err(Refusal::Ceiling(format!("{key} is {max}, asked for {asked}")));
            }
        }
        Ok(())
    }

    /// Which role a user has, if any. Root has none.
    pub(crate) fn role(&self, uid: u32) -> Option<Role> {
        let skillfs = (self.skillfs_uid == Some(uid)).then_some(Role::SkillFs);
        if self.broker_uid == Some(uid) { Some(Role::Broker) } else { skillfs }
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    must(text.trim().starts_with('/'), format!("expected an absolute path, not {text:?}"))?;
    Ok(PathBuf::from(text.trim()))
}

fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|e| format!("{text}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_key_is_read_and_a_bad_line_is_named() {
        let text = "uid_range 1000000000-1000000255\nbroker_uid 7\nskillfs_uid 8\nlock_dir /l\n\
            root sealed /s\nroot grant /\nroot backing /b\nnever /n\nnever /m\nmount 3 rw /v w\nbin /x\n\
            max_sandboxes 5\nmax_memory_mb 9\ncpu_percent 50\n# end\n";
        let read: CeilingText = text.parse().unwrap();
        assert_eq!((read.uids, read.locks.as_path()), ((1_000_000_000, 1_000_000_255), Path::new("/l")));
        assert_eq!(
            read.roots.iter().map(|(k, _)| k.as_str()).collect::<Vec<_>>(),
            ["sealed", "grant", "backing"]
        );
        assert_eq!(read.mounts[&MountId::new(3).unwrap()], (PathBuf::from("/v w"), false));
        assert_eq!((read.max[0], read.max_sandboxes, read.cpu_percent), (9, 5, 50));
        assert_eq!(read.to_string().parse(), Ok(read.clone()));
        assert_eq!(CeilingText::default().to_string().parse(), Ok(CeilingText::default()));
        let never: Vec<_> = read.nevers().filter(|n| n.1).map(|n| n.0.to_str().unwrap()).collect();
        for name in ["/proc", "/etc/cyberos", "/n", "/m", "/s", "/b", "/v w", "/x", "/l"] {
            assert!(never.contains(&name), "{name} in {never:?}");
        }
        assert!(!never.contains(&"/"));
        for (line, words) in [
            ("root grant relative", "line 1: expected an absolute path"),
            ("root other /x", "line 1: expected root sealed|grant|backing PATH"),
            ("never x", "line 1: expected an absolute path"),
            ("cpu_percent 0", "cpu_percent must be"),
            ("cpu_percent x", "line 1: x"),
        ] {
            let said = line.parse::<CeilingText>().unwrap_err().to_string();
            assert!(said.starts_with(words), "{line}: {said}");
        }
    }

    #[test]
    fn each_fault_is_told_with_its_line() {
        let said = "colour blue\nbroker_uid 7\nbroker_uid 8\nbin x\n".parse::<CeilingText>().unwrap_err();
        let lines: Vec<_> = said.0.iter().map(|fault| fault.split(':').next().unwrap()).collect();
        assert_eq!(lines, ["line 1", "line 3", "line 4"], "{said}");
    }

    #[test]
    fn a_user_has_one_role_and_a_uid_one_block() {
        let text: CeilingText = "broker_uid 7\nskillfs_uid 8".parse().unwrap();
        assert_eq!([7, 8, 0, 9].map(|u| text.role(u)), [Some(Role::Broker), Some(Role::SkillFs), None, None]);
        assert_eq!(text.blocks().count(), 256);
        for first in text.blocks() {
            assert!(block(first).all(|uid| text.init_uid(uid) == first), "{first}");
            assert_eq!(text.block_named(&(first + 3).to_string()), Some(first));
        }
        assert_eq!(["mount+a", "1", "1900065536", "-1"].map(|name| text.block_named(name)), [None; 4]);
    }
}
