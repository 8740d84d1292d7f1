//! What is a skill and what only lies beside one: folders without SKILL.md, version control, and a SKILL.md that is no
//! file (`[9.1]`, `[0.1]`).
#![allow(clippy::unwrap_used)]

mod support;

use cyberos_proto::control::{ControlReply, ControlRequest, SkillState, Verdict};
use nix::libc;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use support::skillfs::{Bench, name, read, until};

fn explain(bench: &Bench, skill: &str) -> ControlReply {
    bench.ask(&ControlRequest::Explain { skill: name(skill) })
}

fn listed(bench: &Bench) -> Vec<SkillState> {
    match bench.ask(&ControlRequest::Status { after: None }) {
        ControlReply::Status(status) => status.skills,
        other => panic!("{other:?}"),
    }
}

fn names(bench: &Bench) -> Vec<String> {
    listed(bench).into_iter().map(|s| s.skill.to_string()).collect()
}

/// A bench whose provider writes down what it is asked about.
fn recorded() -> Bench {
    let bench = Bench::new();
    bench.program(
        "provider",
        "echo \"$1 $skill\" >>$STUB/../run/asked\n[ $1 = scan ] || cat $STUB/$skill.json",
    );
    bench
}

fn asked(bench: &Bench) -> String {
    read(bench.path("run/asked")).unwrap_or_default()
}

#[test]
fn case_190_a_folder_without_skill_md_is_no_skill() {
    let mut bench = recorded();
    bench.write("good/SKILL.md", "good");
    for debris in [".git", "node_modules", ".idea", "lower"] {
        bench.write(&format!("{debris}/config"), "x");
        bench.says_current(debris);
    }
    bench.write("lower/skill.md", "only the exact name counts");
    bench.write("category/inner/SKILL.md", "one level too deep");
    bench.mount_current(&["good"], &[]);
    assert_eq!(names(&bench), ["good"]);
    for debris in [".git", "node_modules", ".idea", "lower", "category"] {
        assert_eq!(explain(&bench, debris), ControlReply::NoSuchSkill, "{debris}");
        let begun = std::time::Instant::now();
        let waited = bench.ask(&ControlRequest::Await { skill: name(debris), timeout_ms: 30_000 });
        assert_eq!(waited, ControlReply::NoSuchSkill, "{debris}");
        assert!(begun.elapsed().as_secs() < 10, "nobody waits for a folder that is no skill");
        assert!(fs::symlink_metadata(bench.view(debris)).is_err(), "{debris}");
    }
    // What happens in such a folder asks nobody anything.
    bench.write("node_modules/config", "y");
    bench.write("node_modules/more/deep", "z");
    bench.write("later/file", "made while mounted");
    bench.refresh("good");
    bench.ask(&ControlRequest::Refresh { skill: None });
    assert_eq!(names(&bench), ["good"]);
    assert!(asked(&bench).lines().all(|line| line.ends_with(" good")), "{}", asked(&bench));
}

#[test]
fn case_190_a_folder_that_gets_a_skill_md_appears_by_itself() {
    let mut bench = recorded();
    bench.write("before/readme", "there at the start");
    bench.says_current("before");
    bench.mount(&[]);
    bench.write("while/readme", "made while mounted");
    bench.says_current("while");
    for skill in ["before", "while"] {
        assert_eq!(explain(&bench, skill), ControlReply::NoSuchSkill, "{skill}");
        bench.write(&format!("{skill}/SKILL.md"), skill);
        // Known as soon as it is there, and then shown.
        assert!(matches!(explain(&bench, skill), ControlReply::Skill(_)), "{skill}");
        assert_eq!(bench.state(skill).verdict, Verdict::Current, "{skill}");
        assert_eq!(read(bench.view(&format!("{skill}/SKILL.md"))).unwrap(), skill);
    }
    // By rename into the folder as well, and again after it was removed together with its folder.
    bench.write("../new/SKILL.md", "moved");
    bench.write("third/readme", "x");
    bench.says_current("third");
    assert_eq!(explain(&bench, "third"), ControlReply::NoSuchSkill);
    fs::rename(bench.path("new/SKILL.md"), bench.source("third/SKILL.md")).unwrap();
    assert_eq!(bench.state("third").verdict, Verdict::Current);
    fs::remove_dir_all(bench.source("third")).unwrap();
    until("gone", || explain(&bench, "third") == ControlReply::NoSuchSkill);
    bench.write("third/readme", "x");
    assert_eq!(explain(&bench, "third"), ControlReply::NoSuchSkill);
    bench.write("third/SKILL.md", "back");
    assert_eq!(bench.state("third").verdict, Verdict::Current);
}

