//! Whose a store of the ledger is, for a command of root's that writes in it (`[6.4]`). Whoever owns the store, something in
//! it or a folder above it can put a link where root writes. So root becomes that user first, and writes as root only
//! where nobody but root can change anything.

use nix::unistd::{Gid, Uid, User, setgid, setgroups, setuid};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Gives up being root for the one user who could change the store, and returns the store's path without links.
pub(super) fn become_owner(store: &Path) -> Result<PathBuf, String> {
    let real = resolve(store)?;
    let found = found(store, &real)?;
    let Some((path, meta)) = found.iter().find(|(_, meta)| meta.uid() != 0) else {
        return only_roots(&found, &real).map(|()| real);
    };
    if let Some((other, of)) = found.iter().find(|(_, of)| of.uid() != 0 && of.uid() != meta.uid()) {
        return Err(format!(
            "two users could change the store: uid {} owns {}, and uid {} owns {}; {}",
            meta.uid(),
            path.display(),
            of.uid(),
            other.display(),
            advice(if real.starts_with(other) { other } else { &real }, &real)
        ));
    }
    let (uid, gid) = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
    // A file's group may be any that its folder has; the broker's is that of its user.
    let gid = User::from_uid(uid).ok().flatten().map_or(gid, |user| user.gid);
    let became = setgroups(&[gid]).and_then(|()| setgid(gid)).and_then(|()| setuid(uid));
    became.map_err(|e| format!("cannot become uid {uid}, who owns {}: {e}", path.display()))?;
    Ok(real)
}

/// The store, or where it is gone, what it would be in the folder that it was in.
fn resolve(store: &Path) -> Result<PathBuf, String> {
    let unread = |e: io::Error| format!("cannot read {}: {e}", store.display());
    match store.symlink_metadata() {
        Ok(meta) if meta.is_dir() => store.canonicalize().map_err(unread),
        Ok(_) => Err(format!("{} is no directory: name the store itself", store.display())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let folder = store.parent().zip(store.file_name());
            folder.and_then(|(folder, name)| Some(folder.canonicalize().ok()?.join(name))).ok_or_else(|| {
                format!("there is neither {} nor the folder that it should be in", store.display())
            })
        }
        Err(e) => Err(unread(e)),
    }
}

/// The store, what is in it and in its folders, and all above it, by the path that was given and by the real one. The
/// store comes first: its group is the one to take.
fn found(given: &Path, real: &Path) -> Result<Vec<(PathBuf, Metadata)>, String> {
    let mut paths: Vec<PathBuf> = real.ancestors().chain(given.ancestors()).map(Path::to_owned).collect();
    for folder in [real.to_owned(), real.join("audit"), real.join("lost")] {
        match folder.read_dir() {
            Ok(inside) => paths.extend(inside.flatten().map(|entry| entry.path())),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(e) => return Err(format!("cannot read {}: {e}", folder.display())),
        }
    }
    let mut found = Vec::new();
    for path in paths {
        match path.symlink_metadata() {
            Ok(meta) => found.push((path, meta)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("cannot look at {}: {e}", path.display())),
        }
    }
    Ok(found)
}

/// Whether nobody else can change anything of what was found, all of which is root's.
fn only_roots(found: &[(PathBuf, Metadata)], store: &Path) -> Result<(), String> {
    for (path, meta) in found {
        if meta.is_symlink() {
            if path.starts_with(store) {
                return Err(format!(
                    "{} is a link, and root follows none in a store: remove it",
                    path.display()
                ));
            }
            continue;
        }
        // In a sticky directory others can add names and not take this one; in the store there is nothing to add.
        let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0 && !path.starts_with(store);
        if meta.mode() & 0o022 != 0 && !sticky {
            return Err(format!(
                "root does not write in this store, for others than root can change {} (mode {:o}): chmod go-w it; {}",
                path.display(),
                meta.mode() & 0o7777,
                advice(store, store)
            ));
        }
    }
    Ok(())
}

fn advice(path: &Path, store: &Path) -> String {
    if path == store {
        return format!("make the store the broker's user's: chown -R cyberos: {}", store.display());
    }
    format!(
        "make the folders above it root's or the broker's user's (chown root: {}), and the store that \
         user's: chown -R cyberos: {}",
        path.display(),
        store.display()
    )
}
