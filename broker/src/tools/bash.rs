//! Bash: a command line in a sandbox of its own (`[4.6]`). It sees the skill's sealed copy and the granted directories,
//! reaches no socket, and nothing of it outlives the call: however the call ends, the helper ends the sandbox.

mod output;

use self::output::{MAX_OUTPUT, Output};
use super::{CallResources, Deps, InFlight, Work, args};
use crate::audit::Started;
use crate::call::{Access, DISK_LOW, Invocation, Plan, TIMED_OUT, ToolError, ToolResult, millis};
use crate::catalogue::{Asking, Tool};
use crate::diagnosis::{self, Bounds};
use crate::disk_guard::DiskGuard;
use crate::grants::{Directory, Limits, SandboxGrant};
use crate::helper::{Helper, HelperError};
use crate::locks;
use crate::sandbox::{Sandbox, SandboxError, Started as Program};
use cyberos_proto::message::{Exit, Refusal};
use cyberos_proto::plan::{Bind, BindKind, Feature, MAX_WORD_BYTES, Profile, SandboxPath, SpawnPlan};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest command line, in bytes: what a plan holds, less room for the other words.
const MAX_CMD: usize = MAX_WORD_BYTES - 1024;
/// The whole environment. A git with another prefix than /usr reads no /etc/gitconfig unless it is named; there, granted
/// repositories of other users are declared safe.
const ENVIRONMENT: [&str; 6] = [
    "HOME=/tmp",
    "TMPDIR=/tmp",
    "LANG=C.UTF-8",
    "GIT_TERMINAL_PROMPT=0",
    "GIT_CONFIG_SYSTEM=/etc/gitconfig",
    "PATH=/usr/local/bin:/usr/bin:/bin",
];

/// The tool.
#[derive(Clone, Debug)]
pub struct Bash {
    helper: Helper,
    require: Vec<Feature>,
    space: DiskGuard,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The command line.
    cmd: String,
    /// Milliseconds after which it is ended; what is left of the deadline if absent or less.
    timeout_ms: Option<NonZeroU64>,
}

impl Args {
    fn read(args: &Map<String, Value>) -> Result<Args, String> {
        let args: Args = args::read(args)?;
        match args.cmd.as_str() {
            "" => Err("args.cmd: the command line is empty".to_owned()),
            cmd if cmd.contains('\0') => Err("args.cmd: the command line holds a NUL".to_owned()),
            cmd if cmd.len() > MAX_CMD => Err(format!(
                "args.cmd: {} bytes; a command line has at most {MAX_CMD} (put a longer script into a file)",
                cmd.len()
            )),
            _ => Ok(args),
        }
    }
}

impl Tool for Bash {
    type Work = Box<dyn Work>;

    fn name(&self) -> &'static str {
        "Bash"
    }

    fn description(&self) -> &'static str {
        "Runs a command line with /bin/bash in a sandbox of its own, beginning in /tmp: {stdout, stderr, \
         exit_code, signal?, truncated}. The skill's folder is /opt/cyberos/skills/<id>; granted \
         directories have their own names. There is no network, so no interfaces either, and no standard \
         input; nothing can listen or connect, also not on a Unix socket (Python's Manager and forkserver, \
         gpg-agent, tmux: start those as the skill's own programs). Of /proc there are processes alone. \
         What runs in the background ends with the call. truncated says that a stream was cut at 1 MiB."
    }

    fn input_schema(&self) -> Value {
        args::schema::<Args>()
    }

    fn plan(&self, _: Asking<'_>, args: Map<String, Value>) -> Result<Plan<Box<dyn Work>>, String> {
        let args = Args::read(&args)?;
        Ok(Plan::new(vec![Access::Sandbox], Box::new(Command { bash: self.clone(), args })))
    }
}

struct Command {
    bash: Bash,
    args: Args,
}

impl Work for Command {
    fn run(self: Box<Self>, mut started: Started, resources: CallResources) -> InFlight {
        Box::pin(async move {
            let grant = started.handles().sandbox()?;
            self.bash.run(&resources, &grant, &self.args).await
        })
    }
}

impl Bash {
    /// For the catalogue.
    pub fn new(deps: &Deps) -> Self {
        Bash { helper: deps.helper.clone(), require: deps.require.clone(), space: deps.space.clone() }
    }

