//! cyberos.yaml into a [`Config`]: every key once, in the order of the packaged file.

use super::faults::{ConfigError, ConfigFault};
use super::section::{Section, path, text};
use super::{Allow, Config, DEFAULT_PATH, Durability, GrantSet, GrantTable, OnFailure, OnHidden, Rule};
use crate::catalogue::NATIVE;
use crate::glob::Pattern;
use crate::skill::HostPattern;
use crate::words::{nearest, shortened};
use crate::yaml::{self, Kind, Node};
use cyberos_proto::plan::Feature;
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest configuration, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Longest path of a socket, in bytes (sun_path, with its NUL).
const MAX_SOCKET_PATH: usize = 107;

/// The keys that `cyberos up` sets itself (`[7.5]`), and what to write instead.
const SET_BY_UP: &[(&str, &str)] = &[
    ("state", "'cyberos up' sets it: take the line out, and use --state DIR"),
    ("run", "'cyberos up' sets it: take the line out; the sockets lie in its state directory"),
    ("helper_socket", "'cyberos up' sets it: take the line out; the helper is its own"),
    ("skillfs_control", "'cyberos up' sets it: take the line out; SkillFS is its own"),
    ("mount", "'cyberos up' sets it: take the line out, and use --mount DIR"),
    ("sources", "'cyberos up' sets it: take the line out, and use --skills DIR"),
    ("operator_group", "'cyberos up' gives its socket to the user who called sudo: take the line out"),
];

/// Who started the broker, and so which keys are his and not the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// A service manager or a person: every key of the file counts.
    Service,
    /// `cyberos up`, which sets some keys itself.
    Up,
}

impl Config {
    /// Reads `given`, or the packaged path. Only the packaged path may be absent: then everything is as packaged.
    pub fn load(given: Option<&Path>, by: StartedBy) -> Result<Config, ConfigError> {
        let path = given.unwrap_or(Path::new(DEFAULT_PATH));
        let io = |error| ConfigError::Io { path: path.to_owned(), error };
        let file = match OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(e) if given.is_none() && e.kind() == io::ErrorKind::NotFound => return Ok(Config::default()),
            Err(e) => return Err(io(e)),
        };
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(ConfigError::Writable(path.to_owned()));
        }
        if meta.uid() != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
            return Err(ConfigError::Owner { path: path.to_owned(), uid: meta.uid() });
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
        let whole =
            |message: &str| vec![ConfigFault { key: String::new(), line: 1, message: message.into() }];
        let parsed = match String::from_utf8(bytes) {
            _ if meta.len() > MAX_FILE => Err(whole("more than 1 MiB")),
            Ok(text) => Config::parse(&text, by),
            Err(_) => Err(whole("not UTF-8")),
        };
        parsed.map_err(|faults| ConfigError::Faults { path: path.to_owned(), faults })
    }

    /// The configuration that `text` says; for absent keys, as packaged.
    pub fn parse(text: &str, by: StartedBy) -> Result<Config, Vec<ConfigFault>> {
        let root = yaml::parse(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|problems| {
            let fault =
                |p: yaml::Problem| ConfigFault { key: String::new(), line: p.line, message: p.message };
            problems.into_iter().map(fault).collect::<Vec<_>>()
        })?;
        let faults = RefCell::default();
        let section = Section::new("", &root, &faults);
        let config = read(&section);
        let set_by_up = if by == StartedBy::Up { SET_BY_UP } else { &[] };
        section.finish_without(&set_by_up.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        for (key, instead) in set_by_up {
            if let Some(node) = section.get(key) {
                section.fault(key, node.line, *instead);
            }
        }
        let mut faults = faults.into_inner();
        faults.sort_by_key(|f| f.line);
        if faults.is_empty() { Ok(config) } else { Err(faults) }
    }
}

