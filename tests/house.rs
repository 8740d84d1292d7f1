//! The house's countable promises about its own sources, read from the files.
//!
//! A rule that needs an exception has a table here, with a reason beside each entry; an entry that is no longer needed fails too.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

#[path = "support/source.rs"]
mod source;
use source::{code, files, has_word, is_test, read, root, shown};

/// Rust files of more than [`MAX_LINES`] lines, and why each is still one thing.
const LONG_FILES: &[(&str, &str)] =
    &[("broker/src/memory/store.rs", "one write and one read, each a straight line")];
const MAX_LINES: usize = 400;

/// The three rooms in which `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] = &["priv-helper/src/sys.rs", "proto/src/link.rs", "skillfs/src/spawn.rs"];

/// Where YAML may be named: the reader of SKILL.md, and that of the configuration.
const YAML_ROOMS: &[&str] = &["broker/src/yaml/"];

#[test]
fn the_reader_of_source_leaves_out_comments_and_literals() {
    let source = r###"
        // unsafe one
        /* unsafe /* two */ unsafe */ fn a<'a>(x: &'a str) { let c = ['\'', 'u', '\u{1f}']; }
        let s = "unsafe \" unsafe"; let r = r#"unsafe " unsafe"#; let raw = r"unsafe";
        let r#type = 1; let unsafe_name = 2;
    "###;
    assert!(!has_word(&code(source), "unsafe"), "{}", code(source));
    for kept in ["fn a<'a>(x: &'a str)", "r#type = 1", "unsafe_name = 2"] {
        assert!(code(source).contains(kept), "{kept} is gone: {}", code(source));
    }
    assert!(has_word(&code("let x = 'a'; unsafe { f() } // y"), "unsafe"));
    assert!(has_word(&code("x('\\''); unsafe {}"), "unsafe"));
}

#[test]
fn unsafe_stands_in_its_three_rooms() {
    let mut outside = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            if !UNSAFE_ROOMS.contains(&&*shown(&file)) && has_word(&code(&read(&file)), "unsafe") {
                outside.push(shown(&file));
            }
        }
    }
    assert!(outside.is_empty(), "unsafe outside {UNSAFE_ROOMS:?}: {outside:?}");
}

#[test]
fn each_unsafe_block_says_why_and_why_it_is_sound() {
    for room in UNSAFE_ROOMS {
        let path = root().join(room);
        if !path.exists() {
            continue;
        }
        let text = read(&path);
        let blocks = text.lines().filter(|l| has_word(&code(l), "unsafe") && l.contains('{')).count();
        for word in ["SAFETY:", "JUSTIFICATION:"] {
            let said = text.lines().filter(|l| l.trim_start().starts_with("//") && l.contains(word)).count();
            assert!(said >= blocks, "{room}: {blocks} unsafe blocks, {said} comments with {word}");
        }
    }
}

#[test]
fn yaml_is_named_where_files_are_read_and_nowhere_else() {
    let mut outside = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs"] {
        for file in files(folder, &[".rs"]) {
            let name = shown(&file);
            let text = code(&read(&file));
            if (has_word(&text, "serde_yaml") || has_word(&text, "serde_saphyr"))
                && !YAML_ROOMS.iter().any(|room| name.starts_with(room))
            {
                outside.push(name);
            }
        }
    }
    assert!(outside.is_empty(), "YAML is named outside {YAML_ROOMS:?}: {outside:?}");
}

#[test]
fn files_stay_short() {
    let mut long = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            let lines = read(&file).lines().count();
            let listed = LONG_FILES.iter().any(|(name, _)| *name == shown(&file));
            match (lines > MAX_LINES, listed) {
                (true, false) => {
                    long.push(format!("{} has {lines} lines; at most {MAX_LINES}", shown(&file)))
                }
                (false, true) => long.push(format!("{} is short now: take it off the list", shown(&file))),
                _ => {}
            }
        }
    }
    for (name, reason) in LONG_FILES {
        if !root().join(name).exists() || reason.is_empty() {
            long.push(format!("{name}: gone, or without a reason"));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn each_source_file_says_first_what_it_is_for() {
    let mut silent = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            let text = read(&file);
            let name = shown(&file);
            // A file of one line has nothing to explain; the tests of a module are explained by the module.
            let explained =
                text.lines().count() <= 1 || name.ends_with("/tests.rs") || name.ends_with("_tests.rs");
            if !explained && !text.starts_with("//!") {
                silent.push(shown(&file));
            }
        }
    }
    assert!(silent.is_empty(), "without a //! at the top: {silent:?}");
}

