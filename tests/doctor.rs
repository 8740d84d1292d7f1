//! `cyberos doctor` tells the truth about this machine (`[7.1]`), and `sandbox.require` holds (`[10.6]`).

mod support;

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use support::binaries::binary;
use support::up::{Options, Ran, Skill, Up, eventually, reachable_dir};

/// The answer of `doctor --json`, run by `command`, which must name no broker of somebody else's.
fn ask(command: &mut Command) -> (i32, Value) {
    let ran = Ran::from(command.output().unwrap());
    (ran.exit, serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}")))
}

/// One test at a time: the machine is what is looked at, and an `up` makes part of it and takes it away again.
fn nothing_else() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without a broker, as root.
fn alone() -> (i32, Value) {
    ask(Command::new(binary("cyberos")).args(["--socket", "/nonexistent/broker.sock", "--json", "doctor"]))
}

fn check<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let checks = answer["checks"].as_array().unwrap();
    checks.iter().find(|c| c["check"] == name).unwrap_or_else(|| panic!("no {name} in {answer:#}"))
}

fn state<'a>(answer: &'a Value, name: &str) -> &'a str {
    check(answer, name)["state"].as_str().unwrap()
}

fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// In a mount namespace of its own, after `prepare`.
fn elsewhere(prepare: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-ec", &format!("{prepare}; exec \"$@\""), "sh"]);
    command.arg(binary("cyberos"));
    command
}

