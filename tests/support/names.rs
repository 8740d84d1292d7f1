//! What one module names: gathered from its items, its code, its attributes and what macros are given.

use super::super::source::shown;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

/// A module's place in its crate: the names that lead to it.
pub(super) type Place = Vec<String>;

/// What a name in a module is.
pub(super) enum Named {
    /// An item of the module's own.
    Own,
    /// Something that is brought in by `use` from there; from outside the crate, if that is no place in it.
    From(Place),
}

#[derive(Default)]
pub(super) struct Module {
    pub(super) file: PathBuf,
    pub(super) names: BTreeMap<String, Named>,
    /// Where `use …::*` leads.
    pub(super) globs: Vec<Place>,
    /// Every path in it, as it is written, and every word that could be something which a glob brings in.
    pub(super) paths: Vec<Place>,
    pub(super) words: BTreeSet<String>,
}

/// What that name stands for in a module.
pub(super) fn below(place: &[String], name: &str) -> Place {
    [place, &[name.to_owned()]].concat()
}

pub(super) fn parsed(file: &Path, text: &str) -> syn::File {
    syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", shown(file)))
}

/// Whether these attributes leave something out of what is not a test.
pub(super) fn only_in_tests(attributes: &[Attribute]) -> bool {
    let cfg = |a: &Attribute| {
        a.path().is_ident("cfg") && a.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test"))
    };
    attributes.iter().any(cfg)
}

/// Gathers what a module names.
pub(super) struct Reader<'a> {
    module: &'a mut Module,
    /// The modules that it declares.
    pub(super) inline: Vec<syn::ItemMod>,
}

impl Reader<'_> {
    pub(super) fn new(module: &mut Module) -> Reader<'_> {
        Reader { module, inline: Vec::new() }
    }

    fn used(&mut self, before: &[String], tree: &UseTree, top: bool) {
        let joined = |word: &syn::Ident| [before, &[word.to_string()]].concat();
        match tree {
            UseTree::Path(p) => self.used(&joined(&p.ident), &p.tree, top),
            UseTree::Name(n) if n.ident == "self" => {
                self.brought(before.last().cloned(), before.to_vec(), top)
            }
            UseTree::Name(n) => self.brought(Some(n.ident.to_string()), joined(&n.ident), top),
            UseTree::Rename(r) => {
                let path = if r.ident == "self" { before.to_vec() } else { joined(&r.ident) };
                self.brought(Some(r.rename.to_string()), path, top);
            }
            UseTree::Glob(_) => self.module.globs.push(before.to_vec()),
            UseTree::Group(g) => g.items.iter().for_each(|tree| self.used(before, tree, top)),
        }
    }

    fn brought(&mut self, name: Option<String>, path: Place, top: bool) {
        self.module.paths.push(path.clone());
        if let (Some(name), true) = (name, top) {
            self.module.names.insert(name, Named::From(path));
        }
    }

    /// Words that stand with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Place = Vec::new();
        let mut colons = 0;
        let done = |reader: &mut Self, path: &mut Place| {
            if !path.is_empty() {
                reader.path(std::mem::take(path));
            }
        };
        for token in tokens {
            match token {
                TokenTree::Ident(word) => {
                    if colons != 2 {
                        done(self, &mut path);
                    }
                    path.push(word.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' => colons += 1,
                TokenTree::Literal(text) => {
                    done(self, &mut path);
                    colons = 0;
                    // `#[serde(with = "crate::hex")]`
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&text.to_string())
                        && let Ok(named) = syn::parse_str::<syn::Path>(&text.value())
                        && named.segments.len() > 1
                    {
                        self.path(named.segments.iter().map(|s| s.ident.to_string()).collect());
                    }
                }
                TokenTree::Group(group) => {
                    // `a::{b, c}` in what a macro is given: each of them.
                    if colons == 2 && group.delimiter() == proc_macro2::Delimiter::Brace {
                        let tree = syn::parse2::<UseTree>(quoted(&path, &group));
                        if let Ok(tree) = tree {
                            self.used(&[], &tree, false);
                        }
                    }
                    done(self, &mut path);
                    colons = 0;
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) => {
                    done(self, &mut path);
                    colons = 0;
                }
            }
        }
        done(self, &mut path);
    }

    fn path(&mut self, path: Place) {
        self.module.words.insert(path[0].clone());
        if path.len() > 1 {
            self.module.paths.push(path);
        }
    }
}

/// `path::{…}` as tokens.
fn quoted(path: &[String], group: &proc_macro2::Group) -> TokenStream {
    format!("{}::{group}", path.join("::")).parse().unwrap_or_default()
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name): (&[Attribute], _) = match item {
            Item::Const(i) => (&i.attrs, Some(&i.ident)),
            Item::Enum(i) => (&i.attrs, Some(&i.ident)),
            Item::Fn(i) => (&i.attrs, Some(&i.sig.ident)),
            Item::Impl(i) => (&i.attrs, None),
            Item::Macro(i) => (&i.attrs, i.ident.as_ref()),
            Item::Mod(i) => (&i.attrs, None),
            Item::Static(i) => (&i.attrs, Some(&i.ident)),
            Item::Struct(i) => (&i.attrs, Some(&i.ident)),
            Item::Trait(i) => (&i.attrs, Some(&i.ident)),
            Item::Type(i) => (&i.attrs, Some(&i.ident)),
            Item::Union(i) => (&i.attrs, Some(&i.ident)),
            Item::Use(i) => (&i.attrs, None),
            other => panic!("an item that is not followed: {other:?}", other = std::mem::discriminant(other)),
        };
        if only_in_tests(attributes) {
            return;
        }
        if let Some(name) = name {
            self.module.names.entry(name.to_string()).or_insert(Named::Own);
        }
        match item {
            Item::Mod(module) => self.inline.push(module.clone()),
            Item::Use(used) => self.used(&[], &used.tree, true),
            _ => syn::visit::visit_item(self, item),
        }
    }

    /// In a function's body: what it names is named, and only there.
    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        match statement {
            syn::Stmt::Item(Item::Use(used)) => self.used(&[], &used.tree, false),
            _ => syn::visit::visit_stmt(self, statement),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes: &[Attribute] = match item {
            syn::ImplItem::Fn(f) => &f.attrs,
            syn::ImplItem::Const(c) => &c.attrs,
            _ => &[],
        };
        if !only_in_tests(attributes) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !only_in_tests(&field.attrs) {
            syn::visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !only_in_tests(&local.attrs) {
            syn::visit::visit_local(self, local);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.path(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // A comment is no code, and names of a derive are followed like others.
        if !attribute.path().is_ident("doc")
            && let syn::Meta::List(list) = &attribute.meta
        {
            self.tokens(list.tokens.clone());
        }
    }
}
