//! What an operator must have seen before he consents (`[4.0]`, `[7.6]`): of a list of wishes that may scroll off the
//! screen, what is dangerous, short and last. The list is the skill's author's text: here each piece of it stands in
//! quotes, on a line of ours, cut to a length. It decides nothing.

use crate::terminal::escape_line;
use serde_json::Value;

/// Tools by what they can do, the most first. One that is not here (an MCP server's) may do anything.
const ORDER: [&str; 11] = [
    "Bash",
    "Write",
    "Edit",
    "HttpPost",
    "HttpFetch",
    "MemoryEmit",
    "Read",
    "Grep",
    "Glob",
    "MemoryRead",
    "MemorySearch",
];
/// Most of a list that is shown: with all of them the summary fits a screen of 24 lines.
const SHOWN: usize = 3;
/// Of memory, which holds nothing of the host's.
const SHOWN_MEMORY: usize = 1;
/// Most characters of one piece of foreign text.
const LONGEST: usize = 70;

/// The lines, from what `show` answers. Each fits a screen of 100 columns.
pub(super) fn summary(shown: &Value) -> Vec<String> {
    let (wishes, given) = (&shown["wishes"], &shown["with_consent"]);
    let tools = by_danger(texts(&wishes["tools"]));
    let mut lines = Vec::new();
    lines.push(match tools.len() {
        0 => "tools: none".to_owned(),
        n => format!("tools: {n}: {}", within(&escape_line(&tools.join(", ")), 100 - 16)),
    });
    let (writes, reads) = (texts(&given["bash_writes"]), texts(&given["bash_reads"]));
    for (what, all) in [("Bash may write what user cyberos owns in", &writes), ("Bash may read", &reads)] {
        if !all.is_empty() {
            lines.push(format!("{what} {}:", counted(all.len(), "directory", "directories")));
            pieces(&mut lines, all, SHOWN);
        }
    }
    if tools.contains(&"Bash") && writes.is_empty() && reads.is_empty() {
        lines.push("Bash sees no directory of this machine's".to_owned());
    }
    let reaches = texts(&given["reaches"]);
    patterns(&mut lines, "files", &texts(&wishes["files"]), SHOWN);
    if reaches == ["/"] {
        lines.push("those reach into everything below /".to_owned());
    } else if !reaches.is_empty() {
        lines.push(format!("those reach into {}", within(&reaches.join(" "), 100 - 17)));
    }
    hosts(&mut lines, &texts(&wishes["domains"]));
    patterns(&mut lines, "memory", &texts(&wishes["memory"]), SHOWN_MEMORY);
    lines.push(format!("limits: {}", limits(wishes)));
    lines
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn by_danger(mut tools: Vec<&str>) -> Vec<&str> {
    tools.sort_by_key(|tool| ORDER.iter().position(|known| known == tool).map_or(0, |at| at + 1));
    tools
}

fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// One piece a line, and how many more there are.
fn pieces(lines: &mut Vec<String>, all: &[&str], most: usize) {
    lines.extend(all.iter().take(most).map(|piece| format!("    {}", quoted(piece))));
    if all.len() > most {
        lines.push(format!("    and {} more", all.len() - most));
    }
}

fn patterns(lines: &mut Vec<String>, name: &str, all: &[&str], most: usize) {
    if all.is_empty() {
        lines.push(format!("{name}: none"));
        return;
    }
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|pattern| narrowness(pattern));
    lines.push(format!("{name}: {}, the widest first:", counted(all.len(), "pattern", "patterns")));
    pieces(lines, &sorted, most);
}

/// Less for what matches more: how deep its literal part goes, whether it crosses directories, how much of it is fixed.
fn narrowness(pattern: &str) -> (usize, bool, usize, &str) {
    let glob = |c: char| matches!(c, '*' | '?' | '[' | '{' | '\\');
    let depth = pattern.split('/').filter(|s| !s.is_empty()).take_while(|s| !s.contains(glob)).count();
    let literal = pattern.chars().filter(|c| !glob(*c) && *c != '/').count();
    // The whole of a literal is its name, not a directory of names.
    let depth = if pattern.contains(glob) { depth } else { depth + 1 };
    (depth, !pattern.contains("**"), literal, pattern)
}

fn hosts(lines: &mut Vec<String>, all: &[&str]) {
    if all.is_empty() {
        lines.push("hosts: none".to_owned());
        return;
    }
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|host| {
        let fixed = host.split('.').filter(|label| !label.contains('*')).count();
        (!host.contains("**"), !host.contains('*'), fixed, *host)
    });
    lines.push(format!("hosts: {}, the widest first:", counted(all.len(), "pattern", "patterns")));
    pieces(lines, &sorted, SHOWN);
}

