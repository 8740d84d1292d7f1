//! What the helper may be asked to build: bounded data whose `check` is pure. A skill and a `Bash` sandbox are
//! one plan with different binds.

pub use crate::limits::{Limits, MemoryLimit};
pub use crate::report::{Cgroup, Feature, Network, SandboxReport};
use crate::ungrantable::beginning_of;
use core::fmt;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Most environment entries of a plan.
pub const MAX_ENV: usize = 32;
/// Most bytes of all arguments and environment entries together, with one more for each. The kernel takes no longer word.
pub const MAX_WORD_BYTES: usize = 128 * 1024;
/// Most directories bound into a sandbox beside the system's own.
pub const MAX_BINDS: usize = 64;
/// Longest path inside a sandbox, in bytes.
pub const MAX_PATH: usize = 1024;

/// Why a plan cannot be right, whatever the ceiling says. The text names the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanFault {
    /// No argument at all.
    Args,
    /// More than [`MAX_ENV`] entries, or one that is not `KEY=value`.
    Env,
    /// Arguments and environment exceed [`MAX_WORD_BYTES`], or a word holds a NUL.
    Words,
    /// A path that is not absolute, not normal, or longer than [`MAX_PATH`].
    Path,
    /// More than [`MAX_BINDS`] binds, or two on one target, or a target outside the places for binds, or one that
    /// would hide an earlier one, or a grant for a skill.
    Binds,
    /// A limit of zero.
    Limits,
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlanFault::Args => "plan: number of arguments",
            PlanFault::Env => "plan: environment",
            PlanFault::Words => "plan: size or content of arguments and environment",
            PlanFault::Path => "plan: a path",
            PlanFault::Binds => "plan: binds",
            PlanFault::Limits => "plan: a limit of zero",
        })
    }
}

/// Where every sandbox has something of the system's or of its own, which no grant may cover.
const OWN_PLACES: [&str; 15] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt/cyberos",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
];

/// A path inside the sandbox: absolute, of normal components only, at most [`MAX_PATH`] bytes, without NUL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxPath(String);

impl SandboxPath {
    /// Checks `path`. `/` itself is refused: nothing is bound or run there.
    pub fn new(path: &str) -> Result<Self, PlanFault> {
        let rest = path.strip_prefix('/').ok_or(PlanFault::Path)?;
        if path.len() > MAX_PATH || path.contains('\0') {
            return Err(PlanFault::Path);
        }
        if rest.split('/').any(|c| c.is_empty() || c == "." || c == "..") {
            return Err(PlanFault::Path);
        }
        Ok(SandboxPath(path.to_owned()))
    }

    /// Whether it is `place` or lies below it.
    fn is_at_or_below(&self, place: &str) -> bool {
        self.0.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether a granted directory may appear here: neither in what every sandbox has of the system or for itself, nor
    /// around it. A directory in /tmp may, but not one of ours.
    pub fn may_be_granted(&self) -> bool {
        let around = |place: &&str| {
            place.strip_prefix(self.0.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/'))
        };
        beginning_of(Path::new(&self.0)).is_none()
            && !OWN_PLACES.iter().any(|place| around(place) || self.is_at_or_below(place) && *place != "/tmp")
    }

    /// The path, beginning with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, none empty.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|c| !c.is_empty())
    }
}

impl TryFrom<String> for SandboxPath {
    type Error = &'static str;
    fn try_from(s: String) -> Result<Self, &'static str> {
        SandboxPath::new(&s).map_err(|_| "not an absolute, normal path")
    }
}

impl From<SandboxPath> for String {
    fn from(p: SandboxPath) -> String {
        p.0
    }
}