    async fn run(&self, resources: &CallResources, grant: &SandboxGrant, args: &Args) -> ToolResult {
        let _place = resources.sandbox().await.ok_or_else(ToolError::internal)?;
        // Both streams, and the answer made of them.
        resources.room_for(4 * MAX_OUTPUT).await;
        let began = Instant::now();
        let left = resources.time_left();
        let limit = args.timeout_ms.map_or(left, |ms| Duration::from_millis(ms.get()).min(left));
        let (directories, writable) = grant.directories()?;
        let mut full = std::pin::pin!(self.until_full(directories, writable));
        let (plan, descriptors) = plan(resources, grant.limits(), &args.cmd, (directories, writable))?;
        let bounds = Bounds::from(&plan.limits);
        let targets: Vec<SandboxPath> = plan.binds.iter().map(|bind| bind.target.clone()).collect();
        // From here on dropped with the call.
        let sandbox = Sandbox::new(&self.helper, resources.ending());
        let work = async {
            let prepared = sandbox.prepare(plan, descriptors, &self.require).await;
            let prepared = prepared.map_err(|e| not_prepared(&e, resources.invocation(), &targets))?;
            let uid = prepared.report.uid;
            let program = prepared.go().await;
            let program = program.map_err(|e| refused(&e, resources.invocation(), &targets))?;
            tokio::select! {
                result = finish(program, &bounds) => result,
                locks = locks::too_many(uid) => Err(ToolError {
                    reason: "too_many_locks",
                    message: format!("Bash is ended: {}", locks::told(locks)),
                }),
            }
        };
        tokio::select! {
            biased;
            why = &mut full => Err(why),
            result = work => result,
            () = tokio::time::sleep(limit) => Err(ToolError {
                reason: TIMED_OUT,
                message: format!(
                    "ended with SIGKILL after {} ms: {}",
                    millis(began.elapsed()),
                    match args.timeout_ms {
                        Some(ms) if limit < left => format!("its timeout_ms was {ms}"),
                        _ => "no more was left of the invocation's deadline".to_owned(),
                    }
                ),
            }),
        }
    }

    /// Ends when there is too little space for Bash to go on (`[2.8]`): where the state is, or where it may write.
    async fn until_full(&self, directories: &[Directory], writable: bool) -> ToolError {
        let written = directories.iter().filter(|_| writable).flat_map(|d| &d.file_systems);
        let written: Vec<Arc<OwnedFd>> = written.cloned().collect();
        loop {
            let (space, others) = (self.space.clone(), written.clone());
            match tokio::task::spawn_blocking(move || space.look_again(&others)).await {
                Ok(Ok(Ok(pause))) => tokio::time::sleep(pause).await,
                Ok(Ok(Err(short))) => {
                    return ToolError { reason: DISK_LOW, message: format!("Bash is ended: {short}") };
                }
                Ok(Err(e)) => {
                    tracing::error!(error = %e, "free space cannot be measured, so Bash does not run");
                    return ToolError::internal();
                }
                Err(_) => return ToolError::internal(),
            }
        }
    }
}

fn plan(
    resources: &CallResources,
    limits: Limits,
    cmd: &str,
    (directories, writable): (&[Directory], bool),
) -> Result<(SpawnPlan, Vec<OwnedFd>), ToolError> {
    let path = |text: &str| SandboxPath::new(text).map_err(|_| ToolError::internal());
    let copy = path(&format!("/opt/cyberos/skills/{}", resources.invocation().skill_id))?;
    let kind = BindKind::Grant { writable };
    let grants = directories.iter().map(|d| (Bind { target: d.path.clone(), kind }, &d.fd));
    let sealed = Bind { target: copy, kind: BindKind::Sealed };
    let (binds, held): (Vec<_>, Vec<_>) = std::iter::once((sealed, resources.copy())).chain(grants).unzip();
    let plan = SpawnPlan {
        program: path("/bin/bash")?,
        args: ["/bin/bash", "-c", cmd].map(|word| word.as_bytes().to_vec()).into(),
        env: ENVIRONMENT.map(|entry| entry.as_bytes().to_vec()).into(),
        cwd: path("/tmp")?,
        binds,
        socket: false,
        limits: limits.of_sandbox(Duration::from_secs(u64::from(limits.effort_minutes) * 60)),
        profile: Profile::Bash,
    };
    plan.check().map_err(|fault| {
        tracing::error!(%fault, "a plan for Bash is not well formed");
        ToolError::internal()
    })?;
    let descriptors = held.into_iter().map(|fd| fd.try_clone()).collect::<Result<_, _>>();
    Ok((plan, descriptors.map_err(|_| ToolError::internal())?))
}

/// What the skill is told of a sandbox that is not there. `sandbox.require` holds for every sandbox.
fn not_prepared(error: &SandboxError, invocation: &Invocation, targets: &[SandboxPath]) -> ToolError {
    match error {
        SandboxError::Helper(error) => refused(error, invocation, targets),
        SandboxError::Lacks(_) => ToolError {
            reason: "sandbox_refused",
            message: format!("its sandbox is not as the operator requires (sandbox.require): {error}"),
        },
    }
}

