//! File rules (`[4.4]`): a path's normal form, the roots that are held open since the grants were compiled, and which
//! of them a permitted path is opened beneath. Nothing but those roots is touched here.

use super::never::NeverGrantable;
use super::operator::Grantor;
use super::rules::{Rules, Verdict, deeper};
use crate::beneath::FileTarget;
use crate::glob::Pattern;
use cyberos_proto::beneath::{name_of, open_anywhere};
use nix::fcntl::OFlag;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The file rules of one invocation.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) rules: Rules,
    roots: BTreeMap<PathBuf, Root>,
    pub(super) never: Arc<NeverGrantable>,
}

#[derive(Debug)]
enum Root {
    /// Held since the start.
    Open(Arc<OwnedFd>),
    /// It was not there, or not a directory that this user may enter: it gives nothing.
    Absent,
    /// It is a symlink to, or lies behind one to, this directory: paths below would not match under their real name.
    Elsewhere(PathBuf),
}

/// Longest path of a file, in bytes (PATH_MAX).
pub(super) const MAX_PATH: usize = 4096;

/// Why a text is not a path of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePathFault {
    /// Bad parameters.
    Empty,
    /// Bad parameters.
    Nul,
    /// Bad parameters: the system takes no such path either, and rows would hold it.
    TooLong,
    /// A violation: there is no directory that it could be relative to.
    Relative,
}

/// The lexical normal form of an absolute path: no empty component, no `.`, no `..`; `..` at `/` stays there.
pub(super) fn normal(path: &str) -> Result<PathBuf, FilePathFault> {
    if path.is_empty() {
        return Err(FilePathFault::Empty);
    }
    if path.contains('\0') {
        return Err(FilePathFault::Nul);
    }
    if path.len() > MAX_PATH {
        return Err(FilePathFault::TooLong);
    }
    let Some(rest) = path.strip_prefix('/') else { return Err(FilePathFault::Relative) };
    let mut parts = Vec::new();
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Ok(PathBuf::from(format!("/{}", parts.join("/"))))
}

/// What the rules say about a path in normal form.
pub(super) enum FileVerdict<'a> {
    Granted,
    /// Not asked for; and if it is held by this entry, asking would not help.
    NotWished(Option<PathBuf>),
    NotGranted(&'a crate::skill::Item<Pattern>),
    /// Asked for, and held by this entry.
    Never(PathBuf),
}

impl Files {
    /// Opens the roots under which anything can be granted, and no other directory.
    pub(super) fn compile(rules: Rules, never: Arc<NeverGrantable>) -> Self {
        let mut roots = BTreeMap::new();
        for wish in &rules.wishes {
            for grantor in rules.effective() {
                for root in candidates(&wish.value, grantor) {
                    // A pattern with `..` matches nothing; its root may be anywhere.
                    let normal = root.components().all(|c| c != Component::ParentDir);
                    if normal && never.holds(&root).is_none() {
                        roots.entry(root.clone()).or_insert_with(|| open(&root));
                    }
                }
            }
        }
        Files { rules, roots, never }
    }

    pub(super) fn judge(&self, path: &Path) -> FileVerdict<'_> {
        match self.rules.judge(path) {
            Verdict::NotWished => FileVerdict::NotWished(self.never.holds(path).map(Path::to_owned)),
            _ if let Some(entry) = self.never.holds(path) => FileVerdict::Never(entry.to_owned()),
            Verdict::NotGranted(wish) => FileVerdict::NotGranted(wish),
            Verdict::Granted => FileVerdict::Granted,
        }
    }

    /// The target of a granted path: beneath the shallowest root that is there among those of the rules that match.
    /// Which of them it is widens nothing: the canonical path is judged again.
    pub(super) fn target(&self, path: PathBuf) -> FileTarget {
        let matching = self.rules.wishes.iter().filter(|w| w.value.matches(&path));
        let mut found: Vec<PathBuf> = matching
            .flat_map(|w| {
                let grantors = self.rules.effective().filter(|g| g.admits(&path));
                grantors.flat_map(|g| candidates_for(&w.value, g, &path))
            })
            .collect();
        found.sort_by_key(|root| (self.held(root).is_none(), root.components().count()));
        let root = found.into_iter().next().unwrap_or_else(|| PathBuf::from("/"));
        let below = path.strip_prefix(&root).map(Path::to_owned).unwrap_or_default();
        FileTarget { root_fd: self.held(&root), path, root, below }
    }

    fn held(&self, root: &Path) -> Option<Arc<OwnedFd>> {
        match self.roots.get(root) {
            Some(Root::Open(fd)) => Some(fd.clone()),
            _ => None,
        }
    }

    /// What is asked for and can't be given, beyond what the operator's lists say.
    pub(super) fn shortfall(&self) -> Vec<String> {
        let mut out = self.rules.shortfall();
        for wish in &self.rules.wishes {
            let at = format!("x-allowed-files line {}: {}", wish.line, wish.value);
            let named =
                if wish.value.is_literal() { PathBuf::from(wish.value.as_str()) } else { wish.value.root() };
            if let Some(entry) = self.never.holds(&named) {
                out.push(format!("{at} (never grantable: {})", entry.display()));
            }
            match self.roots.get(&wish.value.root()) {
                Some(Root::Absent) => {
                    out.push(format!(
                        "{at} (there is no directory {} that this user can enter)",
                        wish.value.root().display()
                    ));
                }
                Some(Root::Elsewhere(real)) => out.push(format!(
                    "{at} ({} leads to {}; rules apply to the real name)",
                    wish.value.root().display(),
                    real.display()
                )),
                _ => {}
            }
        }
        out
    }
}

/// The roots under which `wish` and `grantor` can both match.
fn candidates(wish: &Pattern, grantor: &Grantor<Pattern>) -> Vec<PathBuf> {
    match grantor.list() {
        None => vec![wish.root()],
        Some(list) => list.iter().filter_map(|p| deeper(p.root(), wish.root())).collect(),
    }
}

fn candidates_for(wish: &Pattern, grantor: &Grantor<Pattern>, path: &Path) -> Vec<PathBuf> {
    match grantor.list() {
        None => vec![wish.root()],
        Some(list) => {
            list.iter().filter(|p| p.matches(path)).filter_map(|p| deeper(p.root(), wish.root())).collect()
        }
    }
}

fn open(root: &Path) -> Root {
    let Ok(fd) = open_anywhere(root, OFlag::O_PATH | OFlag::O_DIRECTORY) else { return Root::Absent };
    match name_of(&fd) {
        Ok(real) if real == root => Root::Open(Arc::new(fd)),
        Ok(real) => Root::Elsewhere(real),
        Err(_) => Root::Absent,
    }
}
