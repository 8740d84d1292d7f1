//! The configuration as an operator meets it.

use super::*;
use crate::glob::Pattern;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const PACKAGED: &str = include_str!("../../../packaging/config/cyberos.yaml");

/// Lines of grants, which built-in defaults don't have.
fn without_lines(mut config: Config) -> Config {
    fn clear<T>(rule: &mut Option<Rule<T>>) {
        if let Some(rule) = rule {
            rule.line = None;
        }
    }
    let sets = [&mut config.grants.default, &mut config.grants.max];
    for set in sets.into_iter().chain(config.grants.skills.values_mut()) {
        clear(&mut set.tools);
        clear(&mut set.memory);
        clear(&mut set.files);
        clear(&mut set.domains);
    }
    config
}

fn faults(text: &str) -> Vec<(u32, String, String)> {
    let faults = Config::parse(text, StartedBy::Service).unwrap_err();
    faults.into_iter().map(|f| (f.line, f.key, f.message)).collect()
}

#[test]
fn the_packaged_file_says_exactly_the_defaults() {
    assert_eq!(without_lines(Config::parse(PACKAGED, StartedBy::Service).unwrap()), Config::default());
    assert_eq!(Config::parse("", StartedBy::Service).unwrap(), Config::default());
    assert_eq!(Config::parse("# nothing\n", StartedBy::Service).unwrap(), Config::default());
}

#[test]
fn every_key_is_documented_in_the_packaged_file() {
    // Each line with a key, commented out, leaves one key less; none may be needed.
    for key in [
        "tenant",
        "state",
        "run",
        "helper_socket",
        "skillfs_control",
        "mount",
        "work",
        "sources",
        "never_grantable",
        "grants",
        "quota",
        "seal",
        "audit",
        "sandbox",
        "on_hidden",
        "require_signatures",
        "operator_group",
    ] {
        assert!(PACKAGED.contains(&format!("\n{key}:")), "{key}");
    }
    let (_, _, message) = &faults("zzzzzzzz: 1\n")[0];
    let known = message.strip_prefix("unknown key; known here are ").unwrap();
    for key in known.split(", ") {
        assert!(PACKAGED.contains(&format!("\n{key}:")), "{key} is read and not documented");
    }
}

