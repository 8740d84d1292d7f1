//! What a Bash sandbox is given of the host's directories: the broker's files as its own, nothing that is anybody
//! else's, and no way for a granted tree to lead anything elsewhere.

use crate::granted::*;
use crate::support::helper::*;
use crate::support::machine::mountinfo;
use cyberos_proto::message::Refusal;
use cyberos_proto::plan::{Bind, PlanFault};
use std::fs::{self};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_brokers_files_are_the_sandboxs_own_and_nobody_elses_are() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let dir = work.dir("w");
    work.file("w/mine", "of the broker\n");
    for (name, owner) in [("w/roots", 0), ("w/strangers", STRANGER)] {
        fs::write(work.at(name), "x").unwrap();
        fs::set_permissions(work.at(name), fs::Permissions::from_mode(0o644)).unwrap();
        chown(work.at(name), Some(owner), Some(owner)).unwrap();
    }
    let d = dir.display();
    let script = format!(
        "cd {d}; stat -c '%U %G %n' * .; cat mine; echo more >>mine && echo new >made && mkdir sub && mv made sub/; \
         for f in roots strangers; do (echo x >>$f) 2>/dev/null && echo wrote $f; chown skill $f 2>/dev/null && echo owns $f; done; \
         grep ' {d} ' /proc/self/mountinfo | cut -d' ' -f6; rm -f strangers 2>/dev/null || echo kept"
    );
    let said = run(&broker, bash(&script, vec![bind(&dir, true)]), &[path(&dir).as_fd()]);
    assert_eq!(
        said,
        "skill skill mine\nUNKNOWN UNKNOWN roots\nUNKNOWN UNKNOWN strangers\nskill skill .\nof the broker\n\
         rw,nosuid,nodev,relatime,idmapped\nkept\n"
    );
    assert_eq!(fs::read_to_string(work.at("w/mine")).unwrap(), "of the broker\nmore\n");
    let made = fs::metadata(work.at("w/sub/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (BROKER, BROKER), "on the host it is the broker's");
    // Read-only, whatever its files' modes say.
    fs::set_permissions(work.at("w/mine"), fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "cd {d}; cat mine >/dev/null && echo read; (echo x >mine) 2>&1 | grep -o 'Read-only'; touch n 2>/dev/null && echo made; \
                          grep ' {d} ' /proc/self/mountinfo | cut -d' ' -f6"
    );
    let said = run(&broker, bash(&script, vec![bind(&dir, false)]), &[path(&dir).as_fd()]);
    assert_eq!(said, "read\nRead-only\nro,nosuid,nodev,relatime,idmapped\n");
    drop(broker);
    helper.leaves_nothing();
}

#[test]
fn threat_a1_no_set_id_bit_reaches_the_host_through_a_grant() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let dir = work.dir("w");
    let d = dir.display();
    let script = format!(
        "cd {d}; cp /bin/sh x; for m in 4755 2755 6755 u+s g+s; do chmod $m x 2>/dev/null && echo chmod $m; done; \
         mkdir -m 2777 d 2>/dev/null; install -m 4755 /bin/sh i 2>/dev/null; cp -p /bin/su p 2>/dev/null; \
         tar cf t -C /usr/bin su 2>/dev/null; tar xpf t 2>/dev/null; \
         python3 -I -c 'import os\nfor f in (lambda: os.open(\"o\",os.O_CREAT|os.O_WRONLY,0o6755), lambda: os.mknod(\"n\",0o106755)):\n try: f(); print(\"made\")\n except PermissionError: pass\nos.mkdir(\"k\",0o2777)'; ls | wc -l"
    );
    let said = run(&broker, bash(&script, vec![bind(&dir, true)]), &[path(&dir).as_fd()]);
    // Without the bits each of the modes can be set.
    assert_eq!(said.matches("chmod ").count(), 5, "{said}");
    assert!(!said.contains("made"), "{said}");
    let found = Command::new("find").arg(&dir).args(["-perm", "/6000"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "on the host");
    assert!(fs::metadata(work.at("w/x")).unwrap().len() > 0, "the copy itself was made");
    // And what has the bit on the host has no effect inside.
    fs::copy("/usr/bin/id", work.at("w/id")).unwrap();
    chown(work.at("w/id"), Some(BROKER), Some(BROKER)).unwrap();
    fs::set_permissions(work.at("w/id"), fs::Permissions::from_mode(0o6755)).unwrap();
    let said = run(&broker, bash(&format!("{d}/id -un"), vec![bind(&dir, false)]), &[path(&dir).as_fd()]);
    assert_eq!(said, "skill\n");
}

#[test]
fn threat_a7_no_link_in_a_granted_tree_leads_another_grant_elsewhere() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let (outer, inner, victim) = (work.dir("a"), work.dir("b"), work.dir("victim"));
    work.dir("a/real/deep");
    work.file("b/secret", "b");
    symlink(&victim, work.at("a/link")).unwrap();
    symlink(work.at("a/real"), work.at("a/inside")).unwrap();
    symlink("/", work.at("a/root")).unwrap();
    symlink("/proc/self/root", work.at("a/magic")).unwrap();
    let mounts = || {
        let table = mountinfo();
        table.lines().filter(|l| l.contains(work.0.path().to_str().unwrap())).count()
    };
    for target in
        ["link", "link/x", "inside", "inside/deep", "root/tmp", "magic/tmp", "real", "real/deep", "absent"]
    {
        let binds = vec![bind(&outer, false), bind(&outer.join(target), true)];
        let fds = [path(&outer), path(&inner)];
        let refusal = broker.refusal(&spawn(bash("true", binds)), &[fds[0].as_fd(), fds[1].as_fd()]);
        assert!(matches!(refusal, Refusal::System { .. }), "{target}: {refusal:?}");
    }
    assert_eq!(mounts(), 0, "nothing on the host");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    // Where a sandbox has something of its own nothing is granted, nor around it.
    for target in [
        "/usr",
        "/usr/share/x",
        "/bin",
        "/lib/x",
        "/etc",
        "/proc/1",
        "/dev/shm",
        "/tmp",
        "/opt",
        "/tmp/cyberos-x",
    ] {
        let binds = vec![bind(Path::new(target), true)];
        let refusal = broker.refusal(&spawn(bash("true", binds)), &[path(&inner).as_fd()]);
        assert_eq!(refusal, Refusal::Plan(PlanFault::Binds), "{target}");
    }
}

