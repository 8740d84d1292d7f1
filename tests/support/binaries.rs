//! The workspace's binaries for tests: built once a process by cargo itself, so that no stale one is tested in silence.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Path of the binary `name`.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(build);
    built.get(name).unwrap_or_else(|| panic!("no binary {name} in the workspace")).clone()
}

fn build() -> HashMap<String, PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // What is compiled for release, as benches are, is to measure programs that are so too.
    let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    let output = Command::new(cargo)
        .args(["build", "--bins", "--workspace", "--locked", "--message-format=json"])
        .args(release)
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

/// Copies a program to where others can reach it. By a process of its own: while this one had it open for writing, a
/// child that another thread forks could hold it open too, and it could not be executed ("text file busy").
pub fn copy(name: &str, to: &std::path::Path) {
    let copied = Command::new("cp").arg(binary(name)).arg(to).status().unwrap();
    assert!(copied.success(), "cp {name} {}", to.display());
}

/// Writes an executable file, in the same way.
pub fn write_executable(to: &std::path::Path, text: &str) {
    let mut child = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "install {}", to.display());
}