#[test]
fn each_fault_is_named_with_key_and_line() {
    let table: &[(&str, u32, &str, &str)] = &[
        ("tennant: x\n", 1, "tennant", "did you mean \"tenant\"?"),
        ("tenant: x\n", 1, "tenant", "UUID"),
        ("state: var/lib\n", 1, "state", "absolute"),
        ("state: /var/../lib\n", 1, "state", "absolute"),
        ("state: /var/lib/\n", 1, "state", "absolute"),
        ("state: /\n", 1, "state", "absolute"),
        ("state: 5\n", 1, "state", "must be text"),
        ("state:\n", 1, "state", "not nothing"),
        ("sources: /x\n", 1, "sources", "a list"),
        ("sources:\n  - /x\n  - y\n", 3, "sources", "absolute"),
        ("grants: [x]\n", 1, "grants", "keys with values"),
        ("grants:\n  defalt: {}\n", 2, "grants.defalt", "did you mean \"default\"?"),
        ("grants:\n  default:\n    files: all\n", 3, "grants.default.files", "\"requested\""),
        ("grants:\n  default:\n    files: [srv/**]\n", 3, "grants.default.files", "absolute"),
        ("grants:\n  default:\n    files:\n      - /a\n      - '/[x'\n", 5, "grants.default.files", "/[x"),
        ("grants:\n  max:\n    tools: [Bsah]\n", 3, "grants.max.tools", "did you mean \"Bash\"?"),
        ("grants:\n  max:\n    tools: ['*']\n", 3, "grants.max.tools", "name each one"),
        ("grants:\n  max:\n    domains: ['https://a.b']\n", 3, "grants.max.domains", "host alone"),
        ("grants:\n  max:\n    memory: ['']\n", 3, "grants.max.memory", "empty pattern"),
        ("grants:\n  max:\n    memory_mb: 0\n", 3, "grants.max.memory_mb", "1 to"),
        ("grants:\n  skills:\n    Demo: {}\n", 3, "grants.skills.Demo", "id of a skill"),
        (
            "grants:\n  skills:\n    demo:\n      file: []\n",
            4,
            "grants.skills.demo.file",
            "did you mean \"files\"?",
        ),
        ("quota:\n  invocation_write_mb: '5'\n", 2, "quota.invocation_write_mb", "plain digits"),
        ("quota:\n  invocation_ledger_mb: 0\n", 2, "quota.invocation_ledger_mb", "from 1 to"),
        ("seal:\n  max_byte: 5\n", 2, "seal.max_byte", "did you mean \"max_bytes\"?"),
        ("audit:\n  durability: none\n", 2, "audit.durability", "normal or fsync"),
        ("audit:\n  on_failure: drop\n", 2, "audit.on_failure", "queue or refuse or continue"),
        ("sandbox:\n  require: [cgroups]\n", 2, "sandbox.require", "cgroup"),
        ("on_hidden: stop\n", 1, "on_hidden", "tell or terminate"),
        ("require_signatures: yes\n", 1, "require_signatures", "true or false"),
        ("operator_group: 'a b'\n", 1, "operator_group", "group"),
        ("on_hidden: tell\non_hidden: tell\n", 2, "", "second time"),
        ("a: &x 1\n", 1, "", "anchors"),
        ("a: b: c\n", 1, "", "not YAML"),
        ("[]\n", 1, "", "keys with values"),
        ("tools: []\n", 1, "tools", "unknown key"),
    ];
    for (text, line, key, words) in table {
        let found = faults(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert_eq!((found[0].0, found[0].1.as_str()), (*line, *key), "{text}: {found:?}");
        assert!(found[0].2.contains(words), "{text}: {found:?}");
    }
    let long = format!("run: /{}\nhelper_socket: /{}\n", "a".repeat(100), "b".repeat(110));
    assert_eq!(faults(&long).iter().map(|f| f.1.as_str()).collect::<Vec<_>>(), ["run", "helper_socket"]);
}

#[test]
fn all_faults_are_listed_at_once() {
    let lines: Vec<u32> = faults("on_hidden: x\nquota:\n  a: 1\nseal: 5\n").iter().map(|f| f.0).collect();
    assert_eq!(lines, [1, 3, 4]);
}

#[test]
fn grants_are_completed_key_by_key() {
    let text = "work: /data/work\ngrants:\n  default:\n    domains: [a.b]\n  skills:\n    demo:\n      files: requested\n";
    let config = Config::parse(text, StartedBy::Service).unwrap();
    let default = &config.grants.default;
    let files = vec![Pattern::new("/data/work/**").unwrap()];
    assert_eq!(default.files, Some(Rule { allow: Allow::Only(files), line: None }));
    assert_eq!(default.domains.as_ref().unwrap().line, Some(4));
    assert_eq!(default.memory_mb, Some(2048));
    let demo = &config.grants.skills["demo"];
    assert_eq!(demo.files, Some(Rule { allow: Allow::Requested, line: Some(7) }));
    assert_eq!(demo.tools, None);
}

#[test]
fn only_the_packaged_path_may_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cyberos.yaml");
    assert!(matches!(Config::load(Some(&path), StartedBy::Service), Err(ConfigError::Io { .. })));
    std::fs::write(&path, "on_hidden: terminate\n").unwrap();
    assert_eq!(Config::load(Some(&path), StartedBy::Service).unwrap().on_hidden, OnHidden::Terminate);
    for mode in [0o664, 0o646] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(Config::load(Some(&path), StartedBy::Service), Err(ConfigError::Writable(_))));
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(&path, "on_hiden: tell\n").unwrap();
    let text = Config::load(Some(&path), StartedBy::Service).unwrap_err().to_string();
    assert!(text.contains("line 1: on_hiden: unknown key; did you mean \"on_hidden\"?"), "{text}");
    assert!(Config::load(Some(Path::new("/dev/null")), StartedBy::Service).is_err());
}

proptest! {
    #[test]
    fn reading_never_panics(text in "((grants|default|max|skills|files|audit|state|x):? ?|[-\\[\\]{}a-z0-9/*'\" ,:\n]){0,30}") {
        let _ = Config::parse(&text, StartedBy::Service);
    }
}

#[test]
fn what_up_sets_itself_is_an_error_by_line() {
    let text = "on_hidden: tell\nstate: /var/lib/x\nrun: /run/x\nhelper_socket: /run/h\n\
                skillfs_control: /run/c\nmount: /skills\nsources: [/opt/s]\noperator_group: staff\n\
                work: /srv/w\nnever_grantable: [/srv/n]\n";
    assert!(Config::parse(text, StartedBy::Service).is_ok());
    let faults = Config::parse(text, StartedBy::Up).unwrap_err();
    let told: Vec<_> = faults.iter().map(|f| (f.line, f.key.as_str())).collect();
    let keys = ["state", "run", "helper_socket", "skillfs_control", "mount", "sources", "operator_group"];
    assert_eq!(told, (2..).zip(keys).collect::<Vec<_>>());
    assert!(faults.iter().all(|f| f.message.contains("take the line out")), "{faults:?}");
    // Nor are they proposed.
    for unknown in ["zzzzzzzz: 1\n", "mounts: 1\n"] {
        let faults = Config::parse(unknown, StartedBy::Up).unwrap_err();
        let known = faults[0].message.strip_prefix("unknown key; known here are ").expect(&faults[0].message);
        assert!(known.split(", ").all(|key| !keys.contains(&key)) && known.contains("on_hidden"), "{known}");
        assert!(Config::parse(unknown, StartedBy::Service).unwrap_err()[0].message.contains("mount"));
    }
}
