//! What one room of the broker does and no other: refusing a call, and asking the helper for a sandbox. And what there is one
//! of in all crates: a second way of opening beneath, another set of characters that turn the direction, another list of
//! what is never granted would be looked after less than the first. The sources are read for it, tests left out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "support/source.rs"]
mod source;

use source::{code, files, has_word, is_test, read, shown};
use std::collections::BTreeSet;
use syn::visit::Visit;

/// Where a refusal may be made: in the one room that refuses (`[4.1]`), and where the two kinds are one type.
const REFUSES: &[&str] = &["broker/src/grants/", "broker/src/call.rs"];

/// Who has the helper prepare a sandbox, beside its client, which is told by whom (`[10.2]`).
const PREPARES: &str = "broker/src/sandbox.rs";
const CLIENT: &str = "broker/src/helper.rs";

/// What there is one of: in which file, and the words of the sources that no other has.
const ONE_OF_EACH: &[(&str, &[&str])] = &[
    ("proto/src/beneath.rs", &["openat2", "OpenHow", "RESOLVE_BENEATH"]),
    ("proto/src/invoker.rs", &["\"SUDO_UID\""]),
    ("proto/src/terminal.rs", &["u{202a}", "u{2066}", "u{200e}"]),
    ("proto/src/ungrantable.rs", &["\"/etc/shadow", "\"/tmp/cyberos-\"", "\"/boot\""]),
];

/// Who has such a word and another use for it. The list shrinks.
const OTHERS: &[(&str, &str)] = &[
    // Where a sandbox has something of its own.
    ("proto/src/plan.rs", "\"/boot\""),
];

/// What is looked for in one file.
#[derive(Default)]
struct Seen {
    refuses: bool,
    asks: bool,
}

fn only_in_tests(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|a| a.path().is_ident("cfg") && a.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test")))
}

/// The last two words of a path.
fn ends(path: &syn::Path) -> (String, String) {
    let mut words = path.segments.iter().rev().map(|s| s.ident.to_string());
    let last = words.next().unwrap_or_default();
    (words.next().unwrap_or_default(), last)
}

impl Seen {
    /// What an expression makes or calls by this path.
    fn made(&mut self, path: &syn::Path) {
        match (ends(path).0.as_str(), ends(path).1.as_str()) {
            (_, "Denial") | ("Refusal", "Denied" | "BadParams") => self.refuses = true,
            ("Request", "Prepare") => self.asks = true,
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Seen {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !only_in_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !only_in_tests(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !only_in_tests(&item.attrs) {
            syn::visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        self.made(&made.path);
        syn::visit::visit_expr_struct(self, made);
    }

    /// `Refusal::BadParams(…)`, and the function of that name where one is wanted.
    fn visit_expr_path(&mut self, named: &'ast syn::ExprPath) {
        self.made(&named.path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let receiver = match &*call.receiver {
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => name.to_string(),
                syn::Member::Unnamed(_) => String::new(),
            },
            syn::Expr::Path(path) => ends(&path.path).1,
            _ => String::new(),
        };
        self.asks |= receiver == "helper" && call.method == "prepare";
        syn::visit::visit_expr_method_call(self, call);
    }
}

fn seen(text: &str) -> Seen {
    let mut seen = Seen::default();
    seen.visit_file(&syn::parse_file(text).unwrap());
    seen
}

/// The broker's files that do it.
fn who(does: impl Fn(&Seen) -> bool) -> BTreeSet<String> {
    let sources = files("broker/src", &[".rs"]);
    let own = sources.iter().map(|f| (shown(f), f)).filter(|(name, _)| !is_test(name));
    own.filter(|(_, file)| does(&seen(&read(file)))).map(|(name, _)| name).collect()
}

#[test]
fn only_the_grants_refuse_a_call() {
    let all = who(|s| s.refuses);
    assert!(all.iter().any(|f| f.starts_with("broker/src/grants/")), "the check finds nothing: {all:?}");
    let elsewhere: Vec<_> = all.iter().filter(|f| !REFUSES.iter().any(|room| f.starts_with(room))).collect();
    assert!(elsewhere.is_empty(), "a refusal is made in {elsewhere:?}; only {REFUSES:?} may");
}

#[test]
fn one_room_has_the_helper_prepare_sandboxes() {
    let mut all = who(|s| s.asks);
    assert!(all.remove(CLIENT), "the check does not find the client itself");
    assert_eq!(all, BTreeSet::from([PREPARES.to_owned()]));
}

/// A source without its tests, and without comments.
fn own_text(text: &str) -> String {
    let own = text.split_once("\n#[cfg(test)]").map_or(text, |(own, _)| own);
    own.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn there_is_one_of_each_security_primitive() {
    let mut found = BTreeSet::new();
    let folders = ["proto/src", "priv-helper/src", "broker/src", "skillfs/src"];
    for file in folders.iter().flat_map(|folder| files(folder, &[".rs"])) {
        let name = shown(&file);
        if is_test(&name) {
            continue;
        }
        let text = own_text(&read(&file));
        for (one, words) in ONE_OF_EACH {
            for word in *words {
                let is_name = word.chars().all(|c| c.is_alphanumeric() || c == '_');
                let has = if is_name { has_word(&code(&text), word) } else { text.contains(word) };
                assert!(has || name != *one, "the check does not find {word} in {one} itself");
                if has && name != *one {
                    found.insert((name.clone(), *word));
                }
            }
        }
    }
    let known: BTreeSet<_> = OTHERS.iter().map(|(name, word)| ((*name).to_owned(), *word)).collect();
    let more: Vec<_> = found.difference(&known).collect();
    assert!(more.is_empty(), "there is one of these already, see ONE_OF_EACH: {more:?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "take these off OTHERS: {gone:?}");
}

#[test]
fn the_check_sees_what_is_made_and_not_what_is_looked_at() {
    for makes in [
        "fn f() { Err(Denial { class, ..plain() }) }",
        "fn f() { crate::call::Denial { class } }",
        "fn f() { x.map_err(Refusal::BadParams) }",
        "fn f() { Refusal::Denied(Box::new(d)) }",
    ] {
        assert!(seen(makes).refuses, "{makes}");
    }
    for asks in [
        "fn f() { helper.prepare(id).await }",
        "fn f() { link.ask(Request::Prepare { sandbox, plan }) }",
        "fn f() { link.ask(message::Request::Prepare { plan }) }",
    ] {
        assert!(seen(asks).asks, "{asks}");
    }
    for looks in [
        "fn f(d: &Denial) { let Denial { reason, .. } = d; match r { Refusal::Denied(d) => {} Refusal::BadParams(_) => {} } }",
        "#[cfg(test)] mod tests { fn f() { Denial { class }; helper.spawn(id) } }",
        "fn f() { tokio::spawn(x); command.spawn(); matches!(r, Request::Prepare { .. }) }",
        "struct Denial { class: u8 } impl From<Denial> for Refusal {}",
    ] {
        assert!(!seen(looks).refuses && !seen(looks).asks, "{looks}");
    }
}
