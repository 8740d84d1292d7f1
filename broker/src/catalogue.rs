//! The tools by name (`[5.1]`): what each is called, what it takes, and how its calls are planned. A leaf that `skill`,
//! `grants` and `tools` read; it knows no rule and runs nothing: what a plan becomes is the type `W`.

use crate::call::{Invocation, Plan};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The names that a catalogue may hold, beside those of MCP servers (`[1.5]`).
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

/// Those of them that this build has.
pub const HERE: [&str; 4] = ["Bash", "MemoryEmit", "MemoryRead", "Read"];

/// Whose call is planned.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The invocation.
    pub invocation: &'a Invocation,
    /// The call's number in it.
    pub number: u64,
}

/// A tool. It decides nothing and records nothing; what its plans become can run only with a started permit.
pub trait Tool: Send + Sync {
    /// What is run in the end.
    type Work;

    /// Its name: what `allowed_tools` lists.
    fn name(&self) -> &'static str;
    /// What `tool.list` says of it.
    fn description(&self) -> &'static str;
    /// JSON Schema of its arguments: one object.
    fn input_schema(&self) -> Value;
    /// Reads the arguments, once, and says what the call would touch. The error is the message of −32602.
    fn plan(&self, asking: Asking<'_>, args: Map<String, Value>) -> Result<Plan<Self::Work>, String>;
}

/// All tools by name.
pub struct Catalogue<W> {
    tools: BTreeMap<String, Entry<W>>,
}

struct Entry<W> {
    tool: Box<dyn Tool<Work = W>>,
    /// Its entry of `tool.list`.
    listed: Value,
}

/// A catalogue that the broker must not start with.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CatalogueError {
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

impl<W> Default for Catalogue<W> {
    fn default() -> Self {
        Catalogue { tools: BTreeMap::new() }
    }
}

impl<W> Catalogue<W> {
    /// These tools, checked.
    pub fn of(tools: impl IntoIterator<Item = Box<dyn Tool<Work = W>>>) -> Result<Self, CatalogueError> {
        let mut catalogue = Catalogue::default();
        for tool in tools {
            let name = tool.name().to_owned();
            if !NATIVE.contains(&tool.name()) {
                return Err(CatalogueError::Name(name));
            }
            let schema = tool.input_schema();
            if schema["type"] != "object" || !schema["properties"].is_object() {
                return Err(CatalogueError::Schema(name));
            }
            let listed = json!({"name": name, "description": tool.description(), "input_schema": schema});
            if catalogue.tools.insert(name.clone(), Entry { tool, listed }).is_some() {
                return Err(CatalogueError::Twice(name));
            }
        }
        Ok(catalogue)
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Tool<Work = W>> {
        self.tools.get(name).map(|entry| entry.tool.as_ref())
    }

    /// Names with what `tool.list` says of each.
    pub fn listing(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.tools.iter().map(|(name, entry)| (name.as_str(), &entry.listed))
    }
}

impl<W> std::fmt::Debug for Catalogue<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str, Value);

    impl Tool for Named {
        type Work = ();

        fn name(&self) -> &'static str {
            self.0
        }

        fn description(&self) -> &'static str {
            "d"
        }

        fn input_schema(&self) -> Value {
            self.1.clone()
        }

        fn plan(&self, _: Asking<'_>, _: Map<String, Value>) -> Result<Plan<()>, String> {
            Ok(Plan::new(Vec::new(), ()))
        }
    }

    #[test]
    fn a_bad_catalogue_does_not_start() {
        let object = || json!({"type": "object", "properties": {}});
        let of = |tools: Vec<Named>| {
            Catalogue::of(tools.into_iter().map(|t| Box::new(t) as Box<dyn Tool<Work = ()>>)).map(|_| ())
        };
        assert_eq!(of(vec![Named("Read", object()), Named("Bash", object())]), Ok(()));
        let twice = vec![Named("Read", object()), Named("Read", object())];
        assert_eq!(of(twice), Err(CatalogueError::Twice("Read".into())));
        for name in ["read", "", "Reed", "mcp__x__Read"] {
            assert_eq!(of(vec![Named(name, object())]), Err(CatalogueError::Name(name.into())));
        }
        for schema in [json!({}), json!(true), json!({"type": "array"}), json!({"type": "object"})] {
            assert_eq!(of(vec![Named("Read", schema)]), Err(CatalogueError::Schema("Read".into())));
        }
    }
}
