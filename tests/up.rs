//! `cyberos up` (`[7.5]`): what it refuses before it starts anything, and that it undoes everything however it is ended.

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::binaries::binary;
use support::up::{Options, Ran, Skill, Up, eventually, reachable_dir, signal, wait};

/// Runs an `up` that is expected to refuse.
fn refused(arguments: &[&str]) -> Ran {
    let ran = Ran::from(Command::new(binary("cyberos")).arg("up").args(arguments).output().unwrap());
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stdout.is_empty(), "{ran}");
    ran
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Processes whose program lies in `state`: its name, and the pid.
fn daemons(state: &Path) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program =
            String::from_utf8_lossy(line.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
        if let Some(name) = program.strip_prefix(text(&state.join("bin"))) {
            found.push((name.trim_start_matches('/').to_owned(), pid));
        }
    }
    found
}

/// An `up` without options, that is ended however the test ends.
struct Bare(Child);

impl Bare {
    /// Starts it, and answers its ready line too.
    fn start(arguments: &[&str]) -> (Bare, Value) {
        let mut command = Command::new(binary("cyberos"));
        command.arg("up").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut up = Bare(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(up.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        (up, ready)
    }

    fn end(&mut self, how: Signal) -> Option<i32> {
        signal(self.0.id().try_into().unwrap(), how);
        wait(&mut self.0, Duration::from_secs(40)).unwrap().code()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            self.end(Signal::SIGTERM);
        }
    }
}

#[test]
fn each_signal_that_ends_a_session_has_everything_undone_also_when_nobody_reads_its_messages() {
    for ending in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let (mut up, ready) = Bare::start(&[]);
        let state = PathBuf::from(ready["state"].as_str().unwrap());
        let before = daemons(&state);
        let pid =
            |name: &str| before.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1;
        assert!(pid("cyberos-priv-helper") > 0 && pid("skillfs") > 0);
        // As when a terminal has gone: whoever writes to it fails.
        drop(up.0.stderr.take());
        // That a daemon died is told, or tried to be.
        signal(pid("cyberos-broker"), Signal::SIGKILL);
        assert_eq!(up.end(ending), Some(0), "{ending}");
        assert!(!state.exists(), "{ending}: {} is left, with a signing key in it", state.display());
        let gone = eventually(Duration::from_secs(10), || daemons(&state).is_empty());
        assert!(gone, "{ending}: {:?}", daemons(&state));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(text(&state)), "{ending}: {mounts}");
    }
}

#[test]
fn a_configuration_that_others_could_write_is_refused() {
    let dir = reachable_dir("cyberos-test-");
    let config = dir.join("cyberos.yaml");
    let state = dir.join("state");
    let mut tried = 0;
    let mut refuses = |prepare: &dyn Fn(), path: &Path, named: &Path| {
        std::fs::write(&config, "on_hidden: tell\n").unwrap();
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
        prepare();
        let ran = refused(&["--state", text(&state), "--config", text(path)]);
        assert!(ran.stderr.contains(text(named)) && ran.stderr.contains("changed by others"), "{ran}");
        tried += 1;
    };
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    for loose in [0o666, 0o664, 0o646, 0o1666] {
        refuses(&|| mode(&config, loose), &config, &config);
    }
    refuses(&|| chown(&config, Some(12345), None).unwrap(), &config, &config);
    chown(&config, Some(0), None).unwrap();
    // In a directory in which others can put another one in its place; and as what a link leads to.
    let open = dir.join("open");
    std::fs::create_dir(&open).unwrap();
    mode(&open, 0o777);
    let inside = open.join("cyberos.yaml");
    std::fs::write(&inside, "on_hidden: tell\n").unwrap();
    refuses(&|| {}, &inside, &open);
    let linked = dir.join("linked.yaml");
    symlink(&inside, &linked).unwrap();
    refuses(&|| {}, &linked, &open);
    assert_eq!(tried, 7);
}

#[test]
fn what_up_sets_itself_is_an_error_in_its_configuration_by_line() {
    let options = Options {
        config: Some("on_hidden: tell\nmount: /skills\n\nsources: [/opt/cyberos/skills]\n".into()),
        ..Options::default()
    };
    let Err(said) = Up::try_with(options, |_| {}) else { panic!("it started") };
    assert!(said.contains("line 2: mount: ") && said.contains("--mount DIR"), "{said}");
    assert!(said.contains("line 4: sources: ") && said.contains("--skills DIR"), "{said}");
    assert!(
        said.contains("cyberos-test-") && said.contains("/cyberos.yaml"),
        "named as it was given: {said}"
    );
}

