//! What the sandbox answers, measured by running in a real skill and kept in the repository: `vectors/syscalls.txt`, what
//! every system call gets, and `vectors/doors.txt`, what is behind every door. A change of any line fails, so that
//! whoever changes a filter, a mount or a limit sees what that does, and says so in a commit (`[10.5]`).
//!
//! The tables come from the running skill alone. No rule file is read here.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

#[path = "table/sockets.rs"]
mod sockets;
mod support;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::up::{Skill, Up, write_executable};

/// Set to 1, the tables are written anew instead of compared.
const UPDATE: &str = "CYBEROS_UPDATE_TABLES";

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// A probe in C, compiled as the skill's entry point.
fn compile(source: &str, to: &Path) {
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-mno-red-zone", "-o"])
        .arg(to)
        .arg(here("table").join(source))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// What the probe printed in a run of its own, and that it came to its end.
fn measured(up: &Up, skill: &str) -> String {
    let ran = up.run(skill, &[]);
    assert_eq!((ran.exit, ran.stderr.as_str()), (0, ""), "{ran}");
    ran.stdout
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    release.trim().split('-').next().unwrap().to_owned()
}

/// Compares with the table of the repository, line by line; one that has just been written anew is read back like any other.
fn compare(name: &str, what: &str, now: &str) {
    let path = here("vectors").join(name);
    let heading = format!(
        "# {what}\n# Written by `{UPDATE}=1 tests/run --test table`; never by hand. Measured on Linux "
    );
    if std::env::var_os(UPDATE).is_some_and(|v| v == "1") {
        std::fs::write(&path, format!("{heading}{}.\n{now}", kernel())).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (comments, kept): (Vec<&str>, Vec<&str>) = kept.lines().partition(|l| l.starts_with('#'));
    let changes = difference(&kept, &now.lines().collect::<Vec<_>>());
    assert!(
        changes.is_empty(),
        "tests/vectors/{name} is not what a skill measures now (- kept, + now):\n{changes}\n\
         It says: {}; this is Linux {}.\nIf every line of the change is meant, write the table anew with\n    {UPDATE}=1 \
         tests/run --test table\nand say in the commit why.",
        comments.last().unwrap_or(&"nothing"),
        kernel()
    );
}

/// The lines that are only in one of two lists, in order.
fn difference(kept: &[&str], now: &[&str]) -> String {
    let mut text = String::new();
    let (mut i, mut j) = (0, 0);
    while i < kept.len() || j < now.len() {
        let (old, new) = (kept.get(i), now.get(j));
        if old == new {
            (i, j) = (i + 1, j + 1);
        } else if old.is_some_and(|l| !now[j..].contains(l)) {
            writeln!(text, "- {}", kept[i]).unwrap();
            i += 1;
        } else if new.is_some_and(|l| !kept[i..].contains(l)) {
            writeln!(text, "+ {}", now[j]).unwrap();
            j += 1;
        } else {
            // In both, but in another order.
            let (list, at, sign) = if old.is_some() { (kept, &mut i, '-') } else { (now, &mut j, '+') };
            writeln!(text, "{sign} {}", list[*at]).unwrap();
            *at += 1;
        }
    }
    text
}

#[test]
fn cases_055_062_064_every_system_call_answers_a_skill_as_the_table_says() {
    let up = Up::new(|source| {
        let dir = Skill { id: "table", ..Skill::default() }.write(source);
        compile("syscalls.c", &dir.join("main"));
    });
    let first = measured(&up, "table");
    assert!(first.lines().count() > 800, "the probe measured little:\n{first}");
    assert!(!first.contains("AND THE BIT IS SET"), "a set-id bit can be made:\n{first}");
    assert!(!first.contains("does not return"), "{first}");
    assert_eq!(difference(&lines(&first), &lines(&measured(&up, "table"))), "", "two runs differ");
    compare("syscalls.txt", "System call, with what -> what a skill gets.", &first);
}

#[test]
fn cases_051_052_063_every_door_is_as_the_table_says() {
    let up = Up::new(|source| {
        let dir = Skill { id: "doors", ..Skill::default() }.write(source);
        write_executable(&dir.join("main"), &std::fs::read_to_string(here("table/doors.py")).unwrap());
    });
    let first = measured(&up, "doors");
    assert!(first.lines().count() > 400, "the probe measured little:\n{first}");
    for shout in ["SHOWN", "THE LIMIT HAS CHANGED", "core dumped"] {
        assert!(!first.contains(shout), "{first}");
    }
    assert_eq!(difference(&lines(&first), &lines(&measured(&up, "doors"))), "", "two runs differ");
    compare("doors.txt", "Door -> what a skill gets there.", &first);
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn a_difference_names_every_line_that_changed_and_no_other() {
    let kept = ["a: ok", "b: ok", "c: ok", "d: ok"];
    assert_eq!(difference(&kept, &kept), "");
    assert_eq!(difference(&kept, &["a: ok", "b: EPERM", "c: ok", "d: ok"]), "- b: ok\n+ b: EPERM\n");
    assert_eq!(difference(&kept, &["b: ok", "c: ok", "d: ok", "e: ok"]), "- a: ok\n+ e: ok\n");
    assert_eq!(difference(&kept, &[]).lines().count(), 4);
    assert_ne!(difference(&kept, &["b: ok", "a: ok", "c: ok", "d: ok"]), "");
    assert_ne!(difference(&kept, &["a: ok", "a: ok", "b: ok", "c: ok", "d: ok"]), "");
}
