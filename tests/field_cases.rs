//! Faults that were found in systems of this kind, tried on this one: the field cases 51 to 84 and 177 to 194, and the
//! threats whose answer is the sandbox or the view. A test bears the number of its case; the last one looks that each has a test here or elsewhere, or a
//! line in SECURITY.md that says why it cannot apply.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "field_cases/containers.rs"]
mod containers;
#[path = "field_cases/limits.rs"]
mod limits;
#[path = "field_cases/memory.rs"]
mod memory;
#[path = "field_cases/missing.rs"]
mod missing;
#[path = "field_cases/programs.rs"]
mod programs;
mod support;
#[path = "field_cases/threats.rs"]
mod threats;
#[path = "field_cases/waits.rs"]
mod waits;
#[path = "field_cases/ways_out.rs"]
mod ways_out;

use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use support::machine::mountinfo;

/// Runs its arguments in place of itself.
const ANY: &str = "#!/bin/sh\nexec \"$@\"\n";

/// The host's mounts, but for those of the tests that run beside this one.
fn host_mounts() -> Vec<String> {
    let table = mountinfo();
    let point = |l: &&str| l.split(' ').nth(4).unwrap_or_default().to_owned();
    table
        .lines()
        .filter(|l| !point(l).starts_with("/var/tmp/") && !point(l).starts_with("/tmp/"))
        .map(str::to_owned)
        .collect()
}

/// Processes of a uid, as the host sees them.
fn processes_of(uid: u64) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let status = entries.filter_map(|e| std::fs::read_to_string(e.path().join("status")).ok());
    status.filter(|s| s.contains(&format!("\nUid:\t{uid}\t"))).count()
}

fn sha256(file: &Path) -> Vec<u8> {
    Sha256::digest(std::fs::read(file).unwrap()).to_vec()
}

/// Every `fn` of the tests of this repository, and every line of SECURITY.md under the heading for what cannot apply.
fn mentions() -> (Vec<String>, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut names, mut open): (Vec<String>, Vec<PathBuf>) = (
        Vec::new(),
        ["tests", "broker/src", "skillfs/src", "priv-helper/src", "proto"].map(|d| root.join(d)).into(),
    );
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let tests = text.split("#[test]").skip(1).chain(text.split("#[tokio::test").skip(1));
                names.extend(tests.filter_map(|t| {
                    let name = t.split("fn ").nth(1)?.split('(').next()?;
                    Some(name.to_owned())
                }));
            }
        }
    }
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let lines = page.split("## Cases that cannot apply").nth(1).unwrap_or_default();
    let lines = lines.split("\n## ").next().unwrap_or_default().lines();
    (names, lines.filter(|l| l.starts_with("- ")).map(str::to_owned).collect())
}

/// The numbers that follow `word` in names: `case_052_…`, `cases_055_062_064_…`, `case_031_and_033_…`.
fn numbers(names: &[String], word: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for name in names {
        let parts: Vec<&str> = name.split('_').collect();
        for (i, part) in parts.iter().enumerate() {
            if *part == word || *part == format!("{word}s") {
                let digits = |p: &&&str| {
                    p.starts_with(|c: char| c.is_ascii_digit()) || p.starts_with('a') && p.len() > 1
                };
                let run = parts[i + 1..].iter().take_while(|p| {
                    digits(p) && p.trim_start_matches('a').parse::<u32>().is_ok() || **p == "and"
                });
                found.extend(run.filter_map(|p| p.trim_start_matches('a').parse::<u32>().ok()));
            }
        }
    }
    found
}

#[test]
fn every_case_and_threat_of_the_sandbox_has_a_test_or_a_reason() {
    let (names, lines) = mentions();
    assert!(names.len() > 200, "only {} tests were found: the search is broken", names.len());
    let said = |what: &str| {
        lines.iter().any(|l| {
            l.contains(&format!("{what} "))
                || l.contains(&format!("{what}:"))
                || l.contains(&format!("{what},"))
        })
    };
    let mut open = Vec::new();
    let cases = numbers(&names, "case");
    // Numbers that no case has are not asked for.
    for case in (51..=84).filter(|n| ![56, 65, 70].contains(n)).chain(177..=194) {
        if !cases.contains(&case) && !said(&format!("case {case}")) {
            open.push(format!("case {case}"));
        }
    }
    let threats =
        numbers(&names, "threat").into_iter().chain(numbers(&names, "attack")).collect::<BTreeSet<_>>();
    for threat in [1, 2, 10, 11, 12, 13, 15].into_iter().chain(20..=25) {
        if !threats.contains(&threat) && !said(&format!("threat A{threat}")) {
            open.push(format!("threat A{threat}"));
        }
    }
    // The tests that the threats ask for; one that is of a single threat may be named for that.
    let tests = numbers(&names, "test");
    for (test, of) in [(1, 0), (5, 7), (6, 10), (7, 11), (8, 13), (11, 0), (12, 0)] {
        if !tests.contains(&test) && !threats.contains(&of) && !said(&format!("test {test}")) {
            open.push(format!("test {test}"));
        }
    }
    assert!(open.is_empty(), "no test is named for these, and SECURITY.md does not say why: {open:?}");
}

#[test]
fn numbers_are_read_from_names_and_from_nothing_else() {
    let names = [
        "case_052_x",
        "cases_055_062_064_y_7",
        "case_031_and_033_z",
        "threat_a13_test_8_core",
        "in_case_of_5",
    ]
    .map(String::from);
    assert_eq!(numbers(&names, "case"), [31, 33, 52, 55, 62, 64].into());
    assert_eq!(numbers(&names, "threat"), [13].into());
    assert_eq!(numbers(&names, "test"), [8].into());
    assert!(numbers(&["case_abc_5".into()], "case").is_empty());
}
