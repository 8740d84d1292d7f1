//! What Bash is given of the file rules (`[4.6]`, `[4.0]`).

use super::tests::{compiled, files_grant, only};
use super::*;
use crate::config::GrantSet;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A directory that may be granted.
fn place() -> tempfile::TempDir {
    let parent = std::env::temp_dir().canonicalize().unwrap();
    let dir = tempfile::Builder::new().prefix("grants-").tempdir_in(parent).unwrap();
    for sub in ["a/b", "a-b", "a/c", "d"] {
        std::fs::create_dir_all(dir.path().join(sub)).unwrap();
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    dir
}

/// What of `wishes` Bash gets under `set`, below `dir`, and the lines that name what it does not get.
fn bash(dir: &Path, tools: &str, wishes: &[&str], set: GrantSet) -> (Vec<String>, Vec<String>) {
    let wishes: Vec<String> =
        wishes.iter().map(|w| format!("'{}'", w.replace('$', dir.to_str().unwrap()))).collect();
    let grants =
        compiled(&format!("allowed_tools: [{tools}]\nx-allowed-files: [{}]", wishes.join(", ")), set);
    let below = |path: &str| path.strip_prefix(dir.to_str().unwrap()).unwrap_or(path).to_owned();
    let given = grants.directories().0.iter().map(|d| below(d.path.as_str())).collect();
    (given, grants.not_granted().iter().filter(|l| l.contains("Bash")).cloned().collect())
}

fn requested(dir: &tempfile::TempDir, wishes: &[&str]) -> (Vec<String>, Vec<String>) {
    bash(dir.path(), "Bash", wishes, GrantSet::requested())
}

#[test]
fn plain_rules_are_directories_and_nested_ones_are_merged() {
    let dir = place();
    let (given, nothing) = requested(&dir, &["$/a/b/**", "$/d", "$/a/**", "$/a-b", "$/a/c"]);
    assert_eq!(given, ["/a", "/a-b", "/d"], "a name that begins like a directory's is not inside it");
    assert_eq!(nothing, Vec::<String>::new());
}

#[test]
fn the_operator_narrows_to_the_deeper_of_two_directories() {
    let dir = place();
    let at = |below: &str| format!("{}{below}", dir.path().display());
    let (tree, one, glob) = (at("/a/b/**"), at("/d"), at("/a/*/x"));
    let set = files_grant(only(&[&tree, &one, &glob], 7));
    let (given, nothing) = bash(dir.path(), "Bash", &["$/**"], set);
    assert_eq!(given, ["/a/b", "/d"]);
    assert!(
        nothing.len() == 1 && nothing[0].contains(&glob) && nothing[0].contains("grants.skills.demo.files")
    );
    // One level of a directory is not the directory, whoever asks for it by its name.
    let set = files_grant(only(&[&at("/*")], 7));
    assert_eq!(bash(dir.path(), "Bash", &["$/a"], set).0, Vec::<String>::new());
    let set = files_grant(only(&[&at("/a/**")], 7));
    assert_eq!(bash(dir.path(), "Bash", &["$/a-b/**", "$/d"], set).0, Vec::<String>::new());
}

#[test]
fn what_gives_bash_nothing_is_named() {
    let dir = place();
    symlink(dir.path().join("a"), dir.path().join("link")).unwrap();
    for (wish, why) in [
        ("$/a/*.md", "whole directories only"),
        ("$/{a,d}/**", "whole directories only"),
        ("$/file", "it is not a directory"),
        ("$/absent/**", "there is no such directory"),
        ("$/link/**", "rules apply to the real name"),
        ("$/link/b/**", "rules apply to the real name"),
        ("$/a/../d/**", "no plain path"),
        ("$/d/", "no plain path"),
        ("/usr/share/**", "something of its own"),
        ("/opt/**", "never given all of /opt/cyberos/skills"),
    ] {
        let (given, nothing) = requested(&dir, &[wish]);
        assert_eq!(given, Vec::<String>::new(), "{wish}");
        assert!(
            nothing.len() == 1 && nothing[0].contains(why) && nothing[0].contains("line 7"),
            "{wish}: {nothing:?}"
        );
    }
}

#[test]
fn threat_a2_what_governs_a_skill_is_in_no_directory_of_bash() {
    let dir = place();
    for wish in [
        "/**",
        "/tmp/**",
        "/tmp",
        "/usr/**",
        "/etc/**",
        "/dev/**",
        "/var/**",
        "/var/lib/**",
        "/run/**",
        "/proc",
        "/etc/cyberos/**",
        "/etc/shadow",
        "/var/lib/cyberos/tenants/**",
        "/srv/../run/**",
    ] {
        let (given, nothing) = requested(&dir, &[wish]);
        assert_eq!(given, Vec::<String>::new(), "{wish}");
        assert_eq!(nothing.len(), 1, "{wish}: {nothing:?}");
    }
}

#[test]
fn threat_a2_an_entry_held_under_another_name_is_the_same_entry() {
    let dir = place();
    let state = dir.path().join("a/b");
    let config = crate::config::Config { state: state.clone(), ..crate::config::Config::default() };
    let never = NeverGrantable::new(&config);
    let mounts = super::mounts::Mounts::read().unwrap();
    let refuses = |name: &str, held: &str| {
        let fd = std::fs::File::open(dir.path().join(held)).unwrap();
        never.refuses_bash(&dir.path().join(name), &fd, &mounts)
    };
    assert_eq!(refuses("d", "d"), None);
    for held in ["a/b", "a", "."] {
        let why = refuses("d", held).unwrap();
        assert!(why.contains("under another name"), "{held}: {why}");
    }
}

#[test]
fn nothing_is_opened_for_a_skill_without_bash_and_writing_needs_write_or_edit() {
    let dir = place();
    assert_eq!(bash(dir.path(), "Read", &["$/a/**", "$/a/*.md"], GrantSet::requested()), (vec![], vec![]));
    let writable = |tools: &str, lines: &str| {
        compiled(&format!("allowed_tools: [{tools}]{lines}"), GrantSet::requested()).directories().1
    };
    assert!(!writable("Bash, Read", ""));
    assert!(writable("Bash, Write", "") && writable("Edit, Bash", ""));
    assert!(!writable("Bash, Write", "\ndisallowed_tools: [Write]"));
}

#[test]
fn a_directory_that_was_moved_is_not_in_place() {
    let dir = place();
    let wish = format!("allowed_tools: [Bash]\nx-allowed-files: ['{}/d/**']", dir.path().display());
    let grants = compiled(&wish, GrantSet::requested());
    let granted = &grants.directories().0[0];
    assert!(granted.is_in_place());
    std::fs::rename(dir.path().join("d"), dir.path().join("e")).unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    assert!(!granted.is_in_place());
}