#[test]
fn every_line_says_what_it_is_and_the_exit_status_counts_what_is_missing() {
    let _one = nothing_else();
    let (exit, answer) = alone();
    let checks = answer["checks"].as_array().unwrap();
    for c in checks {
        let sound = c["state"] == "ok";
        assert_eq!(c["weakens"] == "", sound, "{c}");
        assert_eq!(c["do"] == "", sound, "{c}");
        assert!(!c["found"].as_str().unwrap().is_empty(), "{c}");
    }
    let count = |state| checks.iter().filter(|c| c["state"] == state).count();
    for counted in ["weak", "missing", "skipped"] {
        assert_eq!(answer[counted], count(counted), "{counted}");
    }
    assert_eq!(exit, i32::from(count("missing") > 0), "{answer:#}");
    // For a person the same lines.
    let shown =
        Command::new(binary("cyberos")).args(["--socket", "/nonexistent/s", "doctor"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for c in checks {
        let line = format!("{:<8} {}", c["state"].as_str().unwrap(), c["check"].as_str().unwrap());
        assert!(shown.contains(&line), "{c} in {shown}");
    }
}

/// Each line beside another way of finding out.
#[test]
fn the_lines_agree_with_what_this_machine_says_elsewhere() {
    let _one = nothing_else();
    let (_, answer) = alone();
    let uname = Command::new("uname").arg("-r").output().unwrap();
    assert_eq!(check(&answer, "kernel")["found"], String::from_utf8(uname.stdout).unwrap().trim());
    let unshared =
        Command::new("unshare").args(["-p", "-m", "-n", "-i", "-u", "-C", "-f", "true"]).status().unwrap();
    assert_eq!(state(&answer, "namespaces") == "ok", unshared.success());
    assert_eq!(
        state(&answer, "fuse") == "ok",
        Path::new("/dev/fuse").exists() && file("/proc/filesystems").contains("fuse")
    );
    assert_eq!(
        state(&answer, "protected_hardlinks") == "ok",
        file("/proc/sys/fs/protected_hardlinks") == "1"
    );
    assert_eq!(
        state(&answer, "core_pattern") == "ok",
        !file("/proc/sys/kernel/core_pattern").starts_with('|')
    );
    let mounts = file("/proc/self/mounts");
    let v1 = |name: &str| {
        mounts.lines().any(|l| {
            let words: Vec<_> = l.split(' ').collect();
            words[2] == "cgroup" && words[3].split(',').any(|o| o == name)
        })
    };
    assert_eq!(
        check(&answer, "cgroup_v1")["found"].as_str().unwrap().starts_with('/'),
        v1("memory") && v1("pids")
    );
    let landlock = check(&answer, "landlock")["found"].as_str().unwrap().to_owned();
    // landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION), asked by somebody else.
    let asked = Command::new("python3")
        .args(["-c", "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))"])
        .output()
        .unwrap();
    let abi: i32 = String::from_utf8(asked.stdout).unwrap().trim().parse().unwrap();
    assert_eq!(abi > 0, landlock.starts_with("ABI "), "kernel {abi}, {landlock}");
    assert_eq!(state(&answer, "sandbox"), "ok", "{answer:#}");
    let left = || {
        let all = std::fs::read_dir("/run").unwrap().flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with("cyberos-doctor-")).count()
    };
    assert!(eventually(Duration::from_secs(20), || left() == 0), "the trial leaves its directory behind");
}

#[test]
fn without_root_it_says_what_could_not_be_tried() {
    let _one = nothing_else();
    let dir = reachable_dir("cyberos-doctor-test-");
    let program = dir.join("cyberos");
    std::fs::copy(binary("cyberos"), &program).unwrap();
    let (exit, answer) = ask(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .args(["--socket", "/nonexistent/s", "--json", "doctor"]));
    assert_eq!((exit, state(&answer, "sandbox")), (0, "skipped"), "{answer:#}");
    assert!(check(&answer, "sandbox")["do"].as_str().unwrap().contains("as root"));
    assert_eq!(state(&answer, "openat2"), "ok");
}

#[test]
fn who_is_no_operator_is_told_so_and_not_to_start_a_broker_that_runs() {
    let _one = nothing_else();
    let up = Up::new(|source| drop(Skill::default().write(source)));
    let program = up.dir().join("cyberos");
    support::binaries::copy("cyberos", &program);
    let (_, answer) = ask(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .arg("--socket")
        .arg(up.socket())
        .args(["--json", "doctor"]));
    let broker = check(&answer, "broker");
    assert_eq!(broker["state"], "skipped", "{broker}");
    assert!(broker["found"].as_str().unwrap().contains("not an operator"), "{broker}");
    assert!(!broker["do"].as_str().unwrap().contains("start"), "{broker}");
    // Where none runs, that is what to do.
    let (_, answer) = alone();
    assert!(check(&answer, "broker")["do"].as_str().unwrap().contains("start cyberos-broker"));
}

#[test]
fn each_directory_that_the_configuration_grants_is_tried_and_it_is_said_when_there_is_none() {
    let _one = nothing_else();
    let (_, answer) = alone();
    let none = !Path::new("/etc/cyberos/cyberos.yaml").exists();
    let checks = answer["checks"].as_array().unwrap();
    assert_eq!(checks.iter().any(|c| c["check"] == "grants" && c["state"] == "skipped"), none, "{answer:#}");

    let dir = reachable_dir("cyberos-doctor-test-");
    for name in ["over", "plain"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let config = dir.join("cyberos.yaml");
    let grants = "grants:\n  default:\n    files: [DIR/plain, DIR/plain/*.md]\n  skills:\n    demo:\n      \
                  files: [DIR/over/**, DIR/absent/**, /**]\n";
    let text = format!("work: DIR/none\n{grants}").replace("DIR", dir.to_str().unwrap());
    std::fs::write(&config, text).unwrap();
    let prepare = format!(
        "mount -t tmpfs none {0}/plain; mount -t tmpfs none {0}/over; cd {0}/over; mkdir l u w; mount -t overlay -o lowerdir=l,upperdir=u,workdir=w none {0}/over; cd /",
        dir.display()
    );
    let (_, answer) = ask(elsewhere(&prepare)
        .args(["--socket", "/nonexistent/s", "--json", "doctor", "--config"])
        .arg(&config));
    let tried = |name: &str| check(&answer, &format!("idmap {}/{name}", dir.display())).clone();
    assert_eq!(tried("plain")["state"], "ok", "{answer:#}");
    let over = tried("over");
    assert!(over["state"] == "weak" && over["found"].as_str().unwrap().contains("overlay"), "{over}");
    let checks = answer["checks"].as_array().unwrap();
    let about = |c: &&Value| c["check"].as_str().unwrap().starts_with("idmap ") || c["check"] == "grants";
    assert_eq!(checks.iter().filter(about).count(), 2, "{answer:#}");
}

#[test]
fn what_is_taken_away_is_found() {
    let _one = nothing_else();
    let socket = ["--socket", "/nonexistent/s", "--json", "doctor"];
    let (_, answer) = ask(elsewhere("mount -t tmpfs none /sys/fs/cgroup").args(socket));
    let cgroup = check(&answer, "cgroup");
    assert_eq!((cgroup["state"].as_str(), state(&answer, "cgroup_v2")), (Some("weak"), "weak"), "{answer:#}");
    assert!(cgroup["weakens"].as_str().unwrap().contains("not for a sandbox as a whole"), "{cgroup}");

    let (exit, answer) =
        ask(elsewhere("mount --bind /dev/null /dev/fuse; mount -t tmpfs none /dev; true").args(socket));
    assert_eq!((exit, state(&answer, "fuse")), (1, "missing"), "{answer:#}");

    let fake = "t=/proc/sys/kernel/core_pattern; echo '|/bin/handler' > /run/cyberos-core.$$; mount --bind /run/cyberos-core.$$ $t; rm /run/cyberos-core.$$; \
                echo 0 > /run/cyberos-links.$$; mount --bind /run/cyberos-links.$$ /proc/sys/fs/protected_hardlinks; rm /run/cyberos-links.$$";
    let (_, answer) = ask(elsewhere(fake).args(socket));
    assert_eq!(
        (state(&answer, "core_pattern"), state(&answer, "protected_hardlinks")),
        ("weak", "weak"),
        "{answer:#}"
    );
    assert!(check(&answer, "core_pattern")["found"].as_str().unwrap().contains("/bin/handler"));

    let used = "cp /etc/subuid /run/cyberos-subuid.$$ 2>/dev/null || :; echo eve:1900000100:5 >> /run/cyberos-subuid.$$; touch /etc/subuid; mount --bind /run/cyberos-subuid.$$ /etc/subuid; rm /run/cyberos-subuid.$$";
    if Path::new("/etc/subuid").exists() {
        let (exit, answer) = ask(elsewhere(used).args(socket));
        assert_eq!((exit, state(&answer, "uid_range")), (1, "missing"), "{answer:#}");
        assert!(check(&answer, "uid_range")["found"].as_str().unwrap().contains("eve"));
        assert_eq!(state(&answer, "sandbox"), "missing", "the helper agrees: {answer:#}");
    }

    // As the helper itself reads it.
    let ceiling = "d=$(mktemp -d); mount -t tmpfs none $d; cp -a /etc/. $d; mkdir -p $d/cyberos; \
                   printf '%s\\n' 'uid_range 1800000000-1800000255' \"$MORE\" > $d/cyberos/ceiling; \
                   mount --bind $d /etc; umount $d; rmdir $d";
    let (exit, answer) = ask(elsewhere(ceiling).args(socket).env("MORE", "colour blue"));
    assert_eq!((exit, state(&answer, "ceiling")), (1, "missing"), "{answer:#}");
    let found = check(&answer, "ceiling")["found"].as_str().unwrap().to_owned();
    assert!(found.contains("/etc/cyberos/ceiling: line 2: unknown key colour"), "{found}");
    let (_, answer) = ask(elsewhere(ceiling).args(socket).env("MORE", "broker_uid 7"));
    assert_eq!((state(&answer, "ceiling"), state(&answer, "uid_range")), ("ok", "ok"), "{answer:#}");
    assert_eq!(check(&answer, "uid_range")["found"], "1800000000-1800000255 is nobody's");

    let dir = reachable_dir("cyberos-doctor-test-");
    let config = dir.join("cyberos.yaml");
    std::fs::create_dir(dir.join("state")).unwrap();
    std::fs::create_dir(dir.join("over")).unwrap();
    let text = format!("state: {0}/state\nwork: {0}/over\nsources: [{0}/skills]\n", dir.display());
    std::fs::write(&config, text).unwrap();
    let prepare = format!(
        "mount -t tmpfs -o noexec none {0}/state; mkdir {0}/state/l {0}/state/u {0}/state/w; mount -t overlay -o lowerdir={0}/state/l,upperdir={0}/state/u,workdir={0}/state/w none {0}/over",
        dir.display()
    );
    let (exit, answer) = ask(elsewhere(&prepare).args(socket).arg("--config").arg(&config));
    assert_eq!((exit, state(&answer, "state_exec")), (1, "missing"), "{answer:#}");
    let work = dir.join("over").display().to_string();
    let idmap = check(&answer, &format!("idmap {work}"));
    assert!(idmap["state"] == "weak" && idmap["found"].as_str().unwrap().contains("overlay"), "{idmap}");
    assert_eq!(state(&answer, &format!("source {}/skills", dir.display())), "weak");
    // A key that there is not, in the configuration.
    std::fs::write(&config, "sauces: []\n").unwrap();
    let (exit, answer) = ask(Command::new(binary("cyberos")).args(socket).arg("--config").arg(&config));
    assert_eq!((exit, state(&answer, "configuration")), (1, "missing"), "{answer:#}");
}

#[test]
fn a_running_up_is_looked_at_and_what_is_open_in_it_is_found() {
    let _one = nothing_else();
    let up = Up::new(|source| {
        Skill::default().write(source);
    });
    let (_, answer) = ask(&mut up.command(&["--json", "doctor"]));
    assert_eq!((state(&answer, "broker"), state(&answer, "permissions")), ("ok", "ok"), "{answer:#}");
    let source = format!("source {}", up.skills.display());
    assert_eq!(state(&answer, &source), "ok", "{answer:#}");
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(&up.state.join("broker"), 0o755);
    open(&up.skills.join("demo/main"), 0o777);
    let (exit, answer) = ask(&mut up.command(&["--json", "doctor"]));
    let broken = check(&answer, &format!("permissions {}", up.state.join("broker").display()));
    assert_eq!((exit, broken["state"].as_str()), (1, Some("missing")), "{answer:#}");
    let shared = check(&answer, &source);
    assert!(shared["state"] == "weak" && shared["found"].as_str().unwrap().contains("demo/main"), "{shared}");
}

/// [10.6]: what a kernel lacks is skipped with a WARN and recorded; required, it is an error.
#[test]
fn a_required_part_of_the_sandbox_is_never_skipped() {
    let _one = nothing_else();
    let no_groups = "mount -t tmpfs none /sys/fs/cgroup";
    let with = |config: &str| {
        let options = Options {
            config: Some(config.to_owned()),
            prelude: Some(no_groups.to_owned()),
            ..Options::default()
        };
        Up::with(options, |source| {
            let main = "#!/bin/sh\nexit 0\n";
            Skill { main, tools: &["Bash"], ..Skill::default() }.write(source);
        })
    };
    let up = with("sandbox: {}\n");
    let (ran, answer) = up.run_json("demo", &[]);
    assert_eq!(ran.exit, 0, "{ran}");
    let report = &answer["started"]["sandbox"];
    assert!(report["skipped"].as_array().unwrap().contains(&json!("cgroup")), "{report}");
    assert_eq!((&report["cgroup"], report["network"].is_string()), (&json!("absent"), true), "{report}");
    assert_eq!(up.rows("skill.invoked_started")[0]["extra"]["sandbox"], *report);
    let warned = up.log().lines().any(|l| l.contains("WARN") && l.contains("cgroup") && l.contains("lacks"));
    assert!(warned, "{}", up.log());
    drop(up);

    let up = with("sandbox:\n  require: [cgroup, seccomp]\n");
    let ran = up.run("demo", &[]);
    assert_eq!(ran.exit, 125, "{ran}");
    assert!(ran.stderr.contains("would lack cgroup") && ran.stderr.contains("sandbox.require"), "{ran}");
    assert!(up.rows("").is_empty(), "nothing ran, nothing is recorded as started");
    let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
    assert_eq!(status["active_invocations"], 0);
}

#[test]
fn status_and_run_tell_what_the_sandbox_is_made_of() {
    let _one = nothing_else();
    let up = Up::new(|source| {
        Skill { main: "#!/bin/sh\nread line\n", ..Skill::default() }.write(source);
    });
    let mut child =
        up.command(&["skill", "run", "demo", "--stdin"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut report = Value::Null;
    assert!(eventually(Duration::from_secs(15), || {
        let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
        report = status["invocations"][0]["sandbox"].clone();
        report.is_object()
    }));
    let enforced = report["enforced"].as_array().unwrap();
    for never_skipped in ["namespaces", "own_uid", "no_new_privs", "no_capabilities", "seccomp"] {
        assert!(enforced.contains(&json!(never_skipped)), "{report}");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}
