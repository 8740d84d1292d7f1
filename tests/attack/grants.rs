//! threats.md A7: grants assembled as root. Whatever names, links and mounts the granted trees hold, and whatever a hostile
//! broker asks, nothing is attached, shown or written outside what was granted.

use crate::forged::Forger;
use crate::granted::*;
use crate::hanging::Hostile;
use crate::raw::*;
use crate::support::helper::{Asks, BROKER, Helper};
use cyberos_proto::message::{Refusal, Reply};
use cyberos_proto::plan::{Bind, BindKind, PlanFault, Profile, SandboxPath};
use nix::mount::{MsFlags, mount};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Grant A holds links; grant B's target leads through one of them, in each component and to each kind of place.
#[test]
fn threat_a7_a_link_in_any_component_of_a_target_leads_nowhere() {
    let (_helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let (a, b, victim) = (dir(&place.0.join("a")), dir(&place.0.join("b")), dir(&place.0.join("victim")));
    file(&b.join("planted"), "");
    file(&victim.join("untouched"), "");
    dir(&a.join("d/e"));
    for (name, to) in [
        ("absolute", victim.to_str().unwrap()),
        ("up", "../victim"),
        ("root", "/"),
        ("usr", "/usr"),
        ("etc", "/etc"),
        ("tmp", "/tmp"),
        ("proc", "/proc/self/cwd"),
        ("dangling", "nowhere"),
        ("itself", "itself"),
        ("sideways", "../b"),
    ] {
        symlink(to, a.join(name)).unwrap();
        symlink(to, a.join("d").join(name)).unwrap();
    }
    let (of_a, of_b) = (File::open(&a).unwrap(), File::open(&b).unwrap());
    let fds = [of_a.as_raw_fd(), of_b.as_raw_fd()];
    let names: Vec<_> = fs::read_dir(&a).unwrap().flatten().map(|e| e.file_name()).collect();
    let before = mounts(&place);
    let mut refused = 0;
    for name in names.iter().filter(|n| *n != "d") {
        let name = name.to_str().unwrap();
        for target in
            [a.join(name), a.join(name).join("x"), a.join("d").join(name), a.join("d/e/../").join(name)]
        {
            let Ok(sandbox) = SandboxPath::new(target.to_str().unwrap()) else { continue };
            let mut p = bash("ls", &[(&a, true)]);
            p.binds.push(Bind { target: sandbox, kind: BindKind::Grant { writable: true } });
            broker.refusal(&format!("{target:?}"), p, &fds);
            assert_eq!(mounts(&place), before, "{target:?}");
            refused += 1;
        }
    }
    // Not a link, but not where it is on the host either; and a file in its way.
    file(&a.join("file"), "");
    for target in [a.join("d/e"), a.join("file"), a.join("new"), a.join("d/new/newer")] {
        broker.refusal(&format!("{target:?}"), bash("ls", &[(&a, true), (&target, true)]), &fds);
        refused += 1;
    }
    assert!(refused >= 30, "{refused}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    assert!(!a.join("new").exists() && !a.join("d/new").exists(), "nothing is made in a granted tree");
    // The descriptor may have been reached through a link: what counts is what it is.
    let through = File::open(a.join("up")).unwrap();
    let said =
        broker.said(bash(&format!("ls {}", victim.display()), &[(&victim, false)]), &[through.as_raw_fd()]);
    assert_eq!(said, "untouched\n");
}

/// A copy that was not recursive would show what lies under the host's mounts.
#[test]
fn threat_a7_what_is_mounted_over_stays_covered() {
    let (_helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let a = dir(&place.0.join("a"));
    let hidden = dir(&a.join("hidden"));
    file(&hidden.join("under"), "secret");
    mount(Some("none"), &hidden, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    own(&hidden);
    file(&hidden.join("over"), "");
    let of_a = File::open(&a).unwrap();
    let script =
        format!("ls {0}; cat {0}/under; umount {0}; echo > {0}/new; ls {0}; cat {0}/under", hidden.display());
    let said = broker.said(bash(&script, &[(&a, true)]), &[of_a.as_raw_fd()]);
    assert!(said.starts_with("over\nnew\nover\n") && !said.contains("secret"), "{said}");
    assert_eq!(said.matches("under: No such file").count(), 2, "{said}");
    // A directory under the mount, of which somebody still has a descriptor, is not what its name is now.
    let covered = dir(&place.0.join("covered"));
    let below = File::open(&covered).unwrap();
    mount(Some("none"), &covered, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let refusal = broker.refusal("covered", bash("ls", &[(&covered, false)]), &[below.as_raw_fd()]);
    assert!(matches!(refusal, Refusal::Descriptor(_)), "{refusal:?}");
}

#[test]
fn threat_a7_nested_duplicate_and_a_thousand_grants() {
    let (helper, place, mut dialler) = granting();
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let all: Vec<PathBuf> = (0..65).map(|i| dir(&place.0.join(format!("g{i}")))).collect();
    let inner = dir(&all[0].join("inner"));
    file(&inner.join("f"), "");
    let open: Vec<File> = all.iter().map(|d| File::open(d).unwrap()).collect();
    let of_inner = File::open(&inner).unwrap();
    let fds: Vec<RawFd> = open.iter().map(AsRawFd::as_raw_fd).collect();
    let grants: Vec<(&Path, bool)> = all.iter().map(|d| (&**d, false)).collect();
    // A read-only grant inside a writable one.
    let script = format!(
        "touch {0}/new && echo wrote; touch {1}/new || echo not; ls {1}",
        all[0].display(),
        inner.display()
    );
    let said =
        broker.said(bash(&script, &[(&all[0], true), (&inner, false)]), &[fds[0], of_inner.as_raw_fd()]);
    assert!(said.contains("wrote\nnot\nf\n") && said.contains("Read-only"), "{said}");
    let twice = bash("ls", &[(&all[0], true), (&all[0], false)]);
    assert_eq!(broker.refusal("duplicate", twice, &[fds[0], fds[0]]), Refusal::Plan(PlanFault::Binds));
    // As many as a plan may have; one more; and a thousand, whose descriptors no packet can carry.
    let script = format!("ls -d {}/g* | wc -l", place.0.display());
    assert_eq!(broker.said(bash(&script, &grants[..64]), &fds[..64]), "64\n");
    let over = dialled(&mut dialler, raw, &helper);
    over.is_ended_by("65", &good(&new_id().prepare(bash("ls", &grants))), &[]);
    let many: Vec<PathBuf> = (0..1000).map(|i| PathBuf::from(format!("/g/{i}"))).collect();
    let many: Vec<(&Path, bool)> = many.iter().map(|d| (&**d, false)).collect();
    let packet = good(&new_id().prepare(bash("ls", &many)));
    for count in [0, 64, 253] {
        let fds: Vec<RawFd> = fds.iter().copied().cycle().take(count).collect();
        dialler.dial().is_ended_by("a thousand", &packet, &fds);
    }
    helper.leaves_nothing();
}

/// The next link, after this one.
fn dialled(dialler: &mut Dialler, before: Raw, helper: &Helper) -> Raw {
    drop(before);
    helper.leaves_nothing();
    dialler.dial()
}

/// File systems that take no idmap, by the name of their type; never a plain bind in its place.
#[test]
fn threat_a7_overlay_and_fuse_are_refused_with_bind_and_type() {
    let (helper, place, mut dialler) = granting();
    let other = Other::skillfs(&helper);
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let [good_one, lower, upper, work, merged] =
        ["good", "lower", "upper", "work", "merged"].map(|n| dir(&place.0.join(n)));
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
    let below = dir(&place.0.join("around/below"));
    mount(Some(&merged), &below, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let open = |d: &Path| File::open(d).unwrap();
    let around = place.0.join("around");
    own(&around);
    let (of_good, of_merged, of_around) = (open(&good_one), open(&merged), open(&around));
    for (what, dir, fd) in [("itself", &merged, &of_merged), ("somewhere below", &around, &of_around)] {
        let p = bash("ls", &[(&good_one, true), (dir, true)]);
        let refusal = broker.refusal(what, p, &[of_good.as_raw_fd(), fd.as_raw_fd()]);
        assert_eq!(refusal, Refusal::GrantUnsupported { bind: 1, fs: "overlay".into() }, "{what}");
    }
    // The broker's own descriptors of the host's proc and sys, bound into the root by root.
    for (name, kind) in [("proc", "proc"), ("sysfs", "sysfs")] {
        let at = dir(&place.0.join(name));
        mount(Some("none"), &at, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
        let refusal = broker.refusal(name, bash("ls", &[(&at, false)]), &[open(&at).as_raw_fd()]);
        assert!(
            matches!(refusal, Refusal::Descriptor(_) | Refusal::GrantUnsupported { bind: 0, .. }),
            "{name}: {refusal:?}"
        );
    }
    drop(raw);
    // FUSE, whose server answers nothing: refused at once, and by its type.
    let point = dir(&place.0.join("hanging"));
    let mut hostile = Hostile::at(&helper, BROKER, &point);
    hostile.tell("swallow READ GETATTR FLUSH OPEN OPENDIR STATFS RELEASE RELEASEDIR LOOKUP");
    for kind in ["dir", "dirpath"] {
        let asked = Instant::now();
        hostile.send(&new_id().prepare(bash("ls", &[(&point.join("dir"), true)])), &[kind]);
        let said = hostile.receive();
        let expected = Refusal::GrantUnsupported { bind: 0, fs: "fuse.hanging".into() };
        assert_eq!(said, Some(Reply::Refused(expected)), "{kind}");
        assert!(asked.elapsed() < OTHER_LINK);
        other.answers();
    }
    drop(hostile);
}

/// What the helper grants to nobody, however it is reached: by its own name, by a bind, from below and from around.
#[test]
fn threat_a7_places_that_are_never_granted() {
    let place = Place::new();
    own(&place.0);
    let never = dir(&place.0.join("never"));
    dir(&never.join("inside"));
    dir(&place.0.join("fine"));
    let helper = Helper::start(&format!("root grant /\nnever {}\n", never.display()));
    let mut dialler = Dialler::new(&helper.socket(), BROKER);
    let raw = dialler.dial();
    let broker = Broker { raw: &raw };
    let d = helper.dir.path().to_owned();
    let [bound_never, bound_root, bound_proc] = ["bn", "br", "bp"].map(|n| dir(&place.0.join(n)));
    for (from, to) in
        [(&*never, &bound_never), (Path::new("/etc"), &bound_root), (Path::new("/proc"), &bound_proc)]
    {
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    }
    let mut places: Vec<PathBuf> = [
        "/",
        "/proc",
        "/proc/self",
        "/proc/1",
        "/sys",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
        "/run",
        "/tmp",
        "/usr",
        "/etc",
        "/var",
    ]
    .map(PathBuf::from)
    .into();
    places.extend([d.clone(), d.join("sealed"), d.join("locks"), d.join("bin"), d.join("view")]);
    places.extend([never.clone(), never.join("inside"), place.0.to_path_buf()]);
    places.extend([
        bound_never.clone(),
        bound_never.join("inside"),
        bound_root,
        bound_proc.clone(),
        bound_proc.join("self"),
    ]);
    let target = place.0.join("fine");
    for at in places {
        // By both kinds of descriptor, and asked for at an innocent target: what it is decides.
        for flags in [nix::libc::O_RDONLY, nix::libc::O_PATH] {
            use std::os::unix::fs::OpenOptionsExt;
            let fd = fs::OpenOptions::new()
                .read(true)
                .custom_flags(flags | nix::libc::O_DIRECTORY)
                .open(&at)
                .unwrap();
            let refusal =
                broker.refusal(&at.display().to_string(), bash("ls", &[(&target, false)]), &[fd.as_raw_fd()]);
            assert!(
                matches!(refusal, Refusal::Descriptor(_) | Refusal::GrantUnsupported { .. }),
                "{at:?}: {refusal:?}"
            );
        }
    }
    // Targets that are the sandbox's own, whatever the descriptor.
    let fine = File::open(&target).unwrap();
    for to in [
        "/usr",
        "/usr/bin",
        "/etc",
        "/etc/passwd",
        "/proc",
        "/dev/shm",
        "/tmp",
        "/opt",
        "/opt/cyberos/bin",
        "/bin",
        "/lib",
    ] {
        let refusal = broker.refusal(to, bash("ls", &[(Path::new(to), false)]), &[fine.as_raw_fd()]);
        assert_eq!(refusal, Refusal::Plan(PlanFault::Binds), "{to}");
    }
    // For a skill, whose view must hold no socket but its own, nothing is granted at all; nor is a file.
    let mut skills = bash("ls", &[(&target, false)]);
    skills.profile = Profile::Skill;
    assert_eq!(broker.refusal("a skill", skills, &[fine.as_raw_fd()]), Refusal::Plan(PlanFault::Binds));
    file(&target.join("f"), "");
    let refusal = broker.refusal(
        "a file",
        bash("ls", &[(&target, false)]),
        &[File::open(target.join("f")).unwrap().as_raw_fd()],
    );
    assert!(matches!(refusal, Refusal::Descriptor(_)), "{refusal:?}");
    // And what may be granted is, with its owner's files as the sandbox's own, and its writes as the owner's.
    let script = format!("cd {}; stat -c %u f; id -u; echo x > new; stat -c %u /", target.display());
    let said = broker.said(bash(&script, &[(&target, true)]), &[fine.as_raw_fd()]);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 3 && lines[0] == lines[1], "{said}");
    assert_eq!(fs::metadata(target.join("new")).unwrap().uid(), BROKER);
}

/// threats.md A6, for grants: names forged in namespaces of the peer's own.
#[test]
fn threat_a6_forged_names_are_no_grants() {
    let place = Place::new();
    own(&place.0);
    let grant = dir(&place.0.join("grant/good"));
    own(&place.0.join("grant"));
    file(&grant.join("real"), "");
    let helper = Helper::start(&format!("root grant {}\n", place.0.join("grant").display()));
    let other = Other::skillfs(&helper);
    let mut forger = Forger::of(&helper, BROKER, &place.0, "grant");
    let request = || new_id().prepare(bash("sleep 1000", &[(&grant, true)]));
    forger.ask(&request(), &["mem"]);
    let before = at_rest(&helper);
    for name in forger.names.clone().iter().filter(|n| *n != "good") {
        let said = forger.ask(&request(), &[name]);
        assert!(matches!(said, Some(Reply::Refused(Refusal::Descriptor(_)))), "{name}: {said:?}");
        other.answers();
    }
    flat(&helper, &before);
    assert!(matches!(forger.ask(&request(), &["good"]), Some(Reply::Done)));
    drop(forger);
    helper.leaves_nothing();
}
