//! What takes as long as a start tries again before it gives up.

use super::ANY;
use super::containers::{without, works_within};
use super::support::up::{Options, Skill, Up};

/// Without this call nothing starts or the skill does not run, and what the operator reads names a step and the kernel's answer.
fn refused_without(number: &str, name: &str) {
    let options = Options { within: without(&[number]), ..Options::default() };
    let start = Up::try_with(options, |source| {
        Skill { id: "any", main: ANY, ..Skill::default() }.write(source);
    });
    let said = match start {
        Err(why) => why,
        Ok(up) => {
            let ran = up.run("any", &["/bin/echo", "ran"]);
            assert!(ran.exit != 0 && ran.stdout.is_empty(), "without {name} it ran: {ran}");
            ran.to_string()
        }
    };
    assert!(said.contains("ENOSYS") || said.contains("not implemented"), "{name}: {said}");
}

/// Takes half a minute, because that is how long a start tries again to mount.
#[test]
fn case_084_a_kernel_that_lacks_what_is_needed_is_refused_with_the_step() {
    // The control experiment: the filter itself changes nothing.
    works_within(without(&["1000"]), "a filter of nothing");
    std::thread::scope(|scope| {
        for (number, name) in [
            ("155", "pivot_root"),
            ("317", "seccomp"),
            ("428", "open_tree"),
            ("429", "move_mount"),
            ("430", "fsopen"),
            ("434", "pidfd_open"),
            ("435", "clone3"),
            ("437", "openat2"),
            ("442", "mount_setattr"),
        ] {
            scope.spawn(move || refused_without(number, name));
        }
    });
}
