//! `cyberos demo` (`[7.5]`): what it tells of the hostile skill. That each of its steps did what it says it checks itself.

mod support;

use std::process::Command;
use support::binaries::binary;
use support::up::Ran;

#[test]
fn the_demo_counts_the_attempts_of_its_hostile_skill_and_lists_them_only_if_asked() {
    let demo = |args: &[&str]| -> Ran {
        let ran: Ran = Command::new(binary("cyberos")).arg("demo").args(args).output().unwrap().into();
        assert!(ran.exit == 0 && ran.stdout.ends_with("Every step did what it said.\n"), "{ran}");
        ran
    };
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
