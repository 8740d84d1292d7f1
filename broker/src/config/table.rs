//! `grants:`: what the operator gives (`[4.0]`), as a table of sets. Which set counts for a skill is for the grants
//! to say.

use crate::glob::{Pattern, escaped};
use crate::skill::HostPattern;
use std::collections::BTreeMap;
use std::path::Path;

/// What one key of a set allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow<T> {
    /// `requested`: whatever the frontmatter asks for.
    Requested,
    /// A list.
    Only(Vec<T>),
}

/// One key of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule<T> {
    /// What it allows.
    pub allow: Allow<T>,
    /// Its line in the configuration; none for a built-in default.
    pub line: Option<u32>,
}

impl<T> Rule<T> {
    fn requested() -> Option<Self> {
        Some(Rule { allow: Allow::Requested, line: None })
    }
}

/// One set of grants. A key that is absent leaves it to the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantSet {
    /// Tools by name.
    pub tools: Option<Rule<String>>,
    /// Patterns of memory paths.
    pub memory: Option<Rule<Pattern>>,
    /// Patterns of absolute paths.
    pub files: Option<Rule<Pattern>>,
    /// Patterns of hosts.
    pub domains: Option<Rule<HostPattern>>,
    /// Most memory a skill may ask for, in MiB.
    pub memory_mb: Option<u32>,
    /// Most processes.
    pub max_processes: Option<u32>,
    /// Largest private /tmp, in MiB.
    pub tmp_mb: Option<u32>,
    /// Longest run, in minutes.
    pub effort_minutes: Option<u32>,
}

impl GrantSet {
    /// Everything that is asked for, as far as anything can be granted at all.
    pub fn requested() -> Self {
        GrantSet {
            tools: Rule::requested(),
            memory: Rule::requested(),
            files: Rule::requested(),
            domains: Rule::requested(),
            memory_mb: Some(4096),
            max_processes: Some(256),
            tmp_mb: Some(1024),
            effort_minutes: Some(1440),
        }
    }

    /// This set, and for its absent keys `other`'s.
    pub fn or(&self, other: &GrantSet) -> GrantSet {
        GrantSet {
            tools: self.tools.clone().or_else(|| other.tools.clone()),
            memory: self.memory.clone().or_else(|| other.memory.clone()),
            files: self.files.clone().or_else(|| other.files.clone()),
            domains: self.domains.clone().or_else(|| other.domains.clone()),
            memory_mb: self.memory_mb.or(other.memory_mb),
            max_processes: self.max_processes.or(other.max_processes),
            tmp_mb: self.tmp_mb.or(other.tmp_mb),
            effort_minutes: self.effort_minutes.or(other.effort_minutes),
        }
    }
}

/// All sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantTable {
    /// For a skill that has no set of its own; complete.
    pub default: GrantSet,
    /// What consent can add (`cyberos skill approve`); complete.
    pub max: GrantSet,
    /// By skill.
    pub skills: BTreeMap<String, GrantSet>,
}

impl GrantTable {
    /// The packaged default: memory and tools as asked for, files under `work` alone, no domains; consent can add
    /// whatever is asked for.
    pub fn packaged(work: &Path) -> Self {
        let below = format!("{}/**", escaped(&work.to_string_lossy()));
        let files = Pattern::new(&below).into_iter().collect();
        GrantTable {
            default: GrantSet {
                files: Some(Rule { allow: Allow::Only(files), line: None }),
                domains: Some(Rule { allow: Allow::Only(Vec::new()), line: None }),
                memory_mb: Some(2048),
                max_processes: Some(32),
                tmp_mb: Some(256),
                ..GrantSet::requested()
            },
            max: GrantSet::requested(),
            skills: BTreeMap::new(),
        }
    }
}
