//! Who imports whom inside a crate, checked by machine: what is written in sources is followed to where it leads, and no two
//! modules may lead to each other. And each crate's map at the head of its root names every module.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

#[path = "support/modules.rs"]
mod modules;
#[path = "support/source.rs"]
mod source;

use modules::{Arrows, Modules, in_circles};
use source::{has_word, read, root};
use std::collections::BTreeSet;

const CRATES: [&str; 4] =
    ["proto/src/lib.rs", "priv-helper/src/main.rs", "broker/src/lib.rs", "skillfs/src/lib.rs"];

/// The arrows that today's circles consist of: between modules right below a crate's root, and between the files of one
/// folder. The list only shrinks. Who cuts a circle takes its arrows off, by hand or with [`UPDATE`]; nobody adds one.
const CIRCLES: &str = "tests/vectors/circles.txt";
const UPDATE: &str = "CYBEROS_UPDATE_CIRCLES";

/// `broker/src/grants/admit.rs` as `grants/admit`.
fn short(file: &str, crate_root: &str) -> String {
    let src = crate_root.rsplit_once('/').unwrap().0;
    let name = file.strip_prefix(src).map_or(file, |f| f.trim_start_matches('/'));
    name.trim_end_matches(".rs").trim_end_matches("/mod").to_owned()
}

fn circles(crate_root: &str) -> Arrows {
    let modules = Modules::of(crate_root);
    let siblings = in_circles(&modules.between_siblings());
    let siblings = siblings.iter().map(|(from, to)| (short(from, crate_root), short(to, crate_root)));
    in_circles(&modules.between_first_level()).into_iter().chain(siblings).collect()
}

#[test]
fn no_two_modules_of_a_crate_lead_to_each_other_but_for_the_circles_of_today() {
    let text = read(&root().join(CIRCLES));
    let listed: BTreeSet<String> =
        text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    for crate_root in CRATES {
        let name = crate_root.split('/').next().unwrap();
        found.extend(circles(crate_root).into_iter().map(|(from, to)| format!("{name}: {from} -> {to}")));
    }
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "each of these imports leads back to where it comes from: {new:#?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    if !gone.is_empty() && std::env::var_os(UPDATE).is_some() {
        let stays = |line: &&str| !gone.iter().any(|g| g == line);
        let left: String = text.lines().filter(stays).map(|l| format!("{l}\n")).collect();
        std::fs::write(root().join(CIRCLES), left).unwrap();
    } else {
        assert!(
            gone.is_empty(),
            "in no circle any more; with {UPDATE}=1 they are taken off {CIRCLES}: {gone:#?}"
        );
    }
}

/// The map at the head of a crate: what stands there in blocks and tables.
fn map(crate_root: &str) -> String {
    let text = read(&root().join(crate_root));
    let head = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim);
    let (mut inside, mut map) = (false, String::new());
    for line in head {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside || line.starts_with('|') {
            map.push_str(line);
            map.push('\n');
        }
    }
    map
}

#[test]
fn each_crates_map_names_every_module() {
    let mut missing = Vec::new();
    for crate_root in CRATES {
        let map = map(crate_root);
        let modules = Modules::of(crate_root);
        let absent = modules.first_level().into_iter().filter(|name| !has_word(&map, name));
        missing.extend(absent.map(|name| format!("{crate_root}: {name}")));
    }
    assert!(missing.is_empty(), "not on the map at the head of the crate: {missing:#?}");
}

/// What the check itself must see: each of these sources has a circle, by another way of naming things.
#[test]
fn an_arrow_is_seen_however_it_is_written() {
    let b = ("b.rs", "use crate::a::A;\npub struct B(pub A);");
    for (what, lib, a) in [
        ("a path in code", "mod a; mod b;", "pub struct A; fn f() { let _ = crate::b::B(A); }"),
        ("super", "mod a; mod b;", "pub struct A; fn f(_: super::b::B) {}"),
        ("a use in a function", "mod a; mod b;", "pub struct A; fn f() { use crate::b::B as C; }"),
        ("a group with another name", "mod a; mod b;", "use crate::{b::{B as C}}; pub struct A;"),
        ("a module that is used", "mod a; mod b;", "use crate::b; pub struct A; fn f(_: b::B) {}"),
        ("what the root exports", "mod a; mod b; pub use b::B;", "use crate::B; pub struct A;"),
        ("all that the root exports", "mod a; mod b; pub use b::*;", "use crate::B; pub struct A;"),
        ("all that a module has", "mod a; mod b;", "use crate::b::*; pub struct A; fn f(_: B) {}"),
        ("all by way of the root", "mod a; mod b; use b::B;", "use super::*; pub struct A; fn f(_: B) {}"),
        (
            "in what a macro is given",
            "mod a; mod b;",
            "pub struct A; fn f() { println!(\"{}\", crate::b::X) }",
        ),
        ("in a macro", "mod a; mod b;", "pub struct A; macro_rules! m { () => { $crate::b::B } }"),
        (
            "in an attribute",
            "mod a; mod b;",
            "#[derive(S)] pub struct A { #[serde(with = \"crate::b\")] x: u8 }",
        ),
        ("a type's trait", "mod a; mod b;", "pub struct A; impl From<crate::b::B> for A {}"),
        ("in a module in the file", "mod a; mod b;", "pub struct A; mod c { use super::super::b::B; }"),
        ("in an array's length", "mod a; mod b;", "pub struct A; const X: [u8; crate::b::N] = [];"),
    ] {
        let modules = Modules::of_sources(&[("lib.rs", lib), ("a.rs", a), b]);
        let found = in_circles(&modules.between_first_level());
        assert_eq!(found.len(), 2, "{what}: {found:?}");
    }
    // By way of a third that exports it, and by what the root itself defines.
    let third = ("c.rs", "pub use crate::b::B;");
    let a = ("a.rs", "use crate::c::B; pub struct A;");
    let found = in_circles(
        &Modules::of_sources(&[("lib.rs", "mod a; mod b; mod c;"), a, b, third]).between_first_level(),
    );
    assert_eq!(found.len(), 4, "{found:?}");
    let a = ("a.rs", "pub struct A; fn f(_: crate::R) {}");
    let lib = ("lib.rs", "mod a; mod b; pub struct R(b::B);");
    let found = in_circles(&Modules::of_sources(&[lib, a, b]).between_first_level());
    assert_eq!(found.len(), 3, "{found:?}");
    // And none where there is none.
    for (what, a) in [
        ("a test", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
        ("a comment", "/// [`crate::b::B`]\npub struct A; // crate::b::B"),
        ("another crate's", "use b::B; pub struct A; fn f() -> ::b::B {}"),
        ("who may see it", "pub(in crate::b) struct A;"),
    ] {
        let lib = "mod a { pub struct Unused; } mod c;";
        let b = ("b.rs", "use crate::a::A;\npub struct B(pub A);");
        let modules = Modules::of_sources(&[("lib.rs", lib), ("a.rs", a), b]);
        assert_eq!(in_circles(&modules.between_first_level()), Arrows::new(), "{what}");
    }
    // Files of one folder, whose head is left out.
    let sources = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod x; mod y; pub use x::X; pub struct A;"),
        ("a/x.rs", "use super::{A, y::Y}; pub struct X;"),
        ("a/y.rs", "use super::{A, X}; pub struct Y;"),
    ];
    let found = in_circles(&Modules::of_sources(&sources).between_siblings());
    assert_eq!(found.len(), 2, "{found:?}");
}
