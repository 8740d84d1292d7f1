//! A storm in one folder, and runs of other skills beside it, through the whole system.

use super::{Storm, give};
use crate::support::up::{Skill, Up, eventually};
use std::fs;
use std::time::{Duration, Instant};

/// How long a run of another skill may take to start and end, at best of five, as `skill run` begins.
const STARTS: Duration = Duration::from_secs(1);

#[test]
fn threat_a20_another_skill_is_run_within_a_second_of_being_asked_for() {
    let up = Up::new(|source| {
        Skill { id: "other", main: "#!/bin/sh\necho ran\n", ..Skill::default() }.write(source);
        let mine = Skill { id: "mine", main: "#!/bin/sh\n", ..Skill::default() }.write(source);
        for n in 0..8 {
            fs::write(mine.join(format!("f{n}")), "x").unwrap();
        }
    });
    assert_eq!(up.run("other", &[]).exit, 0);
    let mine = up.dir().join("skills/mine");
    give(&mine);
    let mut storm = Storm::of_modes(&mine);
    let named = || up.explain("mine")["warning"].is_string();
    assert!(eventually(Duration::from_secs(20), named), "{}", up.explain("mine"));
    let times = (0..5).map(|_| {
        let began = Instant::now();
        let ran = up.run("other", &[]);
        assert!(ran.exit == 0 && ran.stdout == "ran\n", "{ran}");
        began.elapsed()
    });
    let times: Vec<_> = times.collect();
    eprintln!("runs beside a storm: {times:?}");
    assert!(storm.goes_on());
    assert!(times.iter().min().is_some_and(|best| *best < STARTS), "{times:?}");
}
