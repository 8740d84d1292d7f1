//! The workspace's binaries for tests: built once a process by cargo itself, so that no stale one is tested in silence.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Path of the binary `name`.
pub(crate) fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(build);
    built.get(name).unwrap_or_else(|| panic!("no binary {name} in the workspace")).clone()
}

fn build() -> HashMap<String, PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--bins", "--workspace", "--locked", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|e| panic!("cargo cannot be run: {e}"));
    assert!(output.status.success(), "cargo build failed");
    let artifacts = output.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    artifacts
        .filter_map(|line| {
            let message: serde_json::Value = serde_json::from_slice(line).ok()?;
            let path = PathBuf::from(message["executable"].as_str()?);
            Some((message["target"]["name"].as_str()?.to_owned(), path))
        })
        .collect()
}