#[test]
fn a_state_directory_is_taken_if_it_is_empty_or_an_earlier_ups_and_left_alone_otherwise() {
    let dir = reachable_dir("cyberos-test-");
    let used = dir.join("used");
    std::fs::create_dir(&used).unwrap();
    for name in ["c", "a\nb", "d", "notes.txt"] {
        std::fs::write(used.join(name), "mine").unwrap();
    }
    let ran = refused(&["--state", text(&used)]);
    assert!(ran.stderr.contains("(it holds a\\nb, c, d and 1 more)"), "{ran}");
    assert_eq!(std::fs::read_dir(&used).unwrap().count(), 4, "nothing was put there");
    // A mark that is not an up's own does not make it one.
    symlink("notes.txt", used.join(".cyberos-up")).unwrap();
    refused(&["--state", text(&used)]);
    assert_eq!(std::fs::read_dir(&used).unwrap().count(), 5, "nothing was put there");

    let state = dir.join("state");
    std::fs::create_dir_all(state.join("lost+found")).unwrap();
    for _ in 0..2 {
        let (mut up, ready) = Bare::start(&["--state", text(&state)]);
        assert_eq!(ready["ready"], true);
        assert_eq!(up.end(Signal::SIGTERM), Some(0));
    }
}

#[test]
fn a_detached_run_is_told_as_begun_and_not_as_ended() {
    let skill = Skill { main: "#!/bin/sh\nexec sleep 1000\n", ..Skill::default() };
    let up = Up::new(|source| drop(skill.write(source)));
    let ran = up.cyberos(&["--json", "skill", "run", "demo", "--detach"]);
    assert_eq!(ran.exit, 0, "{ran}");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let keys: Vec<_> = answer.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["started"], "{answer}");
    let id = answer["started"]["invocation_id"].as_str().unwrap();
    assert_eq!(up.cyberos(&["skill", "stop", id]).exit, 0);
    // Whoever waits for it is told its end, and a person is told it in words.
    let ran = up.cyberos(&["--json", "skill", "wait", id]);
    assert!(ran.stdout.contains("\"stopped\""), "{ran}");
    let ran = up.cyberos(&["skill", "wait", id]);
    assert!(ran.exit == 130 && ran.stderr.contains("the skill was stopped"), "{ran}");
    // Of its output there is nothing to be told but that.
    let logs: Value = serde_json::from_str(&up.cyberos(&["--json", "skill", "logs", id]).stdout).unwrap();
    assert!(logs["invocation_id"] == id && logs.get("ended").is_none(), "{logs}");
    let ran = up.cyberos(&["why", "--invocation", id, "--call", "99"]);
    assert!(
        ran.stdout.contains("call 99 was not refused: it was allowed, or there is no such call"),
        "{ran}"
    );
}

#[test]
fn a_run_of_an_edited_skill_says_which_version_runs_and_that_the_folder_differs() {
    let options = Options { provider: Some(String::new()), ..Options::default() };
    let say = |word: &str| format!("#!/bin/sh\necho {word}\n");
    let up = Up::with(options, |source| {
        drop(Skill { main: &say("certified"), ..Skill::default() }.write(source));
    });
    up.certify("demo");
    up.shown("demo", "current");
    let ran = up.run("demo", &[]);
    assert!(ran.stdout.contains("certified") && !ran.stderr.contains("differs"), "{ran}");
    support::up::write_executable(&up.skills.join("demo/main"), &say("edited"));
    let explained = up.shown("demo", "fallback");
    let ran = up.run("demo", &[]);
    assert!(ran.stdout.contains("certified") && !ran.stdout.contains("edited"), "{ran}");
    let lines: Vec<_> = ran.stderr.lines().filter(|l| l.contains("the folder differs")).collect();
    assert_eq!(lines.len(), 1, "{ran}");
    let version = explained["version"].as_str().unwrap();
    assert!(lines[0].contains(&format!("demo: {version} runs")) && lines[0].contains("drifted"), "{ran}");
}
