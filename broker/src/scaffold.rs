//! `cyberos skill scaffold` (`[1.7]`): a new skill that is valid as it stands and runs. It writes two files into a
//! directory of its own making, and never over anything.

use crate::skill;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const SKILL_MD: &str = "SKILL.md";
const ENTRY_POINT: &str = "main";

/// Why there is no new skill. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    /// `id` cannot be one.
    #[error("id {0}")]
    Id(String),
    /// Something of that name is there.
    #[error("{0} is already there; nothing was written")]
    Exists(PathBuf),
    /// The system said so.
    #[error("{path}: {error}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

/// Writes the skill `id` into `dir/id`, and gives that path. `dir` is made if it is not there.
pub fn write(id: &str, dir: &Path) -> Result<PathBuf, ScaffoldError> {
    let text = skill_md(id);
    skill::parse(text.as_bytes(), Some(id), &|_| false).map_err(|faults| {
        ScaffoldError::Id(faults.into_iter().next().map_or_else(String::new, |f| f.message))
    })?;
    let home = dir.join(id);
    let io = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => ScaffoldError::Exists(path.to_owned()),
        _ => ScaffoldError::Io { path: path.to_owned(), error },
    };
    let parent = made(dir).map_err(|error| ScaffoldError::Io { path: dir.to_owned(), error })?;
    // By descriptors from here on: whoever can write `dir` could exchange the new folder for a link.
    mkdirat(&parent, id, Mode::from_bits_truncate(0o755)).map_err(|e| io(&home, e.into()))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(&parent, id, flags, Mode::empty()).map_err(|e| io(&home, e.into()))?;
    for (name, mode, text) in [(SKILL_MD, 0o644, text.as_str()), (ENTRY_POINT, 0o755, MAIN)] {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(&folder, name, flags, Mode::from_bits_truncate(mode)).map_err(io::Error::from);
        if let Err(e) = made.and_then(|fd| File::from(fd).write_all(text.as_bytes())) {
            // What was made here, and nothing that somebody has put there since.
            for name in [SKILL_MD, ENTRY_POINT] {
                let _ = unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir);
            }
            let _ = unlinkat(&parent, id, UnlinkatFlags::RemoveDir);
            return Err(io(&home.join(name), e));
        }
    }
    Ok(home)
}

/// Opens the folder of skills, which is made if it is not there. No stranger's link on the way is followed.
fn made(dir: &Path) -> io::Result<OwnedFd> {
    let dir = std::path::absolute(dir)?;
    let there = dir.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if there.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let mut parent = skill::open_place(there)?;
    for part in dir.strip_prefix(there).unwrap_or(Path::new("")).components() {
        let name = part.as_os_str();
        // Others have to reach it: SkillFS's user reads skills.
        match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        parent = openat(&parent, name, flags, Mode::empty())?;
    }
    Ok(parent)
}

fn skill_md(id: &str) -> String {
    format!(
        "---
id: {id}
version: 0.1.0
description: Says hello and keeps a note of it.
# Memory paths the skill may read and write. Patterns: * stays within a component, ** crosses.
allowed_memory_scopes:
  - memories/note/hello/**
# Tools it may call. Everything else is refused, and the refusal is recorded.
allowed_tools:
  - MemoryEmit
effort_minutes: 1
---
# {id}

Describe here, for an agent, when to use this skill and what it gives back.

`main` is what runs. It sees this directory, a private /tmp, and the tools listed above, which it
calls with `/opt/cyberos/bin/cyberos-call TOOL JSON`.
"
    )
}

const MAIN: &str = r#"#!/bin/sh
# Runs in a sandbox: no network, no files but this directory and /tmp. Whatever else it needs it
# asks the broker for, one tool call at a time; the answer is JSON on standard output. The first
# call must come within a minute: if yours works longer before it needs a tool, let it begin with
# `/opt/cyberos/bin/cyberos-call --list >/dev/null`.
set -eu

echo "hello from $CYBEROS_SKILL_ID"
/opt/cyberos/bin/cyberos-call MemoryEmit \
    '{"kind": "note.hello", "payload": {"text": "The starter skill has run."}}'
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn a_starter_is_valid_as_it_stands_and_its_program_is_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let home = write("my-skill-2", dir.path()).unwrap();
        let report = skill::report_dir(&home, &|_| false).unwrap();
        assert!(report.is_ok() && report.warnings.is_empty(), "{:?} {:?}", report.errors, report.warnings);
        let main = home.join("main");
        assert_eq!(main.metadata().unwrap().permissions().mode() & 0o100, 0o100);
        assert!(Command::new("/bin/sh").arg("-n").arg(&main).status().unwrap().success());
    }

    #[test]
    fn the_call_that_the_starter_makes_is_within_what_it_asks_for() {
        let args = MAIN.split('\'').nth(1).unwrap();
        let args: serde_json::Value = serde_json::from_str(args).unwrap();
        let derived = format!("memories/{}/2026/01/x.md", args["kind"].as_str().unwrap().replace('.', "/"));
        let skill = skill::parse(skill_md("a").as_bytes(), None, &|_| false).unwrap();
        assert!(skill.allowed_memory_scopes[0].value.matches(derived));
    }

    #[test]
    fn nothing_is_ever_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        for make in [
            |p: &Path| fs::create_dir(p),
            |p: &Path| fs::write(p, "mine"),
            |p: &Path| std::os::unix::fs::symlink("/nonexistent", p),
        ] {
            let home = dir.path().join("demo");
            make(&home).unwrap();
            assert!(matches!(write("demo", dir.path()), Err(ScaffoldError::Exists(_))));
            let _ = fs::remove_file(&home).or_else(|_| fs::remove_dir(&home));
        }
    }

    #[test]
    fn the_folder_of_skills_is_made_if_it_is_missing_and_a_file_in_its_place_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("my/skills");
        assert_eq!(write("demo", &missing).unwrap(), missing.join("demo"));
        let file = missing.join("demo/main");
        let failed = write("demo", &file).unwrap_err().to_string();
        assert_eq!(failed, format!("{}: not a directory", file.display()));
    }

    #[test]
    fn case_137_an_id_that_is_no_id_makes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for id in
            ["", "Demo", "../x", "a/b", "a\nallowed_tools: [Bash]", "-a", "a: b", "{{7*7}}", &"a".repeat(65)]
        {
            assert!(matches!(write(id, dir.path()), Err(ScaffoldError::Id(_))), "{id:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
