//! The published schema and the rules give the same verdicts.

use super::{Code, fields, report, schema, split, yaml};
use serde_json::Value;

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/skill.schema.json");

#[test]
fn the_published_schema_is_the_one_that_the_types_give() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("CYBEROS_UPDATE_SCHEMA").is_some() {
        std::fs::write(PUBLISHED, &text).unwrap();
    }
    let published = std::fs::read_to_string(PUBLISHED).unwrap_or_default();
    assert!(
        published == text,
        "packaging/skill.schema.json is out of date: run this test with CYBEROS_UPDATE_SCHEMA=1"
    );
    assert_eq!(schema()["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn the_schema_knows_every_key_and_requires_the_required_ones() {
    let schema = schema();
    let mut known: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    known.sort();
    let mut keys = fields::KEYS.to_vec();
    keys.sort_unstable();
    assert_eq!(known, keys);
    let required = schema["required"].as_array().unwrap();
    assert_eq!(
        required,
        &["id", "version", "description", "allowed_memory_scopes", "allowed_tools"].map(Value::from)
    );
}

fn frontmatter(changes: &[&str]) -> String {
    let mut lines: Vec<String> =
        ["id: demo", "version: 1.0.0", "description: d", "allowed_memory_scopes: []", "allowed_tools: []"]
            .map(String::from)
            .to_vec();
    for change in changes {
        let key = change.trim_start_matches('-').split(':').next().unwrap();
        let at = lines.iter().position(|l| l.split(':').next() == Some(key));
        match (change.starts_with('-'), at) {
            (true, Some(at)) => {
                lines.remove(at);
            }
            (false, Some(at)) => lines[at] = (*change).to_owned(),
            (_, None) => lines.push((*change).to_owned()),
        }
    }
    format!("---\n{}\n---\n", lines.join("\n"))
}

/// Verdicts of the rules and of the schema on a text that is YAML.
fn verdicts(validator: &jsonschema::Validator, text: &str) -> (bool, bool) {
    let rules = report(text.as_bytes(), Some("demo"), &|_| false);
    let node = yaml::parse(&split::frontmatter(text.as_bytes()).unwrap()).unwrap();
    (rules.is_ok(), validator.is_valid(&node.to_json()))
}

#[test]
fn rules_and_schema_agree_on_every_fault_that_a_schema_can_express() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let long = |key: &str, c: &str, n: usize| format!("{key}: '{}'", c.repeat(n));
    let items = |key: &str, item: &str, n: usize| format!("{key}: [{}]", vec![item; n].join(", "));
    let valid = [
        "id: a-1".replace("a-1", "demo"),
        "version: 1.0.0-rc.1+build.5".into(),
        long("description", "ü", 200),
        "description: \"a\\n\\tb\"".into(),
        "allowed_memory_scopes: ['memories/**', '*']".into(),
        items("allowed_memory_scopes", "memories/x", 256),
        "allowed_tools: [Bash, Read]".into(),
        "disallowed_tools: [Bash]".into(),
        "min_broker_version: 0.0.1".into(),
        "sync_class: shareable".into(),
        "tenant_scope: pinned".into(),
        "effort_minutes: 1440".into(),
        items("tags", "x", 10),
        long("tags: [a]\nx-note", "x", 5),
        "x-anything: {a: [1, null]}".into(),
        "x-allowed-files: [/a, '/**']".into(),
        "x-allowed-domains: ['*.a.b:*']".into(),
        "x-memory-mb: 1048576".into(),
        "x-entrypoint: .bin/..run/a".into(),
        format!("x-content-sha256: sha256:{}", "a".repeat(64)),
        "x-tests: [{tool: Read}]".into(),
    ];
    for change in &valid {
        assert_eq!(verdicts(&validator, &frontmatter(&[change])), (true, true), "{change}");
    }
    let invalid = [
        "-id".into(),
        "-version".into(),
        "-description".into(),
        "-allowed_memory_scopes".into(),
        "-allowed_tools".into(),
        "id: Demo".into(),
        "id: 5".into(),
        "id: ''".into(),
        "id: -demo".into(),
        "id: a_b".into(),
        long("id", "a", 65),
        "version: 1.0".into(),
        "version: 01.0.0".into(),
        "version: v1.0.0".into(),
        "version: 1.0.0-".into(),
        "version: ''".into(),
        "description: ''".into(),
        "description: '  '".into(),
        "description: [d]".into(),
        "description: \"a\\x1b[31m\"".into(),
        "description: \"a\\x85\"".into(),
        long("description", "ü", 201),
        "allowed_memory_scopes: x".into(),
        "allowed_memory_scopes:".into(),
        "allowed_memory_scopes: [1]".into(),
        "allowed_memory_scopes: ['']".into(),
        "allowed_memory_scopes: [\"a\\x00b\"]".into(),
        items("allowed_memory_scopes", "memories/x", 257),
        long("allowed_memory_scopes: []\nx-allowed-files", "x", 3),
        format!("allowed_memory_scopes: [{}]", "x".repeat(1025)),
        "allowed_tools: Read".into(),
        "allowed_tools: [true]".into(),
        "allowed_tools: {Read: 1}".into(),
        items("allowed_tools", "Read", 257),
        "disallowed_tools: Bash".into(),
        "signature: {algo: ed25519}".into(),
        "min_broker_version: 1".into(),
        "max_broker_version: newest".into(),
        "sync_class: public".into(),
        "sync_class: [private]".into(),
        "tenant_scope: Any".into(),
        "effort_minutes: 0".into(),
        "effort_minutes: 1441".into(),
        "effort_minutes: -1".into(),
        "effort_minutes: '5'".into(),
        "effort_minutes: 5.5".into(),
        "effort_minutes: 012".into(),
        "effort_minutes: 0x10".into(),
        "effort_minutes: .inf".into(),
        "effort_minutes:".into(),
        items("tags", "x", 11),
        "tags: [1]".into(),
        format!("tags: [{}]", "x".repeat(31)),
        "tags: [\"a\\x1b\"]".into(),
        "tags: x".into(),
        "x-allowed-files: [a]".into(),
        "x-allowed-files: ['~/a']".into(),
        "x-allowed-domains: ['']".into(),
        "x-allowed-domains: a.b".into(),
        "x-memory-mb: 0".into(),
        "x-memory-mb: 1048577".into(),
        "x-max-processes: 4097".into(),
        "x-tmp-mb: many".into(),
        "x-rate-limit-per-minute: 100001".into(),
        "x-entrypoint: /bin/sh".into(),
        "x-entrypoint: ../main".into(),
        "x-entrypoint: a/../b".into(),
        "x-entrypoint: a//b".into(),
        "x-entrypoint: ./main".into(),
        "x-entrypoint: ''".into(),
        "x-entrypoint: a/".into(),
        "x-content-sha256: sha256:ABC".into(),
        format!("x-content-sha256: {}", "a".repeat(64)),
        "x-tests: [1]".into(),
        "x-tests: {}".into(),
        "name: demo".into(),
        "alowed_tools: []".into(),
    ];
    for change in &invalid {
        assert_eq!(verdicts(&validator, &frontmatter(&[change])), (false, false), "{change}");
    }
}

