//! One rule a key of the frontmatter (`[1.2]`–`[1.6]`): from nodes to a [`Skill`], or to every fault there is.

use super::faults::{Code, Fault, REQUIRED, Report};
use super::{Extensions, Skill, SyncClass, TenantScope};
use crate::terminal::turns_direction;
use crate::words::{nearest, shortened};
use crate::yaml::{Entry, Kind, Node};
use cyberos_proto::ids::MAX_SKILL_NAME_LEN;
use semver::Version;

/// Lines before the YAML text: the opening fence.
pub(super) const OFFSET: u32 = 1;

/// Every key that is known, required ones first.
pub(super) const KEYS: [&str; 22] = [
    "id",
    "version",
    "description",
    "allowed_memory_scopes",
    "allowed_tools",
    "signature",
    "min_broker_version",
    "max_broker_version",
    "disallowed_tools",
    "sync_class",
    "tenant_scope",
    "effort_minutes",
    "tags",
    "x-allowed-files",
    "x-allowed-domains",
    "x-memory-mb",
    "x-max-processes",
    "x-tmp-mb",
    "x-rate-limit-per-minute",
    "x-entrypoint",
    "x-content-sha256",
    "x-tests",
];
pub(super) const REQUIRED_KEYS: usize = 5;
/// Keys of a standard Agent Skill (`[1.8]`).
const STANDARD: [&str; 5] = ["name", "license", "compatibility", "metadata", "allowed-tools"];

/// Bounds that no operator can want to exceed; what he allows is for the grants to say.
pub(super) const MAX_MEMORY_MB: u64 = 1 << 20;
pub(super) const MAX_PROCESSES: u64 = 4096;
pub(super) const MAX_TMP_MB: u64 = 1 << 16;
pub(super) const MAX_RATE: u64 = 100_000;
pub(super) const MAX_EFFORT: u64 = 1440;

/// The keys, and what has been found about them.
pub(super) struct Reader<'a> {
    entries: &'a [Entry],
    pub(super) report: Report,
}

/// All keys of `root`, and what they say.
pub(super) fn read(
    root: &Node,
    expected_id: Option<&str>,
    known: &dyn Fn(&str) -> bool,
) -> (Option<Skill>, Report) {
    let entries = match &root.kind {
        Kind::Map(entries) => entries.as_slice(),
        Kind::Null => &[],
        _ => {
            let message = format!("the frontmatter must be keys with values, not {}", root.describe());
            let fault = Fault {
                field: "frontmatter".into(),
                code: Code::YamlParse,
                message,
                line: root.line + OFFSET,
            };
            return (None, Report { errors: vec![fault], ..Report::default() });
        }
    };
    let mut r = Reader { entries, report: Report::default() };
    r.unknown_keys();
    r.signature();
    let id = r.id(expected_id);
    let version = r.version("version", Code::InvalidVersion);
    let description = r.description();
    let scopes = r.patterns("allowed_memory_scopes", Code::InvalidMemoryScopeGlob);
    let tools = r.tools("allowed_tools", known);
    let disallowed = r.tools("disallowed_tools", known);
    r.broker_versions();
    let sync_class =
        r.choice("sync_class", &[("private", SyncClass::Private), ("shareable", SyncClass::Shareable)]);
    let tenant_scope =
        r.choice("tenant_scope", &[("any", TenantScope::Any), ("pinned", TenantScope::Pinned)]);
    let effort = r.whole("effort_minutes", MAX_EFFORT);
    let tags = r.tags();
    let extensions = Extensions {
        allowed_files: r.files(),
        allowed_domains: r.domains(),
        memory_mb: r.whole("x-memory-mb", MAX_MEMORY_MB),
        max_processes: r.whole("x-max-processes", MAX_PROCESSES),
        tmp_mb: r.whole("x-tmp-mb", MAX_TMP_MB),
        rate_limit_per_minute: r.whole("x-rate-limit-per-minute", MAX_RATE),
        entrypoint: r.entrypoint(),
        content_sha256: r.content_sha256(),
        tests: r.tests(),
    };
    r.dead_rules(&tools, &disallowed, &scopes, &extensions);
    let mut report = r.report;
    report.id.clone_from(&id);
    report.version = version.as_ref().map(Version::to_string);
    report.errors.sort_by_key(|f| f.line);
    report.warnings.sort_by_key(|f| f.line);
    let skill = match (id, version, description, report.errors.is_empty()) {
        (Some(id), Some(version), Some(description), true) => Some(Skill {
            id,
            version: version.to_string(),
            description,
            allowed_memory_scopes: scopes,
            allowed_tools: tools,
            disallowed_tools: disallowed,
            sync_class: sync_class.unwrap_or_default(),
            tenant_scope: tenant_scope.unwrap_or_default(),
            effort_minutes: effort.unwrap_or(30),
            tags,
            extensions,
        }),
        _ => None,
    };
    (skill, report)
}

