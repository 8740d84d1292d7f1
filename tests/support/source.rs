//! Reads the repository itself: its files, its sources without comments, and what cargo says of it.
//!
//! Knows no rule. Called by the tests that hold the sources and the docs to the house's promises.
#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The top of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// What cargo prints when it is called with these arguments.
pub fn cargo(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(run.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("cargo prints UTF-8")
}

/// All files of the repository below `folder` whose name ends in one of `endings` (all, if there are none).
pub fn files(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|e| panic!("{}: {e}", next.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if matches!(&*name, "target" | ".git" | "__pycache__" | "node_modules") || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if endings.is_empty() || endings.iter().any(|e| name.ends_with(e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Its path from the top.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Whether a file of that name, from the top, holds tests and nothing else.
pub fn is_test(name: &str) -> bool {
    name.starts_with("tests/") || name.contains("/tests/") || name.ends_with("tests.rs")
}

/// Its text.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", shown(path)))
}

/// Rust source without comments and without what stands in string and character literals.
pub fn code(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let (mut out, mut i) = (String::new(), 0);
    while i < text.len() {
        let before = if i == 0 { ' ' } else { at(i - 1) };
        if at(i) == '/' && at(i + 1) == '/' {
            while i < text.len() && at(i) != '\n' {
                i += 1;
            }
        } else if at(i) == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= text.len() {
                    break;
                }
            }
        } else if at(i) == 'r' && !before.is_alphanumeric() && before != '_' && matches!(at(i + 1), '"' | '#')
        {
            let hashes = (i + 1..).take_while(|j| at(*j) == '#').count();
            if at(i + 1 + hashes) != '"' {
                out.push('r');
                i += 1;
                continue;
            }
            i += 2 + hashes;
            while i < text.len() && !(at(i) == '"' && (1..=hashes).all(|k| at(i + k) == '#')) {
                i += 1;
            }
            i += 1 + hashes;
        } else if at(i) == '"' {
            i += 1;
            while i < text.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if at(i) == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < text.len() && at(i) != '\'' {
                i += 1;
            }
            i += 1;
        } else {
            out.push(at(i));
            i += 1;
        }
    }
    out
}

/// Whether `word` stands in `code` as a whole word.
pub fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].chars().next_back().is_some_and(part)
            && !code[at + word.len()..].chars().next().is_some_and(part)
    })
}

/// What stands in backquotes.
pub fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(|q| q.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}
