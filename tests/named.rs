//! What pages and maps name is there: sources and tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use std::collections::BTreeSet;

#[path = "support/source.rs"]
mod source;
use source::{files, quoted, read, root};

#[test]
fn each_source_that_a_map_or_a_page_names_is_there() {
    let mut lost = Vec::new();
    let mut seen = 0;
    for (text, base) in [
        ("broker/src/lib.rs", "broker/src"),
        ("skillfs/src/lib.rs", "skillfs/src"),
        ("priv-helper/src/main.rs", "priv-helper/src"),
        ("CONTRIBUTING.md", ""),
        ("SEMANTICS.md", ""),
        ("SECURITY.md", ""),
        ("BENCHMARKS.md", ""),
    ] {
        let text = read(&root().join(text));
        // Of a source its head, where the map is.
        let head = |l: &&str| base.is_empty() || l.starts_with("//!");
        let lines: Vec<&str> = text.lines().filter(head).filter(|l| !l.contains("```")).collect();
        for name in lines.iter().flat_map(|line| quoted(line)).filter(|name| name.ends_with(".rs")) {
            seen += 1;
            if !root().join(base).join(&name).exists() {
                lost.push(format!("{base}: {name}"));
            }
        }
    }
    assert!(seen > 25, "only {seen} were named: the search is broken");
    assert!(lost.is_empty(), "no such file: {lost:#?}");
}

#[test]
fn each_test_that_a_page_names_is_there() {
    let mut tests = BTreeSet::new();
    for file in files("", &[".rs"]) {
        let text = read(&file);
        let functions = text.split("fn ").skip(1).filter_map(|f| f.split('(').next());
        tests.extend(functions.map(str::to_owned));
    }
    let mut seen = 0;
    let mut lost = Vec::new();
    for page in ["SEMANTICS.md", "SECURITY.md", "BENCHMARKS.md", "CONTRIBUTING.md"] {
        for name in quoted(&read(&root().join(page))) {
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            // What is named with three words or more is a test; fields of rows have fewer.
            if name.bytes().all(plain) && name.matches('_').count() >= 3 {
                seen += 1;
                if !tests.contains(&name) {
                    lost.push(format!("{page}: {name}"));
                }
            }
        }
    }
    assert!(seen > 40, "only {seen} tests were named: the search is broken");
    assert!(lost.is_empty(), "no such test: {lost:#?}");
}
