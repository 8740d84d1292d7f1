//! The effective grant of one invocation: frontmatter ∩ what the operator grants (`[4.0]`), compiled once, asked at
//! every call. The only place that refuses, and where a [`Permit`] is made. It runs no tool and writes no row.
//!
//! ```text
//! admit.rs      the order of [4.1]: a call → a permit with its handles, or a refusal
//! decide.rs     what the rules say, and why; refusal.rs: refusals that no grant is behind
//! state.rs      what the calls of an invocation have used up, and how far it is
//! handles.rs    what a permit gives to touch
//! files.rs rules.rs memory.rs directories.rs never.rs reach.rs   the rules; operator.rs: the other half of them
//! rate.rs trace.rs mounts.rs   small parts
//! ```
//!
//! Nobody else can make a permit:
//!
//! ```compile_fail,E0451
//! # use cyberos_broker::{call::{Call, TraceId}, grants::{Handles, Permit}};
//! # fn forge(call: Call, trace: TraceId, handles: Handles) {
//! let _ = Permit { call, trace, handles, rows_owed: 0, work: () };
//! # }
//! ```

mod admit;
mod decide;
mod directories;
mod files;
mod handles;
mod memory;
mod mounts;
mod never;
mod operator;
mod rate;
mod reach;
mod refusal;
mod rules;
mod state;
mod trace;

pub use admit::{Refused, admit};
pub use directories::Directory;
pub use handles::{FileRead, Handles, SandboxGrant, Scope};
pub use memory::{MAX_MEMORY_PATH, MemoryPathFault, canonical_memory};
pub use never::{NeverGrantable, UP_MARK};
pub use operator::Operator;
pub use reach::reaches;
pub use refusal::{late, unavailable};
pub use state::{Phase, State, Totals};

use crate::call::{Call, TraceId};
use crate::skill::{Item, Skill};
use cyberos_proto::plan::{self, MemoryLimit};
use directories::Directories;
use files::Files;
use operator::{Caps, Grantor};
use rules::Rules;
use std::sync::Arc;
use std::time::Duration;

/// RLIMIT_AS without `x-memory-mb`, in MiB (`[10.5]`).
pub const DEFAULT_MEMORY_MB: u32 = 512;
/// Processes without `x-max-processes`.
pub const DEFAULT_PROCESSES: u32 = 8;
/// Size of /tmp without `x-tmp-mb`, in MiB.
pub const DEFAULT_TMP_MB: u32 = 64;

/// A call that the rules allow, with what it may touch and what is to be run. Made only here, used up by
/// [`crate::audit::Audit::started`].
#[derive(Debug)]
pub struct Permit<W> {
    call: Call,
    trace: TraceId,
    handles: Handles,
    rows_owed: usize,
    work: W,
}

impl<W> Permit<W> {
    /// The call; its plan has taken the arguments.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The trace it belongs to: its `traceparent`'s, else the invocation's.
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Rows of its own that it may owe.
    pub fn rows_owed(&self) -> usize {
        self.rows_owed
    }

    /// Its call, what it may touch and what is to be run: for [`crate::audit`] alone, which lets it be run once.
    pub(crate) fn into_parts(self) -> (Call, Handles, W) {
        (self.call, self.handles, self.work)
    }
}

/// The limits of one invocation: asked for, within what the operator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MiB of memory.
    pub memory_mb: u32,
    /// Which limit it is: of address space, unless the skill has `x-memory-mb`.
    pub memory_kind: MemoryLimit,
    /// Processes, the skill itself included.
    pub max_processes: u32,
    /// MiB of the private /tmp.
    pub tmp_mb: u32,
    /// The deadline, in minutes.
    pub effort_minutes: u32,
}

/// RLIMIT_NOFILE of every sandbox (`[10.5]`).
const OPEN_FILES: u32 = 256;
/// RLIMIT_FSIZE, unless its /tmp has more.
const FILE_MB: u32 = 256;

/// How many processors this machine has or can be given: RLIMIT_CPU sums what a process's threads have on each, and must
/// never come before the deadline, which is the clock's.
fn processors() -> u64 {
    let most = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_CONF).ok().flatten();
    let now = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    most.and_then(|n| u64::try_from(n).ok()).unwrap_or(1).max(now as u64)
}

impl Limits {
    /// As the helper is told, of a sandbox that may live for `effort`.
    pub fn of_sandbox(&self, effort: Duration) -> plan::Limits {
        let cpu_s = effort.as_secs().saturating_mul(processors());
        plan::Limits {
            memory_mb: self.memory_mb,
            memory_kind: self.memory_kind,
            cpu_s: u32::try_from(cpu_s).unwrap_or(u32::MAX),
            processes: self.max_processes,
            open_files: OPEN_FILES,
            file_mb: FILE_MB.max(self.tmp_mb),
            tmp_mb: self.tmp_mb,
        }
    }
}

/// Everything one invocation may do. What was compiled holds: later changes of SKILL.md or of the configuration do not
/// reach it (`[4.1]`).
#[derive(Debug)]
pub struct Grants {
    skill_id: String,
    allowed_tools: Vec<Item<String>>,
    disallowed_tools: Vec<Item<String>>,
    tool_grantors: Vec<Grantor<String>>,
    memory: Rules,
    files: Files,
    directories: Directories,
    /// `x-rate-limit-per-minute`.
    per_minute: Option<u32>,
    limits: Limits,
    not_granted: Vec<String>,
}