impl<'a> Reader<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a Entry> {
        self.entries.iter().find(|e| e.key == key)
    }

    pub(super) fn fault(&mut self, field: &str, code: Code, line: u32, message: impl Into<String>) {
        let message = message.into();
        self.report.errors.push(Fault {
            field: shortened(field),
            code,
            message,
            line: line.saturating_add(OFFSET),
        });
    }

    pub(super) fn warn(&mut self, field: &str, code: Code, line: u32, message: impl Into<String>) {
        let message = message.into();
        self.report.warnings.push(Fault {
            field: shortened(field),
            code,
            message,
            line: line.saturating_add(OFFSET),
        });
    }

    /// A required key; its absence is a fault on the opening fence's line.
    pub(super) fn required(&mut self, key: &str, code: Code, meaning: &str) -> Option<&'a Entry> {
        let found = self.get(key);
        if found.is_none() {
            self.fault(key, code, 0, format!("{REQUIRED}: {meaning}"));
        }
        found
    }

    fn unknown_keys(&mut self) {
        let standard =
            self.get("name").is_some() && KEYS[..REQUIRED_KEYS].iter().any(|k| self.get(k).is_none());
        if standard {
            let missing: Vec<&str> =
                KEYS[..REQUIRED_KEYS].iter().copied().filter(|k| self.get(k).is_none()).collect();
            let message = format!(
                "this is a standard Agent Skill without CyberOS frontmatter: it can be read, but it has no \
                 capabilities and does not run; missing: {}",
                missing.join(", ")
            );
            self.fault("frontmatter", Code::MissingFrontmatter, 0, message);
        }
        for entry in self.entries {
            let key = entry.key.as_str();
            if KEYS.contains(&key) {
                continue;
            }
            let near = nearest(key, KEYS);
            let meant = near.map(|k| format!("; did you mean {k:?}?")).unwrap_or_default();
            if key.starts_with("x-") {
                if near.is_some() {
                    self.warn(
                        key,
                        Code::UnknownField,
                        entry.line,
                        format!("{key:?} means nothing here{meant}"),
                    );
                }
            } else if STANDARD.contains(&key) {
                let instead = match key {
                    "name" => "; the key for it is \"id\"",
                    "allowed-tools" => "; the key for it is \"allowed_tools\"",
                    _ => "; to keep it, prefix it with \"x-\"",
                };
                self.fault(
                    key,
                    Code::UnknownField,
                    entry.line,
                    format!("a key of standard Agent Skills{instead}"),
                );
            } else {
                let message =
                    format!("unknown key {:?}{meant} (keys of your own begin with \"x-\")", shortened(key));
                self.fault(key, Code::UnknownField, entry.line, message);
            }
        }
    }

    /// `[1.6]`: absent is allowed; one that cannot be checked is not taken for one that holds.
    fn signature(&mut self) {
        if let Some(entry) = self.get("signature") {
            let message = "this broker cannot check signatures yet, so it refuses a file that has one; \
                           remove the key to run the skill unsigned";
            self.fault("signature", Code::SignatureFailed, entry.line, message);
        }
    }

    fn id(&mut self, expected: Option<&str>) -> Option<String> {
        let entry = self.required("id", Code::InvalidId, "the name of the skill's directory")?;
        let line = entry.value.line;
        let Kind::Text(id) = &entry.value.kind else {
            self.fault("id", Code::InvalidId, line, format!("must be text, not {}", entry.value.describe()));
            return None;
        };
        let good = id.starts_with(|c: char| c.is_ascii_lowercase())
            && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !good {
            let message = format!("{:?} must begin with a-z and hold only a-z, 0-9 and '-'", shortened(id));
            self.fault("id", Code::InvalidId, line, message);
        } else if id.len() > MAX_SKILL_NAME_LEN {
            let message = format!("has {} bytes; at most {MAX_SKILL_NAME_LEN} are allowed", id.len());
            self.fault("id", Code::InvalidId, line, message);
        } else if expected.is_some_and(|e| e != id) {
            let name = shortened(expected.unwrap_or_default());
            self.fault(
                "id",
                Code::InvalidId,
                line,
                format!("is {id:?}, but the directory is called {name:?}; they must be equal"),
            );
        } else {
            return Some(id.clone());
        }
        None
    }

    fn version(&mut self, key: &str, code: Code) -> Option<Version> {
        let entry = match key {
            "version" => self.required(key, code, "a version such as 1.0.0")?,
            _ => self.get(key)?,
        };
        let version = match &entry.value.kind {
            Kind::Text(text) => Version::parse(text)
                .map_err(|e| format!("{:?} is not a SemVer version: {e}", shortened(text))),
            Kind::Number(n) => {
                Err(format!("{} is a number to YAML; write all three parts, as in {n}.0", shortened(n)))
            }
            _ => Err(format!("must be a version such as 1.0.0, not {}", entry.value.describe())),
        };
        version.map_err(|message| self.fault(key, code, entry.value.line, message)).ok()
    }

    fn broker_versions(&mut self) {
        let Ok(ours) = Version::parse(env!("CARGO_PKG_VERSION")) else { return };
        let min = self.version("min_broker_version", Code::InvalidField);
        let max = self.version("max_broker_version", Code::InvalidField);
        let line = |r: &Self, key| r.get(key).map_or(0, |e| e.value.line);
        if let Some(min) = min
            && ours.cmp_precedence(&min).is_lt()
        {
            let message = format!("needs broker {min} or newer; this is {ours}");
            self.fault("min_broker_version", Code::BrokerTooOld, line(self, "min_broker_version"), message);
        }
        if let Some(max) = max
            && ours.cmp_precedence(&max).is_gt()
        {
            let message = format!("needs broker {max} or older; this is {ours}");
            self.fault("max_broker_version", Code::BrokerTooNew, line(self, "max_broker_version"), message);
        }
    }

    fn description(&mut self) -> Option<String> {
        let entry = self.required(
            "description",
            Code::InvalidDescription,
            "what the skill does, in 1 to 200 characters",
        )?;
        let message = match &entry.value.kind {
            Kind::Text(text) if text.trim().is_empty() => "is blank; say what the skill does".to_owned(),
            Kind::Text(text) if text.chars().count() > 200 => {
                format!("has {} characters; at most 200 are allowed", text.chars().count())
            }
            Kind::Text(text) => match control_character(text) {
                Some(c) => format!("holds a control character or direction mark ({})", c.escape_unicode()),
                None => return Some(text.clone()),
            },
            _ => format!("must be text, not {}; put it in quotes", entry.value.describe()),
        };
        self.fault("description", Code::InvalidDescription, entry.value.line, message);
        None
    }

    fn whole(&mut self, key: &str, max: u64) -> Option<u32> {
        let entry = self.get(key)?;
        match entry.value.as_whole().filter(|n| (1..=max).contains(n)) {
            Some(n) => u32::try_from(n).ok(),
            None => {
                let message = format!(
                    "must be a whole number from 1 to {max}, in plain digits, not {}",
                    entry.value.describe()
                );
                self.fault(key, Code::InvalidField, entry.value.line, message);
                None
            }
        }
    }

    fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let entry = self.get(key)?;
        let found = match &entry.value.kind {
            Kind::Text(text) => choices.iter().find(|c| c.0 == text).map(|c| c.1),
            _ => None,
        };
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|c| c.0).collect();
            let message = format!("must be {}, not {}", words.join(" or "), entry.value.describe());
            self.fault(key, Code::InvalidField, entry.value.line, message);
        }
        found
    }

    fn entrypoint(&mut self) -> String {
        let default = Extensions::default().entrypoint;
        let Some(entry) = self.get("x-entrypoint") else { return default };
        if let Kind::Text(path) = &entry.value.kind
            && path.len() <= 1024
            && !path.contains(char::is_control)
            && path.split('/').all(|c| !matches!(c, "" | "." | ".."))
        {
            return path.clone();
        }
        let message = format!(
            "must be a path inside the skill such as bin/run (no leading '/', no '.' or '..'), not {}",
            entry.value.describe()
        );
        self.fault("x-entrypoint", Code::InvalidField, entry.value.line, message);
        default
    }

    fn content_sha256(&mut self) -> Option<String> {
        let entry = self.get("x-content-sha256")?;
        if let Kind::Text(text) = &entry.value.kind
            && let Some(hex) = text.strip_prefix("sha256:")
            && hex.len() == 64
            && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Some(text.clone());
        }
        let message =
            format!("must be 'sha256:' and 64 lower-case hex digits, not {}", entry.value.describe());
        self.fault("x-content-sha256", Code::InvalidField, entry.value.line, message);
        None
    }
}

/// Newline and tab may stand in text; others act on terminals, or make a text look like another.
pub(super) fn control_character(text: &str) -> Option<char> {
    text.chars().find(|&c| c.is_control() && c != '\n' && c != '\t' || turns_direction(c))
}
