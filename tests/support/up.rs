//! A whole `cyberos up` for a test: a source of skills of its own, a provider, and the CLI against it. Dropped, it is
//! ended as an operator would end it.

use super::binaries::binary;
pub use super::binaries::write_executable;
pub use super::folders::{Folder, reachable_dir};
pub use super::skills::{ENVIRONMENT, Skill, link, memory_file, python};
pub(crate) use super::waiting::eventually;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Says `current` to everything: tests of what happens behind the view need no judge. A real process, spawned by the
/// real SkillFS like any provider.
pub const TRUST_ALL: &str = r#"#!/bin/sh
[ "$1" = resolve ] || exit 0
printf '{"schemaVersion":1,"skillName":"%s","status":"pass","decision":"current"}\n' "${2##*/}"
"#;

/// A running system.
pub struct Up {
    child: Child,
    /// The line that it printed when it was ready.
    pub ready: Value,
    /// STATE.
    pub state: PathBuf,
    /// The source of skills.
    pub skills: PathBuf,
    dir: Folder,
}

/// How to start one.
#[derive(Default)]
pub struct Options {
    /// cyberos.yaml's text.
    pub config: Option<String>,
    /// The provider; none: [`TRUST_ALL`]. `Some("")`: the built-in one.
    pub provider: Option<String>,
    /// Also `--grant-requested`.
    pub grant_requested: bool,
    /// A program with arguments that executes the rest of its command line, `cyberos up`, somewhere else. `{dir}` in it
    /// stands for the folder of the test.
    pub within: Vec<String>,
    /// What a shell does first, in a mount namespace that only this `up` is in.
    pub prelude: Option<String>,
}

/// One result of a command.
pub struct Ran {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(o: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        Ran {
            exit: o.status.code().unwrap_or_else(|| -o.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&o.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit {}\n--- stdout\n{}\n--- stderr\n{}", self.exit, self.stdout, self.stderr)
    }
}

impl Up {
    /// With the default options; `prepare` fills the source before the start.
    pub fn new(prepare: impl FnOnce(&Path)) -> Up {
        Up::with(Options::default(), prepare)
    }

    /// Starts and waits until it is ready.
    pub fn with(options: Options, prepare: impl FnOnce(&Path)) -> Up {
        match Up::try_with(options, prepare) {
            Ok(up) => up,
            Err(why) => panic!("'cyberos up' did not become ready:\n{why}"),
        }
    }

    /// The same, when the start is expected to fail: what it said.
    pub fn try_with(options: Options, prepare: impl FnOnce(&Path)) -> Result<Up, String> {
        let dir = reachable_dir("cyberos-test-");
        let skills = dir.join("skills");
        std::fs::create_dir(&skills).unwrap();
        std::fs::set_permissions(&skills, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        prepare(&skills);
        let within = match &options.prelude {
            None => options.within.clone(),
            Some(prelude) => {
                let script = format!("{prelude}; exec \"$@\"");
                ["unshare", "-m", "--propagation", "private", "sh", "-ec", &script, "sh"]
                    .map(String::from)
                    .into()
            }
        };
        let mut words = within.iter().map(|w| w.replace("{dir}", &dir.display().to_string()));
        let mut command = Command::new(words.next().map_or(binary("cyberos"), PathBuf::from));
        if !within.is_empty() {
            command.args(words).arg(binary("cyberos"));
        }
        command.arg("up").arg("--state").arg(dir.join("state")).arg("--skills").arg(&skills);
        let provider = options.provider.unwrap_or_else(|| TRUST_ALL.into());
        if !provider.is_empty() {
            let path = dir.join("provider");
            write_executable(&path, &provider);
            command.arg("--decision-command").arg(&path);
        }
        if let Some(config) = &options.config {
            let path = dir.join("cyberos.yaml");
            std::fs::write(&path, config).unwrap();
            command.arg("--config").arg(path);
        }
        if options.grant_requested {
            command.arg("--grant-requested");
        }
        let log = std::fs::File::create(dir.join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let _ = child.wait();
            let said = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            return Err(said);
        };
        Ok(Up { child, ready, state: dir.join("state"), skills, dir })
    }

    /// Starts it again on the same state, with a provider of the test's; what it said if it does not become ready.
    pub fn again(&mut self) -> Result<(), String> {
        let log = std::fs::File::create(self.dir.join("log")).unwrap();
        let mut command = Command::new(binary("cyberos"));
        command.arg("up").arg("--state").arg(&self.state).arg("--skills").arg(&self.skills);
        command.args(["--decision-command".as_ref(), self.dir.join("provider").as_os_str()]);
        self.child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            return self.child.wait().map_or(Ok(()), |_| Err(self.log()));
        }
        self.ready = serde_json::from_str(&line).unwrap();
        Ok(())
    }

    /// What the daemons have logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The folder that holds everything of this test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Pid of `up` itself.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.ready["mount"].as_str().unwrap().into()
    }

    /// The operator's socket.
    pub fn socket(&self) -> PathBuf {
        self.ready["operator_socket"].as_str().unwrap().into()
    }

    /// A `cyberos` command against it, not yet run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("cyberos"));
        command.env("CYBEROS_OPERATOR_SOCKET", self.socket()).args(args).stdin(Stdio::null());
        command
    }