impl Grants {
    /// Compiles what `skill` asks for and `operator` gives. Opens the roots of file rules under which something is
    /// granted, and holds them; a root that is absent now gives nothing.
    pub fn compile(skill: &Skill, operator: &Operator, never: Arc<NeverGrantable>) -> Grants {
        let memory = Rules {
            field: "allowed_memory_scopes",
            set_key: "memory",
            skill_id: skill.id.clone(),
            wishes: skill.allowed_memory_scopes.clone(),
            grantors: operator.memory.clone(),
        };
        let files = Rules {
            field: "x-allowed-files",
            set_key: "files",
            skill_id: skill.id.clone(),
            wishes: skill.extensions.allowed_files.clone(),
            grantors: operator.files.clone(),
        };
        let files = Files::compile(files, never.clone());
        let (limits, lowered) = limits(skill, &operator.caps);
        let mut not_granted = missing_tools(skill, &operator.tools);
        not_granted.extend(memory.shortfall());
        not_granted.extend(files.shortfall());
        not_granted.extend(missing_domains(skill, operator));
        not_granted.extend(lowered);
        let mut grants = Grants {
            skill_id: skill.id.clone(),
            allowed_tools: skill.allowed_tools.clone(),
            disallowed_tools: skill.disallowed_tools.clone(),
            tool_grantors: operator.tools.clone(),
            memory,
            files,
            directories: Directories::default(),
            per_minute: skill.extensions.rate_limit_per_minute,
            limits,
            not_granted,
        };
        if grants.tool_allowed("Bash") {
            grants.directories = Directories::compile(&grants.files.rules, &never);
            grants.not_granted.extend(grants.directories.nothing.iter().cloned());
        }
        grants
    }

    /// What the skill asked for and does not get, a line each, for `cyberos skill run` to name (`[2.1]`).
    pub fn not_granted(&self) -> &[String] {
        &self.not_granted
    }

    /// The effective limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The directories that Bash sees, and whether it may write in them: if Write or Edit is allowed too (`[4.6]`).
    pub fn directories(&self) -> (&[Directory], bool) {
        (&self.directories.given, self.tool_allowed("Write") || self.tool_allowed("Edit"))
    }

    /// The tools that a call may name, in the order of SKILL.md, each once. Some may not be registered.
    pub fn tools(&self) -> Vec<&str> {
        let mut out: Vec<&str> = Vec::new();
        for tool in self.allowed_tools.iter().map(|t| t.value.as_str()) {
            if self.tool_allowed(tool) && !out.contains(&tool) {
                out.push(tool);
            }
        }
        out
    }

    fn tool_allowed(&self, tool: &str) -> bool {
        !self.disallowed_tools.iter().any(|t| t.value == tool)
            && self.allowed_tools.iter().any(|t| t.value == tool)
            && self.tool_grantors.iter().any(|g| !g.offered && g.admits(tool))
    }
}

fn named<'a, T: 'a>(grantors: impl IntoIterator<Item = &'a Grantor<T>>) -> String {
    grantors.into_iter().filter(|g| !g.offered).map(Grantor::named).collect::<Vec<_>>().join(" or ")
}

fn missing_tools(skill: &Skill, grantors: &[Grantor<String>]) -> Vec<String> {
    let granted = |tool: &str| grantors.iter().any(|g| !g.offered && g.admits(tool));
    let wished =
        skill.allowed_tools.iter().filter(|t| !skill.disallowed_tools.iter().any(|d| d.value == t.value));
    wished
        .filter(|t| !granted(&t.value))
        .map(|t| format!("allowed_tools line {}: {} ({} does not give it)", t.line, t.value, named(grantors)))
        .collect()
}

fn missing_domains(skill: &Skill, operator: &Operator) -> Vec<String> {
    let granted = |host: &str| {
        operator.domains.iter().filter(|g| !g.offered).any(|g| {
            g.list().is_none_or(|list| list.iter().any(|p| p.as_str() == host || p.as_str() == "**:*"))
        })
    };
    let wished = skill.extensions.allowed_domains.iter().filter(|d| !granted(d.value.as_str()));
    wished
        .map(|d| {
            let host = d.value.as_str();
            format!(
                "x-allowed-domains line {}: {host} ({} does not name it)",
                d.line,
                named(&operator.domains)
            )
        })
        .collect()
}

/// The limits, and a line for each wish that was lowered.
fn limits(skill: &Skill, caps: &Caps) -> (Limits, Vec<String>) {
    let mut lowered = Vec::new();
    let mut within = |field: &str, asked: Option<u32>, default: u32, (cap, key): &(u32, String)| {
        if let Some(asked) = asked
            && asked > *cap
        {
            lowered.push(format!("{field}: {asked} ({key} allows {cap})"));
        }
        asked.unwrap_or(default).min(*cap)
    };
    let x = &skill.extensions;
    let limits = Limits {
        memory_mb: within("x-memory-mb", x.memory_mb, DEFAULT_MEMORY_MB, &caps.memory_mb),
        memory_kind: if x.memory_mb.is_some() { MemoryLimit::Data } else { MemoryLimit::AddressSpace },
        max_processes: within("x-max-processes", x.max_processes, DEFAULT_PROCESSES, &caps.max_processes),
        tmp_mb: within("x-tmp-mb", x.tmp_mb, DEFAULT_TMP_MB, &caps.tmp_mb),
        effort_minutes: within("effort_minutes", Some(skill.effort_minutes), 30, &caps.effort_minutes),
    };
    (limits, lowered)
}

#[cfg(test)]
mod directory_tests;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod tests;