/// What the skill is told of a refusal. The operator's log has all of it.
fn refused(error: &HelperError, invocation: &Invocation, targets: &[SandboxPath]) -> ToolError {
    tracing::warn!(invocation = %invocation.id, %error, "a sandbox for Bash was refused");
    let refusal = match error {
        HelperError::Refused(refusal) => refusal,
        HelperError::Gone { .. } => {
            return ToolError {
                reason: "sandbox_refused",
                message: "the helper is not reachable".to_owned(),
            };
        }
    };
    let (reason, message) = match refusal {
        Refusal::GrantUnsupported { bind, fs } => {
            let path =
                usize::try_from(*bind).ok().and_then(|n| targets.get(n)).map_or("?", SandboxPath::as_str);
            (
                "grant_unsupported",
                format!(
                    "{path}: its file system, or one mounted above or below it, is {fs}: Bash is given nothing there, \
                     since that has no idmapped mounts or may wait for others"
                ),
            )
        }
        Refusal::Exec { .. } => ("not_executable", "there is no /bin/bash that can be executed".to_owned()),
        Refusal::Ceiling(_) => {
            ("busy", "there are as many sandboxes as there may be, or too large a one".to_owned())
        }
        _ => ("sandbox_refused", "the helper refused the sandbox; the operator's log says why".to_owned()),
    };
    ToolError { reason, message }
}

/// Reads what it prints until nothing of it is left.
async fn finish(program: Program, bounds: &Bounds) -> ToolResult {
    let Program { stdin, stdout, stderr, mut end } = program;
    // At its end from the start.
    drop(stdin);
    let (stdout, stderr, end) = tokio::join!(Output::read(stdout), Output::read(stderr), end.wait());
    let end = end.ok_or_else(|| ToolError {
        reason: "sandbox_lost",
        message: "the helper went away, and the sandbox with it".to_owned(),
    })?;
    let truncated = stdout.truncated || stderr.truncated;
    let mut result = Map::new();
    result.insert("stdout".into(), stdout.into_text().into());
    let mut stderr = stderr.into_text();
    if let Some(told) = diagnosis::of_command(end, bounds) {
        // A line of its own, also after output that ends in the middle of one.
        if !stderr.is_empty() && !stderr.ends_with('\n') {
            stderr.push('\n');
        }
        stderr.push_str(&format!("cyberos: {told}\n"));
    }
    result.insert("stderr".into(), stderr.into());
    match end.exit {
        Exit::Code(code) => {
            result.insert("exit_code".into(), code.into());
        }
        Exit::Signal(signal) => {
            // As a shell would say it.
            result.insert("exit_code".into(), (128 + u32::from(signal)).into());
            result.insert("signal".into(), signal.into());
        }
    }
    result.insert("truncated".into(), truncated.into());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_line_that_cannot_be_run_is_bad_parameters() {
        let read = |args: Value| Args::read(args.as_object().unwrap()).map(|a| a.cmd);
        assert_eq!(read(json!({"cmd": "true", "timeout_ms": 1})), Ok("true".into()));
        assert!(read(json!({"cmd": "x".repeat(MAX_CMD)})).is_ok());
        for (args, says) in [
            (json!({}), "cmd"),
            (json!({"cmd": ""}), "empty"),
            (json!({"cmd": "a\0b"}), "NUL"),
            (json!({"cmd": "x".repeat(MAX_CMD + 1)}), "at most"),
            (json!({"cmd": 1}), "cmd"),
            (json!({"cmd": "x", "timeout_ms": 0}), "timeout_ms"),
            (json!({"cmd": "x", "timeout_ms": -1}), "timeout_ms"),
            (json!({"cmd": "x", "timeout": 5}), "timeout"),
            (json!({"cmd": "x", "cwd": "/proc/self/fd/7"}), "cwd"),
        ] {
            let why = read(args.clone()).unwrap_err();
            assert!(why.contains(says), "{args}: {why}");
        }
    }

    #[test]
    fn the_longest_command_line_fits_into_a_plan() {
        let others: usize = ENVIRONMENT.iter().map(|e| e.len() + 1).sum::<usize>() + "/bin/bash\0-c\0".len();
        assert!(MAX_CMD + 1 + others <= MAX_WORD_BYTES);
    }

    #[test]
    fn output_is_cut_at_its_cap_between_characters() {
        let mut output = Output::default();
        output.keep(&vec![b'x'; MAX_OUTPUT - 1]);
        assert!(!output.truncated);
        output.keep("é".as_bytes());
        assert!(output.truncated);
        output.keep(b"more");
        assert_eq!(output.into_text(), "x".repeat(MAX_OUTPUT - 1));
        let binary = Output { kept: b"a\xff\xc3".to_vec(), truncated: false };
        assert_eq!(binary.into_text(), "a\u{fffd}\u{fffd}");
    }
}