    /// Runs a `cyberos` command.
    pub fn cyberos(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// Runs a skill to its end.
    pub fn run(&self, skill: &str, args: &[&str]) -> Ran {
        let mut all = vec!["skill", "run", skill, "--"];
        all.extend(args);
        self.cyberos(&all)
    }

    /// Runs a skill to its end, with the answer in JSON.
    pub fn run_json(&self, skill: &str, args: &[&str]) -> (Ran, Value) {
        let mut all = vec!["--json", "skill", "run", skill, "--"];
        all.extend(args);
        let ran = self.cyberos(&all);
        let answer = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}"));
        (ran, answer)
    }

    /// The ledger's rows of one kind ("" = all), oldest first, as `audit show --json` prints them.
    pub fn rows(&self, kind: &str) -> Vec<Value> {
        let mut args = vec!["--json", "audit", "show"];
        if !kind.is_empty() {
            args.extend(["--kind", kind]);
        }
        let ran = self.cyberos(&args);
        assert_eq!(ran.exit, 0, "{ran}");
        ran.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// What the view says of a skill.
    pub fn explain(&self, skill: &str) -> Value {
        let ran = self.cyberos(&["--json", "skillfs", "explain", skill]);
        serde_json::from_str(&ran.stdout).unwrap_or_default()
    }

    /// Waits until the view shows a skill in this way, decided.
    pub fn shown(&self, skill: &str, verdict: &str) -> Value {
        let mut last = Value::Null;
        let ok = eventually(Duration::from_secs(15), || {
            last = self.explain(skill);
            last["verdict"] == verdict && last["pending"] == false
        });
        assert!(ok, "{skill} should be {verdict}: {last}\n{}", self.log());
        last
    }

    /// Certifies a skill with the built-in provider's key.
    pub fn certify(&self, skill: &str) {
        let ran = self.ledger(&["certify".as_ref(), self.skills.join(skill).as_ref()]);
        assert_eq!(ran.exit, 0, "{ran}");
    }

    /// Runs `skill-ledger` with the keys of this system.
    pub fn ledger(&self, args: &[&std::ffi::OsStr]) -> Ran {
        Command::new(binary("skill-ledger"))
            .args(args)
            .arg("--keys")
            .arg(self.state.join("keys"))
            .output()
            .unwrap()
            .into()
    }

    /// Pids of this system's processes of that name.
    pub fn pids(&self, name: &str) -> Vec<i32> {
        let mine = self.state.join("bin").join(name);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if line.split(|b| *b == 0).next() == Some(mine.as_os_str().as_encoded_bytes()) {
                found.push(pid);
            }
        }
        found.sort_unstable();
        found
    }

    /// The signal that ended `up` itself, once it has ended.
    pub fn ended_by(&mut self) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&self.child.wait().unwrap())
    }

    /// Ends it as an operator would, and says how it ended.
    pub fn stop(&mut self) -> Option<i32> {
        signal(self.pid(), nix::sys::signal::Signal::SIGTERM);
        let status = wait(&mut self.child, Duration::from_secs(40));
        status.and_then(|s| s.code())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.stop().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of 'cyberos up'\n{}", self.log());
        }
    }
}

/// Signals a process of ours.
pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Waits for a child, at most so long.
pub fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let mut status = None;
    eventually(limit, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status
}
