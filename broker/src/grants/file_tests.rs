//! What file rules promise (`[4.4]`) before anything is opened.

use super::tests::{compiled, denied, files_grant, only, skill};
use super::*;
use crate::beneath::FileTarget;
use crate::call::{DenialClass, Refusal};
use crate::config::{Config, GrantSet};
use crate::glob::Pattern;
use proptest::prelude::*;
use std::path::Path;

/// A directory that tests may grant: /tmp itself can be granted, and its name is the real one.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Dir(tempfile::Builder::new()
            .prefix("grants-")
            .tempdir_in(std::env::temp_dir().canonicalize().unwrap())
            .unwrap())
    }

    fn at(&self, below: &str) -> String {
        format!("{}{below}", self.0.path().display())
    }
}

#[test]
fn case_099_only_paths_inside_the_directory_match() {
    let dir = Dir::new();
    std::fs::create_dir(dir.at("/proj")).unwrap();
    let lines = format!("x-allowed-files: ['{}']", dir.at("/proj/**"));
    let grants = compiled(&lines, GrantSet::requested());
    let target = grants.file_target(&dir.at("/proj//a/./b/../x")).unwrap();
    assert_eq!(target.path, Path::new(&dir.at("/proj/a/x")));
    assert_eq!(
        (target.root.as_path(), target.below.as_path()),
        (Path::new(&dir.at("/proj")), Path::new("a/x"))
    );
    assert!(target.root_fd.is_some());
    for asked in
        ["/proj-evil/x", "/project/x", "/proj/../proj-evil/x", "/proj", "/proj/", "/proj/..", "/PROJ/x"]
    {
        let denial = denied(grants.file_target(&dir.at(asked)));
        assert_eq!((denial.class, denial.reason), (DenialClass::FileViolation, "file_violation"), "{asked}");
    }
}

#[test]
fn case_115_relative_paths_are_refused_and_nul_and_empty_are_bad_parameters() {
    let grants = compiled("x-allowed-files: ['/**']", GrantSet::requested());
    for asked in ["notes.md", "./notes.md", "../x", ".", "~/x", "file:///etc/passwd"] {
        assert_eq!(denied(grants.file_target(asked)).reason, "file_violation", "{asked}");
    }
    let long = format!("/{}", "a".repeat(5000));
    for asked in ["", "/etc/\0x", &long] {
        assert!(matches!(grants.file_target(asked), Err(Refusal::BadParams(_))), "{asked:?}");
    }
    assert_eq!(grants.file_target("//etc//passwd").unwrap().path, Path::new("/etc/passwd"));
    assert_eq!(grants.file_target("/../etc/passwd").unwrap().below, Path::new("etc/passwd"));
}

#[test]
fn case_112_bytes_are_compared_as_they_are() {
    let grants = compiled("x-allowed-files: [\"/srv/Jos\u{e9}/**\"]", GrantSet::requested());
    assert!(grants.file_target("/srv/Jos\u{e9}/x").is_ok());
    for asked in ["/srv/Jose\u{301}/x", "/srv/JOS\u{c9}/x", "/srv/Jos\u{e9} /x", "/srv/\u{ff0e}\u{ff0e}/x"] {
        assert_eq!(denied(grants.file_target(asked)).reason, "file_violation", "{asked}");
    }
}

#[test]
fn threat_a2_asking_for_everything_gives_nothing_that_is_never_grantable() {
    let grants = compiled("x-allowed-files: ['/**', '/run/**', '/etc/shadow']", GrantSet::requested());
    for asked in [
        "/proc/self/environ",
        "/run/docker.sock",
        "/etc/shadow",
        "/var/lib/cyberos/store/HEAD",
        "/tmp/../etc/cyberos/x",
    ] {
        let denial = denied(grants.file_target(asked));
        assert_eq!(denial.reason, "never_grantable", "{asked}");
        assert!(denial.rule.starts_with("never grantable: /"), "{}", denial.rule);
    }
    assert!(grants.file_target("/etc/hostname").is_ok());
    let outside = compiled("x-allowed-files: ['/srv/**']", GrantSet::requested());
    let denial = denied(outside.file_target("/proc/self/environ"));
    assert_eq!(denial.reason, "file_violation");
    assert!(!denial.sentence.contains("would allow it"), "{}", denial.sentence);
    let named: Vec<&String> = grants.not_granted().iter().filter(|l| l.contains("never grantable")).collect();
    assert_eq!(named.len(), 2, "{:?}", grants.not_granted());
}

