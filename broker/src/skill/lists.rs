//! The lists of the frontmatter: tools, patterns, hosts, tags, and which of their rules can never apply.

use super::faults::Code;
use super::fields::{OFFSET, Reader, control_character};
use super::{Extensions, HostPattern, Item};
use crate::catalogue::NATIVE;
use crate::glob::{MAX_PATTERNS, Pattern};
use crate::words::{nearest, shortened};
use crate::yaml::{Kind, Node};

impl<'a> Reader<'a> {
    /// The texts of a list; other elements are faults.
    fn texts(&mut self, key: &str) -> Option<Vec<Item<&'a str>>> {
        let entry = self.get(key)?;
        let Kind::List(nodes) = &entry.value.kind else {
            let message = format!("must be a list ([] for none), not {}", entry.value.describe());
            self.fault(key, Code::InvalidField, entry.value.line.max(entry.line), message);
            return None;
        };
        let mut out = Vec::new();
        for node in nodes {
            match &node.kind {
                Kind::Text(text) => out.push(Item { value: text.as_str(), line: node.line }),
                _ => {
                    let message =
                        format!("holds {} where text is expected; put it in quotes", node.describe());
                    self.fault(key, Code::InvalidField, node.line, message);
                }
            }
        }
        Some(out)
    }

    pub(super) fn tools(&mut self, key: &str, known: &dyn Fn(&str) -> bool) -> Vec<Item<String>> {
        if key == "allowed_tools" {
            self.required(key, Code::InvalidField, "a list of tools ([] for none)");
        }
        let Some(texts) = self.texts(key) else { return Vec::new() };
        if key == "allowed_tools" {
            self.report.allowed_tools = Some(texts.iter().map(|t| t.value.to_owned()).collect());
        }
        if texts.len() > MAX_PATTERNS {
            self.fault(
                key,
                Code::InvalidField,
                texts[MAX_PATTERNS].line,
                format!("has {} elements; at most {MAX_PATTERNS} are allowed", texts.len()),
            );
        }
        for tool in &texts {
            if !NATIVE.contains(&tool.value) && !known(tool.value) {
                self.fault(key, Code::UnknownTool, tool.line, unknown_tool(tool.value));
            }
        }
        texts.into_iter().map(|t| Item { value: t.value.to_owned(), line: t.line + OFFSET }).collect()
    }

    pub(super) fn patterns(&mut self, key: &str, code: Code) -> Vec<Item<Pattern>> {
        if key == "allowed_memory_scopes" {
            self.required(key, Code::InvalidField, "a list of memory patterns ([] for none)");
        }
        let Some(texts) = self.texts(key) else { return Vec::new() };
        if key == "allowed_memory_scopes" {
            self.report.allowed_memory_scopes = Some(texts.iter().map(|t| t.value.to_owned()).collect());
        }
        if texts.len() > MAX_PATTERNS {
            let message = format!("has {} patterns; at most {MAX_PATTERNS} are allowed", texts.len());
            self.fault(key, code, texts[MAX_PATTERNS].line, message);
            return Vec::new();
        }
        let mut out = Vec::new();
        for text in texts {
            match Pattern::new(text.value) {
                Ok(value) => out.push(Item { value, line: text.line + OFFSET }),
                Err(e) => self.fault(key, code, text.line, format!("{:?}: {e}", shortened(text.value))),
            }
        }
        out
    }

    pub(super) fn files(&mut self) -> Vec<Item<Pattern>> {
        let patterns = self.patterns("x-allowed-files", Code::InvalidFileGlob);
        for p in &patterns {
            let text = p.value.as_str();
            if !text.starts_with('/') {
                let why =
                    if text.starts_with(['~', '$']) { "; '~' and '$' stand for themselves" } else { "" };
                let message = format!("{:?} must be an absolute path (begin with '/'){why}", shortened(text));
                self.fault("x-allowed-files", Code::InvalidFileGlob, p.line - OFFSET, message);
            }
        }
        patterns
    }

    pub(super) fn domains(&mut self) -> Vec<Item<HostPattern>> {
        let key = "x-allowed-domains";
        let Some(texts) = self.texts(key) else { return Vec::new() };
        if texts.len() > MAX_PATTERNS {
            let message = format!("has {} patterns; at most {MAX_PATTERNS} are allowed", texts.len());
            self.fault(key, Code::InvalidDomain, texts[MAX_PATTERNS].line, message);
            return Vec::new();
        }
        let mut out = Vec::new();
        for text in texts {
            match HostPattern::new(text.value) {
                Ok(value) => out.push(Item { value, line: text.line + OFFSET }),
                Err(e) => self.fault(
                    key,
                    Code::InvalidDomain,
                    text.line,
                    format!("{:?}: {e}", shortened(text.value)),
                ),
            }
        }
        out
    }

    pub(super) fn tags(&mut self) -> Vec<String> {
        let Some(texts) = self.texts("tags") else { return Vec::new() };
        if texts.len() > 10 {
            self.fault(
                "tags",
                Code::InvalidField,
                texts[10].line,
                format!("has {} tags; at most 10 are allowed", texts.len()),
            );
        }
        for tag in &texts {
            let message = if tag.value.chars().count() > 30 {
                format!("{:?} has more than 30 characters", shortened(tag.value))
            } else if let Some(c) = control_character(tag.value) {
                format!("a tag holds a control character or direction mark ({})", c.escape_unicode())
            } else {
                continue;
            };
            self.fault("tags", Code::InvalidField, tag.line, message);
        }
        texts.into_iter().map(|t| t.value.to_owned()).collect()
    }

    pub(super) fn tests(&mut self) -> Vec<serde_json::Value> {
        let Some(entry) = self.get("x-tests") else { return Vec::new() };
        match &entry.value.kind {
            Kind::List(nodes) if nodes.iter().all(|n| matches!(n.kind, Kind::Map(_))) => {
                nodes.iter().map(Node::to_json).collect()
            }
            _ => {
                self.fault(
                    "x-tests",
                    Code::InvalidField,
                    entry.value.line,
                    "must be a list of mappings, one a call",
                );
                Vec::new()
            }
        }
    }
}

