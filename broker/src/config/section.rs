//! One mapping of the configuration, read key by key. Every key that is asked for is known; what is left at the end is
//! an error. It knows types and ranges, and no key's meaning.

use super::faults::ConfigFault;
use crate::glob::MAX_PATTERNS;
use crate::words::{nearest, shortened};
use crate::yaml::{Entry, Kind, Node};
use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

/// A mapping under `path`; faults are collected for the whole file.
pub(super) struct Section<'a> {
    path: String,
    entries: &'a [Entry],
    asked: RefCell<Vec<&'static str>>,
    faults: &'a RefCell<Vec<ConfigFault>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(path: &str, node: &'a Node, faults: &'a RefCell<Vec<ConfigFault>>) -> Self {
        let entries: &[Entry] = match &node.kind {
            Kind::Map(entries) => entries,
            // A section whose keys are all commented out.
            Kind::Null => &[],
            _ => {
                let message = format!("must be keys with values, not {}", node.describe());
                faults.borrow_mut().push(ConfigFault { key: path.to_owned(), line: node.line, message });
                &[]
            }
        };
        Section { path: path.to_owned(), entries, asked: RefCell::default(), faults }
    }

    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn fault(&self, key: &str, line: u32, message: impl Into<String>) {
        let fault = ConfigFault { key: self.key(key), line, message: message.into() };
        self.faults.borrow_mut().push(fault);
    }

    /// The value of a known key.
    pub(super) fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.asked.borrow_mut().push(key);
        self.entries.iter().find(|e| e.key == key).map(|e| &e.value)
    }

    /// All entries of a mapping whose keys are names.
    pub(super) fn entries(&self) -> &'a [Entry] {
        self.entries
    }

    /// A mapping below this one.
    pub(super) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        self.get(key).map(|node| Section::new(&self.key(key), node, self.faults))
    }

    /// The mapping `node` under a name that is not a key of this file's own.
    pub(super) fn below(&self, name: &str, node: &'a Node) -> Section<'a> {
        Section::new(&self.key(name), node, self.faults)
    }

    /// Reports every key that nobody has asked for.
    pub(super) fn finish(&self) {
        self.finish_without(&[]);
    }

    /// The same, where some keys that are known are none to propose.
    pub(super) fn finish_without(&self, useless: &[&str]) {
        let asked = self.asked.borrow();
        let proposed: Vec<&str> = asked.iter().copied().filter(|key| !useless.contains(key)).collect();
        for entry in self.entries.iter().filter(|e| !asked.contains(&e.key.as_str())) {
            let known = match nearest(&entry.key, proposed.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("known here are {}", proposed.join(", ")),
            };
            self.fault(&shortened(&entry.key), entry.line, format!("unknown key; {known}"));
        }
    }

    /// `value` parsed by `parse`, whose error says what is expected.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&'a Node) -> Result<T, String>,
    ) -> Option<T> {
        let node = self.get(key)?;
        match parse(node) {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault(key, node.line, message);
                None
            }
        }
    }

    pub(super) fn whole(&self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        self.parsed(key, |node| {
            node.as_whole().filter(|n| (min..=max).contains(n)).ok_or_else(|| {
                format!(
                    "must be a whole number from {min} to {max}, in plain digits, not {}",
                    node.describe()
                )
            })
        })
    }

    pub(super) fn truth(&self, key: &'static str) -> Option<bool> {
        self.parsed(key, |node| match node.kind {
            Kind::Bool(b) => Ok(b),
            _ => Err(format!("must be true or false, not {}", node.describe())),
        })
    }

    pub(super) fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        self.parsed(key, |node| {
            let found = match &node.kind {
                Kind::Text(text) => choices.iter().find(|c| c.0 == text),
                _ => None,
            };
            let words = || choices.iter().map(|c| c.0).collect::<Vec<_>>().join(" or ");
            found.map(|c| c.1).ok_or_else(|| format!("must be {}, not {}", words(), node.describe()))
        })
    }

    pub(super) fn path(&self, key: &'static str) -> Option<PathBuf> {
        self.parsed(key, path)
    }

    /// The elements of a list, each parsed; a fault names the element's line.
    pub(super) fn list<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&'a Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let node = self.get(key)?;
        self.elements(key, node, parse)
    }

    pub(super) fn elements<T>(
        &self,
        key: &str,
        node: &'a Node,
        parse: impl Fn(&'a Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let Kind::List(nodes) = &node.kind else {
            self.fault(key, node.line, format!("must be a list ([] for none), not {}", node.describe()));
            return None;
        };
        if nodes.len() > MAX_PATTERNS {
            self.fault(
                key,
                node.line,
                format!("has {} elements; at most {MAX_PATTERNS} are allowed", nodes.len()),
            );
            return None;
        }
        let mut out = Vec::with_capacity(nodes.len());
        for node in nodes {
            match parse(node) {
                Ok(value) => out.push(value),
                Err(message) => self.fault(key, node.line, message),
            }
        }
        Some(out)
    }
}

pub(super) fn text(node: &Node) -> Result<&str, String> {
    match &node.kind {
        Kind::Text(text) => Ok(text),
        _ => Err(format!("must be text, not {}; put it in quotes", node.describe())),
    }
}

/// An absolute path in normal form.
pub(super) fn path(node: &Node) -> Result<PathBuf, String> {
    let text = text(node)?;
    let path = Path::new(text);
    let normal = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    let spelt = path.components().as_path().as_os_str() == path.as_os_str();
    if !path.is_absolute() || !normal || !spelt || text == "/" || text.contains(char::is_control) {
        return Err(format!(
            "must be an absolute path, without '.', '..', '//' or a slash at the end, not {:?}",
            shortened(text)
        ));
    }
    Ok(path.to_owned())
}