#[test]
fn case_190_a_skill_that_loses_its_skill_md_is_hidden_and_says_why() {
    let mut bench = recorded();
    bench.write("s/SKILL.md", "x");
    bench.write("s/script", "y");
    bench.mount_current(&["s"], &[]);
    assert_eq!(read(bench.view("s/script")).unwrap(), "y");
    fs::remove_file(bench.source("s/SKILL.md")).unwrap();
    let state = bench.state("s");
    assert_eq!((state.verdict, state.pending), (Verdict::Hidden, false));
    assert!(state.reason.as_deref().is_some_and(|r| r.contains("SKILL.md")), "{state:?}");
    assert!(read(bench.view("s/script")).is_err());
    // It stays known, also when it is asked about again; and comes back with the file.
    bench.refresh("s");
    assert_eq!(bench.state("s").verdict, Verdict::Hidden);
    bench.write("s/SKILL.md", "x again");
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    // A certified one still has its provider to ask, and its snapshot.
    bench.snapshot("s", "v1", "trusted");
    bench.says_fallback("s", "v1");
    fs::remove_file(bench.source("s/SKILL.md")).unwrap();
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Fallback, "{state:?}");
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "trusted");
    bench.says_current("s");
    bench.refresh("s");
    let state = bench.state("s");
    assert_eq!(state.verdict, Verdict::Hidden, "{state:?}");
    assert!(state.reason.as_deref().is_some_and(|r| r.contains("SKILL.md")), "{state:?}");
}

#[test]
fn case_026_of_two_sources_the_first_that_has_the_skill_gives_it() {
    let mut bench = Bench::new();
    bench.write("demo/readme", "no skill");
    bench.write("../src2/demo/SKILL.md", "second");
    let arguments = bench.arguments(&["--unprotected"]);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let second = bench.path("src2").display().to_string();
    arguments.insert(2, &second);
    bench.mount_with(&arguments);
    until("the second gives it", || read(bench.view("demo/SKILL.md")).is_ok_and(|t| t == "second"));
    // When the first one's becomes a skill, it is that one's.
    bench.write("demo/SKILL.md", "first");
    until("the first gives it", || read(bench.view("demo/SKILL.md")).is_ok_and(|t| t == "first"));
    fs::remove_file(bench.source("demo/SKILL.md")).unwrap();
    until("the second again", || read(bench.view("demo/SKILL.md")).is_ok_and(|t| t == "second"));
}

#[test]
fn case_138_a_skill_md_that_is_no_file_is_named() {
    let mut bench = Bench::new();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
    for skill in ["fifo", "folder", "leaves", "dangles", "inside", "file"] {
        bench.write(&format!("{skill}/real.md"), skill);
        bench.says_current(skill);
    }
    nix::unistd::mkfifo(&bench.source("fifo/SKILL.md"), mode).unwrap();
    fs::create_dir(bench.source("folder/SKILL.md")).unwrap();
    symlink("/etc/passwd", bench.source("leaves/SKILL.md")).unwrap();
    symlink("nowhere", bench.source("dangles/SKILL.md")).unwrap();
    symlink("real.md", bench.source("inside/SKILL.md")).unwrap();
    fs::write(bench.source("file/SKILL.md"), "x").unwrap();
    bench.mount(&[]);
    bench.settle();
    for (skill, word) in [
        ("fifo", Some("FIFO")),
        ("folder", Some("directory")),
        ("leaves", Some("symlink")),
        ("dangles", Some("symlink")),
        ("inside", None),
        ("file", None),
    ] {
        let state = bench.state(skill);
        let warning = state.warning.unwrap_or_default();
        match word {
            Some(word) => {
                assert!(warning.contains("SKILL.md") && warning.contains(word), "{skill}: {warning}")
            }
            None => assert_eq!(warning, "", "{skill}"),
        }
    }
    assert_eq!(read(bench.view("inside/SKILL.md")).unwrap(), "inside");
    assert!(read(bench.view("leaves/SKILL.md")).is_err());
}

