//! Patterns of a frontmatter against patterns of the operator: a path must match one of each (`[4.0]`). Pure; paths
//! come in canonical form.

use super::operator::Grantor;
use crate::glob::{Pattern, escaped};
use crate::skill::Item;
use crate::terminal::turns_direction;
use std::path::{Path, PathBuf};

/// One list of wishes with those who can grant it.
#[derive(Debug)]
pub(super) struct Rules {
    /// The key in SKILL.md.
    pub(super) field: &'static str,
    /// The key in a set of grants.
    pub(super) set_key: &'static str,
    pub(super) skill_id: String,
    pub(super) wishes: Vec<Item<Pattern>>,
    pub(super) grantors: Vec<Grantor<Pattern>>,
}

/// What the two lists say about a path.
pub(super) enum Verdict<'a> {
    Granted,
    /// No pattern of the frontmatter matches.
    NotWished,
    /// This one does, and no operator's.
    NotGranted(&'a Item<Pattern>),
}

impl Rules {
    pub(super) fn judge(&self, path: &Path) -> Verdict<'_> {
        match self.wishes.iter().find(|w| w.value.matches(path)) {
            None => Verdict::NotWished,
            Some(wish) if !self.effective().any(|g| g.admits(path)) => Verdict::NotGranted(wish),
            Some(_) => Verdict::Granted,
        }
    }

    /// Those who grant now.
    pub(super) fn effective(&self) -> impl Iterator<Item = &Grantor<Pattern>> {
        self.grantors.iter().filter(|g| !g.offered)
    }

    /// `allowed_memory_scopes line 7`, of the pattern nearest to `path`.
    pub(super) fn field_rule(&self, path: &Path) -> String {
        match self.nearest_wish(path) {
            Some(wish) => format!("{} line {}", self.field, wish.line),
            None => self.field.to_owned(),
        }
    }

    /// Why the frontmatter does not let `path` through, and what would (`[7.6]`).
    pub(super) fn not_wished(&self, path: &Path) -> String {
        self.not_wished_but(path, None)
    }

    /// The same, proposing `pattern` in place of the path itself.
    pub(super) fn not_wished_but(&self, path: &Path, pattern: Option<&str>) -> String {
        let nearest = match self.nearest_wish(path) {
            Some(wish) => format!("the nearest is {:?} on line {}", wish.value.as_str(), wish.line),
            None => "it lists nothing".to_owned(),
        };
        let line = pattern.map_or_else(|| proposal(path), |pattern| format!("{pattern:?}"));
        let also = if self.effective().any(|g| g.admits(path)) {
            String::new()
        } else {
            format!(", together with a grant of the operator's ({} does not give it)", self.grantor_names())
        };
        format!(
            "{} matches no pattern of {} in SKILL.md; {nearest}. The line `- {line}` there would allow it{also}.",
            shown(path),
            self.field
        )
    }

    /// Why the operator does not let `path` through, though `wish` asks for it.
    pub(super) fn not_granted(&self, path: &Path, wish: &Item<Pattern>) -> String {
        self.not_granted_but(path, wish, None)
    }

    /// The same, proposing `pattern` in place of the path itself.
    pub(super) fn not_granted_but(&self, path: &Path, wish: &Item<Pattern>, pattern: Option<&str>) -> String {
        let line = pattern.map_or_else(|| proposal(path), |pattern| format!("{pattern:?}"));
        let nearest = self
            .effective()
            .filter_map(Grantor::list)
            .flatten()
            .max_by_key(|p| common(p, path))
            .map_or("gives none".to_owned(), |p| format!("gives {:?} at nearest", p.as_str()));
        let offer = if self.grantors.iter().any(|g| g.offered && g.admits(path)) {
            format!(", or `cyberos skill approve {}`", self.skill_id)
        } else {
            String::new()
        };
        format!(
            "{} is asked for by {:?} ({} line {}), but {} {nearest}. `{}: [{}]` under grants.skills.{} in \
             cyberos.yaml would allow it{offer}.",
            shown(path),
            wish.value.as_str(),
            self.field,
            wish.line,
            self.grantor_names(),
            self.set_key,
            line,
            self.skill_id
        )
    }

    /// `grants.default.files (cyberos.yaml line 12)`, of all who grant now.
    pub(super) fn grantor_names(&self) -> String {
        self.effective().map(Grantor::named).collect::<Vec<_>>().join(" or ")
    }

    fn nearest_wish(&self, path: &Path) -> Option<&Item<Pattern>> {
        self.wishes.iter().max_by_key(|w| common(&w.value, path))
    }

    /// The wishes that the operator does not grant in full, each as a line for the operator.
    pub(super) fn shortfall(&self) -> Vec<String> {
        let mut out = Vec::new();
        for wish in &self.wishes {
            if self
                .effective()
                .any(|g| g.list().is_none_or(|list| list.iter().any(|p| covers(p, &wish.value))))
            {
                continue;
            }
            let part: Vec<&str> = self
                .effective()
                .filter_map(Grantor::list)
                .flatten()
                .filter(|p| deeper(p.root(), wish.value.root()).is_some())
                .map(Pattern::as_str)
                .collect();
            let how = if part.is_empty() {
                format!("{} does not give it", self.grantor_names())
            } else {
                format!("{} gives {} of it at most", self.grantor_names(), part.join(", "))
            };
            out.push(format!("{} line {}: {} ({how})", self.field, wish.line, wish.value));
        }
        out
    }
}

/// Whether `grant` surely matches all that `wish` matches: equal, or a tree that holds the wish's literal part.
fn covers(grant: &Pattern, wish: &Pattern) -> bool {
    let text = grant.as_str();
    if text == wish.as_str() || text == "**" {
        return true;
    }
    let Some(tree) = text.strip_suffix("/**") else { return false };
    let plain = !tree.contains(['*', '?', '[', '{', '\\']);
    plain
        && wish
            .as_str()
            .strip_prefix(tree)
            .is_some_and(|rest| rest.starts_with('/') && rest.len() > 1 && !rest.contains(".."))
}

/// The deeper of two directories if one holds the other.
pub(super) fn deeper(a: PathBuf, b: PathBuf) -> Option<PathBuf> {
    if a.starts_with(&b) {
        Some(a)
    } else if b.starts_with(&a) {
        Some(b)
    } else {
        None
    }
}

/// How many leading bytes of pattern and path are the same: which rule a person would look at first.
fn common(pattern: &Pattern, path: &Path) -> usize {
    let path = path.as_os_str().as_encoded_bytes();
    pattern.as_str().bytes().zip(path).take_while(|(a, b)| a == *b).count()
}

/// The pattern that allows `path` alone (its control characters apart), quoted for YAML; what a terminal may not show as it is, is escaped.
fn proposal(path: &Path) -> String {
    let mut out = String::from("\"");
    for c in escaped(&path.to_string_lossy()).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() => out.push(c),
            // Patterns hold no control characters and no direction marks; `?` is one byte.
            c if c.is_control() || turns_direction(c) => out.extend(std::iter::repeat_n('?', c.len_utf8())),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

fn shown(path: &Path) -> String {
    format!("{path:?}")
}
