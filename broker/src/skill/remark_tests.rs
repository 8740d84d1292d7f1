//! What an author surely did not mean, as `validate` warns of it.

use super::{Code, report};

fn warnings(line: &str) -> Vec<(String, u32, String)> {
    let key = line.split(':').next().unwrap();
    let rest: String = [
        "id: demo",
        "version: 1.0.0",
        "description: d",
        "allowed_memory_scopes: []",
        "allowed_tools: [Read]",
        "x-allowed-files: [/srv/cyberos/work/**]",
    ]
    .iter()
    .filter(|known| known.split(':').next() != Some(key))
    .map(|known| format!("{known}\n"))
    .collect();
    let report = report(format!("---\n{line}\n{rest}---\n").as_bytes(), Some("demo"), &|_| false);
    assert!(report.is_ok(), "{line:?}: {:?}", report.errors);
    assert_eq!(report.to_json()["status"], "ok");
    let ours = report.warnings.into_iter().filter(|w| w.code == Code::YamlParse);
    ours.map(|w| (w.field, w.line, w.message)).collect()
}

#[test]
fn case_191_a_text_that_is_changed_in_silence_is_warned_of_with_line_and_cure() {
    for (line, field, cure) in [
        ("description: Fixes issue #12 of the tracker", "description", "quotes"),
        ("description: Uses C # and F", "description", "quotes"),
        ("description: two\n  lines # of it", "description", "quotes"),
        ("description: a\t# b", "description", "quotes"),
        ("tags: [a] # b", "", ""),
        ("tags:\n  - issue #12", "tags", "quotes"),
        ("x-allowed-files:\n  - /srv/a #b/**", "x-allowed-files", "quotes"),
        ("x-allowed-files:\n  - \"/srv/a\u{a0}b/**\"", "x-allowed-files", "type it anew"),
        ("allowed_memory_scopes: [\"memories/\u{200b}x\"]", "allowed_memory_scopes", "type it anew"),
        ("description: a\u{ad}b", "description", "type it anew"),
        ("description: “Quoted”", "description", "\" or '"),
        ("description: \"C:\\new folder\"", "description", "single quotes"),
        ("description: \"C:\\temp\"", "description", "single quotes"),
    ] {
        let found = warnings(line);
        if field.is_empty() {
            assert_eq!(found, [], "{line:?}");
            continue;
        }
        let [(at, number, message)] = found.as_slice() else { panic!("{line:?}: {found:?}") };
        assert_eq!(at, field, "{line:?}: {message}");
        assert!(message.contains(cure), "{line:?}: {message}");
        let last = u32::try_from(line.lines().count()).unwrap() + 1;
        assert!((2..=last).contains(number), "{line:?}: line {number}");
    }
}

#[test]
fn what_is_meant_is_not_warned_of() {
    for line in [
        "description: 'Fixes issue #12'",
        "description: \"a # b\"",
        "description: a#b, C# and F#",
        "description: plain\n# a comment of its own",
        "description: >\n  folded # not a comment\n  #12",
        "description: |\n  - a # b",
        "description: Espace\u{a0}insécable\u{a0}!",
        "description: |\n  “Quoted” text",
        "description: “a” and b",
        "effort_minutes: 5 # minutes",
        "allowed_tools:\n  - Read # to look\n  - Bash ## too",
        "x-allowed-files:\n  - /srv/a/** # the work",
        "allowed_tools: # none yet\n  []",
        "x-note: 'C:\\new'",
    ] {
        assert_eq!(warnings(line), [], "{line:?}");
    }
}
