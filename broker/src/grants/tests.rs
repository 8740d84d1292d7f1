//! What the grants promise, rule by rule. Whole calls through real tools are tested where the tools are.

use super::*;
use crate::blocking_pool::BlockingPool;
use crate::call::{DenialClass, Invocation, Refusal, Wrong};
use crate::catalogue::Catalogue;
use crate::config::{Allow, Config, GrantSet, Rule};
use crate::glob::Pattern;

pub(super) fn skill(lines: &str) -> Skill {
    let mut text = String::from("---\nid: demo\nversion: 1.0.0\ndescription: d\n");
    for (key, default) in [("allowed_memory_scopes:", "[]"), ("allowed_tools:", "[]")] {
        if !lines.contains(key) {
            text.push_str(&format!("{key} {default}\n"));
        }
    }
    text.push_str(lines);
    text.push_str("\n---\n");
    crate::skill::parse(text.as_bytes(), None, &|t| t.starts_with("mcp")).unwrap()
}

pub(super) fn only(patterns: &[&str], line: u32) -> Option<Rule<Pattern>> {
    let list = patterns.iter().map(|p| Pattern::new(p).unwrap()).collect();
    Some(Rule { allow: Allow::Only(list), line: Some(line) })
}

pub(super) fn compiled(lines: &str, set: GrantSet) -> Grants {
    compiled_as(lines, set, false)
}

fn compiled_as(lines: &str, set: GrantSet, approved: bool) -> Grants {
    let mut config = Config::default();
    config.grants.skills.insert("demo".into(), set);
    let never = Arc::new(NeverGrantable::new(&config));
    Grants::compile(&skill(lines), &Operator::new(&config.grants, "demo", approved), never)
}

pub(super) fn files_grant(files: Option<Rule<Pattern>>) -> GrantSet {
    GrantSet { files, ..GrantSet::default() }
}

pub(super) fn denied<T: std::fmt::Debug>(result: Result<T, Refusal>) -> crate::call::Denial {
    match result.unwrap_err() {
        Refusal::Denied(denial) => *denial,
        Refusal::BadParams(message) => panic!("bad params: {message}"),
    }
}

#[test]
fn tools_are_decided_by_exact_name_and_disallowed_wins() {
    let grants =
        compiled("allowed_tools: [Read, Bash, MemoryRead]\ndisallowed_tools:\n  - Bash", GrantSet::default());
    assert!(grants.judge_tool("Read").is_ok());
    assert_eq!(grants.tools(), ["Read", "MemoryRead"]);
    let bash = grants.judge_tool("Bash").unwrap_err();
    assert_eq!((bash.class, bash.reason), (DenialClass::ToolNotAllowed, "tool_in_disallowed_tools"));
    assert_eq!(bash.rule, "disallowed_tools line 8");
    for tool in ["read", "Read ", "Read\0", "mcp__x__Read", "Re\u{430}d", "", "*", "Write"] {
        let denial = grants.judge_tool(tool).unwrap_err();
        assert_eq!(
            (denial.class, denial.reason),
            (DenialClass::ToolNotAllowed, "tool_not_in_allowed_tools"),
            "{tool:?}"
        );
        assert!(!denial.sentence.contains('\0'));
    }
    assert!(grants.judge_tool("read").unwrap_err().sentence.contains("\"Read\""));
}

#[test]
fn a_tool_that_the_operator_does_not_give_names_his_key() {
    let set = GrantSet {
        tools: Some(Rule { allow: Allow::Only(vec!["Read".into()]), line: Some(12) }),
        ..GrantSet::default()
    };
    let grants = compiled("allowed_tools: [Read, MemoryRead]", set.clone());
    let denial = grants.judge_tool("MemoryRead").unwrap_err();
    assert_eq!(denial.reason, "tool_not_in_allowed_tools");
    assert_eq!(denial.rule, "grants.skills.demo.tools (cyberos.yaml line 12)");
    assert!(denial.sentence.contains("`cyberos skill approve demo`"), "{}", denial.sentence);
    assert_eq!(grants.tools(), ["Read"]);
    assert_eq!(grants.not_granted().len(), 1);
    let approved = compiled_as("allowed_tools: [Read, MemoryRead]", set, true);
    assert!(approved.judge_tool("MemoryRead").is_ok());
    assert!(approved.not_granted().is_empty());
}

fn state(grants: Grants) -> State {
    let invocation = Invocation {
        id: cyberos_proto::ids::InvocationId::from_random([1; 16]),
        skill_id: "demo".into(),
        version: "1.0.0".into(),
        tenant: cyberos_proto::ids::TenantId::NIL,
        trace: TraceId::new([7; 16]).unwrap(),
        sync_private: true,
    };
    State::new(Arc::new(invocation), Arc::new(grants), BlockingPool::default(), 0)
}

async fn refused(state: &State, call: Call, recordable: bool) -> Refused {
    admit(state, &Catalogue::<()>::default(), call, recordable, std::future::pending()).await.unwrap_err()
}

