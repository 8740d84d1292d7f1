//! Parts of the sandbox that a machine may lack (A12): what is skipped is said, and what is required is never skipped, not
//! for a moment.

use super::containers::without;
use super::support::up::{Options, Skill, Up};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// No control groups of any kind in sight.
fn no_groups() -> Options {
    Options { prelude: Some("mount -t tmpfs none /sys/fs/cgroup".into()), ..Options::default() }
}

/// The kernel knows no landlock_create_ruleset.
fn no_landlock() -> Options {
    Options { within: without(&["444"]), ..Options::default() }
}

fn start(within: Options, config: &str) -> Up {
    let options = Options { config: Some(config.to_owned()), ..within };
    Up::with(options, |source| {
        let skill = Skill { id: "s", main: "#!/bin/sh\ncat marker\n", ..Skill::default() }.write(source);
        std::fs::write(skill.join("marker"), "it ran\n").unwrap();
    })
}

#[test]
fn threat_a12_what_a_machine_lacks_is_warned_of_and_recorded() {
    for (within, part, word) in
        [(no_groups(), "cgroup", "control group"), (no_landlock(), "landlock", "Landlock")]
    {
        let up = start(within, "sandbox: {}\n");
        let ran = up.run("s", &[]);
        assert_eq!((ran.exit, ran.stdout.as_str()), (0, "it ran\n"), "{ran}");
        let skipped = &up.rows("skill.invoked_started")[0]["extra"]["sandbox"]["skipped"];
        assert_eq!(*skipped, serde_json::json!([part]));
        assert!(up.log().lines().any(|l| l.contains("WARN") && l.contains(word)), "{part}: {}", up.log());
    }
}

#[test]
fn threat_a12_what_is_required_is_not_skipped_for_a_moment() {
    for (within, part) in [(no_groups(), "cgroup"), (no_landlock(), "landlock")] {
        let up = start(within, &format!("sandbox:\n  require: [{part}]\n"));
        let refused = || {
            let ran = up.run("s", &[]);
            assert!(ran.exit != 0 && ran.stdout.is_empty(), "{part}: {ran}");
            assert!(ran.stderr.contains(part) && ran.stderr.contains("sandbox.require"), "{part}: {ran}");
        };
        refused();
        // The copy that it would have run from stays; whoever opens the file that the skill reads first is seen.
        let sealed = std::fs::read_dir(up.state.join("sealed")).unwrap().map(|e| e.unwrap().path());
        let markers: Vec<_> = sealed.map(|d| d.join("marker")).filter(|m| m.exists()).collect();
        assert_eq!(markers.len(), 1, "{markers:?}");
        let seen = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
        seen.add_watch(&markers[0], AddWatchFlags::IN_OPEN).unwrap();
        (0..10).for_each(|_| refused());
        let opened = seen.read_events().map_or(0, |events| events.len());
        assert_eq!(opened, 0, "{part}: the skill ran {opened} times before it was refused");
        assert!(up.rows("skill.invoked_started").is_empty());
        // That the watch can tell.
        std::fs::read(&markers[0]).unwrap();
        assert_eq!(seen.read_events().map_or(0, |events| events.len()), 1);
    }
}
