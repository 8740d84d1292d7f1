//! Reads a crate's modules from its sources and says which of them names which: every path in code, in attributes and in
//! what macros are given, followed through each `use` and re-export to where the thing is defined. Tests are left out.
//!
//! It knows no rule. What it cannot follow is a panic and never silence: an arrow that is missed would be a hole in
//! every check that rests on this.
#![allow(dead_code, reason = "each test file is a crate of its own and uses a part of this")]

#[path = "names.rs"]
mod names;

use super::source::{read, root, shown};
use names::{Module, Named, Place, Reader, below, parsed};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::Item;
use syn::visit::Visit;

/// How a crate's root is called among its modules.
const ROOT: &str = "the root";

/// A crate's modules, without its tests.
pub(crate) struct Modules {
    all: BTreeMap<Place, Module>,
}

/// Who names whom: pairs of files, from the top of the repository.
pub(crate) type Arrows = BTreeSet<(String, String)>;

impl Modules {
    /// Of the crate whose root is this file, from the top of the repository.
    pub(crate) fn of(crate_root: &str) -> Modules {
        let mut modules = Modules { all: BTreeMap::new() };
        let file = root().join(crate_root);
        let items = parsed(&file, &read(&file)).items;
        let folder = file.parent().unwrap().to_owned();
        modules.take(Vec::new(), &file, &folder, &items);
        modules
    }

    /// Of sources that are given here, by their names; `lib.rs` is the root.
    pub(crate) fn of_sources(sources: &[(&str, &str)]) -> Modules {
        let mut modules = Modules { all: BTreeMap::new() };
        for (name, text) in sources {
            let place: Place =
                name.trim_end_matches(".rs").split('/').filter(|n| *n != "lib").map(String::from).collect();
            let items = parsed(Path::new(name), text).items;
            // Modules without a body are among the sources.
            let items: Vec<Item> =
                items.into_iter().filter(|i| !matches!(i, Item::Mod(m) if m.content.is_none())).collect();
            modules.take(place, Path::new(name), Path::new(""), &items);
        }
        modules
    }

    /// The modules right below the root, by name.
    pub(crate) fn first_level(&self) -> BTreeSet<&str> {
        self.all.keys().filter(|place| place.len() == 1).map(|place| place[0].as_str()).collect()
    }

    /// The names that lead to the module that has this file: none for the root.
    fn place_of(&self, file: &str) -> &[String] {
        let own = self.all.iter().find(|(_, module)| shown(&module.file) == file);
        own.map_or(&[], |(place, _)| place)
    }

    /// Who names whom of the modules right below the root; what the root itself names is left out, since it names all.
    pub(crate) fn between_first_level(&self) -> Arrows {
        let first = |file: &str| self.place_of(file).first().cloned();
        let arrows = self.arrows();
        let named = arrows.iter().filter_map(|(from, to)| {
            let to = first(to).unwrap_or_else(|| ROOT.to_owned());
            Some((first(from)?, to))
        });
        let own = arrows.iter().filter(|(from, _)| first(from).is_none());
        let own = own.filter_map(|(_, to)| Some((ROOT.to_owned(), first(to)?)));
        // Only where somebody names what the root defines is the root one more module.
        let named: Arrows = named.filter(|(from, to)| from != to).collect();
        if named.iter().any(|(_, to)| to == ROOT) { named.into_iter().chain(own).collect() } else { named }
    }

    /// Who names whom of the files of one folder. What a folder's head says to its own files, and they to it, is left out:
    /// it declares them, and is there to be shared by them.
    pub(crate) fn between_siblings(&self) -> Arrows {
        let mut arrows = self.arrows();
        arrows.retain(|(from, to)| {
            let (from, to) = (self.place_of(from), self.place_of(to));
            from.first() == to.first() && !from.starts_with(to) && !to.starts_with(from)
        });
        arrows
    }

    fn take(&mut self, place: Place, file: &Path, folder: &Path, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut reader = Reader::new(&mut module);
        items.iter().for_each(|item| reader.visit_item(item));
        let inline = reader.inline;
        for item in items {
            if let Item::Macro(m) = item
                && let Some(name) = &m.ident
            {
                // By `macro_export` it is the root's, by `use` the module's; either way it is written here.
                module.names.insert(name.to_string(), Named::Own);
                if m.attrs.iter().any(|a| a.path().is_ident("macro_export")) && !place.is_empty() {
                    let root = self.all.entry(Vec::new()).or_default();
                    let path = [place.clone(), vec![name.to_string()]].concat();
                    root.names.insert(name.to_string(), Named::From(path));
                }
            }
        }
        let declared = self.all.entry(place.clone()).or_default();
        let exported = std::mem::take(&mut declared.names);
        *declared = module;
        declared.names.extend(exported);
        for item in inline {
            let next = below(&place, &item.ident.to_string());
            match &item.content {
                Some((_, items)) => self.take(next, file, &folder.join(item.ident.to_string()), items),
                None => {
                    let name = item.ident.to_string();
                    let named = item.attrs.iter().find(|a| a.path().is_ident("path"));
                    assert!(named.is_none(), "{}: a module with #[path] is not followed", shown(file));
                    let file = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")]
                        .into_iter()
                        .find(|f| f.exists())
                        .unwrap_or_else(|| panic!("{}: no file of the module {name}", shown(file)));
                    let items = parsed(&file, &read(&file)).items;
                    self.take(next, &file, &folder.join(&name), &items);
                }
            }
        }
    }

