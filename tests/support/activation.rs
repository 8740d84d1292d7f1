//! The helper, started as systemd does at the first connection: with the listening socket as descriptor 3, the socket's
//! owner told by the environment, and the ceiling as its argument. A shell comes first, so that a test can change what
//! the helper inherits.

use cyberos_proto::link;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Makes the socket, which the shell has as descriptor 0, descriptor 3.
pub(crate) const HAND_OVER: &str = "exec 3<&0 </dev/null;";
/// Becomes the helper.
pub(crate) const BECOME: &str = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" --ceiling \"$1\"";

/// The path of the built helper.
pub(crate) fn binary() -> PathBuf {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root: they test a program that runs as root");
    super::binaries::binary("cyberos-priv-helper")
}

/// A socket that listens there, for everybody, in place of what was there before.
pub(crate) fn listen(socket: &Path) -> OwnedFd {
    let _ = fs::remove_file(socket);
    let listener = link::listen(socket).unwrap();
    fs::set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
    listener
}

/// A shell that runs `script`, which must do what [`HAND_OVER`] does, and becomes the helper.
pub(crate) fn activated(listener: OwnedFd, ceiling: &Path, script: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("{script} {BECOME}")).arg(binary()).arg(ceiling).stdin(listener);
    shell
}

/// Runs a helper to its end that is not to serve anybody; how it ended and what it said.
pub(crate) fn ended(ceiling: &Path, script: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    activated(listen(&dir.path().join("socket")), ceiling, script).output().unwrap()
}