/// How a bound directory appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindKind {
    /// A sealed copy: read-only, executable, without set-id or devices; its descriptor must lie in a root of
    /// kind `sealed`.
    Sealed,
    /// A granted directory, idmapped so that the broker's files are the sandbox's own. Its descriptor must lie in a root
    /// of kind `grant`, and its target must be [`SandboxPath::may_be_granted`]. Only for [`Profile::Bash`], since a
    /// granted tree may hold sockets. A grant inside another comes after it, and its target must be the very directory
    /// that is granted: in the sandbox grants are where they are on the host.
    Grant {
        /// Whether the sandbox may write; else the clone is read-only.
        writable: bool,
    },
}

/// One directory bound into a sandbox. Takes one descriptor, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Where it appears.
    pub target: SandboxPath,
    /// How it appears.
    pub kind: BindKind,
}

/// Which filter a sandbox runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Profile {
    /// A skill: may use AF_UNIX sockets, of which its view holds exactly one.
    Skill,
    /// The Bash tool: no sockets at all but socket pairs.
    Bash,
}

/// Everything the helper needs to know of one sandbox. It never learns why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnPlan {
    /// The program, as a path inside the sandbox.
    pub program: SandboxPath,
    /// argv, its first word (the name of the program) included.
    pub args: Vec<Vec<u8>>,
    /// `KEY=value` entries: the whole environment.
    pub env: Vec<Vec<u8>>,
    /// Working directory inside the sandbox.
    pub cwd: SandboxPath,
    /// Directories bound in; each takes one descriptor.
    pub binds: Vec<Bind>,
    /// Whether the sandbox sees the invocation's socket (it must have been created).
    pub socket: bool,
    /// Limits.
    pub limits: Limits,
    /// Filter.
    pub profile: Profile,
}

impl SpawnPlan {
    /// Where its trees appear, in the order of its descriptors and the invocation's `socket` last: each without leading
    /// slash, and whether it may be in a tree that was attached before.
    pub fn places(&self, socket: Option<&Path>) -> Vec<(PathBuf, bool)> {
        let socket = socket.filter(|_| self.socket);
        let targets = self.binds.iter().map(|bind| Path::new(bind.target.as_str())).chain(socket);
        let mut all: Vec<(PathBuf, bool)> = Vec::new();
        for target in targets.map(|target| target.strip_prefix("/").unwrap_or(target)) {
            let nested = all.iter().any(|(outer, _)| target.starts_with(outer));
            all.push((target.to_owned(), nested));
        }
        all
    }

    /// Those of its places that a root must have ready: nothing can be made in it later but in /tmp.
    pub fn ready(&self, socket: Option<&Path>) -> Vec<PathBuf> {
        let places = self.places(socket).into_iter();
        places.filter(|(at, nested)| !nested && !at.starts_with("tmp")).map(|(at, _)| at).collect()
    }

    /// What its arguments and environment take of [`MAX_WORD_BYTES`].
    pub fn word_bytes(&self) -> usize {
        self.args.iter().chain(&self.env).fold(0, |sum, word| sum.saturating_add(word.len() + 1))
    }

