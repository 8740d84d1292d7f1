//! The docs tell the truth where a machine can tell: rule numbers lead somewhere, commands and files exist.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

#[path = "support/source.rs"]
mod source;
use source::{cargo, files, quoted, read, root, shown};

/// The README's two commands.
const RUN: &str = "cargo build --release --locked && ./target/release/cyberos demo";
const TEST: &str = "tests/run";

/// All `[n.m]` in `text`, with the number of their line.
fn references(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices('[') {
            let Some(inside) = line[at + 1..].split(']').next() else { continue };
            let Some((section, rule)) = inside.split_once('.') else { continue };
            let digits = |s: &str| (1..=2).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit());
            if digits(section) && digits(rule) {
                found.push((number + 1, format!("[{inside}]")));
            }
        }
    }
    found
}

/// The rules that SPEC.md defines: lines that begin with the number in bold.
fn rules() -> Vec<String> {
    read(&root().join("SPEC.md"))
        .lines()
        .filter_map(|line| Some(line.strip_prefix("**[")?.split_once("]**")?.0))
        .map(|number| format!("[{number}]"))
        .collect()
}

fn markdown() -> Vec<PathBuf> {
    files("", &[".md"])
}

/// Lines inside ``` fences, with a leading prompt taken off.
fn fenced(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            found.push(line.trim_start().trim_start_matches("$ ").to_owned());
        }
    }
    found
}

#[test]
fn each_rule_has_one_number_and_no_number_is_left_out() {
    let all = rules();
    let unique: BTreeSet<_> = all.iter().collect();
    assert_eq!(unique.len(), all.len(), "a number is defined twice");
    let mut expected = Vec::new();
    for (section, first, last) in [
        (0, 1, 5),
        (1, 1, 8),
        (2, 1, 8),
        (3, 1, 5),
        (4, 0, 6),
        (5, 1, 3),
        (6, 1, 7),
        (7, 1, 7),
        (8, 1, 3),
        (9, 1, 11),
        (10, 1, 6),
        (12, 1, 7),
    ] {
        expected.extend((first..=last).map(|rule| format!("[{section}.{rule}]")));
    }
    assert_eq!(all, expected);
}

#[test]
fn each_reference_leads_to_a_rule() {
    let rules: BTreeSet<_> = rules().into_iter().collect();
    let mut lost = Vec::new();
    let mut seen = 0;
    for file in files("", &[".rs", ".md", ".py", ".toml", ".yaml", ".json", ".sh", "main", "run"]) {
        for (line, reference) in references(&String::from_utf8_lossy(&std::fs::read(&file).unwrap())) {
            seen += 1;
            if !rules.contains(&reference) {
                lost.push(format!("{}:{line}: {reference}", shown(&file)));
            }
        }
    }
    assert!(seen > 50, "only {seen} references were found: the search is broken");
    assert!(lost.is_empty(), "no such rule in SPEC.md: {lost:#?}");
}