fn read(root: &Section<'_>) -> Config {
    let d = Config::default();
    let work = root.path("work").unwrap_or_else(|| d.work.clone());
    let config = Config {
        tenant: root.parsed("tenant", |n| text(n)?.parse().map_err(|e| format!("{e}"))).unwrap_or(d.tenant),
        state: root.path("state").unwrap_or(d.state),
        run: root.path("run").unwrap_or(d.run),
        helper_socket: root.parsed("helper_socket", socket).unwrap_or(d.helper_socket),
        skillfs_control: root.parsed("skillfs_control", socket).unwrap_or(d.skillfs_control),
        mount: root.path("mount").unwrap_or(d.mount),
        sources: root.list("sources", path).unwrap_or(d.sources),
        never_grantable: root.list("never_grantable", path).unwrap_or(d.never_grantable),
        grants: grants(root, &work),
        work,
        quota: quota(root, d.quota),
        logs: logs(root, d.logs),
        seal: seal(root, d.seal),
        audit: audit(root, d.audit),
        require: require(root).unwrap_or(d.require),
        on_hidden: root
            .choice("on_hidden", &[("tell", OnHidden::Tell), ("terminate", OnHidden::Terminate)])
            .unwrap_or(d.on_hidden),
        require_signatures: root.truth("require_signatures").unwrap_or(d.require_signatures),
        operator_group: root.parsed("operator_group", group).unwrap_or(d.operator_group),
    };
    if config.run.join("broker.sock").as_os_str().len() > MAX_SOCKET_PATH
        && let Some(node) = root.get("run")
    {
        root.fault("run", node.line, format!("too long: with /broker.sock at most {MAX_SOCKET_PATH} bytes"));
    }
    config
}

fn socket(node: &Node) -> Result<PathBuf, String> {
    let path = path(node)?;
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(format!("too long for a socket: at most {MAX_SOCKET_PATH} bytes"));
    }
    Ok(path)
}

fn group(node: &Node) -> Result<String, String> {
    let name = text(node)?;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 32 || name.starts_with('-') || !name.chars().all(good) {
        return Err(format!("{:?} is not the name of a group", shortened(name)));
    }
    Ok(name.to_owned())
}

fn quota(root: &Section<'_>, d: super::Quota) -> super::Quota {
    let Some(s) = root.section("quota") else { return d };
    let quota = super::Quota {
        invocation_write_mb: s.whole("invocation_write_mb", 1, 1 << 30).unwrap_or(d.invocation_write_mb),
        invocation_ledger_mb: s.whole("invocation_ledger_mb", 1, 1 << 20).unwrap_or(d.invocation_ledger_mb),
        tenant_store_mb: s.whole("tenant_store_mb", 1, 1 << 30).unwrap_or(d.tenant_store_mb),
    };
    s.finish();
    quota
}

fn logs(root: &Section<'_>, d: super::Logs) -> super::Logs {
    let Some(s) = root.section("logs") else { return d };
    let keep = s.whole("keep", 0, 65_536).and_then(|n| usize::try_from(n).ok());
    let logs = super::Logs {
        keep: keep.unwrap_or(d.keep),
        max_mb: s.whole("max_mb", 1, 1 << 30).unwrap_or(d.max_mb),
    };
    s.finish();
    logs
}

fn seal(root: &Section<'_>, d: super::Seal) -> super::Seal {
    let Some(s) = root.section("seal") else { return d };
    let seal = super::Seal {
        max_bytes: s.whole("max_bytes", 1, 1 << 40).unwrap_or(d.max_bytes),
        max_entries: s.whole("max_entries", 1, 1 << 24).unwrap_or(d.max_entries),
        cache: s.whole("cache", 0, 1 << 50).unwrap_or(d.cache),
    };
    s.finish();
    seal
}

fn audit(root: &Section<'_>, d: super::Audit) -> super::Audit {
    let Some(s) = root.section("audit") else { return d };
    let failure =
        [("queue", OnFailure::Queue), ("refuse", OnFailure::Refuse), ("continue", OnFailure::Continue)];
    let rows = s.whole("queue_rows", 1, 1_000_000).and_then(|n| usize::try_from(n).ok());
    let audit = super::Audit {
        durability: s
            .choice("durability", &[("normal", Durability::Normal), ("fsync", Durability::Fsync)])
            .unwrap_or(d.durability),
        on_failure: s.choice("on_failure", &failure).unwrap_or(d.on_failure),
        queue_rows: rows.unwrap_or(d.queue_rows),
    };
    s.finish();
    audit
}

