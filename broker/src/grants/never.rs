//! What no frontmatter and no operator can grant (`[4.0]`): the kernel's own trees, the system's keys and state, and
//! everything that decides what a skill may do. Asked by name before anything is touched, and again about the
//! canonical path of what was opened.

use super::mounts::{Mounts, Place};
use crate::config::Config;
use cyberos_proto::ungrantable::{BEGINNINGS, TREES, WHOLE, beginning_of};
use nix::sys::stat::{fstat, stat};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories of the three daemons where packages put them, whatever this broker is configured to use.
const PACKAGED: [&str; 4] =
    ["/var/lib/cyberos", "/var/lib/cyberos-skillfs", "/var/lib/cyberos-helper", "/opt/cyberos/skills"];
/// The list, for one configuration.
#[derive(Clone, Debug)]
pub struct NeverGrantable {
    trees: Vec<PathBuf>,
}

impl NeverGrantable {
    /// The system's entries and the configuration's directories, each as written and as it really is.
    pub fn new(config: &Config) -> Self {
        let configured = [&config.state, &config.run, &config.mount].into_iter().cloned();
        // A socket's directory too, unless that would make all of / or /tmp ungrantable.
        let sockets =
            [&config.helper_socket, &config.skillfs_control].into_iter().map(|p| match p.parent() {
                Some(dir) if dir != Path::new("/") && dir != Path::new("/tmp") => dir.to_owned(),
                _ => p.clone(),
            });
        let named = TREES.iter().chain(&PACKAGED).map(PathBuf::from);
        let mut trees: Vec<PathBuf> = named
            .chain(configured)
            .chain(sockets)
            .chain(config.sources.iter().cloned())
            .chain(config.never_grantable.iter().cloned())
            .collect();
        let real: Vec<PathBuf> = trees.iter().filter_map(|p| p.canonicalize().ok()).collect();
        trees.extend(real);
        trees.sort();
        trees.dedup();
        NeverGrantable { trees }
    }

    /// Which entry holds `path` (absolute, normal), if one does.
    pub fn holds(&self, path: &Path) -> Option<&Path> {
        let tree = self.trees.iter().map(PathBuf::as_path).find(|tree| path.starts_with(tree));
        tree.or_else(|| beginning_of(path))
    }

    /// What is never inside a directory of Bash's: first what is only never given as a whole.
    fn for_bash(&self) -> Vec<&Path> {
        let whole = WHOLE.iter().chain(BEGINNINGS).map(Path::new);
        whole.chain(self.trees.iter().map(PathBuf::as_path)).collect()
    }

    /// Why Bash may not have the directory of that name with all that is below it, if it may not.
    pub(super) fn refuses_bash_by_name(&self, path: &Path) -> Option<String> {
        if let Some(entry) = self.holds(path) {
            return Some(format!("it is never grantable: {}", entry.display()));
        }
        let inner = self.for_bash().into_iter().find(|entry| entry.starts_with(path))?;
        Some(format!("Bash is never given all of {}, which it is or contains", inner.display()))
    }

    /// The same by what the directory is, held as `fd`, and by what is mounted in it: an entry under another name is
    /// the same entry.
    pub(super) fn refuses_bash(&self, path: &Path, fd: impl AsFd, mounts: &Mounts) -> Option<String> {
        if mounts.waits(path) {
            // The helper refuses it, and says of which type it is; nothing may wait for it here.
            return None;
        }
        let Ok(held) = fstat(fd) else { return Some("it cannot be looked at".to_owned()) };
        // SkillFS's view, among others, may keep whoever asks it waiting.
        let same = |other: &Path| {
            !mounts.waits(other)
                && stat(other).is_ok_and(|other| (other.st_dev, other.st_ino) == (held.st_dev, held.st_ino))
        };
        let Some(place) = mounts.place(path) else {
            return Some("where it is mounted cannot be told".to_owned());
        };
        let shown: Vec<_> = std::iter::once((path, place)).chain(mounts.below(path)).collect();
        for (n, entry) in self.for_bash().into_iter().enumerate() {
            let within =
                |at: &Path| format!("{} leads to {} under another name", at.display(), entry.display());
            if entry.ancestors().any(same) {
                return Some(within(path));
            }
            let Some(of_entry) = mounts.place(entry) else { continue };
            let is_tree = n >= WHOLE.len() + BEGINNINGS.len();
            let leads = |place: &Place| place.holds(&of_entry) || is_tree && of_entry.holds(place);
            if let Some((at, _)) = shown.iter().find(|(_, place)| leads(place)) {
                return Some(within(at));
            }
        }
        None
    }
}

/// Name of the file that marks the state directory of a `cyberos up`; it belongs to root.
pub const UP_MARK: &str = ".cyberos-up";

/// The state directory of some `up` that `path` lies in. Several of them share the broker's uid, so that the file
/// system does not keep one's skills out of another's state.
pub(super) fn state_of_an_up(path: &Path) -> Option<PathBuf> {
    let marked =
        |dir: &&Path| std::fs::symlink_metadata(dir.join(UP_MARK)).is_ok_and(|m| m.is_file() && m.uid() == 0);
    path.ancestors().find(marked).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threat_a2_what_governs_a_skill_is_never_grantable() {
        let config = Config { sources: vec!["/home/x/skills".into()], ..Config::default() };
        let never = NeverGrantable::new(&config);
        for path in [
            "/proc",
            "/proc/self/root/etc",
            "/sys/kernel",
            "/dev/null",
            "/run/docker.sock",
            "/boot/x",
            "/etc/cyberos/cyberos.yaml",
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/shadow.d/x",
            "/var/lib/cyberos/store/HEAD",
            "/var/lib/cyberos-helper/x",
            "/var/lib/cyberos-skillfs",
            "/skills/a/SKILL.md",
            "/home/x/skills/a",
            "/opt/cyberos/skills/a",
            "/tmp/cyberos-skill-broker.x.sock",
        ] {
            assert!(never.holds(Path::new(path)).is_some(), "{path}");
        }
        for path in [
            "/etc/passwd",
            "/srv/cyberos/work/x",
            "/procx",
            "/tmp/x",
            "/tmp",
            "/",
            "/etc",
            "/var/lib/cyberosx",
            "/tmp/cyberos",
        ] {
            assert!(never.holds(Path::new(path)).is_none(), "{path}");
        }
    }

    #[test]
    fn a_directory_is_never_grantable_under_its_real_name_either() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let never = NeverGrantable::new(&Config { state: link.clone(), ..Config::default() });
        assert!(never.holds(&link.join("x")).is_some());
        assert!(never.holds(&real.join("x")).is_some());
    }
}
