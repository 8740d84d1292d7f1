//! threats.md A21: what is mounted at, above and below a granted folder. A file system that waits for somebody keeps the
//! processes of a sandbox for as long as it likes, killed or not; and a mount that a copy leaves out would uncover what
//! it was to hide. Neither gets into a sandbox, whenever it is mounted.

use crate::granted::*;
use crate::hanging::Hostile;
use crate::raw::*;
use crate::support::helper::Asks;
use cyberos_proto::message::{Refusal, Reply};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

const NONE: Option<&str> = None;

fn unsupported(fs: &str) -> Refusal {
    Refusal::GrantUnsupported { bind: 0, fs: fs.into() }
}

/// What a granted `dir` is refused for.
fn refusal(broker: &Broker<'_>, dir: &Path) -> Refusal {
    let asked = Instant::now();
    let of = File::open(dir).unwrap();
    let refusal = broker.refusal(&dir.display().to_string(), bash("ls", &[(dir, true)]), &[of.as_raw_fd()]);
    assert!(asked.elapsed() < OTHER_LINK, "{dir:?}: {:?}", asked.elapsed());
    refusal
}

#[test]
fn threat_a21_a_server_that_takes_idmaps_is_refused_at_above_and_below_a_grant() {
    let (helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let around = dir(&place.0.join("around"));
    let point = dir(&around.join("deep/er/point"));
    let second = dir(&around.join("deep/second"));
    let beside = dir(&place.0.join("beside"));
    let mut server = Hostile::server(&point);
    let held = File::open(point.join("dir")).unwrap();
    server.tell("swallow OPENDIR READ GETATTR STATFS");
    for dir in [&around, &around.join("deep"), &around.join("deep/er")] {
        assert_eq!(refusal(&broker, dir), unsupported("fuse.hanging"), "below {dir:?}");
    }
    let asked = Instant::now();
    let inside = bash("ls", &[(&point.join("dir"), true)]);
    assert_eq!(broker.refusal("inside", inside, &[held.as_raw_fd()]), unsupported("fuse.hanging"));
    assert!(asked.elapsed() < OTHER_LINK);
    // Bound a second, under whatever name; and with something harmless over it.
    mount(Some(&point), &second, NONE, MsFlags::MS_BIND, NONE).unwrap();
    umount2(&point, MntFlags::MNT_DETACH).unwrap();
    assert_eq!(refusal(&broker, &around), unsupported("fuse.hanging"), "a bind");
    let other = dir(&place.0.join("other"));
    let deep = dir(&other.join("deep"));
    mount(Some(&around.join("deep")), &deep, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE).unwrap();
    assert_eq!(refusal(&broker, &other), unsupported("fuse.hanging"), "a recursive bind");
    assert_eq!(
        broker.said(bash("echo on", &[(&beside, true)]), &[File::open(&beside).unwrap().as_raw_fd()]),
        "on\n"
    );
    drop((raw, server));
    drop(place);
    helper.leaves_nothing();
}

#[test]
fn threat_a21_an_overlay_waits_for_whom_its_layers_wait_for() {
    let (helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let [point, lower, merged, twice] = ["point", "lower", "merged", "twice"].map(|n| dir(&place.0.join(n)));
    let server = Hostile::server(&point);
    let overlay = |lower: &[&Path], at: &Path| {
        let lower: Vec<_> = lower.iter().map(|l| l.display().to_string()).collect();
        let options = format!("lowerdir={}", lower.join(":"));
        mount(Some("overlay"), at, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
    };
    overlay(&[&lower, &point], &merged);
    dir(&lower.join("on"));
    overlay(&[&merged, &lower], &twice);
    for at in [&merged, &twice] {
        // What is mounted on it would take an idmap; but the way there leads over the overlay.
        let on = at.join("on");
        mount(Some("none"), &on, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        own(&on);
        assert_eq!(refusal(&broker, &on), unsupported("overlay"), "{on:?}");
    }
    // One of layers that wait for nobody is no hindrance on the way.
    let plain = dir(&place.0.join("plain"));
    overlay(&[&lower, &dir(&place.0.join("more"))], &plain);
    let on = plain.join("on");
    mount(Some("none"), &on, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    own(&on);
    assert_eq!(broker.said(bash("echo on", &[(&on, true)]), &[File::open(&on).unwrap().as_raw_fd()]), "on\n");
    drop((raw, server));
    drop(place);
    helper.leaves_nothing();
}

#[test]
fn threat_a21_a_mount_that_a_copy_would_leave_out_is_no_grant_and_uncovers_nothing() {
    let (helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let a = dir(&place.0.join("a"));
    let hidden = dir(&a.join("deep/hidden"));
    file(&hidden.join("under"), "secret");
    mount(Some("none"), &hidden, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    own(&hidden);
    let script = format!("cat {}/under 2>&1; echo on", hidden.display());
    let ask = || broker.ask(bash(&script, &[(&a, true)]), &[File::open(&a).unwrap().as_raw_fd()]).0;
    let of_a = File::open(&a).unwrap();
    let said = broker.said(bash(&script, &[(&a, true)]), &[of_a.as_raw_fd()]);
    assert!(said.ends_with("on\n") && !said.contains("secret"), "{said}");
    // Each moment it is looked at anew: becoming unbindable is no event that anybody is told.
    mount(NONE, &hidden, NONE, MsFlags::MS_UNBINDABLE, NONE).unwrap();
    for at in [&a, &a.join("deep"), &hidden] {
        assert_eq!(refusal(&broker, at), unsupported("unbindable tmpfs"), "{at:?}");
    }
    mount(NONE, &hidden, NONE, MsFlags::MS_PRIVATE, NONE).unwrap();
    assert!(ask().is_ok());
    drop(raw);
    drop(place);
    helper.leaves_nothing();
}

/// Mounted after the look and taken off before the next, again and again: none gets into a sandbox, and grants go on.
#[test]
fn threat_a21_a_mount_that_comes_between_look_and_copy_is_in_no_copy() {
    let (helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let (source, a) = (dir(&place.0.join("source")), dir(&place.0.join("a")));
    let below = dir(&a.join("below"));
    let server = Hostile::server(&source);
    let (stop, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    /// Ends the other thread, also when this one fails.
    struct Stops<'a>(&'a AtomicBool);
    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut refused, mut given) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                mount(Some(&source), &below, NONE, MsFlags::MS_BIND, NONE).unwrap();
                umount2(&below, MntFlags::MNT_DETACH).unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stops = Stops(&stop);
        let of_a = File::open(&a).unwrap();
        let began = Instant::now();
        while began.elapsed().as_secs() < 4 {
            let plan = bash("grep -c fuse.hanging /proc/self/mountinfo", &[(&a, true)]);
            match broker.ask(plan, &[of_a.as_raw_fd()]) {
                (Ok(pipes), release) => {
                    let said =
                        std::io::read_to_string(File::from(pipes.into_iter().nth(1).unwrap())).unwrap();
                    assert_eq!(said, "0\n", "after {given} that were whole");
                    assert_eq!(raw.ask(&good(&release), &[]), Answer::Said(Reply::Done));
                    given += 1;
                }
                (Err(Refusal::GrantUnsupported { .. } | Refusal::System { .. }), _) => refused += 1,
                (Err(other), _) => panic!("{other:?}"),
            }
        }
    });
    println!("{given} given, {refused} refused, {} turns", turns.load(Ordering::Relaxed));
    assert!(given > 0 && turns.load(Ordering::Relaxed) > 100, "the two did not meet");
    let release = good(&new_id().release());
    assert_eq!(raw.ask(&release, &[]), Answer::Said(Reply::Done));
    drop((raw, server));
    drop(place);
    helper.leaves_nothing();
}
