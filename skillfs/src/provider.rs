//! Asks the external decision provider: `scan`, then `resolve` (`[9.2]`). It bounds time and output and validates
//! the form of the answer; what an answer does is `resolver.rs`'s and `mapping.rs`'s business.

use crate::spawn::{self, Ended, Stdout};
use crate::verdict::{self, Answer, Rejected};
use cyberos_proto::ids::SkillName;
use nix::unistd::AccessFlags;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for scan and resolve together unless configured otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A decision command that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Empty or blank.
    #[error("--decision-command is empty; give a program, or --unprotected to show everything undecided")]
    Empty,
    /// Has a slash and is not absolute.
    #[error("--decision-command: {0:?} must be an absolute path or a name to be found in PATH")]
    Relative(String),
    /// Not there.
    #[error("--decision-command: no program {0:?} in PATH")]
    NotInPath(String),
    /// Not executable.
    #[error("--decision-command: {0} cannot be executed: {1}")]
    NotExecutable(PathBuf, nix::errno::Errno),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Could not be started.
    #[error("the provider cannot be started: {0}")]
    Start(io::Error),
    /// Another exit than 0.
    #[error("the provider's {step} ended with {how}")]
    Exit {
        /// `scan` or `resolve`.
        step: &'static str,
        /// Exit status or signal.
        how: String,
    },
    /// Its time was over.
    #[error("the provider's {step} did not end in {seconds} s and was killed")]
    TimedOut {
        /// `scan` or `resolve`.
        step: &'static str,
        /// The whole time it had.
        seconds: u64,
    },
    /// More than 1 MiB.
    #[error("the provider's {step} printed more than {} bytes", spawn::MAX_STDOUT)]
    TooMuchOutput {
        /// `scan` or `resolve`.
        step: &'static str,
    },
    /// The output is not an answer.
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

// By hand: as a `source` it would be printed a second time by whoever prints the chain.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Start(error)
    }
}

/// A configured provider.
#[derive(Debug)]
pub struct Provider {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    timeout: Duration,
}

impl Provider {
    /// Splits `command` on ASCII white space, as the protocol says: no quoting, no shell. `passed` names variables
    /// of our own environment that the provider gets too.
    pub fn configure(command: &str, timeout: Duration, passed: &[String]) -> Result<Self, CommandError> {
        let mut words = command.split_ascii_whitespace();
        let first = words.next().ok_or(CommandError::Empty)?;
        let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let program = find(first, &path)?;
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
        let lang = std::env::var_os("LANG").unwrap_or_else(|| "C.UTF-8".into());
        let mut environment = vec![("PATH".into(), path), ("HOME".into(), home), ("LANG".into(), lang)];
        for name in passed.iter().filter(|n| !matches!(n.as_str(), "PATH" | "HOME" | "LANG")) {
            if let Some(value) = std::env::var_os(name) {
                environment.push((name.into(), value));
            }
        }
        Ok(Provider { program, arguments: words.map(OsString::from).collect(), environment, timeout })
    }

    /// Scan, then resolve, for the skill in `directory`: absolute, spelt as configured.
    pub fn decide(&self, directory: &Path, skill: &SkillName) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.timeout;
        self.step("scan", directory, skill, Stdout::Discard, deadline)?;
        let stdout = self.step("resolve", directory, skill, Stdout::Capture, deadline)?;
        Ok(verdict::validate(&stdout, skill)?)
    }

    fn step(
        &self,
        step: &'static str,
        directory: &Path,
        skill: &SkillName,
        stdout: Stdout,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let mut arguments = self.arguments.clone();
        arguments.extend([step.into(), directory.into(), "--json".into()]);
        let run = spawn::run(&self.program, &arguments, &self.environment, stdout, deadline)?;
        if !run.stderr.is_empty() {
            // Debug form: what a provider quotes from a skill must not move the reader's terminal.
            let text = String::from_utf8_lossy(&run.stderr);
            tracing::info!(skill = %skill, step, stderr = ?text.trim_end(), "provider said");
        }
        match run.ended {
            Ended::Exited(status) if status.success() => Ok(run.stdout),
            Ended::Exited(status) => Err(Failure::Exit { step, how: spawn::describe(status) }),
            Ended::TimedOut => Err(Failure::TimedOut { step, seconds: self.timeout.as_secs() }),
            Ended::TooMuchOutput => Err(Failure::TooMuchOutput { step }),
        }
    }
}

