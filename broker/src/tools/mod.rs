//! The tools: one trait, one registry (`[5.1]`). A tool is one file that gives its name, schema, argument rule and
//! `invoke`; it decides nothing and records nothing, but for the row that is its own.

mod args;
mod bash;
mod context;
mod memory;
mod read;

pub use bash::Bash;
pub use context::Context;
pub(crate) use context::{Ending, Means};
pub use memory::{MemoryEmit, MemoryRead};
pub use read::Read;

use crate::audit::{Audit, Started};
use crate::call::{Call, Invocation, Subject};
use crate::helper::Helper;
use crate::memory::Store;
use crate::space::Space;
use cyberos_proto::plan::Feature;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// The names that a registry may hold, beside those of MCP servers (`[1.5]`).
pub const NATIVE: [&str; 11] = [
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "HttpFetch",
    "HttpPost",
    "MemoryEmit",
    "MemoryRead",
    "MemorySearch",
    "Read",
    "Write",
];

/// Those of them that this build has: what [`Registry::standard`] holds.
pub const HERE: [&str; 4] = ["Bash", "MemoryEmit", "MemoryRead", "Read"];

/// What a tool answers, or why it failed (−32000).
pub type ToolResult = Result<Map<String, Value>, ToolError>;

/// A tool ran and failed. Some reasons mean more than that: [`TIMED_OUT`], and those of `is_quota`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// A word that programs can compare (`not_found`, `timeout`, …).
    pub reason: &'static str,
    /// A sentence for the skill's author.
    pub message: String,
}

/// The reason of a call that ran out of its own time; its row says `timeout`.
pub const TIMED_OUT: &str = "timeout";
/// Reasons of a call that found a quota used up once it ran: it is answered and recorded as a refusal of class
/// `quota_exceeded` (`[3.4]`).
pub const WRITE_QUOTA: &str = "write_quota";
/// The same, the tenant's.
pub const MEMORY_QUOTA: &str = "memory_quota";
/// The same, for want of space.
pub const DISK_LOW: &str = "disk_low";

/// Whether a reason is that of a quota.
pub(crate) fn is_quota(reason: &str) -> bool {
    [WRITE_QUOTA, MEMORY_QUOTA, DISK_LOW].contains(&reason)
}

/// What a skill learns of a fault of ours.
pub(crate) fn internal() -> ToolError {
    ToolError { reason: "internal", message: "the tool failed; the operator's log says how".to_owned() }
}

/// Arguments that were right when the call was decided, and are not now: a fault of ours.
fn bad_arguments(why: String) -> ToolError {
    tracing::error!(why, "a permitted call has wrong arguments");
    internal()
}

/// A tool.
pub trait Tool: Send + Sync {
    /// Its name: what `allowed_tools` lists.
    fn name(&self) -> &'static str;
    /// One sentence for `tool.list`.
    fn description(&self) -> &'static str;
    /// JSON Schema of its arguments: one object.
    fn input_schema(&self) -> Value;
    /// Checks the arguments and says what the call would touch. May complete them (a derived path). The error is the
    /// message of −32602.
    fn subject(&self, invocation: &Invocation, call: &mut Call) -> Result<Subject, String>;
    /// Bytes that the call would write at least: a call that the invocation's quota has no room for is refused before it
    /// starts (`[2.8]`). What it takes in the end is counted where it writes.
    fn writes(&self, _call: &Call) -> u64 {
        0
    }
    /// Does it. Dropped when the call is cut.
    fn invoke<'a>(
        &'a self,
        context: Context,
        started: Started,
    ) -> Pin<Box<dyn Future<Output = ToolResult> + Send + 'a>>;
}

/// All tools by name.
#[derive(Default)]
pub struct Registry {
    tools: BTreeMap<String, Registered>,
}

struct Registered {
    tool: Box<dyn Tool>,
    /// Its entry of `tool.list`.
    listed: Value,
}