#[test]
fn links_between_pages_lead_to_files() {
    let mut broken = Vec::new();
    for page in markdown() {
        let text = read(&page);
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap_or_default();
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !page.parent().unwrap().join(target).exists() {
                broken.push(format!("{}: {target}", shown(&page)));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_readme_gives_two_commands_and_they_exist() {
    let readme = read(&root().join("README.md"));
    let lines = fenced(&readme);
    for command in [RUN, TEST] {
        assert!(lines.iter().any(|line| line == command), "README.md does not give `{command}`");
    }
    let mode = std::fs::metadata(root().join(TEST)).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111, "{TEST} is not executable");
    assert!(read(&root().join(".ci/run")).contains(RUN), "CI does not run the README's first command");
    assert!(
        read(&root().join(".ci/run")).lines().any(|line| line == TEST),
        "CI does not run the README's second command"
    );
}

#[test]
fn the_pages_that_a_project_needs_are_there() {
    for page in
        ["README.md", "SPEC.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "BENCHMARKS.md", "LICENSE"]
    {
        assert!(root().join(page).exists(), "{page} is missing");
    }
}

#[test]
fn a_bench_that_the_page_names_is_there_or_is_said_to_come_later() {
    let page = read(&root().join("BENCHMARKS.md"));
    let (_, table) = page.split_once("| bench | ratios |").expect("the table of benches");
    let mut rows = 0;
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let bench = line.split('`').nth(1).expect("a bench's name");
        let there = root().join(format!("tests/benches/{bench}.rs")).exists();
        assert_eq!(there, !line.contains("(comes later)"), "{line}");
        rows += 1;
    }
    assert!(rows > 0, "no bench was found: the search is broken");
}

/// The programs of this workspace, built by this very call: one built earlier would be tested in its old form.
fn program(name: &str) -> PathBuf {
    let built = cargo(&["build", "--workspace", "--bins", "--locked", "--message-format=json"]);
    built
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|m| m["target"]["name"] == name && m["executable"].is_string())
        .and_then(|m| m["executable"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| panic!("cargo built no program {name}"))
}

/// Commands of `program` that the fenced lines of the pages use: the words before the first that is no plain word.
fn commands(program: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for page in markdown().iter().filter(|page| !shown(page).starts_with("SPEC")) {
        for line in fenced(&read(page)) {
            for part in line.split("&&") {
                let mut words = part.split_whitespace().skip_while(|w| *w == "sudo" || w.contains('='));
                let Some(first) = words.next() else { continue };
                if first.rsplit('/').next() != Some(program) {
                    continue;
                }
                let plain =
                    |w: &&str| w.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !w.starts_with('-');
                let path: Vec<String> = words.take_while(plain).map(str::to_owned).collect();
                if !path.is_empty() {
                    found.insert(path);
                }
            }
        }
    }
    found
}

/// `--help` of the longest beginning of `words` that is a command; what follows it are operands.
fn has_help(program: &PathBuf, words: &[String]) -> bool {
    // An operand (a skill's name) may follow the command, so the last words may be dropped, but never the first.
    (1..=words.len()).rev().any(|n| {
        let run = Command::new(program)
            .args(&words[..n])
            .arg("--help")
            .output()
            .expect("the program can be started");
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        // A group of commands is not the command that was asked for, unless it was the group.
        let is_group = text.contains("\nCommands:");
        run.status.success() && text.contains("Usage:") && (n == words.len() || !is_group)
    })
}

#[test]
fn commands_in_the_docs_exist() {
    let mut unknown = Vec::new();
    for name in ["cyberos", "skillfs", "skill-ledger"] {
        let program = program(name);
        for words in commands(name) {
            if !has_help(&program, &words) {
                unknown.push(format!("{name} {}", words.join(" ")));
            }
        }
    }
    assert!(unknown.is_empty(), "the docs use commands that don't exist: {unknown:#?}");
}

/// The commands of rule [7.1]: `cyberos a b|c` is "a b" and "a c".
fn commands_of_the_rules(spec: &str) -> BTreeSet<String> {
    let (_, rule) = spec.split_once("**[7.1]**").expect("rule 7.1");
    let (rule, _) = rule.split_once("**[7.2]**").expect("its end");
    let mut found = BTreeSet::new();
    for span in quoted(rule) {
        let Some(all) = span.strip_prefix("cyberos ") else { continue };
        let mut group = "";
        for (number, part) in all.split('|').enumerate() {
            let word = if number == 0 {
                let (before, last) = part.rsplit_once(' ').unwrap_or(("", part));
                group = before;
                last
            } else {
                part.split(' ').next().unwrap_or(part)
            };
            found.insert(format!("{group} {word}").trim().to_owned());
        }
    }
    found
}

/// The entry of a rule in SPEC.md's list of what is not built.
fn not_built(spec: &str, rule: &str) -> BTreeSet<String> {
    let (_, section) = spec.split_once("\n## 13. ").expect("section 13");
    let row = section.lines().find(|line| line.starts_with(&format!("| {rule} |")));
    quoted(row.unwrap_or_default()).into_iter().collect()
}

#[test]
fn a_command_of_the_rules_is_there_or_listed_as_not_built() {
    let spec = read(&root().join("SPEC.md"));
    let all = commands_of_the_rules(&spec);
    assert!(all.contains("skill broker status") && all.contains("audit verify"), "{all:?}");
    let program = program("cyberos");
    let there = |words: &str| {
        let run = Command::new(&program).args(words.split(' ')).arg("--help").output().expect("it starts");
        run.status.success()
    };
    let missing: BTreeSet<String> = all.into_iter().filter(|words| !there(words)).collect();
    assert_eq!(not_built(&spec, "[7.1]"), missing);
}

#[test]
fn the_tables_of_tools_say_what_this_build_has() {
    let catalogue = read(&root().join("broker/src/catalogue.rs"));
    let list = |name: &str| -> BTreeSet<String> {
        let (_, rest) = catalogue.split_once(&format!("pub const {name}: ")).expect("the list");
        let (list, _) = rest.split_once(';').and_then(|(_, values)| values.split_once(';')).expect("its end");
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let here = list("HERE");
    let to_come: BTreeSet<String> = list("NATIVE").difference(&here).cloned().collect();
    assert_eq!(not_built(&read(&root().join("SPEC.md")), "[5]"), to_come);
    let readme = read(&root().join("README.md"));
    let (_, table) = readme.split_once("| tool | what it does |").expect("the README's table of tools");
    let told = |state: &str| -> BTreeSet<String> {
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let rows = rows.filter(|line| line.ends_with(&format!("| {state} |")));
        rows.flat_map(|line| quoted(line.split('|').nth(1).unwrap_or_default())).collect()
    };
    assert_eq!(told("built"), here);
    assert_eq!(told("not yet"), to_come);
}

/// Counted where they are made, in the table of `tests/soak/families.c`.
#[test]
fn the_benchmarks_say_how_many_families_of_calls_are_tried() {
    let program = read(&root().join("tests/soak/families.c"));
    let table = program.split_once("FAMILIES[] = {\n").expect("the table").1.split_once("\n};").unwrap().0;
    let families = table.matches("{\"").count();
    assert!(families > 50, "only {families} families were found: the search is broken");
    let text = read(&root().join("BENCHMARKS.md")).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains(&format!("in {families} families")),
        "BENCHMARKS.md does not say {families} families"
    );
}

/// Of texts for people; tables and what a program prints or is given keep their lines.
#[test]
fn texts_wrap_at_100_columns() {
    let mut long = Vec::new();
    let mut texts = 0;
    for file in files("", &[".md", ".yaml"]) {
        texts += 1;
        let mut fenced = false;
        for (number, line) in read(&file).lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            // A skill's description is one line of YAML.
            let value = line.starts_with("description: ");
            let kept = fenced || value || line.starts_with('|') || !line.trim().contains(' ');
            if !kept && line.chars().count() > 100 {
                long.push(format!("{}:{}", shown(&file), number + 1));
            }
        }
    }
    assert!(texts > 10, "only {texts} texts were found: the search is broken");
    assert!(long.is_empty(), "longer than 100 columns: {long:#?}");
}