/// The program's absolute path, resolved once so that a later change of PATH's directories names no other.
fn find(word: &str, path: &std::ffi::OsStr) -> Result<PathBuf, CommandError> {
    // access() first: what keeps us from looking at a file is no sign that there is none.
    let executable = |p: &Path| {
        nix::unistd::access(p, AccessFlags::X_OK)?;
        if p.is_file() { Ok(()) } else { Err(nix::errno::Errno::EACCES) }
    };
    if word.contains('/') {
        let program = PathBuf::from(word);
        if !program.is_absolute() {
            return Err(CommandError::Relative(word.to_owned()));
        }
        return match executable(&program) {
            Ok(()) => Ok(program),
            Err(e) => Err(CommandError::NotExecutable(program, e)),
        };
    }
    std::env::split_paths(path)
        .filter(|d| d.is_absolute())
        .map(|d| d.join(word))
        .find(|p| executable(p).is_ok())
        .ok_or_else(|| CommandError::NotInPath(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::os::unix::fs::PermissionsExt;

    struct Script {
        folder: tempfile::TempDir,
        provider: Provider,
    }

    /// A provider that is the given shell text, with its own folder as `$D`.
    fn script(text: &str, timeout: Duration) -> Script {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("provider");
        std::fs::write(&path, format!("#!/bin/sh\nD={}\n{text}\n", folder.path().display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let provider = Provider::configure(&format!("  {}\tfixed  ", path.display()), timeout, &[]).unwrap();
        Script { folder, provider }
    }

    fn decide(s: &Script) -> Result<Answer, Failure> {
        s.provider.decide(Path::new("/skills/demo"), &SkillName::new("demo").unwrap())
    }

    const GOOD: &str =
        r#"echo '{"schemaVersion":1,"skillName":"demo","status":"pass","decision":"current"}'"#;

    #[test]
    fn scan_comes_before_resolve_with_the_directory_as_configured() {
        let s = script(&format!("echo \"$@\" >>$D/log\n{GOOD}"), DEFAULT_TIMEOUT);
        decide(&s).unwrap();
        let log = std::fs::read_to_string(s.folder.path().join("log")).unwrap();
        assert_eq!(log, "fixed scan /skills/demo --json\nfixed resolve /skills/demo --json\n");
    }

    #[test]
    fn a_failed_scan_short_circuits_the_resolve() {
        let s = script(&format!("echo \"$2\" >>$D/log\n[ $2 = resolve ] && {GOOD}\nexit 3"), DEFAULT_TIMEOUT);
        assert!(matches!(decide(&s), Err(Failure::Exit { step: "scan", .. })));
        assert_eq!(std::fs::read_to_string(s.folder.path().join("log")).unwrap(), "scan\n");
    }

    #[test]
    fn the_environment_is_path_home_lang_and_nothing_else() {
        let s = script(
            &format!("env | sed 's/=.*//' | sort >$D/env\nls -l /proc/self/fd >$D/fd\n{GOOD}"),
            DEFAULT_TIMEOUT,
        );
        let ours = s.folder.path().join("ours");
        let held = std::fs::File::create(&ours).unwrap();
        nix::fcntl::fcntl(&held, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
        decide(&s).unwrap();
        let names = std::fs::read_to_string(s.folder.path().join("env")).unwrap();
        let set_by_the_shell = |n: &&str| matches!(*n, "PWD" | "SHLVL" | "_" | "OLDPWD");
        let names: Vec<&str> = names.lines().filter(|n| !set_by_the_shell(n)).collect();
        assert_eq!(names, ["HOME", "LANG", "PATH"]);
        let fds = std::fs::read_to_string(s.folder.path().join("fd")).unwrap();
        assert!(!fds.contains(ours.to_str().unwrap()), "{fds}");
    }

    #[test]
    fn rights_are_given_up_and_a_core_handler_is_not_fed() {
        let s = script(
            &format!("grep -E 'NoNewPrivs' /proc/self/status >$D/s\nulimit -c >$D/c\n{GOOD}"),
            DEFAULT_TIMEOUT,
        );
        decide(&s).unwrap();
        assert_eq!(std::fs::read_to_string(s.folder.path().join("s")).unwrap().trim(), "NoNewPrivs:\t1");
    }

    #[test]
    fn a_provider_that_never_ends_is_killed_with_its_children() {
        let s = script("sleep 1000 & echo $! >$D/child\nsleep 1000", Duration::from_millis(300));
        let began = Instant::now();
        assert!(matches!(decide(&s), Err(Failure::TimedOut { step: "scan", .. })));
        assert!(began.elapsed() < Duration::from_secs(5));
        let child = std::fs::read_to_string(s.folder.path().join("child")).unwrap();
        let gone = || {
            std::fs::read_to_string(format!("/proc/{}/stat", child.trim()))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        while !gone() {
            assert!(began.elapsed() < Duration::from_secs(5), "the child still runs");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_that_holds_the_pipes_holds_nobody_up() {
        let s = script(&format!("[ $2 = scan ] && exit 0\nsleep 1000 &\n{GOOD}"), DEFAULT_TIMEOUT);
        let began = Instant::now();
        decide(&s).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn endless_output_ends_the_run() {
        let s = script("[ $2 = scan ] && exit 0\nyes", DEFAULT_TIMEOUT);
        let began = Instant::now();
        assert!(matches!(decide(&s), Err(Failure::TooMuchOutput { step: "resolve" })));
        assert!(began.elapsed() < Duration::from_secs(10));
        let s = script(&format!("yes | head -c 50000000 >&2\n{GOOD}"), DEFAULT_TIMEOUT);
        decide(&s).unwrap();
    }

    #[test]
    fn commands_that_name_no_program_are_refused_at_the_start() {
        let configure = |c: &str| Provider::configure(c, DEFAULT_TIMEOUT, &[]);
        assert!(matches!(configure(" \t "), Err(CommandError::Empty)));
        assert!(matches!(configure("./x y"), Err(CommandError::Relative(_))));
        assert!(matches!(configure("no-such-program-here"), Err(CommandError::NotInPath(_))));
        for (command, said) in [
            ("/etc/passwd", Errno::EACCES),
            ("/etc", Errno::EACCES),
            ("/etc/passwd/below", Errno::ENOTDIR),
            ("/nonexistent/program", Errno::ENOENT),
        ] {
            let refused = configure(command);
            assert!(matches!(refused, Err(CommandError::NotExecutable(_, e)) if e == said), "{command}");
        }
        assert!(configure("sh").unwrap().program.is_absolute());
    }
}
