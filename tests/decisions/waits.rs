//! What takes as long as a provider may take.

use super::*;

#[test]
fn case_023_one_bad_provider_run_holds_up_nobody_else() {
    let mut bench = Bench::new();
    for skill in ["floods", "sleeps", "forks", "fails", "good"] {
        bench.write(&format!("{skill}/SKILL.md"), skill);
        bench.says_current(skill);
    }
    let stub = |skill: &str, text: &str| {
        std::fs::write(bench.path("stub").join(format!("{skill}.sh")), text).unwrap();
    };
    stub("floods", "head -c 200000000 /dev/zero | tr '\\0' x");
    stub("sleeps", "sleep 98765");
    stub("forks", "sleep 98765 &\necho $! >&2");
    stub("fails", "cat $STUB/$skill.json; exit 1");
    bench.mount(&["--provider-timeout", "6", "--jobs", "2"]);
    let began = Instant::now();
    until("the good one is shown", || read(bench.view("good/SKILL.md")).is_ok_and(|t| t == "good"));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(bench.state("forks").verdict, Verdict::Current);
    for (skill, why) in [("floods", "more than"), ("fails", "exit status 1"), ("sleeps", "did not end")] {
        let state = bench.state(skill);
        assert_eq!(state.verdict, Verdict::Hidden);
        assert!(state.reason.as_deref().unwrap().contains(why), "{state:?}");
    }
    let left = std::process::Command::new("pgrep").args(["-f", "sleep 98765"]).output().unwrap();
    assert_eq!(String::from_utf8(left.stdout).unwrap(), "", "a provider's child runs on");
}
