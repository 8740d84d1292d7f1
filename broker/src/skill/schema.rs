//! `skill.schema.json` (`[1.7]`): the frontmatter as JSON Schema 2020-12, generated from the types below, for editors
//! and other tools. The rules in `fields` and `lists` decide; a test holds both to the same verdicts on every fault
//! that a schema can express, and lists the others.

#![allow(dead_code, reason = "these types exist for their schema alone")]

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// SemVer's own expression for a version.
const SEMVER: &str = r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$";
/// Text with something to see in it; of the control characters, newline and tab alone, and no direction marks.
const VISIBLE: &str = r"^[^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\s][^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*$";
const NO_CONTROL: &str =
    r"^[^\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*$";
const PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+$";
const ABSOLUTE: &str = r"^/[^\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*$";
/// Components that are not empty, `.` or `..`, divided by `/`.
const INSIDE: &str = r"^([^./\u0000-\u001f\u007f-\u009f]|\.[^./\u0000-\u001f\u007f-\u009f]|\.\.[^/\u0000-\u001f\u007f-\u009f])[^/\u0000-\u001f\u007f-\u009f]*(/([^./\u0000-\u001f\u007f-\u009f]|\.[^./\u0000-\u001f\u007f-\u009f]|\.\.[^/\u0000-\u001f\u007f-\u009f])[^/\u0000-\u001f\u007f-\u009f]*)*$";

/// What a skill says of itself and asks for, between the `---` lines of its SKILL.md.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[schemars(extend("patternProperties" = {"^x-": true}))]
// An absent key is not the same as an empty one, so optional keys are no `Option`s; these are required.
#[schemars(extend("required" = super::fields::KEYS[..super::fields::REQUIRED_KEYS]))]
struct Frontmatter {
    /// Name of the skill: equal to the name of its directory.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]*$"), length(max = 64))]
    id: String,
    /// SemVer version.
    #[schemars(regex(pattern = SEMVER))]
    version: String,
    /// What the skill does.
    #[schemars(regex(pattern = VISIBLE), length(min = 1, max = 200))]
    description: String,
    /// Patterns of memory paths (`memories/…`); [] for no memory. `*` and `?` stay within a component, `**` crosses.
    #[schemars(length(max = 256), inner(regex(pattern = PATTERN), length(max = 1024)))]
    allowed_memory_scopes: Vec<String>,
    /// Tools that may be called; [] for none.
    #[schemars(length(max = 256))]
    allowed_tools: Vec<String>,
    /// Signatures cannot be checked yet, so a file that has one is refused.
    #[schemars(schema_with = "nothing")]
    signature: (),
    /// Oldest broker that runs the skill.
    #[schemars(regex(pattern = SEMVER))]
    min_broker_version: String,
    /// Newest broker that runs the skill.
    #[schemars(regex(pattern = SEMVER))]
    max_broker_version: String,
    /// Tools that may not be called, whatever `allowed_tools` says.
    #[schemars(length(max = 256))]
    disallowed_tools: Vec<String>,
    /// How far what the skill emits may travel (default private).
    #[schemars(extend("default" = "private"))]
    sync_class: SyncClass,
    /// Whether the skill is pinned to the tenant for which it is approved (default any).
    #[schemars(extend("default" = "any"))]
    tenant_scope: TenantScope,
    /// Deadline of a run (default 30).
    #[schemars(range(min = 1, max = super::fields::MAX_EFFORT))]
    #[schemars(extend("default" = 30))]
    effort_minutes: u32,
    /// Words to find the skill by.
    #[schemars(length(max = 10), inner(regex(pattern = NO_CONTROL), length(max = 30)))]
    tags: Vec<String>,
    /// Patterns of absolute paths that Read, Write, Edit, Glob, Grep and Bash may touch.
    #[schemars(rename = "x-allowed-files", length(max = 256), inner(regex(pattern = ABSOLUTE), length(max = 1024)))]
    allowed_files: Vec<String>,
    /// Hosts that HttpFetch and HttpPost may reach: `*` is one label, `**` any number; `:PORT` or `:*` at the end.
    #[schemars(rename = "x-allowed-domains", length(max = 256), inner(length(min = 1)))]
    allowed_domains: Vec<String>,
    /// Memory in MiB, counted as data instead of address space (for Node.js, Go, the JVM).
    #[schemars(rename = "x-memory-mb", range(min = 1, max = super::fields::MAX_MEMORY_MB))]
    memory_mb: u32,
    /// Processes and threads (default 8).
    #[schemars(rename = "x-max-processes", range(min = 1, max = super::fields::MAX_PROCESSES))]
    #[schemars(extend("default" = 8))]
    max_processes: u32,
    /// Size of the private /tmp in MiB (default 64).
    #[schemars(rename = "x-tmp-mb", range(min = 1, max = super::fields::MAX_TMP_MB))]
    #[schemars(extend("default" = 64))]
    tmp_mb: u32,
    /// Most tool calls in any minute (default: any number).
    #[schemars(rename = "x-rate-limit-per-minute", range(min = 1, max = super::fields::MAX_RATE))]
    rate_limit_per_minute: u32,
    /// Path of the executable inside the skill (default main).
    #[schemars(rename = "x-entrypoint", regex(pattern = INSIDE), length(max = 1024))]
    #[schemars(extend("default" = "main"))]
    entrypoint: String,
    /// Tree digest of everything but SKILL.md.
    #[schemars(rename = "x-content-sha256", regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    content_sha256: String,
    /// Calls that must be allowed or denied.
    #[schemars(rename = "x-tests")]
    tests: Vec<Map<String, Value>>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum SyncClass {
    /// Stays on this machine.
    Private,
    /// May be shared.
    Shareable,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum TenantScope {
    /// Runs under any tenant.
    Any,
    /// Runs under the tenant recorded with its approval.
    Pinned,
}

fn nothing(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    false.into()
}

/// The schema.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).into_generator();
    let mut schema = generator.into_root_schema_for::<Frontmatter>().to_value();
    schema["title"] = "CyberOS SKILL.md frontmatter".into();
    schema["$id"] = "urn:cyberos:skill.schema.json".into();
    schema
}
