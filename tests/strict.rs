//! A test proves what its name says: the part of that which can be read from the sources. Each test asserts something, and
//! no assertion is true whatever happens.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use std::collections::{BTreeMap, BTreeSet};

#[path = "support/source.rs"]
mod source;
use source::{code, files, has_word, read, shown};

/// What fails a test where it stands.
const ASSERTS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "panic",
    "prop_assert",
    "prop_assert_eq",
    "unreachable",
    "unwrap_err",
];

/// One function: its name, whether it is a test, and its body without comments and literals.
struct Function {
    name: String,
    test: bool,
    body: String,
}

/// The functions of a source, inner ones included in those around them.
fn functions(text: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut test = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[test]") || trimmed.starts_with("#[tokio::test") {
            test = true;
        }
        let Some(rest) = trimmed.split("fn ").nth(1).filter(|_| is_definition(trimmed)) else { continue };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let indent = line.len() - trimmed.len();
        let mut body = String::from(line);
        // As rustfmt writes it: the end is a brace as far in as the beginning.
        if !line.trim_end().ends_with('}') && !line.trim_end().ends_with(';') {
            for line in lines.by_ref() {
                body.push('\n');
                body.push_str(line);
                if line.starts_with('}') && indent == 0 || line == format!("{}}}", " ".repeat(indent)) {
                    break;
                }
            }
        }
        found.push(Function { name, test: std::mem::take(&mut test), body });
    }
    found
}

fn is_definition(line: &str) -> bool {
    let before = line.split("fn ").next().unwrap_or_default();
    before.split_whitespace().all(|word| {
        matches!(word, "pub" | "pub(crate)" | "pub(super)" | "async" | "const" | "extern")
            || word.starts_with("pub(in")
    })
}

fn calls(body: &str, name: &str) -> bool {
    body.match_indices(name).any(|(at, _)| {
        let before = body[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let after = body[at + name.len()..].chars().next();
        !before && matches!(after, Some('(' | '!' | ')' | ',' | ':'))
    })
}

/// Every function that fails a test, itself or by what it calls.
fn asserting(all: &[Function]) -> BTreeSet<&str> {
    let direct = |f: &&Function| ASSERTS.iter().any(|word| has_word(&f.body, word));
    let mut known: BTreeSet<&str> = all.iter().filter(direct).map(|f| f.name.as_str()).collect();
    loop {
        let more: Vec<&str> = all
            .iter()
            .filter(|f| !known.contains(f.name.as_str()) && known.iter().any(|name| calls(&f.body, name)))
            .map(|f| f.name.as_str())
            .collect();
        if more.is_empty() {
            return known;
        }
        known.extend(more);
    }
}

fn sources() -> BTreeMap<String, Vec<Function>> {
    let mut all = BTreeMap::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            all.insert(shown(&file), functions(&code(&read(&file))));
        }
    }
    all
}

#[test]
fn each_test_asserts_something() {
    let mut all = Vec::new();
    let mut tests = Vec::new();
    for (file, functions) in sources() {
        for function in functions {
            if function.test {
                tests.push((file.clone(), function.name.clone()));
            }
            all.push(function);
        }
    }
    assert!(tests.len() > 400, "only {} tests were found: the search is broken", tests.len());
    let known = asserting(&all);
    let idle: Vec<_> = tests.iter().filter(|(_, name)| !known.contains(name.as_str())).collect();
    assert!(idle.is_empty(), "these can fail only by accident: {idle:#?}");
}

#[test]
fn no_assertion_is_true_whatever_happens() {
    let mut found = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            let text: String = code(&read(&file)).split_whitespace().collect();
            for always in ["assert!(true", "||true)", "||true,", "assert!(1==1", "is_ok()||is_err()"] {
                // Put together, or this file would find itself: literals are not code.
                if text.contains(always) {
                    found.push(format!("{}: {always}", shown(&file)));
                }
            }
            // `x >= 0` of a length, and the same on both sides.
            for part in text.split("assert_eq!(").skip(1) {
                let inside = part.split(");").next().unwrap_or_default();
                if let Some((left, right)) = inside.split_once(',')
                    && !left.is_empty()
                    && left == right
                {
                    found.push(format!("{}: assert_eq!({inside})", shown(&file)));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_search_tells_a_test_that_asserts_from_one_that_does_not() {
    let text = "fn helper() {\n    assert!(x);\n}\n\n#[test]\nfn good() {\n    helper();\n}\n\n#[test]\nfn idle() {\n    \
                let _ = f();\n}\n\n#[tokio::test(flavor = 1)]\nasync fn direct() {\n    panic!();\n}\n";
    let all = functions(text);
    let names: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.test)).collect();
    assert_eq!(names, [("helper", false), ("good", true), ("idle", true), ("direct", true)]);
    assert_eq!(asserting(&all), ["direct", "good", "helper"].into());
}