fn limits(wishes: &Value) -> String {
    let asked = |key: &str, unit: &str| wishes[key].as_u64().map(|n| format!("{n} {unit}"));
    let rate = asked("rate_limit_per_minute", "calls a minute").unwrap_or("any number of calls".to_owned());
    [
        asked("effort_minutes", "minutes"),
        asked("memory_mb", "MiB of memory"),
        asked("max_processes", "processes"),
        asked("tmp_mb", "MiB of /tmp"),
        Some(rate),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}

/// Foreign text in quotes, fit for a terminal, and short. A quote inside is no end of it, and blanks are not enough to
/// push anything to the next line.
fn quoted(text: &str) -> String {
    let inside = escape_line(text).replace('"', "\\\"");
    format!("\"{}\"", within(&inside, LONGEST))
}

fn within(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(files: &[String], domains: &[&str], tools: &[&str]) -> Value {
        json!({
            "wishes": {
                "tools": tools, "files": files, "domains": domains, "memory": ["memories/**"],
                "effort_minutes": 1440, "memory_mb": 4000, "max_processes": null, "tmp_mb": null,
                "rate_limit_per_minute": null,
            },
            "with_consent": {
                "bash_writes": [format!("/srv/{}", "a".repeat(200)), "/srv/b".to_owned()], "bash_reads": [],
                "reaches": ["/etc", "/srv"],
            },
        })
    }

    #[test]
    fn what_is_dangerous_is_last_whatever_stands_around_it() {
        let mut files: Vec<String> = (0..254).map(|n| format!("/srv/project/a{n}/docs/*.md")).collect();
        files.insert(100, "/**".into());
        files.insert(200, "/etc/**".into());
        let hosts: Vec<String> = (0..200).map(|n| format!("docs{n}.example.org")).collect();
        let mut hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        hosts.extend(["*.example.org", "**:*"]);
        let lines = summary(&shown(&files, &hosts, &["Glob", "Grep", "HttpPost", "Read", "Bash", "Edit"]));
        assert!(lines.len() <= 22, "with a heading and the question it must fit a screen: {lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
        assert_eq!(lines[0], "tools: 6: Bash, Edit, HttpPost, Read, Grep, Glob");
        assert_eq!(lines[1], "Bash may write what user cyberos owns in 2 directories:");
        assert_eq!(lines[3], "    \"/srv/b\"");
        let at = |text: &str| {
            lines.iter().position(|line| line == text).unwrap_or_else(|| panic!("{text}: {lines:#?}"))
        };
        let files = at("files: 256 patterns, the widest first:");
        assert_eq!(lines[files + 1..files + 3], ["    \"/**\"", "    \"/etc/**\""]);
        at("    and 253 more");
        at("those reach into /etc /srv");
        let hosts = at("hosts: 202 patterns, the widest first:");
        assert_eq!(lines[hosts + 1..hosts + 3], ["    \"**:*\"", "    \"*.example.org\""]);
        assert_eq!(lines.last().unwrap(), "limits: 1440 minutes, 4000 MiB of memory, any number of calls");
    }

    #[test]
    fn the_widest_patterns_come_first() {
        let mut all =
            ["/srv/a/x.md", "/srv/**", "/x*/**", "/**", "/*", "/etc/passwd", "/{etc,srv}/*", "/srv/*"];
        all.sort_by_key(|pattern| narrowness(pattern));
        assert_eq!(
            all,
            ["/**", "/x*/**", "/*", "/{etc,srv}/*", "/srv/**", "/srv/*", "/etc/passwd", "/srv/a/x.md"]
        );
    }

    #[test]
    fn foreign_text_makes_no_line_no_field_and_no_colour() {
        let hostile = format!("/srv/\n\"limits: none\u{1b}[2K\u{202e}{}/**", " ".repeat(300));
        let mut answer = shown(&[hostile], &[], &["Mcp\nhosts: none"]);
        answer["with_consent"] = json!({});
        let lines = summary(&answer);
        assert!(lines.iter().all(|l| !l.contains(|c: char| c.is_control() || c == '\u{202e}')), "{lines:#?}");
        assert!(lines.iter().all(|l| l.chars().count() <= 100), "{lines:#?}");
        assert_eq!(lines.iter().filter(|l| l.starts_with("limits:")).count(), 1);
        assert_eq!(lines.iter().filter(|l| l.starts_with("hosts:")).count(), 1);
        assert!(lines[2].starts_with("    \"/srv/\\n\\\"limits: none\\x1b[2K"), "{lines:#?}");
    }

    #[test]
    fn a_skill_that_asks_for_nothing_is_told_in_a_few_lines() {
        let lines = summary(&json!({ "wishes": { "effort_minutes": 30, "rate_limit_per_minute": 6 } }));
        assert_eq!(
            lines,
            [
                "tools: none",
                "files: none",
                "hosts: none",
                "memory: none",
                "limits: 30 minutes, 6 calls a minute"
            ]
        );
    }
}