#[test]
fn the_packaged_default_gives_files_under_work_alone() {
    let config = Config::default();
    let never = Arc::new(NeverGrantable::new(&config));
    let wishes = skill("x-allowed-files:\n  - /srv/**\n  - /home/u/**\nx-allowed-domains: [a.b]");
    let grants = Grants::compile(&wishes, &Operator::new(&config.grants, "demo", false), never);
    assert!(grants.file_target("/srv/cyberos/work/x").is_ok());
    let denial = denied(grants.file_target("/srv/other/x"));
    assert_eq!(
        (denial.reason, denial.rule.as_str()),
        ("not_granted_by_operator", "grants.default.files (built-in default)")
    );
    let listed = grants.not_granted().join("\n");
    for words in [
        "line 8: /srv/** (",
        "gives /srv/cyberos/work/** of it at most",
        "line 9: /home/u/**",
        "x-allowed-domains line 10: a.b",
    ] {
        assert!(listed.contains(words), "{words}: {listed}");
    }
}

#[test]
fn what_was_opened_is_judged_by_its_real_name() {
    let dir = Dir::new();
    let grants = compiled(&format!("x-allowed-files: ['{}']", dir.at("/**")), GrantSet::requested());
    let target = grants.file_target(&dir.at("/link")).unwrap();
    assert!(grants.recheck(&target, Path::new(&dir.at("/real"))).is_ok());
    for (canonical, reason) in [("/etc/passwd", "file_violation"), ("/etc/shadow", "file_violation")] {
        let denial = grants.recheck(&target, Path::new(canonical)).unwrap_err();
        assert_eq!((denial.reason, denial.subject.as_str()), (reason, canonical));
        assert_eq!(denial.asked.as_deref(), Some(dir.at("/link").as_str()));
        assert!(denial.sentence.contains("leads to"), "{}", denial.sentence);
    }
    let all = compiled("x-allowed-files: ['/**']", GrantSet::requested());
    let target = all.file_target("/srv/x").unwrap();
    assert_eq!(all.recheck(&target, Path::new("/proc/1/environ")).unwrap_err().reason, "never_grantable");
}

#[test]
fn an_absent_root_gives_nothing_even_when_it_appears_later() {
    let dir = Dir::new();
    let grants = compiled(&format!("x-allowed-files: ['{}']", dir.at("/later/**")), GrantSet::requested());
    assert!(grants.not_granted()[0].contains("there is no directory"));
    std::fs::create_dir(dir.at("/later")).unwrap();
    let FileTarget { root_fd, .. } = grants.file_target(&dir.at("/later/x")).unwrap();
    assert!(root_fd.is_none());
}

#[test]
fn a_root_that_is_a_symlink_gives_nothing_and_says_where_it_leads() {
    let dir = Dir::new();
    std::os::unix::fs::symlink("/etc", dir.at("/tree")).unwrap();
    let grants = compiled(&format!("x-allowed-files: ['{}']", dir.at("/tree/**")), GrantSet::requested());
    assert!(grants.file_target(&dir.at("/tree/passwd")).unwrap().root_fd.is_none());
    assert!(grants.not_granted()[0].contains("leads to /etc"), "{:?}", grants.not_granted());
}

#[test]
fn the_narrower_root_of_wish_and_grant_is_held_and_no_other() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.at("/a/b")).unwrap();
    let lines = format!("x-allowed-files: ['{}', '/home/**']", dir.at("/**"));
    let grants = compiled(&lines, files_grant(only(&[&dir.at("/a/**"), &dir.at("/a/b/**")], 1)));
    let target = grants.file_target(&dir.at("/a/b/x")).unwrap();
    assert_eq!((target.root.as_path(), target.below.as_path()), (Path::new(&dir.at("/a")), Path::new("b/x")));
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let held =
        fds.flatten().filter_map(|f| std::fs::read_link(f.path()).ok()).any(|p| p == Path::new("/home"));
    assert!(!held);
}

proptest! {
    /// A granted path matches a pattern of the frontmatter and one of the operator's, and no path gains by its spelling.
    #[test]
    fn no_path_is_granted_that_either_side_does_not_match(
        wish in "/(a|b|\\*|\\*\\*)(/(a|b|c\\*|\\*\\*)){0,2}",
        grant in "/(a|b|\\*|\\*\\*)(/(a|b|c\\*|\\*\\*)){0,2}",
        path in "/[abc./]{0,8}",
    ) {
        let grants = compiled(&format!("x-allowed-files: ['{wish}']"), files_grant(only(&[&grant], 1)));
        let normal = super::files::normal(&path).unwrap();
        let both = Pattern::new(&wish).unwrap().matches(&normal) && Pattern::new(&grant).unwrap().matches(&normal);
        match grants.file_target(&path) {
            Ok(target) => {
                prop_assert!(both);
                prop_assert_eq!(target.root.join(&target.below), normal);
            }
            Err(_) => prop_assert!(!both),
        }
    }

    #[test]
    fn the_normal_form_is_a_fixed_point(path in "/[ab./é]{0,12}") {
        let once = super::files::normal(&path).unwrap();
        prop_assert_eq!(super::files::normal(once.to_str().unwrap()).unwrap(), once.clone());
        prop_assert!(once.components().all(|c| !matches!(c, std::path::Component::ParentDir)));
    }
}