    /// Who names whom, file by file: the file in which a name is written leads to each file through which the name is
    /// followed, and to the one that defines it. Through the crate's root alone a name only passes.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut found = Arrows::new();
        for (place, module) in &self.all {
            let mut reached: BTreeSet<&Path> = BTreeSet::new();
            for path in &module.paths {
                self.follow(place, path, &mut reached);
            }
            for glob in &module.globs {
                if let Some(target) = self.absolute(place, glob) {
                    if !target.is_empty() {
                        self.enter(&target, &mut reached);
                    }
                    for word in &module.words {
                        let path = below(&target, word);
                        if self.names(&target, word) {
                            self.walk(&path, &mut reached, 0);
                        }
                    }
                }
            }
            let from = shown(&module.file);
            found.extend(
                reached.into_iter().filter(|f| *f != module.file).map(|to| (from.clone(), shown(to))),
            );
        }
        found
    }

    fn names(&self, place: &[String], word: &str) -> bool {
        self.all.get(place).is_some_and(|m| m.names.contains_key(word))
    }

    fn enter<'a>(&'a self, place: &[String], reached: &mut BTreeSet<&'a Path>) {
        if let Some(module) = self.all.get(place) {
            reached.insert(&module.file);
        }
    }

    fn follow<'a>(&'a self, place: &[String], path: &[String], reached: &mut BTreeSet<&'a Path>) {
        if let Some(path) = self.absolute(place, path) {
            self.walk(&path, reached, 0);
        }
    }

    /// A path as it is written in a module, from the crate's root; None if it leads out of the crate.
    fn absolute(&self, place: &[String], path: &[String]) -> Option<Place> {
        let mut at = place.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|w| w == "super") {
                    assert!(at.pop().is_some(), "{path:?} leads above the root");
                    rest = &rest[1..];
                }
            }
            first => {
                let next = below(place, first);
                match self.all.get(place).and_then(|m| m.names.get(first)) {
                    _ if self.all.contains_key(&next) => {}
                    Some(Named::From(to)) => {
                        // `use time::time`: what begins with its own name begins with a crate's.
                        if to[0] == first {
                            return None;
                        }
                        return self.absolute(place, &[&to[..], &rest[1..]].concat());
                    }
                    Some(Named::Own) => {}
                    None => return None,
                }
            }
        }
        at.extend_from_slice(rest);
        Some(at)
    }

    /// Follows a path from the root. Each file that it passes by a re-export is reached, and the one where it ends.
    fn walk<'a>(&'a self, path: &[String], reached: &mut BTreeSet<&'a Path>, depth: usize) {
        assert!(depth < 32, "{path:?} leads round in a circle of re-exports");
        let mut at: Place = Vec::new();
        for (i, word) in path.iter().enumerate() {
            let next = below(&at, word);
            if self.all.contains_key(&next) {
                at = next;
                continue;
            }
            let module = &self.all[&at];
            match module.names.get(word) {
                Some(Named::From(to)) => {
                    if !at.is_empty() {
                        reached.insert(&module.file);
                    }
                    if let Some(target) = self.absolute(&at, &[&to[..], &path[i + 1..]].concat()) {
                        self.walk(&target, reached, depth + 1);
                    }
                    return;
                }
                Some(Named::Own) => break,
                None => {
                    // What a glob brings in, or what a macro defines; in the root there is no such thing.
                    for glob in &module.globs {
                        if let Some(target) = self.absolute(&at, glob)
                            && (self.names(&target, word) || self.all.contains_key(&below(&target, word)))
                        {
                            if !at.is_empty() {
                                reached.insert(&module.file);
                            }
                            let path = [&target[..], &path[i..]].concat();
                            return self.walk(&path, reached, depth + 1);
                        }
                    }
                    assert!(!at.is_empty(), "crate::{} is followed nowhere", path.join("::"));
                    break;
                }
            }
        }
        self.enter(&at, reached);
    }
}

/// The arrows that belong to a circle: both ends can be reached from each other.
pub(crate) fn in_circles(arrows: &Arrows) -> Arrows {
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, _) in arrows {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open = vec![from.as_str()];
        while let Some(next) = open.pop() {
            for (_, to) in arrows.iter().filter(|(f, _)| f == next) {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        reach.insert(from, seen);
    }
    let leads = |from: &str, to: &str| reach.get(from).is_some_and(|r| r.contains(to));
    arrows.iter().filter(|(from, to)| leads(to, from)).cloned().collect()
}
