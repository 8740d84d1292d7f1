//! What Bash gets of the file rules (`[4.6]`): whole directories, at their own names, held open since the grants were
//! compiled. Only a wish `LITERAL` or `LITERAL/**` that meets a grant of such a form is a directory; a rule that picks
//! among files cannot be kept inside a shell. What gives Bash nothing is named, for the operator.

use super::mounts::Mounts;
use super::never::NeverGrantable;
use super::rules::{Rules, deeper};
use crate::glob::Pattern;
use cyberos_proto::beneath::{name_of, open_anywhere};
use cyberos_proto::plan::{MAX_BINDS, SandboxPath};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One granted directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Its real name, which it has in the sandbox too.
    pub path: SandboxPath,
    /// Itself (O_PATH).
    pub fd: Arc<OwnedFd>,
    /// A descriptor on its file system and on each that is mounted below it, without those that may keep whoever asks
    /// them waiting: such a one is never bound.
    pub file_systems: Vec<Arc<OwnedFd>>,
}

impl Directory {
    /// Whether it still has the name under which it was granted.
    pub fn is_in_place(&self) -> bool {
        name_of(&self.fd).is_ok_and(|name| name == Path::new(self.path.as_str()))
    }
}

/// All of one invocation. None lies inside another.
#[derive(Debug, Default)]
pub(super) struct Directories {
    pub(super) given: Vec<Directory>,
    /// A line for each wish, or part of one, that gives Bash nothing.
    pub(super) nothing: Vec<String>,
}

/// What a rule of a plain form covers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Region {
    /// `LITERAL`.
    One(PathBuf),
    /// `LITERAL/**`.
    Tree(PathBuf),
}

impl Region {
    /// None for a rule of another form.
    fn of(pattern: &Pattern) -> Option<Region> {
        let plain =
            |text: &str| Pattern::new(text).is_ok_and(|p| p.is_literal()).then(|| PathBuf::from(text));
        match pattern.as_str() {
            "/**" | "**" => Some(Region::Tree("/".into())),
            text => match text.strip_suffix("/**") {
                Some(tree) => plain(tree).map(Region::Tree),
                None => plain(text).map(Region::One),
            },
        }
    }

    /// The directory that both cover.
    fn and(&self, other: &Region) -> Option<PathBuf> {
        match (self, other) {
            (Region::Tree(a), Region::Tree(b)) => deeper(a.clone(), b.clone()),
            (Region::One(a), Region::One(b)) => (a == b).then(|| a.clone()),
            (Region::Tree(tree), Region::One(one)) | (Region::One(one), Region::Tree(tree)) => {
                one.starts_with(tree).then(|| one.clone())
            }
        }
    }
}

impl Directories {
    /// Opens what Bash is given, and nothing else.
    pub(super) fn compile(rules: &Rules, never: &NeverGrantable) -> Self {
        let mut out = Directories::default();
        let mut wanted: Vec<(PathBuf, String)> = Vec::new();
        for wish in &rules.wishes {
            let at = format!("{} line {}: {}", rules.field, wish.line, wish.value);
            let Some(region) = Region::of(&wish.value) else {
                out.nothing.push(format!(
                    "{at} gives Bash nothing: Bash is given whole directories only, by `DIRECTORY` or `DIRECTORY/**`"
                ));
                continue;
            };
            for grantor in rules.effective() {
                match grantor.list() {
                    None => wanted.extend(region.and(&region).map(|path| (path, at.clone()))),
                    Some(list) => {
                        for grant in list {
                            match Region::of(grant) {
                                Some(granted) => {
                                    wanted.extend(region.and(&granted).map(|path| (path, at.clone())))
                                }
                                None if deeper(grant.root(), wish.value.root()).is_some() => {
                                    out.nothing.push(format!(
                                        "{at} gives Bash nothing by {grant} of {}: Bash is given whole directories \
                                         only, by `DIRECTORY` or `DIRECTORY/**`",
                                        grantor.key
                                    ));
                                }
                                None => {}
                            }
                        }
                    }
                }
            }
        }
        // Parents before children; by components, so that nothing comes between a directory and what is inside it.
        wanted.sort_by(|a, b| a.0.components().cmp(b.0.components()));
        wanted.dedup_by(|a, b| a.0 == b.0);
        let mounts = Mounts::read().ok();
        for (path, at) in wanted {
            // Merged with the one that it lies in.
            if out.given.iter().any(|d| path.starts_with(d.path.as_str())) {
                continue;
            }
            let full = out.given.len() + 1 >= MAX_BINDS;
            let opened = match &mounts {
                _ if full => Err(format!("Bash is given at most {} directories", MAX_BINDS - 1)),
                None => Err("what is mounted where cannot be read".to_owned()),
                Some(mounts) => Directory::open(&path, never, mounts),
            };
            match opened {
                Ok(directory) => out.given.push(directory),
                Err(why) => out.nothing.push(format!("{at} gives Bash nothing: {}: {why}", path.display())),
            }
        }
        out
    }
}

impl Directory {
    /// The error says why it gives Bash nothing.
    fn open(path: &Path, never: &NeverGrantable, mounts: &Mounts) -> Result<Directory, String> {
        // By its name first: what is never given is not touched.
        if let Some(why) = never.refuses_bash_by_name(path) {
            return Err(why);
        }
        let target = path.to_str().and_then(|text| SandboxPath::new(text).ok());
        let target = target.filter(SandboxPath::may_be_granted);
        let target = target.ok_or("the sandbox has something of its own there, or it is no plain path")?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let fd = open_anywhere(path, flags).map_err(|errno| match errno {
            Errno::ENOTDIR => "it is not a directory".to_owned(),
            Errno::ENOENT => "there is no such directory".to_owned(),
            errno => format!("user cyberos cannot reach it: {}", errno.desc()),
        })?;
        match name_of(&fd) {
            Ok(real) if real == path => {}
            Ok(real) => {
                return Err(format!("it leads to {}; rules apply to the real name", real.display()));
            }
            Err(_) => return Err("its real name cannot be told".to_owned()),
        }
        match never.refuses_bash(path, &fd, mounts) {
            Some(why) => Err(why),
            None => {
                let (fd, below) = (Arc::new(fd), mounts.below(path).map(|(point, _)| point));
                let below = below.filter(|point| !mounts.waits(point));
                let below = below.filter_map(|point| Some(Arc::new(open_anywhere(point, flags).ok()?)));
                let own = (!mounts.waits(path)).then(|| fd.clone());
                let file_systems = own.into_iter().chain(below).collect();
                Ok(Directory { path: target, fd, file_systems })
            }
        }
    }
}