#[tokio::test]
async fn an_allowed_tool_that_is_not_registered_is_unknown_and_the_call_comes_back() {
    let state = state(compiled("allowed_tools: [Bash]\ndisallowed_tools: [Read]", GrantSet::default()));
    for (tool, class, reason) in [
        ("Bash", DenialClass::UnknownTool, "unknown_tool"),
        ("Read", DenialClass::ToolNotAllowed, "tool_in_disallowed_tools"),
        ("Nope", DenialClass::ToolNotAllowed, "tool_not_in_allowed_tools"),
    ] {
        let call = Call {
            number: 3,
            tool: tool.into(),
            args_hash: "h".into(),
            traceparent: Some("nonsense".into()),
            ..Call::unread()
        };
        let refused = refused(&state, call, true).await;
        assert_eq!((refused.call.number, refused.call.tool.as_str()), (3, tool));
        assert!(refused.recorded);
        assert_eq!(refused.trace(&state), TraceId::new([7; 16]).unwrap());
        let denial = denied(Err::<(), _>(refused.refusal));
        assert_eq!((denial.class, denial.reason), (class, reason));
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_call_is_said_in_the_order_of_the_rules() {
    let all_wrong = |wrong: Option<Wrong>| Call { tool: "Nope".into(), wrong, ..Call::unread() };
    let reason = |refused: Refused| match refused.refusal {
        Refusal::Denied(denial) => denial.reason.to_owned(),
        Refusal::BadParams(why) => why,
    };
    let limited = state(compiled("x-rate-limit-per-minute: 1", GrantSet::default()));
    let params = || Some(Wrong::Params("params".into()));
    let unread = || Some(Wrong::Unread("too long".into()));
    // The rate is used up by the first.
    assert_eq!(reason(refused(&limited, all_wrong(params()), true).await), "params");
    assert_eq!(reason(refused(&limited, all_wrong(unread()), true).await), "request_too_large");
    assert_eq!(reason(refused(&limited, all_wrong(None), true).await), "tool_not_in_allowed_tools");
    limited.enter(Phase::Refusing);
    assert_eq!(reason(refused(&limited, all_wrong(params()), true).await), "deadline_exceeded");
    let unrecorded = refused(&limited, all_wrong(params()), false).await;
    assert!(!unrecorded.recorded);
    assert_eq!(reason(unrecorded), "ledger_quota");
}

#[test]
fn calls_beyond_the_rate_are_refused() {
    let state = state(compiled("x-rate-limit-per-minute: 2", GrantSet::default()));
    let now = std::time::Instant::now();
    assert_eq!([state.within_rate(now), state.within_rate(now), state.within_rate(now)], [true, true, false]);
    let denial = state.grants.judge_rate("Read", false).unwrap_err();
    assert_eq!((denial.class, denial.reason), (DenialClass::RateLimited, "rate_limited"));
}

#[test]
fn memory_is_the_frontmatter_and_the_operator_together() {
    let set =
        GrantSet { memory: only(&["memories/projects/**", "memories/x.md"], 20), ..GrantSet::default() };
    let grants =
        compiled("allowed_memory_scopes:\n  - memories/projects/cyberos/**\n  - memories/people/**", set);
    assert_eq!(
        grants.judge_memory("memories/projects/cyberos/./a//x.md", None).unwrap(),
        "memories/projects/cyberos/a/x.md"
    );
    for (asked, reason, subject) in [
        ("memories/projects/cyberos/../people/y.md", "scope_violation", "memories/projects/people/y.md"),
        ("memories/projects/cyberos-evil/x", "scope_violation", "memories/projects/cyberos-evil/x"),
        ("memories/x.md", "scope_violation", "memories/x.md"),
        ("memories/people/y.md", "not_granted_by_operator", "memories/people/y.md"),
        ("/memories/projects/cyberos/x.md", "scope_violation", "/memories/projects/cyberos/x.md"),
        ("memories/../../x.md", "scope_violation", "memories/../../x.md"),
        ("memories", "scope_violation", "memories"),
    ] {
        let denial = denied(grants.judge_memory(asked, None));
        assert_eq!((denial.class, denial.reason), (DenialClass::ScopeViolation, reason), "{asked}");
        assert_eq!((denial.asked.as_deref(), denial.subject.as_str()), (Some(asked), subject));
    }
    for asked in ["", "memories/a\0b.md"] {
        assert!(matches!(grants.judge_memory(asked, None), Err(Refusal::BadParams(_))), "{asked:?}");
    }
    assert_eq!(grants.not_granted().len(), 1, "{:?}", grants.not_granted());
    assert!(grants.not_granted()[0].starts_with("allowed_memory_scopes line 8: memories/people/**"));
}

#[test]
fn a_denial_explains_itself() {
    let set = GrantSet { memory: only(&["memories/projects/**"], 20), ..GrantSet::default() };
    let grants =
        compiled("allowed_memory_scopes:\n  - memories/projects/cyberos/**\n  - memories/people/**", set);
    let outside = denied(grants.judge_memory("memories/projects/other/x.md", None));
    assert_eq!(outside.rule, "allowed_memory_scopes line 7");
    for words in ["\"memories/projects/cyberos/**\" on line 7", "`- \"memories/projects/other/x.md\"`"] {
        assert!(outside.sentence.contains(words), "{}", outside.sentence);
    }
    let operator = denied(grants.judge_memory("memories/people/y.md", None));
    assert_eq!(operator.rule, "grants.skills.demo.memory (cyberos.yaml line 20)");
    for words in [
        "line 8",
        "\"memories/projects/**\" at nearest",
        "`memory: [\"memories/people/y.md\"]`",
        "grants.skills.demo",
    ] {
        assert!(operator.sentence.contains(words), "{}", operator.sentence);
    }
}

#[test]
fn the_line_that_a_denial_proposes_is_yaml_that_allows_the_path_and_nothing_a_terminal_acts_on() {
    let grants = compiled("allowed_memory_scopes: []", GrantSet::requested());
    for asked in ["memories/a*b/[x]{y}?", "memories/\u{202e}gpj.sh", "memories/a\"b'c", "memories/e\u{301}ü"]
    {
        let sentence = denied(grants.judge_memory(asked, None)).sentence;
        assert!(!sentence.contains(char::is_control) && !sentence.contains('\u{202e}'), "{sentence:?}");
        let line = sentence.split("`- ").nth(1).unwrap().rsplit_once("` there").unwrap().0;
        let allowed = compiled(&format!("allowed_memory_scopes: [{line}]"), GrantSet::requested());
        assert!(allowed.judge_memory(asked, None).is_ok(), "{line}");
        assert!(allowed.judge_memory("memories/axb/x/y", None).is_err());
    }
    let grants = compiled("x-allowed-files: []", GrantSet::requested());
    let sentence = denied(grants.file_target("/srv/\u{1b}[31m\n")).sentence;
    assert!(!sentence.contains(char::is_control), "{sentence:?}");
    assert!(Pattern::new("/srv/?\\[31m?").unwrap().matches("/srv/\u{1b}[31m\n"));
    assert!(sentence.contains(r#"- "/srv/?\\[31m?"` there"#), "{sentence}");
}

#[test]
fn nothing_is_allowed_without_a_list() {
    let grants = compiled("", GrantSet::requested());
    assert_eq!(denied(grants.judge_memory("memories/x", None)).reason, "scope_violation");
    assert_eq!(denied(grants.file_target("/srv/cyberos/work/x")).reason, "file_violation");
    assert!(grants.tools().is_empty());
    assert!(grants.not_granted().is_empty());
}

#[test]
fn limits_are_what_is_asked_for_within_what_the_operator_allows() {
    let none = compiled("", GrantSet::default()).limits();
    assert_eq!((none.memory_mb, none.memory_kind, none.max_processes), (512, MemoryLimit::AddressSpace, 8));
    assert_eq!((none.tmp_mb, none.effort_minutes), (64, 30));
    let set = GrantSet {
        memory_mb: Some(1024),
        max_processes: Some(4),
        effort_minutes: Some(10),
        ..GrantSet::default()
    };
    let lines = "x-memory-mb: 2048\nx-max-processes: 3\neffort_minutes: 20";
    let grants = compiled(lines, set);
    let limits = grants.limits();
    assert_eq!((limits.memory_mb, limits.memory_kind), (1024, MemoryLimit::Data));
    assert_eq!((limits.max_processes, limits.effort_minutes), (3, 10));
    let listed = grants.not_granted().join("\n");
    assert!(listed.contains("x-memory-mb: 2048 (grants.skills.demo.memory_mb allows 1024)"), "{listed}");
    assert!(listed.contains("effort_minutes: 20"), "{listed}");
}

#[test]
fn a_limit_that_the_operator_sets_for_a_skill_outranks_any_consent() {
    let lines = "x-memory-mb: 3000\nx-max-processes: 100\nx-tmp-mb: 900\neffort_minutes: 1000";
    let limits = |set, approved| {
        let limits = compiled_as(lines, set, approved).limits();
        [limits.memory_mb, limits.max_processes, limits.tmp_mb, limits.effort_minutes]
    };
    assert_eq!(limits(GrantSet::default(), false), [2048, 32, 256, 1000]);
    assert_eq!(limits(GrantSet::default(), true), [3000, 100, 900, 1000], "consent, within grants.max");
    let own = || GrantSet {
        memory_mb: Some(600),
        max_processes: Some(9),
        tmp_mb: Some(70),
        effort_minutes: Some(2),
        ..GrantSet::default()
    };
    assert_eq!(limits(own(), true), [600, 9, 70, 2]);
    let minutes = GrantSet { effort_minutes: Some(2), ..GrantSet::default() };
    assert_eq!(limits(minutes, true), [3000, 100, 900, 2], "key by key");
    let told = compiled_as(lines, own(), true).not_granted().join("\n");
    assert!(told.contains("x-memory-mb: 3000 (grants.skills.demo.memory_mb allows 600)"), "{told}");
}