/// What the rules refuse and a schema cannot: the schema takes each of these.
#[test]
fn faults_that_a_schema_cannot_express_are_these() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let wide = format!("allowed_memory_scopes: [{}]", "ü".repeat(1000));
    for (change, code, why) in [
        ("id: other", Code::InvalidId, "equality with the directory's name"),
        ("allowed_memory_scopes: ['memories/[x']", Code::InvalidMemoryScopeGlob, "the syntax of patterns"),
        (&wide, Code::InvalidMemoryScopeGlob, "length in bytes"),
        ("x-allowed-files: ['/a{b']", Code::InvalidFileGlob, "the syntax of patterns"),
        ("x-allowed-domains: ['a..b']", Code::InvalidDomain, "the syntax of hosts"),
        ("allowed_tools: [Bsah]", Code::UnknownTool, "which tools there are"),
        ("min_broker_version: 99.0.0", Code::BrokerTooOld, "the order of versions"),
        ("max_broker_version: 0.0.1", Code::BrokerTooNew, "the order of versions"),
        ("version: 99999999999999999999.0.0", Code::InvalidVersion, "a number beyond 64 bits"),
        ("effort_minutes: 5.0", Code::InvalidField, "the spelling of a number"),
    ] {
        let text = frontmatter(&[change]);
        let rules = report(text.as_bytes(), Some("demo"), &|_| false);
        assert_eq!(rules.errors.first().map(|f| f.code), Some(code), "{change}");
        assert!(verdicts(&validator, &text).1, "{why} can be expressed after all: {change}");
    }
    // Fences, caps and forbidden YAML are no matter of values: MissingFrontmatter and YamlParse.
}
