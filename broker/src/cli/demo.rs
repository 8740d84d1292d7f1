//! `cyberos demo`: an `up` of its own and a guided run of the whole line. Each step says what it does, does it with
//! the same commands that a person would type, checks what came out, and fails the demo if it is not as told.

use crate::exit::{Exit, OperatorError};
use clap::Args;
use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A line of the story.
macro_rules! tell {
    ($($part:tt)*) => { tell_line(format_args!($($part)*)) };
}

/// Why a line of the story could not be printed: the first of them.
static UNTOLD: OnceLock<std::io::Error> = OnceLock::new();

/// That one cannot be printed must not keep the demo from cleaning up; it is told at the end.
fn tell_line(line: std::fmt::Arguments<'_>) {
    if UNTOLD.get().is_none()
        && let Err(e) = writeln!(std::io::stdout(), "{line}")
    {
        let _ = UNTOLD.set(e);
    }
}

const SKILLS: [&str; 3] = ["memory-capture", "repo-report", "escape-artist"];
/// How long a change in the source may take until the view shows it: inotify, the provider, and room to spare.
const VIEW_LIMIT: Duration = Duration::from_secs(20);

/// See how it works: a guided run with three example skills
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Where to keep state; default: a fresh directory, removed at the end
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Also list each attempt of the hostile skill
    #[arg(long)]
    verbose: bool,
    /// Not of use here: it names a broker that runs
    #[arg(long, hide = true)]
    pub(super) socket: Option<PathBuf>,
}

/// What a command printed and how it ended.
struct Ran {
    exit: i32,
    stdout: String,
    stderr: String,
}

struct Stage {
    program: PathBuf,
    up: Child,
    socket: String,
    state: PathBuf,
    skills: PathBuf,
    mount: PathBuf,
    step: u32,
    work: Option<PathBuf>,
    verbose: bool,
}

impl Demo {
    pub(super) async fn run(self) -> Result<Exit, OperatorError> {
        tell!("CyberOS demo: other people's skills, run without trusting them.\n");
        let mut stage = Stage::open(self.state).await?;
        stage.verbose = self.verbose;
        let story = stage.tell().await;
        let closed = stage.close().await;
        story?;
        closed?;
        tell!("\nEvery step did what it said.");
        Ok(UNTOLD.get().map_or(Exit::OK, super::output::unwritten))
    }
}

fn broken(what: impl Into<String>) -> OperatorError {
    OperatorError::new(Exit::FAILED, format!("the demo stops here: {}", what.into()))
}

/// What was being done, with the file that it was done to.
fn at(path: &Path) -> impl Fn(std::io::Error) -> OperatorError {
    move |e| broken(format!("{}: {e}", path.display()))
}

fn expect(holds: bool, what: &str, ran: &Ran) -> Result<(), OperatorError> {
    if holds {
        return Ok(());
    }
    Err(broken(format!("expected {what}, but exit was {}\n{}{}", ran.exit, ran.stdout, ran.stderr)))
}

/// A line that a command printed.
fn printed(line: &str) {
    tell!("   | {}", crate::terminal::escape_for_terminal(line));
}

/// Whether the escape artist found no way out.
fn nothing_worked(ran: &Ran) -> bool {
    ran.exit == 0 && !ran.stdout.contains("| ESCAPED")
}

impl Stage {
    async fn open(state: Option<PathBuf>) -> Result<Self, OperatorError> {
        let program = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
        // Should the demo itself be killed, the rest goes with it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig=TERM", "--"])
            .arg(&program)
            .arg("up")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        let mut up = command.spawn().map_err(|e| broken(format!("cannot start 'cyberos up': {e}")))?;
        let mut line = String::new();
        if let Some(out) = up.stdout.take() {
            let read = BufReader::new(out).read_line(&mut line).await;
            read.map_err(|e| broken(format!("cannot read what 'cyberos up' says: {e}")))?;
        }
        let ready: Value = match serde_json::from_str(&line) {
            Ok(ready) => ready,
            Err(_) => return Err(broken("'cyberos up' did not become ready; see the lines above")),
        };
        let path = |field: &str| PathBuf::from(ready[field].as_str().unwrap_or_default());
        tell!("   cyberos up                 helper (root), SkillFS and broker (a user each) are running");
        tell!("   skills folder              {}", path("skills").display());
        tell!("   view shown to agents       {}", path("mount").display());
        let socket = ready["operator_socket"].as_str().unwrap_or_default().to_owned();
        let (state, skills, mount) = (path("state"), path("skills"), path("mount"));
        Ok(Stage { program, up, socket, state, skills, mount, step: 0, work: None, verbose: false })
    }

