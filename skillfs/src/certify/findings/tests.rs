use super::*;
use serde_json::json;

fn outcome(report: &serde_json::Value) -> Result<Findings, String> {
    sum_up(report.to_string().as_bytes())
}

fn run_of(results: serde_json::Value) -> serde_json::Value {
    json!({"version": "2.1.0", "runs": [{
        "tool": {"driver": {"name": "scan", "version": "1.2", "rules": [
            {"id": "R1", "defaultConfiguration": {"level": "error"}},
            {"id": "R2", "defaultConfiguration": {"level": "note"}},
            {"id": "R3"}]}},
        "results": results}]})
}

#[test]
fn levels_make_the_status() {
    for (results, want) in [
        (json!([]), Outcome::Pass),
        (json!([{"level": "note", "message": {"text": "n"}}]), Outcome::Pass),
        (json!([{"level": "none", "message": {"text": "n"}}]), Outcome::Pass),
        (json!([{"level": "warning", "message": {"text": "w"}}, {"level": "note"}]), Outcome::Warn),
        (json!([{"level": "warning"}, {"level": "error"}]), Outcome::Deny),
        // A level that the result leaves out is its rule's, by number or by id, and else a warning.
        (json!([{"ruleIndex": 0}]), Outcome::Deny),
        (json!([{"ruleId": "R1"}]), Outcome::Deny),
        (json!([{"rule": {"index": 1}}]), Outcome::Pass),
        (json!([{"ruleId": "R3"}]), Outcome::Warn),
        (json!([{"ruleIndex": -1, "message": {"text": "?"}}]), Outcome::Warn),
        (json!([{"ruleIndex": 99}]), Outcome::Warn),
        // No fault, or none any more.
        (json!([{"level": "error", "kind": "pass"}]), Outcome::Pass),
        (json!([{"level": "error", "kind": "review"}]), Outcome::Deny),
        (json!([{"level": "error", "baselineState": "absent"}]), Outcome::Pass),
        // A person accepted it; a comment in the skill does not count, nor what is still under review.
        (
            json!([{"level": "error", "suppressions": [{"kind": "external", "status": "accepted"}]}]),
            Outcome::Pass,
        ),
        (json!([{"level": "error", "suppressions": [{"kind": "external"}]}]), Outcome::Pass),
        (json!([{"level": "error", "suppressions": [{"kind": "inSource"}]}]), Outcome::Deny),
        (
            json!([{"level": "error", "suppressions": [{"kind": "external", "status": "underReview"}]}]),
            Outcome::Deny,
        ),
        (json!([{"level": "error", "suppressions": []}]), Outcome::Deny),
    ] {
        assert_eq!(outcome(&run_of(results.clone())).unwrap().outcome(), want, "{results}");
    }
}

#[test]
fn a_report_that_says_nothing_clear_is_no_clean_bill() {
    for report in [
        json!(null),
        json!([]),
        json!({}),
        json!({"version": "2.1.0"}),
        json!({"version": "2.1.0", "runs": []}),
        json!({"version": "2.0.0", "runs": []}),
        json!({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "s"}}}]}),
        json!({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "s"}}, "results": null}]}),
        json!({"version": "2.1.0", "runs": [{"results": []}]}),
        json!({"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "s"}}, "results": [],
            "invocations": [{"executionSuccessful": false}]}]}),
        run_of(json!([{"level": "fatal"}])),
        run_of(json!([{"level": 3}])),
    ] {
        assert!(outcome(&report).is_err(), "{report}");
    }
    assert!(sum_up(b"").is_err());
    assert!(sum_up(b"\xef\xbb\xbf{\"version\":\"2.1.0\",\"runs\":[{\"tool\":{\"driver\":{\"name\":\"s\"}},\"results\":[]}]}").is_ok());
}

#[test]
fn the_gravest_few_are_remembered_in_safe_words() {
    let mut results: Vec<_> =
        (0..20).map(|n| json!({"level": "note", "message": {"text": n.to_string()}})).collect();
    results.push(json!({"level": "warning", "ruleId": "W", "message": {"text": "w"}}));
    results.push(json!({"level": "error", "ruleId": "R1", "message": {"text": "\u{1b}[2J".to_owned() + &"x".repeat(999)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": "main"}}}]}));
    let found = outcome(&run_of(results.into())).unwrap();
    assert_eq!((found.errors, found.warnings, found.notes), (1, 1, 20));
    assert_eq!(found.examples.len(), 5);
    assert!(found.examples[0].starts_with("R1 in main: \\u{1b}[2Jxxx"), "{}", found.examples[0]);
    assert!(found.examples[0].chars().count() <= 201);
    assert_eq!(found.examples[1], "W: w");
    assert_eq!(found.tools, ["scan 1.2"]);
}
