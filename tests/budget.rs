//! Who may import whom, how much the root part links and how long it is, and that its page for reviewers is true; checked by
//! machine: cargo is asked.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use std::collections::BTreeSet;

#[path = "support/source.rs"]
mod source;
use source::{cargo, code, files, has_word, quoted, read, root, shown};

/// The crates that the project is to be built of, as the source names them, and where each is used.
const IN_USE: &[(&str, &[&str])] = &[
    ("tokio", &["broker"]),
    ("nix", &["proto", "priv-helper", "broker", "skillfs"]),
    ("serde", &["proto", "priv-helper", "broker", "skillfs"]),
    ("serde_json", &["broker", "skillfs"]),
    ("serde_yaml", &["broker"]),
    ("globset", &["broker"]),
    ("uuid", &["broker"]),
    ("interprocess", &["broker"]),
    ("postcard", &["proto"]),
    ("fuser", &["skillfs"]),
    ("tracing", &["broker", "skillfs"]),
    ("clap", &["broker", "skillfs"]),
    ("caps", &["priv-helper"]),
];

/// The others, and what they wait for. Using one moves its line up.
const NOT_YET: &[(&str, &str)] =
    &[("url", "the HTTP tools [4.5]"), ("opentelemetry", "exporting spans and metrics [8.3]")];

const HELPER_MAX_CRATES: usize = 18;
/// Lines of code, of all that is ours and that only root runs, the build script included and tests left out. It is to be read in
/// one evening: a clear line more is better than a clever one less.
const HELPER_MAX_LINES: usize = 4000;

/// The crates that `package` links, by name and version, itself included; proc-macros run in the compiler and don't count.
fn linked(package: &str) -> BTreeSet<String> {
    cargo(&[
        "tree",
        "--locked",
        "--package",
        package,
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])
    .lines()
    .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
    .collect()
}

fn names(linked: &BTreeSet<String>) -> BTreeSet<&str> {
    linked.iter().filter_map(|line| line.split(' ').next()).collect()
}

