//! Who can exchange a folder on the way to a source decides what a provider looks at: that is reported, refused under
//! `--strict`, and no decision holds that was taken meanwhile (`[9.3]`, threat A22).
#![allow(clippy::unwrap_used)]

mod support;

use cyberos_proto::control::{ControlReply, ControlRequest, SkillState, Verdict};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use support::skillfs::{Bench, name, read, until};

const STRANGER: u32 = 61_999;

/// Mounts with another source than the bench's own.
fn mount_source(bench: &mut Bench, source: &str, options: &[&str]) {
    let arguments = arguments(bench, source, options);
    bench.mount_with(&arguments);
}

fn arguments(bench: &Bench, source: &str, options: &[&str]) -> Vec<String> {
    let mut arguments = bench.arguments(options);
    arguments[1] = bench.path(source).display().to_string();
    arguments
}

fn give_away(path: &Path) {
    std::os::unix::fs::lchown(path, Some(STRANGER), None).unwrap();
}

fn exchange(a: &Path, b: &Path) {
    renameat2(AT_FDCWD, a, AT_FDCWD, b, RenameFlags::RENAME_EXCHANGE).unwrap();
}

#[test]
fn threat_a22_an_ancestor_that_is_exchanged_there_and_back_decides_nothing() {
    for attack in ["directory", "its parent", "symlink", "mount"] {
        let mut bench = Bench::new();
        for (folder, text) in [("real", "EVIL"), ("fake", "good")] {
            bench.write(&format!("../yard/{folder}/in/src/s/SKILL.md"), text);
        }
        let at = |p: &str| bench.path("yard").join(p);
        symlink("real", at("link")).unwrap();
        symlink("fake", at("other")).unwrap();
        give_away(&at(""));
        let (real, fake, link, other, inner, false_inner) =
            (at("real"), at("fake"), at("link"), at("other"), at("real/in"), at("fake/in"));
        // It tells when it looks for the first time, and waits until it may; it approves what it reads there.
        bench.program(
            "provider",
            "run=$STUB/../run\n\
             [ $1 = scan ] && exit 0\n\
             [ -e $run/seen ] || { touch $run/looks; while [ ! -e $STUB/there ]; do sleep 0.01; done; }\n\
             text=$(cat $dir/SKILL.md)\n\
             echo $text >>$run/seen\n\
             while [ ! -e $STUB/back ]; do sleep 0.01; done\n\
             [ $text = good ] && exec cat $STUB/current || exec cat $STUB/hidden",
        );
        for (answer, decision, status) in [("current", "current", "pass"), ("hidden", "hidden", "none")] {
            fs::write(bench.path("stub").join(answer), support::skillfs::answer("s", status, decision, None))
                .unwrap();
        }
        let turn = |there: bool| match attack {
            "directory" => exchange(&inner, &false_inner),
            "its parent" => exchange(&real, &fake),
            "symlink" => exchange(&link, &other),
            _ if there => {
                mount(Some(&false_inner), &inner, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            }
            _ => umount2(&inner, MntFlags::MNT_DETACH).unwrap(),
        };
        let source = if attack == "symlink" { "yard/link/in/src" } else { "yard/real/in/src" };
        mount_source(&mut bench, source, &[]);
        until("the provider looks", || bench.path("run/looks").exists());
        turn(true);
        fs::write(bench.path("stub/there"), "").unwrap();
        until("it has seen", || bench.path("run/seen").exists());
        turn(false);
        fs::write(bench.path("stub/back"), "").unwrap();
        let state = bench.state("s");
        let seen = read(bench.path("run/seen")).unwrap();
        assert!(seen.starts_with("good\n"), "{attack}: it was deceived once: {seen}");
        assert_eq!(state.verdict, Verdict::Hidden, "{attack}: {seen}\n{state:?}");
        assert!(read(bench.view("s/SKILL.md")).is_err(), "{attack}");
    }
}

#[test]
fn threat_a22_a_move_of_an_ancestor_is_a_change_of_all_below() {
    let mut bench = Bench::new();
    for folder in ["real", "fake"] {
        bench.write(&format!("../yard/{folder}/src/s/SKILL.md"), folder);
    }
    bench.says_current("s");
    bench.program(
        "provider",
        "[ $1 = scan ] || { cat $dir/SKILL.md >>$STUB/../run/seen; cat $STUB/$skill.json; }",
    );
    mount_source(&mut bench, "yard/real/src", &[]);
    assert_eq!(bench.state("s").verdict, Verdict::Current);
    assert_eq!(read(bench.view("s/SKILL.md")).unwrap(), "real");
    let (real, fake) = (bench.path("yard/real"), bench.path("yard/fake"));
    let seen = || read(bench.path("run/seen")).unwrap();
    assert_eq!(seen(), "real");
    // There and back between two looks of anybody: all is asked about again.
    let before = bench.state("s").epoch;
    exchange(&real, &fake);
    exchange(&real, &fake);
    until("asked again", || seen() == "realreal" && !bench.state("s").pending);
    assert!(bench.state("s").epoch.count > before.count);
    // For good: what is there now is another skill of that name.
    exchange(&real, &fake);
    until("the other one is asked about", || seen().ends_with("fake"));
    until("and shown", || read(bench.view("s/SKILL.md")).is_ok_and(|t| t == "fake"));
}

#[test]
fn a_source_on_a_way_that_others_can_change_is_reported_and_refused_under_strict() {
    for (why, spoil) in [
        ("belongs to uid 61999", 0),
        ("can be written by its group or others (mode 775)", 0o775),
        ("can be written by its group or others (mode 757)", 0o757),
    ] {
        for spoilt in ["yard", "yard/src"] {
            let mut bench = Bench::new();
            bench.write("../yard/src/s/SKILL.md", "x");
            bench.says_current("s");
            let path = bench.path(spoilt);
            if spoil == 0 {
                give_away(&path);
            } else {
                fs::set_permissions(&path, fs::Permissions::from_mode(spoil)).unwrap();
            }
            let said = format!("{} {why}", path.display());
            let strict = arguments(&bench, "yard/src", &["--strict"]);
            let strict: Vec<&str> = strict.iter().map(String::as_str).collect();
            let refused = bench.command(&strict).output().unwrap();
            let text = String::from_utf8(refused.stderr).unwrap();
            assert!(!refused.status.success() && text.contains("--strict: source_shared"), "{text}");
            assert!(text.contains(&said), "{text}");
            assert_eq!(bench.mounts(), 0);
            mount_source(&mut bench, "yard/src", &[]);
            assert_eq!(bench.state("s").verdict, Verdict::Current, "it is reported, and shown");
            assert!(bench.log().contains("source_shared") && bench.log().contains(&said), "{}", bench.log());
            let ControlReply::Status(status) = bench.ask(&ControlRequest::Status { after: None }) else {
                panic!()
            };
            let warned = |s: &SkillState| s.warning.as_ref().is_some_and(|w| w.contains(&said));
            assert!(status.total == 1 && status.skills.iter().all(warned), "{:?}", status.skills);
            let ControlReply::Skill(state) = bench.ask(&ControlRequest::Explain { skill: name("s") }) else {
                panic!()
            };
            assert!(warned(&state), "{state:?}");
            let control = bench.path("run/control.sock").display().to_string();
            for command in [&["status"][..], &["explain", "s"]] {
                let out = bench.command(&[command, &["--control", &control]].concat()).output().unwrap();
                assert!(String::from_utf8_lossy(&out.stdout).contains("source_shared"), "{command:?}");
            }
        }
    }
    // Nobody else can change a way through root's and SkillFS's own folders, nor through a sticky one.
    let mut bench = Bench::new();
    bench.write("../yard/src/s/SKILL.md", "x");
    bench.says_current("s");
    nix::unistd::chown(&bench.path("yard/src"), Some(support::skillfs::SKILLFS_UID.into()), None).unwrap();
    fs::set_permissions(bench.path("yard"), fs::Permissions::from_mode(0o1777)).unwrap();
    mount_source(&mut bench, "yard/src", &["--strict"]);
    assert_eq!(bench.state("s").warning, None);
    assert!(!bench.log().contains("source_shared"), "{}", bench.log());
}