#[test]
fn threat_a7_nested_grants_are_merged_and_too_many_or_twice_the_same_are_refused() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let (outer, inner) = (work.dir("a"), work.dir("a/b/out"));
    chown(work.at("a/b"), Some(BROKER), Some(BROKER)).unwrap();
    let fds = [path(&outer), path(&inner)];
    let both = [fds[0].as_fd(), fds[1].as_fd()];
    let script =
        format!("cd {}; touch x 2>/dev/null && echo outside; touch b/out/x && ls b/out", outer.display());
    let binds = || vec![bind(&outer, false), bind(&inner, true)];
    assert_eq!(run(&broker, bash(&script, binds()), &both), "x\n");
    let writable_outside = vec![bind(&outer, true), bind(&inner, false)];
    let said = run(
        &broker,
        bash("cd ..; cd /; touch $0/y; touch $0/b/out/y 2>/dev/null || echo kept", writable_outside),
        &both,
    );
    assert!(said.contains("kept"), "{said}");
    for order in
        [vec![bind(&inner, true), bind(&outer, false)], vec![bind(&outer, true), bind(&outer, false)]]
    {
        assert_eq!(broker.refusal(&spawn(bash("true", order)), &both), Refusal::Plan(PlanFault::Binds));
    }
    // As many as a message can carry, in one tree and deep in each other.
    let dirs: Vec<PathBuf> = (0..64).map(|i| work.dir(&format!("many/{i}"))).collect();
    let fds: Vec<OwnedFd> = dirs.iter().map(|d| path(d)).collect();
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let all: Vec<Bind> = dirs.iter().map(|d| bind(d, true)).collect();
    let script =
        format!("cd {}; for d in *; do touch $d/x || exit; done; ls | wc -l", work.at("many").display());
    assert_eq!(run(&broker, bash(&script, all.clone()), &borrowed), "64\n");
    let deep: Vec<PathBuf> = (1..32).map(|i| work.dir(&format!("deep{}", "/d".repeat(i)))).collect();
    let fds: Vec<OwnedFd> = deep.iter().map(|d| path(d)).collect();
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let nested = deep.iter().enumerate().map(|(i, d)| bind(d, i % 2 == 0)).collect();
    let last = deep.last().unwrap().display();
    assert_eq!(
        run(&broker, bash(&format!("touch {last}/x && echo {last}"), nested), &borrowed),
        format!("{last}\n")
    );
    // A thousand cannot even be asked for.
    let thousand = vec![all[0].clone(); 1000];
    let request = spawn(bash("true", thousand));
    assert!(broker.link.send(&request, &vec![borrowed[0]; 1000], cyberos_proto::link::Wait::Block).is_err());
    assert_eq!(run(&broker, bash("echo on", vec![]), &[]), "on\n");
}

#[test]
fn bash_runs_what_people_run_in_a_work_tree() {
    let work = Work::new();
    let helper = Helper::start(&work.root());
    let broker = helper.broker();
    let dir = work.dir("repo");
    let d = dir.display();
    let script = format!(
        "cd {d}; git init -q . && printf 'int main(){{return 0;}}' >a.c && git add a.c && \
         git -c user.name=x -c user.email=y commit -qm m && git log --oneline | wc -l && git status --short && \
         cc a.c -o a && ./a && echo compiled; npm --version >/dev/null && echo npm; python3 -m pip --version >/dev/null && echo pip; \
         seq 9 | sort -r | tail -n +2 | head -3 | tr 8 x | wc -l; exec 3<>/dev/tcp/127.0.0.1/80 || echo no network"
    );
    let mut p = bash(&script, vec![bind(&dir, true)]);
    p.limits.memory_kind = cyberos_proto::plan::MemoryLimit::Data;
    let said = run(&broker, p, &[path(&dir).as_fd()]);
    assert!(
        said.starts_with("1\n?? a\ncompiled\nnpm\npip\n3\nno network\n")
            || said.starts_with("1\ncompiled\nnpm\npip\n3\nno network\n"),
        "{said}"
    );
}
