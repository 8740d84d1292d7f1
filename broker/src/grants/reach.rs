//! Into which of the machine's top directories a list of patterns reaches: what an operator can take in at a glance, of
//! patterns that were written so that he cannot. It grants nothing and opens nothing but `/`, to list it.

use crate::glob::Pattern;
use cyberos_proto::ungrantable::TREES;
use std::path::{Component, Path};

/// The directories of `/` in which one of `patterns` can match something, sorted; `/` alone if that is all of them.
pub fn reaches<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Vec<String> {
    let entries = std::fs::read_dir("/").into_iter().flatten().flatten();
    let folders = entries.filter(|e| e.path().is_dir());
    let names: Vec<String> = folders.filter_map(|e| e.file_name().into_string().ok()).collect();
    among(names, patterns)
}

fn among<'p>(mut names: Vec<String>, patterns: impl Iterator<Item = &'p Pattern>) -> Vec<String> {
    // No grant opens these, whatever a pattern says.
    names.retain(|name| !TREES.iter().any(|tree| tree.strip_prefix('/') == Some(name)));
    names.sort();
    let patterns: Vec<&Pattern> = patterns.collect();
    let all = names.len();
    names.retain(|name| patterns.iter().any(|pattern| reaches_one(pattern, name)));
    if names.len() == all && all > 0 {
        return vec!["/".to_owned()];
    }
    names.into_iter().map(|name| format!("/{name}")).collect()
}

fn reaches_one(pattern: &Pattern, name: &str) -> bool {
    let root = pattern.root();
    if let Some(Component::Normal(first)) = root.components().nth(1) {
        return first == name;
    }
    let text = pattern.as_str().trim_start_matches('/');
    let first = text.split('/').next().unwrap_or_default();
    // Braces may hold slashes; what cannot be told apart reaches everything.
    if first.contains("**") || first.contains(['{', '}']) {
        return true;
    }
    let first = Pattern::new(&format!("/{first}"));
    first.map_or(true, |first| first.matches(Path::new("/").join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_reaches_where_it_can_match() {
        let names = || ["etc", "home", "srv", "proc", "var"].map(String::from).to_vec();
        let of = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|p| Pattern::new(p).unwrap()).collect();
            among(names(), patterns.iter()).join(" ")
        };
        assert_eq!(of(&["/srv/work/**", "/etc/passwd"]), "/etc /srv");
        assert_eq!(of(&["/**"]), "/");
        assert_eq!(of(&["/?ome/*/.ssh/**", "/[v]ar/**", "/nowhere/**"]), "/home /var");
        assert_eq!(of(&["/{srv/a,etc}/**"]), "/", "not told apart");
        assert_eq!(of(&["/proc/**"]), "");
        assert_eq!(of(&["/srv"]), "/srv");
    }
}
