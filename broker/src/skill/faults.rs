//! What can be wrong with a SKILL.md, and the report that lists all of it (`[1.7]`). It knows no field's rule.

use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;

/// The kind of a fault. The names are part of the interface of `validate --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Code {
    /// No fence on the first line, no closing fence, or nothing between them.
    MissingFrontmatter,
    /// The text between the fences is not the plain YAML that is accepted, or a cap is exceeded.
    YamlParse,
    InvalidId,
    InvalidVersion,
    InvalidDescription,
    /// A pattern of `allowed_memory_scopes`.
    InvalidMemoryScopeGlob,
    /// A pattern of `x-allowed-files`.
    InvalidFileGlob,
    /// A pattern of `x-allowed-domains`.
    InvalidDomain,
    /// A name in `allowed_tools` or `disallowed_tools` that is no tool.
    UnknownTool,
    /// A key that is neither known nor begins with `x-`.
    UnknownField,
    /// Any other field: missing, of the wrong type, or out of range.
    InvalidField,
    /// A signature that does not hold, or cannot be checked.
    SignatureFailed,
    /// `min_broker_version` is above this broker.
    BrokerTooOld,
    /// `max_broker_version` is below this broker.
    BrokerTooNew,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One fault, or one warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The top-level key, or `frontmatter` for the text as a whole.
    pub field: String,
    /// What kind.
    pub code: Code,
    /// A sentence for the author: what is wrong and what to write.
    pub message: String,
    /// Line in SKILL.md, counted from 1; of a missing key, the opening fence.
    pub line: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {} [{}]", self.line, self.field, self.message, self.code)
    }
}

/// What validation found (`cyberos skill validate`).
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// `id`, if there is a good one.
    pub id: Option<String>,
    /// `version`, if there is a good one.
    pub version: Option<String>,
    /// As written, if it is a list of texts.
    pub allowed_tools: Option<Vec<String>>,
    /// As written, if it is a list of texts.
    pub allowed_memory_scopes: Option<Vec<String>>,
    /// What makes it invalid.
    pub errors: Vec<Fault>,
    /// What is valid and yet surely not meant: rules that can never apply.
    pub warnings: Vec<Fault>,
}

impl Report {
    /// Whether the skill would load.
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// The JSON of `[1.7]`: `{status, id?, version?, allowed_memory_scopes?, allowed_tools?, errors, warnings}`.
    pub fn to_json(&self) -> Value {
        let mut out = json!({"status": if self.is_ok() { "ok" } else { "invalid" }});
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                out[key] = value;
            }
        };
        put("id", self.id.clone().map(Value::from));
        put("version", self.version.clone().map(Value::from));
        put("allowed_memory_scopes", self.allowed_memory_scopes.clone().map(Value::from));
        put("allowed_tools", self.allowed_tools.clone().map(Value::from));
        put("errors", Some(json!(self.errors)));
        put("warnings", Some(json!(self.warnings)));
        out
    }

    /// The most telling word for the validation metric (`[8.1]`).
    pub fn outcome(&self) -> &'static str {
        let first = |codes: &[Code]| self.errors.iter().any(|f| codes.contains(&f.code));
        if self.is_ok() {
            "ok"
        } else if first(&[Code::MissingFrontmatter, Code::YamlParse]) {
            "parse_err"
        } else if first(&[Code::SignatureFailed]) {
            "signature_failed"
        } else if first(&[Code::BrokerTooOld, Code::BrokerTooNew]) {
            "version_skew"
        } else if self.errors.iter().any(|f| f.message.starts_with(REQUIRED)) {
            "required_missing"
        } else {
            "invalid_field"
        }
    }
}

/// How the message of a missing required key begins.
pub(super) const REQUIRED: &str = "required and missing";