fn require(root: &Section<'_>) -> Option<Vec<Feature>> {
    const FEATURES: [Feature; 8] = [
        Feature::Namespaces,
        Feature::OwnUid,
        Feature::NoNewPrivs,
        Feature::NoCapabilities,
        Feature::Seccomp,
        Feature::Rlimits,
        Feature::Cgroup,
        Feature::Landlock,
    ];
    let s = root.section("sandbox")?;
    let require = s.list("require", |node| {
        let word = text(node)?;
        FEATURES.into_iter().find(|f| f.as_str() == word).ok_or_else(|| {
            let words = FEATURES.map(Feature::as_str).join(", ");
            format!("{:?} is no part of the sandbox; they are {words}", shortened(word))
        })
    });
    s.finish();
    require
}

fn grants(root: &Section<'_>, work: &Path) -> GrantTable {
    let mut table = GrantTable::packaged(work);
    let Some(s) = root.section("grants") else { return table };
    if let Some(set) = s.section("default") {
        table.default = grant_set(&set).or(&table.default);
    }
    if let Some(set) = s.section("max") {
        table.max = grant_set(&set).or(&table.max);
    }
    if let Some(skills) = s.section("skills") {
        for entry in skills.entries() {
            let good = entry.key.starts_with(|c: char| c.is_ascii_lowercase())
                && entry.key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            if !good {
                skills.fault(&shortened(&entry.key), entry.line, "not the id of a skill (a-z, 0-9 and '-')");
            }
            let set = skills.below(&entry.key, &entry.value);
            table.skills.insert(entry.key.clone(), grant_set(&set));
        }
    }
    s.finish();
    table
}

fn grant_set(s: &Section<'_>) -> GrantSet {
    let limit = |key, max| s.whole(key, 1, max).and_then(|n| u32::try_from(n).ok());
    let set = GrantSet {
        tools: rule(s, "tools", tool),
        memory: rule(s, "memory", |node| pattern(text(node)?)),
        files: rule(s, "files", |node| match text(node)? {
            text if text.starts_with('/') => pattern(text),
            text => Err(format!("{:?} must be an absolute path (begin with '/')", shortened(text))),
        }),
        domains: rule(s, "domains", |node| {
            let host = text(node)?;
            HostPattern::new(host).map_err(|e| format!("{:?}: {e}", shortened(host)))
        }),
        memory_mb: limit("memory_mb", 1 << 20),
        max_processes: limit("max_processes", 4096),
        tmp_mb: limit("tmp_mb", 1 << 16),
        effort_minutes: limit("effort_minutes", 1440),
    };
    s.finish();
    set
}

/// `requested`, or a list.
fn rule<T>(
    s: &Section<'_>,
    key: &'static str,
    parse: impl Fn(&Node) -> Result<T, String>,
) -> Option<Rule<T>> {
    let node = s.get(key)?;
    let allow = match &node.kind {
        Kind::Text(word) if word == "requested" => Allow::Requested,
        Kind::List(_) => Allow::Only(s.elements(key, node, parse)?),
        _ => {
            let message = format!(
                "must be \"requested\" (what a skill asks for) or a list ([] for none), not {}",
                node.describe()
            );
            s.fault(key, node.line, message);
            return None;
        }
    };
    Some(Rule { allow, line: Some(node.line) })
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|e| format!("{:?}: {e}", shortened(text)))
}

/// A tool's name. Those from elsewhere are not known yet, so only a near miss is refused.
fn tool(node: &Node) -> Result<String, String> {
    let name = text(node)?;
    match nearest(name, NATIVE) {
        Some(near) if near != name => {
            Err(format!("no tool is called {:?}; did you mean {near:?}?", shortened(name)))
        }
        _ if name.is_empty() || name.contains(['*', ' ']) => {
            Err(format!("{:?} is not the name of a tool; name each one", shortened(name)))
        }
        _ => Ok(name.to_owned()),
    }
}