fn unknown_tool(name: &str) -> String {
    let name = shortened(name);
    let bare = name.split('(').next().unwrap_or_default().trim();
    let hint = match nearest(bare, NATIVE) {
        Some(tool) if name.contains('(') => format!("; tools take no arguments here, write {tool:?}"),
        Some(tool) => format!("; did you mean {tool:?}?"),
        None if name.contains('*') => "; wildcards are not allowed, name each tool".to_owned(),
        None => format!("; the tools are {}", NATIVE.join(", ")),
    };
    format!("no tool is called {name:?}{hint}")
}

/// Rules that are valid and can never apply (`case 114`): warnings.
impl Reader<'_> {
    pub(super) fn dead_rules(
        &mut self,
        tools: &[Item<String>],
        disallowed: &[Item<String>],
        scopes: &[Item<Pattern>],
        extensions: &Extensions,
    ) {
        let has = |wanted: &[&str]| {
            tools
                .iter()
                .any(|t| wanted.contains(&t.value.as_str()) && !disallowed.iter().any(|d| d.value == t.value))
        };
        let lists = [
            (
                "allowed_memory_scopes",
                scopes.first().map(|i| i.line),
                &["MemoryRead", "MemorySearch", "MemoryEmit"][..],
            ),
            (
                "x-allowed-files",
                extensions.allowed_files.first().map(|i| i.line),
                &["Read", "Write", "Edit", "Glob", "Grep", "Bash"],
            ),
            (
                "x-allowed-domains",
                extensions.allowed_domains.first().map(|i| i.line),
                &["HttpFetch", "HttpPost"],
            ),
        ];
        for (field, line, wanted) in lists {
            if let Some(line) = line
                && !has(wanted)
            {
                let message = format!("has no effect: none of {} is allowed", wanted.join(", "));
                self.warn(field, Code::InvalidField, line - OFFSET, message);
            }
        }
        for scope in scopes {
            if let Some(why) = dead_scope(scope.value.as_str()) {
                let message = format!("{:?} can never match: {why}", shortened(scope.value.as_str()));
                self.warn(
                    "allowed_memory_scopes",
                    Code::InvalidMemoryScopeGlob,
                    scope.line - OFFSET,
                    message,
                );
            }
        }
        for file in &extensions.allowed_files {
            if let Some(why) = dead_path(file.value.as_str().strip_prefix('/').unwrap_or_default()) {
                let message = format!("{:?} can never match: {why}", shortened(file.value.as_str()));
                self.warn("x-allowed-files", Code::InvalidFileGlob, file.line - OFFSET, message);
            }
        }
    }
}

/// Paths are matched in canonical form, which has no such components.
fn dead_path(relative: &str) -> Option<&'static str> {
    if relative.contains(['[', '{', '\\']) {
        return None;
    }
    match relative.split('/').find(|c| matches!(*c, "" | "." | "..")) {
        Some("") if relative.is_empty() => Some("it names no file"),
        Some("") => Some("paths are matched without empty components and without a slash at the end"),
        Some(_) => Some("paths are matched without '.' and '..'"),
        None => None,
    }
}

fn dead_scope(text: &str) -> Option<&'static str> {
    if let Some(why) = dead_path(text) {
        return Some(why);
    }
    let first = text.split('/').next().unwrap_or_default();
    let literal = !first.contains(['*', '?', '[', '{', '\\']);
    (literal && (first != "memories" || first == text)).then_some("memory paths begin with 'memories/'")
}