    async fn close(&mut self) -> Result<(), OperatorError> {
        if let Some(work) = self.work.take() {
            let _ = std::fs::remove_dir_all(work);
        }
        if let Some(pid) = self.up.id().and_then(|p| i32::try_from(p).ok()) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
        let ended = tokio::time::timeout(Duration::from_secs(40), self.up.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(broken(format!("'cyberos up' ended with {status}"))),
            _ => Err(broken("'cyberos up' did not end")),
        }
    }

    fn say(&mut self, what: &str) {
        self.step += 1;
        tell!("\n{}. {what}", self.step);
    }

    async fn run(&self, program: &Path, args: &[&str]) -> Result<Ran, OperatorError> {
        let out = Command::new(program)
            .args(args)
            .env("CYBEROS_OPERATOR_SOCKET", &self.socket)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|e| broken(format!("cannot run {}: {e}", program.display())))?;
        Ok(Ran {
            exit: out.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        })
    }

    /// Runs a `cyberos` command and shows it with what it prints.
    async fn cyberos(&self, args: &[&str]) -> Result<Ran, OperatorError> {
        tell!("   $ cyberos {}", args.join(" "));
        let ran = self.run(&self.program, args).await?;
        ran.stdout.lines().chain(ran.stderr.lines()).for_each(printed);
        Ok(ran)
    }

    async fn ledger_command(&self, skill: &str) -> Result<Ran, OperatorError> {
        let ledger = self.state.join("bin/skill-ledger");
        let (keys, dir) = (self.state.join("keys"), self.skills.join(skill));
        tell!("   $ skill-ledger certify {} --keys {}", dir.display(), keys.display());
        let (keys, dir) = (keys.display().to_string(), dir.display().to_string());
        self.run(&ledger, &["certify", &dir, "--keys", &keys]).await
    }

    /// Waits until SkillFS shows a skill in this way.
    async fn shown(&self, skill: &str, verdict: &str) -> Result<Value, OperatorError> {
        let until = Instant::now() + VIEW_LIMIT;
        loop {
            let ran = self.run(&self.program, &["--json", "skillfs", "explain", skill]).await?;
            let state: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            if state["verdict"] == verdict && state["pending"] == Value::Bool(false) {
                return Ok(state);
            }
            if Instant::now() > until {
                return Err(broken(format!("{skill} should be {verdict}, but SkillFS says {state}")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn tell(&mut self) -> Result<(), OperatorError> {
        self.nobody_vouched().await?;
        self.certify().await?;
        self.memory().await?;
        self.files().await?;
        self.escape().await?;
        self.edit().await?;
        self.ledger().await
    }

    async fn nobody_vouched(&mut self) -> Result<(), OperatorError> {
        self.say("Nobody has vouched for these skills yet, so agents see none of them, and none runs.");
        for skill in SKILLS {
            self.shown(skill, "hidden").await?;
        }
        let seen = std::fs::read_dir(&self.mount).map_err(at(&self.mount))?.count();
        tell!("   $ ls {}\n   | ({seen} entries)", self.mount.display());
        let ran = self.cyberos(&["skill", "run", "memory-capture"]).await?;
        expect(seen == 0 && ran.exit == 5, "an empty view and a refused run (exit 5)", &ran)
    }

    async fn certify(&mut self) -> Result<(), OperatorError> {
        self.say("The operator certifies them. SkillFS asks the provider again, and shows them.");
        for skill in SKILLS {
            let ran = self.ledger_command(skill).await?;
            expect(ran.exit == 0, "a certified skill", &ran)?;
        }
        for skill in SKILLS {
            self.shown(skill, "current").await?;
        }
        let ran = self.cyberos(&["skill", "list"]).await?;
        expect(ran.exit == 0, "a list", &ran)
    }

    async fn memory(&mut self) -> Result<(), OperatorError> {
        self.say(
            "A skill keeps notes in memory. One call goes beyond its scope, and is refused with a reason.",
        );
        let note = "the demo was here";
        let ran =
            self.cyberos(&["skill", "run", "memory-capture", "--", note, "skills are strangers"]).await?;
        expect(
            ran.exit == 0 && ran.stdout.contains("scope_violation"),
            "two notes and one refused call",
            &ran,
        )?;
        tell!("   What the operator is told of it, from the ledger:");
        let invocation = self.of_last_run("memory-capture", "invocation_id").await?;
        let why = self.cyberos(&["why", "--invocation", &invocation]).await?;
        expect(why.exit == 0 && why.stdout.contains("memories/people"), "the refusal explained", &why)
    }

    async fn files(&mut self) -> Result<(), OperatorError> {
        self.say("A skill reads the folder that the operator grants by default, and nothing else.");
        let work = Path::new("/srv/cyberos/work").join(format!("demo-{}", std::process::id()));
        std::fs::create_dir(&work).map_err(|e| broken(format!("cannot create {}: {e}", work.display())))?;
        self.work = Some(work.clone());
        for (name, text) in [
            ("main.c", "int main(void) {\n  return 0; /* TODO: more */\n}\n"),
            ("notes.md", "# Notes\n\nTODO: write them\n"),
        ] {
            std::fs::write(work.join(name), text).map_err(at(&work))?;
        }
        let (a, b) = (work.join("main.c").display().to_string(), work.join("notes.md").display().to_string());
        let ran = self.cyberos(&["skill", "run", "repo-report", "--", &a, &b]).await?;
        expect(ran.exit == 0, "a report", &ran)?;
        let ran = self.cyberos(&["skill", "run", "repo-report", "--", "/etc/passwd"]).await?;
        expect(
            ran.exit != 0 && (ran.stdout + &ran.stderr).contains("file_violation"),
            "a refused read",
            &Ran { exit: ran.exit, stdout: String::new(), stderr: String::new() },
        )
    }

    async fn escape(&mut self) -> Result<(), OperatorError> {
        self.say(
            "A hostile skill tries to get out. It counts what it tried; all of it must have been refused.",
        );
        let args = ["skill", "run", "escape-artist"];
        if self.verbose {
            let ran = self.cyberos(&args).await?;
            return expect(nothing_worked(&ran), "every attempt refused", &ran);
        }
        tell!("   $ cyberos {}", args.join(" "));
        let ran = self.run(&self.program, &args).await?;
        expect(nothing_worked(&ran), "every attempt refused", &ran)?;
        ran.stdout.lines().last().into_iter().chain(ran.stderr.lines()).for_each(printed);
        tell!("   (each attempt by its name: cyberos demo --verbose)");
        Ok(())
    }

    async fn edit(&mut self) -> Result<(), OperatorError> {
        self.say("Someone edits a certified skill. The certified version is shown, and runs, as before.");
        let before = self.of_last_run("memory-capture", "content_digest").await?;
        let main = self.skills.join("memory-capture/main");
        let mut text = std::fs::read_to_string(&main).map_err(at(&main))?;
        text.push_str("\nprint('EVIL: this line was added by an attacker')\n");
        std::fs::write(&main, text).map_err(at(&main))?;
        tell!("   $ echo \"print('EVIL…')\" >> {}", main.display());
        let state = self.shown("memory-capture", "fallback").await?;
        tell!(
            "   | SkillFS: fallback to {} (status {})",
            super::output::text(&state, "target"),
            super::output::text(&state, "status")
        );
        let ran = self.cyberos(&["skill", "run", "memory-capture", "--", "after the edit"]).await?;
        expect(ran.exit == 0 && !ran.stdout.contains("EVIL"), "the trusted version's output", &ran)?;
        let after = self.of_last_run("memory-capture", "content_digest").await?;
        tell!("   | ran before the edit: {before}\n   | ran after it:        {after}");
        expect(before == after && !before.is_empty(), "one and the same digest", &ran)
    }

    async fn of_last_run(&self, skill: &str, field: &str) -> Result<String, OperatorError> {
        let args = ["--json", "audit", "show", "--skill", skill, "--kind", "skill.invoked_started"];
        let ran = self.run(&self.program, &args).await?;
        let last: Value =
            ran.stdout.lines().last().and_then(|l| serde_json::from_str(l).ok()).unwrap_or_default();
        Ok(last["extra"][field].as_str().unwrap_or_default().to_owned())
    }

    async fn ledger(&mut self) -> Result<(), OperatorError> {
        self.say("Every call, allowed or refused, is in a ledger whose rows are chained. It verifies.");
        let ran = self.cyberos(&["status"]).await?;
        expect(ran.exit == 0, "a status", &ran)?;
        let ran = self.cyberos(&["audit", "verify"]).await?;
        expect(ran.exit == 0 && ran.stdout.contains("whole"), "a ledger that verifies", &ran)
    }
}