/// Direct dependencies of a member, of one kind (`normal` is null in cargo's answer), under the names that sources use.
fn direct(package: &str, kind: Option<&str>) -> BTreeSet<String> {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"]))
            .unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let member =
        packages.iter().find(|p| p["name"] == package).unwrap_or_else(|| panic!("no member {package}"));
    member["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["kind"].as_str() == kind)
        .map(|d| d["rename"].as_str().or(d["name"].as_str()).unwrap().to_owned())
        .collect()
}

#[test]
fn proto_uses_serde_postcard_and_nix_alone() {
    let allowed = ["nix", "postcard", "serde"].map(String::from).into();
    assert_eq!(direct("cyberos-proto", None), allowed, "the seam has no other dependency");
}

#[test]
fn the_root_part_links_little_and_nothing_that_parses() {
    let all = linked("cyberos-priv-helper");
    let others: Vec<_> = all.iter().filter(|c| !c.starts_with("cyberos-priv-helper ")).collect();
    assert!(!others.is_empty(), "cargo tree listed nothing");
    assert!(
        others.len() <= HELPER_MAX_CRATES,
        "{} crates, at most {HELPER_MAX_CRATES}: {others:#?}",
        others.len()
    );

    let forbidden = [
        "anyhow",
        "clap",
        "fuser",
        "hyper",
        "opentelemetry",
        "regex",
        "serde-saphyr",
        "serde_json",
        "serde_yaml",
        "tokio",
        "toml",
        "tracing",
        "url",
        "uuid",
    ];
    let names = names(&all);
    let found: Vec<_> = forbidden.iter().filter(|f| names.contains(*f)).collect();
    assert!(found.is_empty(), "the root part links {found:?}");

    let allowed: BTreeSet<String> =
        ["caps", "cyberos-proto", "landlock", "nix", "serde"].map(String::from).into();
    let more: Vec<_> = direct("cyberos-priv-helper", None).difference(&allowed).cloned().collect();
    assert!(more.is_empty(), "new direct dependencies of the root part: {more:?}");
    // Both run when it is built, on data of its own, and are linked into nothing.
    let allowed: BTreeSet<String> = ["seccompiler", "serde_json"].map(String::from).into();
    let more: Vec<_> = direct("cyberos-priv-helper", Some("build")).difference(&allowed).cloned().collect();
    assert!(more.is_empty(), "new build dependencies of the root part: {more:?}");
}

/// What is left of a file without the module of tests at its end.
fn without_tests(file: &std::path::Path) -> String {
    let text = read(file);
    let Some((ours, tests)) = text.split_once("#[cfg(test)]\nmod tests {\n") else {
        assert!(!text.contains("cfg(test)"), "{}: tests stand in a module at its end", shown(file));
        return text;
    };
    // Nothing that is no test may hide behind them: the module's end is the file's.
    let end = tests.find("\n}\n").map(|end| end + 3);
    assert_eq!(end, Some(tests.len()), "{}: something stands behind its tests", shown(file));
    assert!(!ours.contains("cfg(test)"), "{}: tests stand in one module", shown(file));
    ours.to_owned()
}

#[test]
fn the_root_part_is_short() {
    let sources = files("priv-helper", &[".rs"]);
    assert!(sources.iter().any(|f| f.ends_with("build.rs")), "the build script decides what the filters are");
    let ours = sources.iter().filter(|f| !source::is_test(&shown(f)));
    // What explains is not counted: a budget must not make anybody leave it out.
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines: usize = ours.map(|f| without_tests(f).lines().filter(is_code).count()).sum();
    assert!(lines <= HELPER_MAX_LINES, "{lines} lines of code; {HELPER_MAX_LINES} can be read in an evening");
}

#[test]
fn broker_and_skillfs_do_not_know_each_other() {
    let broker = linked("cyberos-broker");
    for forbidden in ["fuser", "skillfs", "cyberos-priv-helper"] {
        assert!(!names(&broker).contains(forbidden), "the broker links {forbidden}");
    }
    let skillfs = linked("skillfs");
    for forbidden in
        ["cyberos-broker", "cyberos-priv-helper", "serde-saphyr", "serde_yaml", "serde_yml", "tokio"]
    {
        assert!(!names(&skillfs).contains(forbidden), "SkillFS links {forbidden}");
    }
}

#[test]
fn there_is_one_version_of_what_crosses_our_crates() {
    let all: BTreeSet<String> =
        ["cyberos-priv-helper", "cyberos-broker", "skillfs"].iter().flat_map(|p| linked(p)).collect();
    for name in ["nix", "postcard", "serde", "cyberos-proto"] {
        let versions: Vec<_> = all.iter().filter(|c| c.split(' ').next() == Some(name)).collect();
        assert_eq!(versions.len(), 1, "{versions:?}");
    }
}

#[test]
fn the_named_crates_are_in_use_and_the_others_are_waited_for() {
    assert_eq!(IN_USE.len() + NOT_YET.len(), 15, "the project is to be built of fifteen crates");
    let package = |folder: &str| match folder {
        "skillfs" => "skillfs".to_owned(),
        other => format!("cyberos-{other}"),
    };
    let mut idle = Vec::new();
    for (name, folders) in IN_USE {
        for folder in *folders {
            let declared = direct(&package(folder), None).contains(*name);
            let named =
                files(&format!("{folder}/src"), &[".rs"]).iter().any(|f| has_word(&code(&read(f)), name));
            if !declared || !named {
                idle.push(format!("{name} in {folder} (declared: {declared}, named in a source: {named})"));
            }
        }
    }
    assert!(idle.is_empty(), "not in use: {idle:#?}");
    for (name, waits_for) in NOT_YET {
        for folder in ["proto", "priv-helper", "broker", "skillfs"] {
            assert!(
                !direct(&package(folder), None).contains(*name),
                "{name} is in use in {folder} now ({waits_for}): move its line to IN_USE"
            );
        }
    }
}

/// `path.rs::function`, beside `build.rs` or in a crate's sources.
fn has_function(named: &str) -> bool {
    let Some((path, function)) = named.split_once("::") else { return false };
    let path = match (path, path.strip_prefix("proto/")) {
        ("build.rs", _) => "priv-helper/build.rs".to_owned(),
        (_, Some(path)) => format!("proto/src/{path}"),
        (_, None) => format!("priv-helper/src/{path}"),
    };
    let Ok(text) = std::fs::read_to_string(root().join(path)) else { return false };
    // Its tests have functions too.
    let ours = text.split("#[cfg(test)]").next().unwrap_or_default();
    ours.contains(&format!("fn {function}(")) || ours.contains(&format!("fn {function}<"))
}

#[test]
fn the_review_of_the_root_part_names_every_file_and_leads_from_rules_to_functions_and_tests() {
    let page = read(&root().join("priv-helper/REVIEW.md"));
    let (order, table) = page.split_once("## Rule, function, test").expect("the table");
    let named = quoted(&order.replace('\n', " "));
    let sources = files("priv-helper/src", &[".rs"]);
    let sources = sources.iter().map(|file| shown(file).trim_start_matches("priv-helper/src/").to_owned());
    let missing: Vec<_> =
        sources.chain(["build.rs".to_owned()]).filter(|file| !named.contains(file)).collect();
    assert!(missing.is_empty(), "not in the order of reading: {missing:#?}");

    let mut tests = BTreeSet::new();
    for file in files("", &[".rs"]) {
        let text = read(&file);
        for part in text.split("#[test]\n").skip(1) {
            let name = part.split_once("fn ").and_then(|(_, rest)| rest.split('(').next());
            tests.extend(name.map(str::to_owned));
        }
    }
    let rows = table.lines().filter(|line| line.starts_with("| ["));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.split('|').map(str::trim).collect()).collect();
    let mut lost = Vec::new();
    for row in &rows {
        let [_, rule, functions, named, _] = row[..] else { panic!("not three columns: {row:?}") };
        let (functions, named) = (quoted(functions), quoted(named));
        assert!(!functions.is_empty() && !named.is_empty(), "nothing that keeps it, or tries it: {rule}");
        lost.extend(functions.into_iter().filter(|function| !has_function(function)));
        lost.extend(named.into_iter().filter(|test| !tests.contains(test)));
    }
    assert!(lost.is_empty(), "no such function or test: {lost:#?}");
    let clauses = (1..=8).map(|clause| format!("[10.2] {clause}: "));
    let rules = (3..=6).map(|rule| format!("[10.{rule}] "));
    let absent: Vec<_> = clauses
        .chain(rules)
        .filter(|rule| !rows.iter().any(|row| row[1].starts_with(rule.as_str())))
        .collect();
    assert!(absent.is_empty(), "rules without a row: {absent:?}");
}
