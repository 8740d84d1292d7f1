//! A command that a message, a page or a manual names exists, with its options: whoever reads it types it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "support/source.rs"]
mod source;
mod support;

use source::{files, read, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const PROGRAMS: &[&str] = &["cyberos", "skill-ledger", "skillfs", "cyberos-call", "cyberos-broker"];
/// The rules tell of what is to come, too.
const NOT_LOOKED_AT: &[&str] = &["SPEC.md"];
/// What the table of README.md says is not there yet; an entry whose command exists by now fails.
const NOT_YET: &[(&str, &str)] = &[("README.md", "skillfs diff")];

/// The text of a file in which a command may stand: of Rust sources without the comments, and with literals of several
/// lines on one.
fn text(path: &std::path::Path) -> String {
    let text = read(path);
    if !shown(path).ends_with(".rs") {
        return text;
    }
    let kept = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut joined = String::new();
    for (n, part) in kept.split("\\\n").enumerate() {
        joined.push_str(if n == 0 { part } else { part.trim_start() });
    }
    joined
}

/// The commands in quotes (`…` or '…') and those that stand on a line of their own behind a prompt or in a fence.
fn commands(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let is_command = |words: &str| {
        let words = words.strip_prefix("sudo ").unwrap_or(words);
        let program = words.split(' ').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        // A picture of what calls what is no command.
        words.contains(' ') && PROGRAMS.contains(&program) && !words.contains('→')
    };
    for quote in ['`', '\''] {
        for (at, _) in text.match_indices(quote) {
            let rest = &text[at + 1..];
            let Some(end) = rest.find([quote, '\n']).filter(|end| rest[*end..].starts_with(quote)) else {
                continue;
            };
            if is_command(&rest[..end]) {
                found.insert(rest[..end].to_owned());
            }
        }
    }
    let mut fenced = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let line = line.strip_prefix("$ ").unwrap_or(line);
        if fenced && is_command(line) {
            found.insert(line.to_owned());
        }
    }
    found
}

/// What `--help` says of each command that was asked for.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, path: &[String]) -> &str {
        self.0.entry(path.to_vec()).or_insert_with(|| {
            let run = Command::new(support::binaries::binary(&path[0]))
                .args(&path[1..])
                .arg("--help")
                .output()
                .unwrap();
            assert!(run.status.success(), "{path:?} --help");
            String::from_utf8(run.stdout).unwrap()
        })
    }

    /// What is wrong with a command; nothing, if it can be typed.
    fn fault(&mut self, command: &str) -> Option<String> {
        let command = command.split(['|', '>', '#']).next().unwrap().split(" && ").next().unwrap();
        let mut words = command.split_whitespace().filter(|w| *w != "sudo");
        let program = words.next()?.rsplit('/').next()?.to_owned();
        let mut path = vec![program];
        while let Some(word) = words.next() {
            let word = word.trim_end_matches([',', ';', ']', ')', '.']).trim_start_matches('[');
            let help = self.of(&path).to_owned();
            if word == "--" {
                return None;
            }
            if word.starts_with('-') {
                let name = word.split('=').next().unwrap();
                let line = help.lines().find(|l| {
                    l.trim_start().starts_with('-') && l.split([' ', ',', '=']).any(|w| w == name)
                })?;
                // It takes a value, which is the next word.
                if line.contains(&format!("{name} <")) && !word.contains('=') {
                    words.next();
                }
                continue;
            }
            let Some((_, list)) = help.split_once("\nCommands:\n") else { continue };
            let names =
                list.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.split_whitespace().next());
            if names.clone().any(|name| name == word) {
                path.push(word.to_owned());
            } else if word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
                return Some(format!("'{}' has no command '{word}'", path.join(" ")));
            }
        }
        None
    }

    /// The option that a command does not have.
    fn option(&mut self, command: &str) -> Option<String> {
        let mut path = Vec::new();
        let command = command.split(" -- ").next().unwrap();
        for word in command.split_whitespace().filter(|w| *w != "sudo") {
            if path.is_empty() {
                path.push(word.rsplit('/').next()?.to_owned());
            } else if word.starts_with("--") && word.len() > 2 {
                let name: String =
                    word.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
                let has =
                    self.of(&path).split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|w| w == name);
                if !has {
                    return Some(format!("'{}' has no option '{name}'", path.join(" ")));
                }
            } else if let Some((_, list)) = self.of(&path).to_owned().split_once("\nCommands:\n")
                && list
                    .lines()
                    .take_while(|l| !l.is_empty())
                    .any(|l| l.split_whitespace().next() == Some(word))
            {
                path.push(word.to_owned());
            }
        }
        None
    }
}

#[test]
fn every_command_that_is_named_anywhere_exists_with_its_options() {
    let mut helps = Helps::default();
    let mut wrong = Vec::new();
    let mut seen = 0;
    let sources = ["broker/src", "skillfs/src", "priv-helper/src", "proto/src"];
    let mut all: Vec<_> = sources.iter().flat_map(|folder| files(folder, &[".rs"])).collect();
    all.extend(files("", &[".md"]));
    all.extend(files("packaging", &[".yaml", ".service", ".socket"]));
    for path in all.iter().filter(|path| !NOT_LOOKED_AT.contains(&&*shown(path))) {
        for command in commands(&text(path)) {
            seen += 1;
            let fault = helps.fault(&command).or_else(|| helps.option(&command));
            let not_yet = NOT_YET.contains(&(&shown(path), &command));
            match fault {
                Some(fault) if !not_yet => wrong.push(format!("{}: {command}: {fault}", shown(path))),
                None if not_yet => wrong.push(format!("{command} exists by now: take it off the list")),
                _ => {}
            }
        }
    }
    assert!(seen > 60, "only {seen} commands were found: the search is broken");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let mut helps = Helps::default();
    let found =
        commands("see 'cyberos audit lose' or `cyberos audit\n verify`, the user's cyberos, `cyberos`");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["cyberos audit lose"]);
    assert!(helps.fault("cyberos audit lose").unwrap().contains("no command 'lose'"));
    assert_eq!(helps.fault("sudo cyberos audit verify --store DIR"), None);
    assert_eq!(helps.option("sudo cyberos audit verify --store DIR"), None);
    assert!(helps.option("cyberos audit verify --bogus").unwrap().contains("--bogus"));
    assert_eq!(helps.option("cyberos skill run NAME -- --bogus"), None, "a skill's own");
}