#[test]
fn nothing_is_unfinished_switched_off_or_waited_for() {
    // Put together here, so that this file does not find itself.
    let words = [["to", "do!("].concat(), ["unimple", "mented!("].concat(), ["#[ig", "nore"].concat()];
    let mut found = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            let text = code(&read(&file));
            found.extend(
                words.iter().filter(|w| text.contains(&***w)).map(|w| format!("{}: {w}", shown(&file))),
            );
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Where tests may call `sleep`, how often, and why it is no waiting for something to have happened meanwhile.
const SLEEPS: &[(&str, usize, &str)] = &[
    ("broker/src/audit/tests/quota.rs", 6, "the clock is paused: time passes at once"),
    ("broker/tests/line/ending.rs", 1, "the clock is paused: time passes at once"),
    ("broker/tests/line/frames.rs", 2, "the clock is paused: time passes at once"),
    ("tests/idle/waits.rs", 1, "the time in which nothing is to wake up; what does meanwhile is counted"),
    (
        "tests/sealed.rs",
        1,
        "the pace of an editor, which is what is tried; nothing is taken for done after it",
    ),
    ("tests/support/waiting.rs", 1, "asks again and again until it is so, or fails"),
];

/// Calls of `sleep` and `sleep_until` in code; programs that tests run stand in strings, and are none.
fn sleeps(text: &str) -> usize {
    let code = code(text);
    let calls = |name: &str| {
        code.match_indices(name)
            .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
            .count()
    };
    calls("sleep(") + calls("sleep_until(") + calls("sleep_ms(") + calls("park_timeout(")
}

#[test]
fn no_test_waits_by_the_clock() {
    assert_eq!(
        sleeps("thread::sleep(d); // sleep(1)\n x(\"sleep(2)\"); no_sleep(); tokio::time::sleep_until(t)"),
        2
    );
    let mut found = Vec::new();
    for folder in ["proto", "priv-helper", "broker", "skillfs", "tests"] {
        for file in files(folder, &[".rs"]) {
            let name = shown(&file);
            let text = read(&file);
            // Of a source file what stands below its tests' heading.
            let part = if is_test(&name) {
                Some(text.as_str())
            } else {
                text.split_once("#[cfg(test)]\nmod tests {").map(|t| t.1)
            };
            let calls = part.map_or(0, sleeps);
            let allowed = SLEEPS.iter().find(|(of, ..)| *of == name).map_or(0, |(_, calls, _)| *calls);
            if calls != allowed {
                found.push(format!("{name}: {calls} calls of sleep, {allowed} allowed"));
            }
        }
    }
    found.extend(
        SLEEPS
            .iter()
            .filter(|(of, _, why)| !root().join(of).exists() || why.is_empty())
            .map(|s| format!("{s:?}")),
    );
    assert!(
        found.is_empty(),
        "a test waits until something is so (support::waiting), never for a time: {found:#?}"
    );
}

#[test]
fn no_file_names_a_path_of_a_developers_machine() {
    // Put together here, so that this file does not find itself.
    let places = ["work", "home", "Users"].map(|place| format!("/{place}/"));
    // Homes that stand for anybody's.
    let examples = ["/home/ann", "/home/alice", "/home/u", "/home/x", "/home/*"];
    let mut found = Vec::new();
    let beside = ["..", "shared"].join("/");
    for file in files("", &[]) {
        let Ok(text) = String::from_utf8(std::fs::read(&file).unwrap()) else { continue };
        for (number, line) in text.lines().enumerate() {
            let starts = places.iter().any(|place| {
                line.match_indices(place.as_str()).any(|(at, _)| {
                    let inside = line[..at]
                        .chars()
                        .next_back()
                        .is_some_and(|c| c.is_alphanumeric() || "./_-*$}".contains(c));
                    !inside && !examples.iter().any(|e| line[at..].starts_with(e))
                })
            });
            if starts || line.contains(&beside) {
                found.push(format!("{}:{}: {}", shown(&file), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_top_level_is_as_it_was_agreed() {
    let folders: BTreeSet<String> = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !matches!(&**name, ".git" | "target"))
        .collect();
    let agreed =
        [".ci", "broker", "packaging", "priv-helper", "proto", "skillfs", "tests"].map(String::from).into();
    assert_eq!(folders, agreed);
}

/// The messages of a file's errors that say what their source says too.
fn told_twice(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in text.split("#[error(").skip(1) {
        let Some((message, rest)) = block.split_once(")]\n") else { continue };
        let variant = rest.split("\n}").next().unwrap_or(rest);
        let first = |mark: &str| variant.contains(mark) && message.contains("{0");
        if message.contains("{source") || first("#[from]") || first("#[source]") {
            found.push(message.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    found
}

#[test]
fn no_error_says_what_its_source_says_too() {
    let twice = "#[error(\"a: {source}\")]\nA { source: E },\n#[error(\n  \"b: {0}\"\n)]\nB(#[from] E),\n\
                 #[error(\"c: {0}\")]\nC(E),\n#[error(transparent)]\nD(#[from] E),\n}\n";
    assert_eq!(told_twice(twice).len(), 2, "{:?}", told_twice(twice));
    let mut found = Vec::new();
    for folder in ["proto", "broker", "skillfs"] {
        for file in files(folder, &[".rs"]) {
            found.extend(told_twice(&read(&file)).into_iter().map(|m| format!("{}: {m}", shown(&file))));
        }
    }
    assert!(found.is_empty(), "printed with its chain, each of these says its cause twice: {found:#?}");
}

/// Literals that cannot be broken: regular expressions.
const UNBROKEN: &[&str] = &["broker/src/skill/schema.rs"];
/// Columns of a message's text on one line of source.
const MAX_TEXT: usize = 100;

/// String literals of `tokens`, as they are written, without the tests and the comments.
fn literals(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            // `#[doc = "…"]` is a comment; what stands behind `#[cfg(test)]` ends with its braces.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let text = group.to_string();
                if text.contains("cfg (test)") || text.contains("cfg(test)") {
                    let braces =
                        |t: &TokenTree| matches!(t, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
                    at += tokens[at..].iter().position(braces).unwrap_or(0);
                } else if !text.starts_with("[doc") && !text.starts_with("[ doc") {
                    literals(group.stream(), found);
                }
            }
            TokenTree::Group(group) => literals(group.stream(), found),
            TokenTree::Literal(literal) if literal.to_string().contains('"') => {
                found.push(literal.to_string())
            }
            _ => {}
        }
        at += 1;
    }
}

/// Lines of messages in that source that are too long.
fn long_texts(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    literals(source.parse().expect("Rust"), &mut found);
    let lines = found.iter().flat_map(|literal| literal.lines()).flat_map(|line| line.split("\\n"));
    let lines = lines.map(|line| line.trim().trim_start_matches('"').trim_end_matches('\\').trim_end());
    lines.filter(|line| line.trim_end_matches('"').chars().count() > MAX_TEXT).map(str::to_owned).collect()
}

#[test]
fn messages_wrap_at_100_columns() {
    let (fits, long) = ("x".repeat(MAX_TEXT), "x".repeat(MAX_TEXT + 1));
    let source = format!(
        "/// {long}\n#[error(\"{fits}\")]\nfn f() {{ g(\"{fits} \\\n  {fits}\", \"{fits}\\n{fits}\") }}\n\
         #[cfg(test)]\nmod tests {{ const A: &str = \"{long}\"; }}\n"
    );
    assert_eq!(long_texts(&source), Vec::<String>::new());
    assert_eq!(
        long_texts(&format!("#[error(\"{long}\")]\nfn f() {{ g(\"{fits} \\\n  {long}\") }}")).len(),
        2
    );
    let mut found = Vec::new();
    for folder in ["proto/src", "priv-helper/src", "broker/src", "skillfs/src"] {
        for file in files(folder, &[".rs"]) {
            let name = shown(&file);
            if !is_test(&name) && !UNBROKEN.contains(&&*name) {
                found.extend(long_texts(&read(&file)).into_iter().map(|line| format!("{name}: {line}")));
            }
        }
    }
    assert!(found.is_empty(), "break these with \\ before the end of the line: {found:#?}");
}

/// The macros that end a program when nobody reads what they print, so that its clean-up is left out.
#[test]
fn nothing_that_is_printed_ends_a_program() {
    // Before it has done anything: a daemon's word on its command line.
    let starts = ["broker/src/main.rs", "skillfs/src/main.rs"];
    let mut found = Vec::new();
    for folder in ["proto/src", "priv-helper/src", "broker/src", "skillfs/src"] {
        for file in files(folder, &[".rs"]) {
            let name = shown(&file);
            let text = code(&read(&file));
            let prints = ["print", "println"].iter().any(|m| text.contains(&format!("{m}!")));
            if prints && !is_test(&name) && !starts.contains(&&*name) {
                found.push(name);
            }
        }
    }
    assert!(found.is_empty(), "print by `note!` or `line!` of the CLI, or log: {found:?}");
}