    /// Whether the plan is well formed. Pure: the ceiling is compared elsewhere.
    pub fn check(&self) -> Result<(), PlanFault> {
        if self.args.is_empty() {
            return Err(PlanFault::Args);
        }
        if self.env.len() > MAX_ENV
            || !self.env.iter().all(|e| e.iter().position(|b| *b == b'=').is_some_and(|i| i > 0))
        {
            return Err(PlanFault::Env);
        }
        let nul = |word: &Vec<u8>| word.contains(&0);
        if self.args.iter().chain(&self.env).any(nul) || self.word_bytes() > MAX_WORD_BYTES {
            return Err(PlanFault::Words);
        }
        if self.binds.len() > MAX_BINDS {
            return Err(PlanFault::Binds);
        }
        for (i, a) in self.binds.iter().enumerate() {
            let hides = |b: &Bind| b.target.is_at_or_below(a.target.as_str());
            let inside = |b: &Bind| a.target.is_at_or_below(b.target.as_str());
            let right = match a.kind {
                BindKind::Sealed => {
                    a.target.as_str().starts_with("/opt/cyberos/skills/")
                        && !self.binds[..i].iter().any(inside)
                }
                BindKind::Grant { .. } => self.profile == Profile::Bash && a.target.may_be_granted(),
            };
            if !right || self.binds[..i].iter().any(hides) {
                return Err(PlanFault::Binds);
            }
        }
        let l = &self.limits;
        if [l.memory_mb, l.cpu_s, l.processes, l.open_files, l.file_mb, l.tmp_mb].contains(&0) {
            return Err(PlanFault::Limits);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn plan() -> SpawnPlan {
        SpawnPlan {
            program: SandboxPath::new("/opt/cyberos/skills/x/main").unwrap(),
            args: vec![b"main".to_vec()],
            env: vec![b"PATH=/usr/bin".to_vec()],
            cwd: SandboxPath::new("/opt/cyberos/skills/x").unwrap(),
            binds: vec![Bind {
                target: SandboxPath::new("/opt/cyberos/skills/x").unwrap(),
                kind: BindKind::Sealed,
            }],
            socket: true,
            limits: Limits {
                memory_mb: 512,
                memory_kind: MemoryLimit::AddressSpace,
                cpu_s: 1800,
                processes: 8,
                open_files: 256,
                file_mb: 256,
                tmp_mb: 64,
            },
            profile: Profile::Skill,
        }
    }

    #[test]
    fn a_good_plan_passes_and_each_fault_is_named() {
        assert_eq!(plan().check(), Ok(()));
        type Spoil = fn(&mut SpawnPlan);
        let faults: [(Spoil, PlanFault); 9] = [
            (|p| p.args.clear(), PlanFault::Args),
            (|p| p.args = vec![vec![]; MAX_WORD_BYTES], PlanFault::Words),
            (|p| p.args.push(b"a\0b".to_vec()), PlanFault::Words),
            (|p| p.args.push(vec![b'a'; MAX_WORD_BYTES]), PlanFault::Words),
            (|p| p.env.push(b"NOEQUALS".to_vec()), PlanFault::Env),
            (|p| p.env.push(b"=x".to_vec()), PlanFault::Env),
            (|p| p.binds.push(p.binds[0].clone()), PlanFault::Binds),
            (|p| p.binds[0].target = SandboxPath::new("/usr/bin").unwrap(), PlanFault::Binds),
            (|p| p.limits.processes = 0, PlanFault::Limits),
        ];
        for (i, (spoil, fault)) in faults.iter().enumerate() {
            let mut p = plan();
            spoil(&mut p);
            assert_eq!(p.check(), Err(*fault), "fault {i}");
        }
    }

    #[test]
    fn places_are_told_in_order_and_what_is_in_another_is_nested() {
        let mut p = plan();
        p.profile = Profile::Bash;
        let grant = |target| Bind {
            target: SandboxPath::new(target).unwrap(),
            kind: BindKind::Grant { writable: true },
        };
        p.binds.extend([grant("/srv/a"), grant("/srv/ab"), grant("/srv/a/b")]);
        let socket = Some(Path::new("/tmp/s"));
        let place = |path: &str, nested| (PathBuf::from(path), nested);
        let skill = place("opt/cyberos/skills/x", false);
        let mut expected = vec![skill, place("srv/a", false), place("srv/ab", false), place("srv/a/b", true)];
        expected.push(place("tmp/s", false));
        assert_eq!(p.places(socket), expected);
        p.socket = false;
        assert_eq!(p.places(socket), expected[..4]);
        p.binds.push(grant("/tmp/c"));
        assert_eq!(p.ready(socket), ["opt/cyberos/skills/x", "srv/a", "srv/ab"].map(PathBuf::from));
    }

    #[test]
    fn sandbox_paths_are_absolute_and_normal() {
        for bad in ["", "/", "a", "/a/", "/a//b", "/a/./b", "/a/../b", "/..", "/a\0"] {
            assert!(SandboxPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(SandboxPath::new("/a/..b/c").is_ok());
    }
}
