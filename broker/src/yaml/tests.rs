//! Which YAML is taken, and that nothing of it is lost.

use super::*;
use proptest::prelude::*;

fn problems(text: &str) -> Vec<(u32, String)> {
    parse(text).unwrap_err().into_iter().map(|p| (p.line, p.message)).collect()
}

#[test]
fn scalars_follow_the_core_schema() {
    for (text, kind) in [
        ("no", Kind::Text("no".into())),
        ("on", Kind::Text("on".into())),
        ("2024-01-01", Kind::Text("2024-01-01".into())),
        ("1.0.0", Kind::Text("1.0.0".into())),
        ("1e3", Kind::Number("1e3".into())),
        ("1.5", Kind::Number("1.5".into())),
        ("012", Kind::Number("012".into())),
        (".inf", Kind::Number(".inf".into())),
        ("'5'", Kind::Text("5".into())),
        ("~", Kind::Null),
        ("true", Kind::Bool(true)),
        (".", Kind::Text(".".into())),
        ("-", Kind::Null),
    ] {
        let value = match parse(&format!("k: {text}\n")) {
            Ok(node) => node,
            Err(_) if text == "-" => continue,
            Err(e) => panic!("{text}: {e:?}"),
        };
        let Kind::Map(entries) = value.kind else { panic!() };
        assert_eq!(entries[0].value.kind, kind, "{text}");
    }
}

#[test]
fn every_forbidden_construct_is_listed_with_its_line() {
    let text = "a: &x 1\nb: *x\nc: !!str 2\n<<: {d: 1}\ne: 1\ne: 2\nf: *nowhere\n1: 2\n? [a]\n: b\n";
    let lines: Vec<u32> = problems(text).iter().map(|p| p.0).collect();
    assert_eq!(lines, [1, 2, 3, 4, 6, 7, 8, 9]);
}

#[test]
fn case_132_bombs_are_refused_at_once() {
    let started = std::time::Instant::now();
    for bomb in [
        "[".repeat(60_000),
        "{a: ".repeat(15_000),
        "- ".repeat(30_000),
        (0..2_000).map(|d| format!("{}a:\n", " ".repeat(d % 60))).collect(),
        "a: &a {self: *a}".into(),
        "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n".into(),
        "a: !!binary aGk=\n".into(),
        "a: 1\n--- \nb: 2\n".into(),
        "%YAML 1.2\n---\na: 1\n".into(),
    ] {
        assert!(parse(&bomb).is_err(), "{}", &bomb[..bomb.len().min(40)]);
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn nothing_after_a_nul_is_dropped_in_silence() {
    for (text, line) in [
        ("a: 1\0\nb: 2\n", 1),
        ("a: 1\n\0", 2),
        ("a: '\0'\n", 1),
        ("a: 1\n# \u{85}\n", 2),
        ("a: x\ry: z\n", 1),
    ] {
        assert_eq!(problems(text)[0].0, line, "{text:?}");
    }
    assert!(parse("a: 1\r\nb: 2\r\n").is_ok());
}

#[test]
fn case_129_an_unquoted_colon_is_explained() {
    let p = problems("id: a\ndescription: Review along two axes: style and logic\n");
    assert_eq!(p[0].0, 2);
    assert!(p[0].1.contains("quotes"), "{}", p[0].1);
    let p = problems("id: a\n\tb: c\n");
    assert!(p[0].1.contains("tab"), "{}", p[0].1);
}

#[test]
fn case_135_block_scalars_have_the_value_that_yaml_gives_them() {
    for (text, value) in [
        ("k: |\n  a\n  b\n", "a\nb\n"),
        ("k: >-\n  a\n  b\n", "a b"),
        ("k: |2\n   a\n", " a\n"),
        ("k: 'it''s'\n", "it's"),
        ("k: \"a\\nb\"\n", "a\nb"),
        ("k: plain # comment\n", "plain"),
    ] {
        let Kind::Map(entries) = parse(text).unwrap().kind else { panic!() };
        assert_eq!(entries[0].value.kind, Kind::Text(value.into()), "{text:?}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "[a-c:\\-\\[\\]{},&*!|>'\"#%@` \t\n0-9.?~<\u{feff}é]{0,60}") {
        let _ = parse(&text);
    }
}
