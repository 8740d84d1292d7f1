//! The operator's socket itself: where it is, whose, and who may connect (`[7.2]`).

use anyhow::{Context, Result};
use interprocess::local_socket::tokio::Listener;
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use nix::unistd::{Gid, Group, Uid, User, getegid, getgroups};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Listens at `path`, mode 0660. Its group is `group`, of which this process's user must be a member; without one, that
/// of its directory.
pub fn listen(path: &Path, group: Option<&str>) -> Result<Listener> {
    let group = group.map(group_id).transpose()?;
    let name = path.to_fs_name::<GenericFilePath>()?;
    // A socket that someone serves is not replaced; one that is left over is.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        anyhow::bail!("another broker listens at {}", path.display());
    }
    let act = || -> std::io::Result<Listener> {
        let listener = ListenerOptions::new().name(name).mode(0o660).try_overwrite(true).create_tokio()?;
        if let Some(gid) = group {
            std::os::unix::fs::lchown(path, None, Some(gid.as_raw()))?;
        }
        // The umask has taken bits off; nobody but this user and root can put another file there meanwhile.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        Ok(listener)
    };
    act().with_context(|| format!("cannot listen at {}", path.display()))
}

/// The group that `operator_group` names, if this process may give it a file.
fn group_id(name: &str) -> Result<Gid> {
    let group = Group::from_name(name)
        .with_context(|| format!("operator_group {name}: groups cannot be looked up"))?
        .with_context(|| {
            format!(
                "operator_group {name}: there is no such group; make it (groupadd {name}), or name another"
            )
        })?;
    let user = User::from_uid(Uid::effective()).ok().flatten().map_or_else(|| "cyberos".into(), |u| u.name);
    let ours = getegid() == group.gid || getgroups()?.contains(&group.gid);
    anyhow::ensure!(
        ours,
        "operator_group {name}: {user}, the broker's user, is no member of it and cannot give it the socket: \
         usermod -a -G {name} {user}, and start the broker again"
    );
    Ok(group.gid)
}
