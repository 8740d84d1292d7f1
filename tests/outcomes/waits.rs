//! What takes a minute, because that is the shortest time that the rules give a run.

use super::*;

#[test]
fn a_skill_that_never_connects_is_ended_after_sixty_seconds() {
    let up = up(&[
        ("mute", "#!/bin/sh\nexec sleep 1000\n"),
        ("talker", "#!/bin/sh\n/opt/cyberos/bin/cyberos-call --list >/dev/null\nexec sleep 70\n"),
    ]);
    // The one beside it does what the message says, and is not ended.
    let talker = up.command(&["skill", "run", "talker"]).spawn().unwrap();
    let begun = Instant::now();
    let ran = up.run("mute", &[]);
    let took = begun.elapsed();
    assert_eq!(ran.exit, 124, "{ran}");
    assert!(
        ran.stderr.contains("first call within a minute, e.g. `/opt/cyberos/bin/cyberos-call --list`"),
        "{ran}"
    );
    assert!(took >= Duration::from_secs(59) && took < Duration::from_secs(65), "{took:?}");
    assert_eq!(up.rows("skill.no_connect").len(), 1);
    assert_eq!(completed(&up)["outcome"], "no_connect");
    let ran = support::up::Ran::from(talker.wait_with_output().unwrap());
    assert_eq!(ran.exit, 0, "{ran}");
    nothing_left(&up);
}

#[test]
fn criterion_12_and_13_sigterm_comes_at_54_s_and_sigkill_at_60_s() {
    let polite = python("import time\ntime.sleep(100)");
    let stubborn = python(
        "import signal, time\nt = time.monotonic()\nsignal.signal(signal.SIGTERM, lambda *a: print('TERM %.2f' % (time.monotonic() - t), flush=True))\nwhile True: time.sleep(1)",
    );
    let up = Up::new(|source| {
        for (id, main) in [("polite", &polite), ("stubborn", &stubborn)] {
            let more = "effort_minutes: 1\n";
            Skill { id, main, more, tools: &["MemoryRead"], scopes: &["memories/**"] }.write(source);
        }
    });
    let begun = Instant::now();
    let other = up.command(&["skill", "run", "stubborn"]).stdout(Stdio::piped()).spawn().unwrap();
    let ran = up.run("polite", &[]);
    let took = begun.elapsed();
    assert_eq!(ran.exit, 124, "{ran}");
    assert!(
        took >= Duration::from_secs(54) && took < Duration::from_secs(57),
        "default disposition: {took:?}"
    );
    let ran = support::up::Ran::from(other.wait_with_output().unwrap());
    let took = begun.elapsed();
    assert_eq!(ran.exit, 124, "{ran}");
    // By its own clock, which began when Python had started: once, at 54 s.
    let seconds = ran.stdout.strip_prefix("TERM ").and_then(|rest| rest.trim_end().parse::<f64>().ok());
    assert!(seconds.is_some_and(|s| (51.0..55.0).contains(&s)), "{ran}");
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(65), "{took:?}");
    let timeouts = up.rows("skill.timeout");
    assert_eq!(timeouts.len(), 1, "only where SIGKILL fired");
    assert_eq!(timeouts[0]["extra"]["skill_id"], "stubborn");
    assert!(up.rows("skill.invoked_completed").iter().all(|r| r["extra"]["outcome"] == "timeout"));
}