fn enoent<T: std::fmt::Debug>(result: std::io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

fn holds_git(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().any(|e| e.unwrap().file_name() == ".git")
}

#[test]
fn case_181_version_control_is_not_served_where_verdicts_decide() {
    let mut bench = recorded();
    for tree in ["s", "s/.skill-meta/versions/v1.snapshot"] {
        bench.write(&format!("{tree}/SKILL.md"), tree);
        bench.write(&format!("{tree}/.git/HEAD"), "nobody looked at this");
        bench.write(&format!("{tree}/d/.git/HEAD"), "an ordinary folder");
    }
    bench.write("w/SKILL.md", "x");
    bench.write("w/.git", "gitdir: elsewhere");
    bench.mount_current(&["s", "w"], &[]);
    for turn in 0..2 {
        assert!(!holds_git(&bench.view("s")) && !holds_git(&bench.view("w")));
        for hidden in ["s/.git", "s/.git/HEAD", "s/.GIT/HEAD", "s/d/../.git/HEAD", "w/.git"] {
            enoent(fs::symlink_metadata(bench.view(hidden)));
            enoent(read(bench.view(hidden)));
        }
        assert!(holds_git(&bench.view("s/d")));
        assert_eq!(read(bench.view("s/d/.git/HEAD")).unwrap(), "an ordinary folder");
        if turn == 0 {
            bench.says_fallback("s", "v1");
            bench.refresh("s");
        }
    }
    bench.says_current("s");
    bench.refresh("s");
    // What happens in it is no change of the skill, so nothing is decided and nothing flips.
    let (before, epoch) = (asked(&bench), bench.state("s").epoch);
    bench.write("s/.git/index", "as `git status` writes it");
    bench.write("s/.git/objects/ab/cd", "x");
    fs::rename(bench.source("s/.git/index"), bench.source("s/.git/index.old")).unwrap();
    fs::rename(bench.source("s/.git"), bench.source("../moved")).unwrap();
    fs::rename(bench.source("../moved"), bench.source("s/.git")).unwrap();
    let ControlReply::Skill(state) = explain(&bench, "s") else { panic!() };
    assert_eq!((state.pending, state.epoch), (false, epoch));
    bench.refresh("w");
    assert_eq!(asked(&bench), before + "scan w\nresolve w\n");
    // What comes out of it is one.
    bench.says_hidden("s");
    fs::rename(bench.source("s/.git/index.old"), bench.source("s/uncertified")).unwrap();
    assert!(read(bench.view("s/uncertified")).is_err());
    assert_eq!(bench.state("s").verdict, Verdict::Hidden);
}

#[test]
fn case_181_version_control_is_served_to_authors() {
    for options in [&["--unprotected"][..], &["--on-change", "keep"]] {
        let mut bench = Bench::new();
        bench.write("s/SKILL.md", "x");
        bench.write("s/.git/HEAD", "one");
        bench.says_current("s");
        bench.mount(options);
        bench.settle();
        assert!(holds_git(&bench.view("s")));
        assert_eq!(read(bench.view("s/.git/HEAD")).unwrap(), "one");
        bench.write("s/.git/HEAD", "other");
        until("seen like any other change", || read(bench.view("s/.git/HEAD")).is_ok_and(|t| t == "other"));
    }
}