/// What the tools work with.
#[derive(Clone, Debug)]
pub struct Deps {
    /// For `memory.emit` rows.
    pub audit: Audit,
    /// The memory store.
    pub store: Arc<Store>,
    /// Bytes of it that one tenant may use (`[2.8]`).
    pub tenant_quota: u64,
    /// Makes the sandboxes of Bash.
    pub helper: Helper,
    /// What such a sandbox must not lack (`sandbox.require`).
    pub require: Vec<Feature>,
    /// Says when there is too little of it for Bash.
    pub space: Space,
}

/// A registry that the broker must not start with.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RegistryError {
    /// Two tools of one name.
    #[error("two tools are called {0}: each name can be registered once")]
    Twice(String),
    /// A name that no frontmatter can list.
    #[error("{0:?} is not the name of a tool: it must be one of {NATIVE:?}")]
    Name(String),
    /// A schema that is not an object's.
    #[error("the input schema of {0} does not describe an object (\"type\": \"object\" with \"properties\")")]
    Schema(String),
}

impl Registry {
    /// All tools of this build.
    pub fn standard(deps: Deps) -> Result<Registry, RegistryError> {
        Registry::of([
            Box::new(Bash::new(&deps)) as Box<dyn Tool>,
            Box::new(Read),
            Box::new(MemoryRead::new(deps.store.clone())),
            Box::new(MemoryEmit::new(deps)),
        ])
    }

    /// These tools, checked.
    pub fn of(tools: impl IntoIterator<Item = Box<dyn Tool>>) -> Result<Registry, RegistryError> {
        let mut registry = Registry::default();
        for tool in tools {
            let name = tool.name().to_owned();
            if !NATIVE.contains(&tool.name()) {
                return Err(RegistryError::Name(name));
            }
            let schema = tool.input_schema();
            if schema["type"] != "object" || !schema["properties"].is_object() {
                return Err(RegistryError::Schema(name));
            }
            let listed = json!({"name": name, "description": tool.description(), "input_schema": schema});
            if registry.tools.insert(name.clone(), Registered { tool, listed }).is_some() {
                return Err(RegistryError::Twice(name));
            }
        }
        Ok(registry)
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Tool> {
        self.tools.get(name).map(|registered| registered.tool.as_ref())
    }

    /// Names with what `tool.list` says of each.
    pub fn listing(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.tools.iter().map(|(name, registered)| (name.as_str(), &registered.listed))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str, Value);

    impl Tool for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> &'static str {
            "d"
        }

        fn input_schema(&self) -> Value {
            self.1.clone()
        }

        fn subject(&self, _: &Invocation, _: &mut Call) -> Result<Subject, String> {
            Ok(Subject::Nothing)
        }

        fn invoke<'a>(
            &'a self,
            _: Context,
            _: Started,
        ) -> Pin<Box<dyn Future<Output = ToolResult> + Send + 'a>> {
            Box::pin(async { Ok(Map::new()) })
        }
    }

    #[test]
    fn a_bad_registry_does_not_start() {
        let object = || json!({"type": "object", "properties": {}});
        let of = |tools: Vec<Named>| {
            Registry::of(tools.into_iter().map(|t| Box::new(t) as Box<dyn Tool>)).map(|_| ())
        };
        assert_eq!(of(vec![Named("Read", object()), Named("Bash", object())]), Ok(()));
        let twice = vec![Named("Read", object()), Named("Read", object())];
        assert_eq!(of(twice), Err(RegistryError::Twice("Read".into())));
        for name in ["read", "", "Reed", "mcp__x__Read"] {
            assert_eq!(of(vec![Named(name, object())]), Err(RegistryError::Name(name.into())));
        }
        for schema in [json!({}), json!(true), json!({"type": "array"}), json!({"type": "object"})] {
            assert_eq!(of(vec![Named("Read", schema)]), Err(RegistryError::Schema("Read".into())));
        }
    }
}
