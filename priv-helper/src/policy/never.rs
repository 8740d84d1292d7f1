//! What is never granted to Bash (`[4.0]`), besides what the broker itself refuses: told by what a directory is and lies
//! in, and by its name. The helper finds out the former.

use crate::policy::ceiling::{CeilingText, RootKind};
use crate::policy::identity::Key;
use cyberos_proto::message::Refusal;
use cyberos_proto::ungrantable::{TREES, WHOLE, beginning_of};
use std::path::{Path, PathBuf};

/// A directory that is never granted, as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Never {
    /// What the kernel calls it.
    pub(crate) name: PathBuf,
    /// Its key, and those of all directories around it, the nearest first.
    pub(crate) around: Vec<Key>,
    /// Whether what lies in it is not granted either.
    pub(crate) inner: bool,
}

impl CeilingText {
    /// Every name that no granted directory may be or lie around, and whether it may not lie in it either.
    pub(crate) fn nevers(&self) -> impl Iterator<Item = (&Path, bool)> {
        // Backing files are a skill's source; the rest is named for other ends, and no skill's business.
        let roots = self.roots.iter().filter(|(kind, _)| *kind != RootKind::Grant).map(|(_, name)| name);
        let mounts = self.mounts.values().map(|(name, _)| name);
        let own = self.never.iter().chain(roots).chain(mounts).chain(&self.bin).chain([&self.locks]);
        let inner = TREES.iter().map(Path::new).chain(own.map(PathBuf::as_path)).map(|name| (name, true));
        inner.chain(WHOLE.iter().map(|name| (Path::new(name), false)))
    }

    /// Refuses the directory called `name` if it is one that is never granted, lies around one, or in one. `chain` has
    /// its key and those of all directories around it; `found` is what there is of [`CeilingText::nevers`]: the rest is
    /// told by its name.
    pub(crate) fn grants<'a>(
        &'a self,
        mut found: impl Iterator<Item = &'a Never>,
        name: &'a Path,
        chain: &[Key],
    ) -> Result<(), Refusal> {
        let touches = |n: &&Never| {
            n.name.starts_with(name)
                || chain.first().is_none_or(|own| n.around.contains(own))
                || n.inner
                    && (name.starts_with(&n.name) || n.around.first().is_none_or(|own| chain.contains(own)))
        };
        let near = |n: &Path| name.starts_with(n) || n.starts_with(name);
        let by_name = || self.nevers().find(|(n, inner)| *inner && near(n)).map(|(n, _)| n);
        let own = || beginning_of(name).map(|_| name);
        match found.find(touches).map(|n| n.name.as_path()).or_else(by_name).or_else(own) {
            Some(why) => Err(Refusal::Descriptor(format!("never granted, because of {}", why.display()))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_granted_is_told_by_key_and_by_name() {
        let text: CeilingText = "never /var/keys\nlock_dir /locks".parse().unwrap();
        let root = (0, 1, 2);
        let found = |name: &str, own: Key, inner| Never { name: name.into(), around: vec![own, root], inner };
        let nevers = [found("/var/keys", (0, 1, 7), true), found("/usr", (0, 1, 8), false)];
        let refuses = |name: &str, chain: &[Key]| match text.grants(nevers.iter(), Path::new(name), chain) {
            Ok(()) => None,
            Err(Refusal::Descriptor(why)) => {
                why.strip_prefix("never granted, because of ").map(str::to_owned)
            }
            Err(other) => Some(other.to_string()),
        };
        for (name, chain, because) in [
            ("/srv/work", &[(0, 1, 9), root][..], None),
            ("/srv/work", &[], Some("/var/keys")),
            // It is one under another name, or lies in one or around one.
            ("/srv/work", &[(0, 1, 7), root], Some("/var/keys")),
            ("/srv/work/x", &[(0, 1, 9), (0, 1, 7), root], Some("/var/keys")),
            ("/mnt", &[root], Some("/var/keys")),
            ("/srv/u", &[(0, 1, 8), root], Some("/usr")),
            ("/srv/u/share", &[(0, 1, 9), (0, 1, 8), root], None),
            // The same by name, whether it exists or not.
            ("/var/keys/x", &[(9, 9, 9)], Some("/var/keys")),
            ("/var", &[(9, 9, 9)], Some("/var/keys")),
            ("/usr", &[(9, 9, 9)], Some("/usr")),
            ("/usr/share", &[(9, 9, 9)], None),
            ("/locks/1", &[(9, 9, 9)], Some("/locks")),
            ("/proc/1", &[(9, 9, 9)], Some("/proc")),
            ("/locksmith", &[(9, 9, 9)], None),
            ("/tmp/cyberos-x/y", &[(9, 9, 9)], Some("/tmp/cyberos-x/y")),
            ("/tmp/other", &[(9, 9, 9)], None),
        ] {
            assert_eq!(refuses(name, chain).as_deref(), because, "{name} {chain:?}");
        }
    }
}
