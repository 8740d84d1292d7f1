//! Every fault of SKILL.md by kind, with its line, as an author would meet it.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

const GOOD: &str = "\
---
id: demo
version: 1.2.3
description: Shows what it does.
allowed_memory_scopes:
  - memories/projects/demo/**
allowed_tools: [MemoryRead, Read]
x-allowed-files:
  - /srv/cyberos/work/**
---
# Demo
";

fn no_mcp(_: &str) -> bool {
    false
}

fn faults(text: &str) -> Vec<Fault> {
    parse(text.as_bytes(), Some("demo"), &no_mcp).err().unwrap_or_default()
}

/// GOOD with one line replaced, or with a line added before the closing fence.
fn with(line: &str) -> String {
    let key = line.split(':').next().unwrap();
    let mut lines: Vec<&str> = GOOD.lines().collect();
    match lines.iter().position(|l| l.split(':').next() == Some(key)) {
        Some(at) => {
            lines[at] = line;
            while lines[at + 1].starts_with(' ') {
                lines.remove(at + 1);
            }
        }
        None => lines.insert(9, line),
    }
    lines.join("\n")
}

#[test]
fn a_good_file_gives_every_field_with_its_line() {
    let skill = parse(GOOD.as_bytes(), Some("demo"), &no_mcp).unwrap();
    assert_eq!((skill.id.as_str(), skill.version.as_str()), ("demo", "1.2.3"));
    assert_eq!(skill.allowed_memory_scopes[0].line, 6);
    assert_eq!(skill.allowed_tools[1], Item { value: "Read".into(), line: 7 });
    assert_eq!(skill.extensions.allowed_files[0].line, 9);
    assert_eq!(skill.extensions.entrypoint, "main");
    assert_eq!(
        (skill.effort_minutes, skill.sync_class, skill.tenant_scope),
        (30, SyncClass::Private, TenantScope::Any)
    );
}

#[test]
fn every_optional_key_is_read() {
    let text = GOOD.replace(
        "allowed_tools: [MemoryRead, Read]",
        "allowed_tools: [MemoryRead, Read, mcp__x__go]\ndisallowed_tools: [Bash]\nmin_broker_version: 0.0.1\n\
         max_broker_version: 99.0.0\nsync_class: shareable\ntenant_scope: pinned\neffort_minutes: 5\ntags: [a, 'ü']\n\
         x-allowed-domains: [api.example.com]\nx-memory-mb: 1024\nx-max-processes: 12\nx-tmp-mb: 100\n\
         x-rate-limit-per-minute: 60\nx-entrypoint: bin/run\nx-note: {free: [1, form]}\n\
         x-content-sha256: sha256:0000000000000000000000000000000000000000000000000000000000000000\n\
         x-tests: [{tool: Read}]",
    );
    let skill = parse(text.as_bytes(), Some("demo"), &|t| t == "mcp__x__go").unwrap();
    let x = &skill.extensions;
    assert_eq!(
        (skill.sync_class, skill.tenant_scope, skill.effort_minutes),
        (SyncClass::Shareable, TenantScope::Pinned, 5)
    );
    assert_eq!(
        (x.memory_mb, x.max_processes, x.tmp_mb, x.rate_limit_per_minute),
        (Some(1024), Some(12), Some(100), Some(60))
    );
    assert_eq!((x.entrypoint.as_str(), x.tests.len(), skill.tags.len()), ("bin/run", 1, 2));
}

#[test]
fn each_fault_is_named_with_field_code_and_line() {
    let long_id = format!("id: {}", "a".repeat(65));
    let long_description = format!("description: {}", "ü".repeat(201));
    let many = format!("allowed_memory_scopes: [{}]", vec!["memories/x"; 257].join(", "));
    let table: &[(&str, &str, Code, u32)] = &[
        ("id: Demo", "id", Code::InvalidId, 2),
        ("id: -demo", "id", Code::InvalidId, 2),
        ("id: ../x", "id", Code::InvalidId, 2),
        ("id: 'a/b'", "id", Code::InvalidId, 2),
        ("id: 123", "id", Code::InvalidId, 2),
        ("id:", "id", Code::InvalidId, 2),
        ("id: other", "id", Code::InvalidId, 2),
        (&long_id, "id", Code::InvalidId, 2),
        ("version: 1.0", "version", Code::InvalidVersion, 3),
        ("version: 1", "version", Code::InvalidVersion, 3),
        ("version: v1.0.0", "version", Code::InvalidVersion, 3),
        ("version: 01.0.0", "version", Code::InvalidVersion, 3),
        ("description: ''", "description", Code::InvalidDescription, 4),
        ("description: 5", "description", Code::InvalidDescription, 4),
        ("description: \"a\\x1b[31m\"", "description", Code::InvalidDescription, 4),
        (&long_description, "description", Code::InvalidDescription, 4),
        ("allowed_memory_scopes: ['memories/[x']", "allowed_memory_scopes", Code::InvalidMemoryScopeGlob, 5),
        ("allowed_memory_scopes: ['']", "allowed_memory_scopes", Code::InvalidMemoryScopeGlob, 5),
        (&many, "allowed_memory_scopes", Code::InvalidMemoryScopeGlob, 5),
        ("allowed_memory_scopes: memories/x", "allowed_memory_scopes", Code::InvalidField, 5),
        ("allowed_memory_scopes:", "allowed_memory_scopes", Code::InvalidField, 5),
        ("allowed_memory_scopes: [1]", "allowed_memory_scopes", Code::InvalidField, 5),
        ("allowed_tools: [Bsah]", "allowed_tools", Code::UnknownTool, 7),
        ("allowed_tools: ['*']", "allowed_tools", Code::UnknownTool, 7),
        ("allowed_tools: ['Bash ']", "allowed_tools", Code::UnknownTool, 7),
        ("allowed_tools: [bash]", "allowed_tools", Code::UnknownTool, 7),
        ("allowed_tools: [on]", "allowed_tools", Code::UnknownTool, 7),
        ("allowed_tools: [1]", "allowed_tools", Code::InvalidField, 7),
        ("allowed_tools: null", "allowed_tools", Code::InvalidField, 7),
        ("disallowed_tools: [Bsah]", "disallowed_tools", Code::UnknownTool, 10),
        ("min_broker_version: 99.0.0", "min_broker_version", Code::BrokerTooOld, 10),
        ("max_broker_version: 0.0.1", "max_broker_version", Code::BrokerTooNew, 10),
        ("max_broker_version: new", "max_broker_version", Code::InvalidField, 10),
        ("signature: {algo: ed25519}", "signature", Code::SignatureFailed, 10),
        ("sync_class: public", "sync_class", Code::InvalidField, 10),
        ("tenant_scope: [any]", "tenant_scope", Code::InvalidField, 10),
        ("effort_minutes: 0", "effort_minutes", Code::InvalidField, 10),
        ("effort_minutes: 1441", "effort_minutes", Code::InvalidField, 10),
        ("effort_minutes: '5'", "effort_minutes", Code::InvalidField, 10),
        ("effort_minutes: 012", "effort_minutes", Code::InvalidField, 10),
        ("effort_minutes: 5.0", "effort_minutes", Code::InvalidField, 10),
        ("effort_minutes: .inf", "effort_minutes", Code::InvalidField, 10),
        ("tags: [a,b,c,d,e,f,g,h,i,j,k]", "tags", Code::InvalidField, 10),
        ("tags: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]", "tags", Code::InvalidField, 10),
        ("x-allowed-files: [srv/x]", "x-allowed-files", Code::InvalidFileGlob, 8),
        ("x-allowed-files: ['~/x']", "x-allowed-files", Code::InvalidFileGlob, 8),
        ("x-allowed-files: ['/a{b']", "x-allowed-files", Code::InvalidFileGlob, 8),
        ("x-allowed-domains: ['https://x.y']", "x-allowed-domains", Code::InvalidDomain, 10),
        ("x-memory-mb: -1", "x-memory-mb", Code::InvalidField, 10),
        ("x-max-processes: many", "x-max-processes", Code::InvalidField, 10),
        ("x-rate-limit-per-minute: 0", "x-rate-limit-per-minute", Code::InvalidField, 10),
        ("x-entrypoint: ../main", "x-entrypoint", Code::InvalidField, 10),
        ("x-entrypoint: /bin/sh", "x-entrypoint", Code::InvalidField, 10),
        ("x-content-sha256: abc", "x-content-sha256", Code::InvalidField, 10),
        ("x-tests: [1]", "x-tests", Code::InvalidField, 10),
        ("alowed_tools: []", "alowed_tools", Code::UnknownField, 10),
        ("name: demo", "name", Code::UnknownField, 10),
        ("id2: &a x", "frontmatter", Code::YamlParse, 10),
        ("description: a: b", "frontmatter", Code::YamlParse, 4),
    ];
    for &(line, field, code, at) in table {
        let found = faults(&with(line));
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        assert_eq!(
            (found[0].field.as_str(), found[0].code, found[0].line),
            (field, code, at),
            "{line}: {}",
            found[0]
        );
    }
}

#[test]
fn all_faults_are_listed_at_once_in_the_order_of_lines() {
    let found = faults(
        "---\nid: Demo\nversion: 1\neffort_minutes: x\nallowed_tools:\n  - Read\n  - Raed\nfoo: 1\n---\n",
    );
    let seen: Vec<(u32, &str)> = found.iter().map(|f| (f.line, f.field.as_str())).collect();
    assert_eq!(
        seen,
        [
            (1, "description"),
            (1, "allowed_memory_scopes"),
            (2, "id"),
            (3, "version"),
            (4, "effort_minutes"),
            (7, "allowed_tools"),
            (8, "foo")
        ]
    );
}

#[test]
fn near_misses_get_a_suggestion() {
    for (line, word) in [
        ("allowed_tools: [Bsah]", "did you mean \"Bash\"?"),
        ("allowed_tools: [read]", "did you mean \"Read\"?"),
        ("allowed_tools: [memory_read]", "did you mean \"MemoryRead\"?"),
        ("allowed_tools: ['Bash(git:*)']", "write \"Bash\""),
        ("alowed_tools: []", "did you mean \"allowed_tools\"?"),
        ("efort_minutes: 5", "did you mean \"effort_minutes\"?"),
        ("allowed-tools: Read", "the key for it is \"allowed_tools\""),
    ] {
        let found = faults(&with(line));
        assert!(found[0].message.contains(word), "{line}: {}", found[0]);
    }
}

#[test]
fn a_standard_agent_skill_is_told_what_it_lacks() {
    let found = faults("---\nname: demo\ndescription: Does things.\nlicense: MIT\n---\nText\n");
    assert_eq!(found[0].code, Code::MissingFrontmatter);
    for key in ["id", "version", "allowed_memory_scopes", "allowed_tools"] {
        assert!(found[0].message.contains(key), "{}", found[0]);
        assert!(found.iter().any(|f| f.field == key), "{key}");
    }
    assert!(!found[0].message.contains("description,"));
}

#[test]
fn case_114_rules_that_can_never_apply_are_reported() {
    let text = GOOD
        .replace("memories/projects/demo/**", "notes/**")
        .replace("[MemoryRead, Read]", "[MemoryRead]\nx-allowed-domains: [a.b]\nx-alowed-files: []");
    let report = report(text.as_bytes(), Some("demo"), &no_mcp);
    assert!(report.is_ok(), "{:?}", report.errors);
    let mut fields: Vec<&str> = report.warnings.iter().map(|w| w.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["allowed_memory_scopes", "x-allowed-domains", "x-allowed-files", "x-alowed-files"]);
}

#[test]
fn the_report_is_the_json_that_tools_read() {
    let good = report(GOOD.as_bytes(), Some("demo"), &no_mcp).to_json();
    assert_eq!(good["status"], "ok");
    assert_eq!((&good["id"], &good["version"]), (&"demo".into(), &"1.2.3".into()));
    assert_eq!(good["allowed_tools"], serde_json::json!(["MemoryRead", "Read"]));
    assert_eq!(good["errors"], serde_json::json!([]));
    let bad = report(with("effort_minutes: 0").as_bytes(), Some("demo"), &no_mcp);
    assert_eq!(bad.outcome(), "invalid_field");
    let bad = bad.to_json();
    assert_eq!((&bad["status"], &bad["id"]), (&"invalid".into(), &"demo".into()));
    let error = &bad["errors"][0];
    assert_eq!(
        (&error["field"], &error["code"], &error["line"]),
        (&"effort_minutes".into(), &"InvalidField".into(), &10.into())
    );
    assert!(error["message"].as_str().unwrap().contains("1 to 1440"));
}

#[test]
fn a_directory_is_reported_under_its_name_and_a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let skill = dir.path().join("demo");
    std::fs::create_dir(&skill).unwrap();
    assert_eq!(report_dir(&skill, &no_mcp).unwrap_err().kind(), io::ErrorKind::NotFound);
    nix::unistd::mkfifo(&skill.join("SKILL.md"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(report_dir(&skill, &no_mcp).is_err());
    std::fs::remove_file(skill.join("SKILL.md")).unwrap();
    std::fs::write(skill.join("SKILL.md"), GOOD).unwrap();
    assert!(report_dir(&skill, &no_mcp).unwrap().is_ok());
    let moved = dir.path().join("moved");
    std::fs::rename(&skill, &moved).unwrap();
    assert_eq!(report_dir(&moved, &no_mcp).unwrap().errors[0].code, Code::InvalidId);
}

#[test]
fn what_keeps_a_valid_skill_from_running_here_is_warned_of_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let skill = dir.path().join("demo");
    std::fs::create_dir(&skill).unwrap();
    let text = "---\nid: demo\nversion: 1.0.0\nx-entrypoint: bin/run\ndescription: d\nallowed_memory_scopes: []\n\
                allowed_tools:\n  - Read\n  - HttpPost\nx-allowed-domain: []\n---\n";
    std::fs::write(skill.join("SKILL.md"), text).unwrap();
    let warned = || {
        let report = report_dir(&skill, &no_mcp).unwrap();
        assert!(report.is_ok(), "{:?}", report.errors);
        report.warnings.into_iter().map(|f| (f.line, f.message)).collect::<Vec<_>>()
    };
    let found = warned();
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [4, 9, 10], "{found:?}");
    assert!(found[0].1.contains("no bin/run") && found[1].1.contains("HttpPost"), "{found:?}");
    std::fs::create_dir_all(skill.join("bin/run")).unwrap();
    assert!(warned()[0].1.contains("not a regular file"));
    std::fs::remove_dir(skill.join("bin/run")).unwrap();
    std::fs::write(skill.join("bin/run"), "#!/bin/sh\n").unwrap();
    assert!(warned()[0].1.contains("chmod +x"));
    std::fs::set_permissions(skill.join("bin/run"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(warned().len(), 2);
}

#[test]
fn a_text_that_turns_the_reading_direction_is_refused_where_an_operator_reads_it() {
    for (line, field) in [
        ("description: \"safe\u{202e}live\"", "description"),
        ("tags: [\"a\u{2066}b\"]", "tags"),
        ("allowed_memory_scopes: [\"memories/\u{200f}**\"]", "allowed_memory_scopes"),
        ("x-allowed-files: [\"/srv/\u{61c}/**\"]", "x-allowed-files"),
    ] {
        let key = line.split(':').next().unwrap();
        let kept: Vec<&str> =
            "id: demo\nversion: 1.0.0\ndescription: d\nallowed_memory_scopes: []\nallowed_tools: []"
                .lines()
                .filter(|l| !l.starts_with(key))
                .collect();
        let text = format!("---\n{}\n{line}\n---\n", kept.join("\n"));
        let faults = parse(text.as_bytes(), None, &no_mcp).unwrap_err();
        assert_eq!((faults.len(), faults[0].field.as_str()), (1, field), "{faults:?}");
        assert!(faults[0].message.contains("direction mark"), "{faults:?}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes, None, &no_mcp);
        let framed = [b"---\n", bytes.as_slice(), b"\n---\n"].concat();
        let _ = parse(&framed, None, &no_mcp);
    }

    #[test]
    fn parsing_never_panics_on_values_of_any_shape(
        key in prop::sample::select(super::fields::KEYS.to_vec()),
        value in "[-\\[\\]{}a-z0-9é/*:'\" ,.~|>\n\t]{0,30}",
    ) {
        let text = format!("{}{key}: {value}\n---\n", GOOD.split("---\n# Demo").next().unwrap().replace(&format!("{key}:"), "x-old:"));
        let _ = report(text.as_bytes(), None, &no_mcp).to_json();
    }
}
