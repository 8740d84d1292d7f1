//! `cyberos demo` (`[7.5]`): what it tells of the hostile skill, and what the README shows of it. That each of its steps
//! did what it says it checks itself.

mod support;

use std::path::Path;
use std::process::Command;
use support::binaries::binary;
use support::up::Ran;

fn demo(args: &[&str]) -> Ran {
    let ran: Ran = Command::new(binary("cyberos")).arg("demo").args(args).output().unwrap().into();
    assert!(ran.exit == 0 && ran.stdout.ends_with("Every step did what it said.\n"), "{ran}");
    ran
}

/// A line with what another run, day or kernel makes different put down as `#`: ids, digests, and numbers of two digits
/// or more. Single digits stay, so that "0 ESCAPED" is not "1 ESCAPED".
fn plain(line: &str) -> String {
    let hex = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut out = String::new();
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        let id = rest.find(|c| !hex(c)).unwrap_or(rest.len());
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let taken = if id >= 16 { id } else { digits };
        if taken >= 2 {
            out.push('#');
            rest = &rest[taken..];
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    out
}

/// Whether a line of the README is that line of a run; `…` in it stands for whatever was cut.
fn is_line(shown: &str, real: &str) -> bool {
    let (shown, real) = (plain(shown), plain(real));
    let mut pieces = shown.split('…');
    let Some(mut rest) = pieces.next().and_then(|first| real.strip_prefix(first)) else { return false };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.is_empty() || shown.ends_with('…')
}

#[test]
fn the_reader_of_the_block_knows_ids_from_words() {
    for (shown, real) in [
        ("152 attempts: 152 refused, 0 ESCAPED", "160 attempts: 160 refused, 0 ESCAPED"),
        ("ran sha256:bf3207e78c69e4dba7bd135e3333e235", "ran sha256:0123456789abcdef0123456789abcdef"),
        ("hidden: never certified: …", "hidden: never certified: run x"),
        ("$ echo \"print('EVIL…')\" >> …/main", "$ echo \"print('EVIL…')\" >> /var/tmp/x/main"),
    ] {
        assert!(is_line(shown, real), "{shown} / {real}");
    }
    for (shown, real) in [
        ("152 refused, 0 ESCAPED", "151 refused, 1 ESCAPED"),
        ("2 notes kept", "1 notes kept"),
        ("0 unclear", "12 unclear"),
        ("chain …; open calls 0", "chain abc; open calls 0, open invocations 0"),
        ("kept", "kept twice"),
    ] {
        assert!(!is_line(shown, real), "{shown} / {real}");
    }
}

#[test]
fn the_readme_shows_what_the_demo_prints() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, block) = readme.split_once("<!-- demo-output -->\n```text\n").expect("the block's beginning");
    let (block, _) = block.split_once("```\n<!-- /demo-output -->").expect("the block's end");
    let shown: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    assert!((20..=30).contains(&shown.len()), "{} lines: show the telling ones", shown.len());
    let ran = demo(&[]);
    let mut real = ran.stdout.lines();
    for line in &shown {
        assert!(line.chars().filter(|c| c.is_alphanumeric()).count() >= 10, "says too little: {line}");
        assert!(
            real.any(|r| is_line(line, r)),
            "README.md shows {line:?}, which a run does not print, or not there:\n{}",
            ran.stdout
        );
    }
    let steps = |text: &mut dyn Iterator<Item = &str>| {
        text.filter(|l| l.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect::<Vec<_>>()
    };
    let all = steps(&mut ran.stdout.lines());
    assert_eq!(steps(&mut shown.iter().copied()), all, "each step, as it is announced");
}

#[test]
fn the_demo_counts_the_attempts_of_its_hostile_skill_and_lists_them_only_if_asked() {
    let attempts = |ran: &Ran| ran.stdout.lines().filter(|line| line.ends_with("| refused")).count();
    let counted = |ran: &Ran| {
        let line = ran.stdout.lines().find(|line| line.contains(" attempts: ")).expect("a count").to_owned();
        line.trim_start_matches([' ', '|']).split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let (short, long) = (demo(&[]), demo(&["--verbose"]));
    assert_eq!(attempts(&short), 0, "{short}");
    assert!(short.stdout.contains("cyberos demo --verbose"), "{short}");
    assert!(attempts(&long) > 100 && attempts(&long) == counted(&long), "{long}");
    assert_eq!(counted(&short), counted(&long));
}
