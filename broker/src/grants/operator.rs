//! Whose word counts for one skill (`[4.0]`): its own set of the operator's, else the default's, key by key; and,
//! once its wishes have been approved, `grants.max` beside it. But a limit in the skill's own set is the last word.

use crate::config::{Allow, GrantSet, GrantTable, Rule};
use crate::glob::Pattern;
use std::path::Path;

/// What the operator gives one skill.
#[derive(Clone, Debug)]
pub struct Operator {
    pub(super) tools: Vec<Grantor<String>>,
    pub(super) memory: Vec<Grantor<Pattern>>,
    pub(super) files: Vec<Grantor<Pattern>>,
    pub(super) domains: Vec<Grantor<crate::skill::HostPattern>>,
    pub(super) caps: Caps,
}

/// One key that gives, or would give.
#[derive(Clone, Debug)]
pub(super) struct Grantor<T> {
    /// As the operator would look for it: `grants.default.files`.
    pub(super) key: String,
    pub(super) rule: Rule<T>,
    /// Gives only once the skill has been approved, and it has not been.
    pub(super) offered: bool,
}

/// Upper bounds of the limits, each with the key that sets it.
#[derive(Clone, Debug)]
pub(super) struct Caps {
    pub(super) memory_mb: (u32, String),
    pub(super) max_processes: (u32, String),
    pub(super) tmp_mb: (u32, String),
    pub(super) effort_minutes: (u32, String),
}

impl Operator {
    /// What `table` gives the skill `id`. `approved`: there is consent for what it asks for now.
    pub fn new(table: &GrantTable, id: &str, approved: bool) -> Self {
        let none = GrantSet::default();
        let own = table.skills.get(id).unwrap_or(&none);
        let sources = Sources { table, own, id, approved };
        Operator {
            tools: sources.rules(|s| &s.tools, "tools"),
            memory: sources.rules(|s| &s.memory, "memory"),
            files: sources.rules(|s| &s.files, "files"),
            domains: sources.rules(|s| &s.domains, "domains"),
            caps: Caps {
                memory_mb: sources.cap(|s| s.memory_mb, "memory_mb"),
                max_processes: sources.cap(|s| s.max_processes, "max_processes"),
                tmp_mb: sources.cap(|s| s.tmp_mb, "tmp_mb"),
                effort_minutes: sources.cap(|s| s.effort_minutes, "effort_minutes"),
            },
        }
    }
}

struct Sources<'a> {
    table: &'a GrantTable,
    own: &'a GrantSet,
    id: &'a str,
    approved: bool,
}

impl Sources<'_> {
    fn key(&self, own: bool, name: &str) -> String {
        if own { format!("grants.skills.{}.{name}", self.id) } else { format!("grants.default.{name}") }
    }

    fn rules<T: Clone>(&self, pick: impl Fn(&GrantSet) -> &Option<Rule<T>>, name: &str) -> Vec<Grantor<T>> {
        let own = pick(self.own).as_ref();
        let base = own.or(pick(&self.table.default).as_ref());
        let base = base.map(|rule| (self.key(own.is_some(), name), rule, false));
        let max = pick(&self.table.max).as_ref();
        let max = max.map(|rule| (format!("grants.max.{name}"), rule, !self.approved));
        base.into_iter()
            .chain(max)
            .map(|(key, rule, offered)| Grantor { key, rule: rule.clone(), offered })
            .collect()
    }

    fn cap(&self, pick: impl Fn(&GrantSet) -> Option<u32>, name: &str) -> (u32, String) {
        // A bound that he has set for this very skill is his word on it, and no consent, older or newer, goes beyond it:
        // consent is to what the skill asks for.
        if let Some(own) = pick(self.own) {
            return (own, self.key(true, name));
        }
        let base = pick(&self.table.default).unwrap_or(0);
        match pick(&self.table.max) {
            Some(max) if self.approved && max > base => (max, format!("grants.max.{name}")),
            _ => (base, self.key(false, name)),
        }
    }
}

impl<T> Grantor<T> {
    /// `grants.default.files (cyberos.yaml line 12)`.
    pub(super) fn named(&self) -> String {
        match self.rule.line {
            Some(line) => format!("{} (cyberos.yaml line {line})", self.key),
            None => format!("{} (built-in default)", self.key),
        }
    }

    /// Its list; none for `requested`.
    pub(super) fn list(&self) -> Option<&[T]> {
        match &self.rule.allow {
            Allow::Requested => None,
            Allow::Only(list) => Some(list),
        }
    }
}

impl Grantor<Pattern> {
    /// The patterns that let `path` through; none when it does not; `Some(None)` for `requested`.
    pub(super) fn admits(&self, path: &Path) -> bool {
        self.list().is_none_or(|list| list.iter().any(|p| p.matches(path)))
    }
}

impl Grantor<String> {
    pub(super) fn admits(&self, tool: &str) -> bool {
        self.list().is_none_or(|list| list.iter().any(|t| t == tool))
    }
}
