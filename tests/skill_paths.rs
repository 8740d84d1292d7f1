//! What reads a skill by the path that a person gave reads that skill and nothing else [1.7], and what is declared of a
//! skill's content is what runs [1.4].

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::binaries::binary;
use support::up::{Ran, Skill, Up, reachable_dir};

const SECRET: &str = "s3cret-line";

fn cyberos(args: &[&str], dir: &Path) -> Ran {
    Command::new(binary("cyberos")).args(args).arg(dir).output().unwrap().into()
}

/// Validates as people and as programs do; neither may show the secret.
fn validate(dir: &Path) -> Ran {
    let start = std::time::Instant::now();
    let json = cyberos(&["--json", "skill", "validate"], dir);
    let ran = cyberos(&["skill", "validate"], dir);
    assert!(start.elapsed().as_secs() < 20, "nothing is waited for");
    for ran in [&json, &ran] {
        assert!(!ran.to_string().contains(SECRET), "{ran}");
    }
    assert_eq!(json.exit, ran.exit, "{json} {ran}");
    ran
}

#[test]
fn validate_follows_no_link_and_waits_for_nothing() {
    let dir = reachable_dir("cyberos-paths-");
    let skill = dir.join("demo");
    fs::create_dir(&skill).unwrap();
    fs::write(skill.join("main"), "").unwrap();
    let secret = dir.join("secret");
    fs::write(&secret, format!("{SECRET}\n{SECRET}\n")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let md = skill.join("SKILL.md");
    type Plant = fn(&Path, &Path);
    let plants: [(Plant, &str); 8] = [
        (|md, secret| symlink(secret, md).unwrap(), "symlink"),
        (|md, _| symlink("../secret", md).unwrap(), "symlink"),
        (|md, _| symlink("main", md).unwrap(), "symlink"),
        (|md, _| symlink("/etc/shadow", md).unwrap(), "symlink"),
        (|md, _| symlink("/proc/self/environ", md).unwrap(), "symlink"),
        (|md, secret| fs::hard_link(secret, md).unwrap(), "hard link"),
        (|md, _| nix::unistd::mkfifo(md, nix::sys::stat::Mode::S_IRWXU).unwrap(), "not a regular file"),
        (|md, _| fs::create_dir(md).unwrap(), "not a regular file"),
    ];
    for (plant, why) in plants {
        plant(&md, &secret);
        let ran = validate(&skill);
        assert_eq!(ran.exit, 1, "{why}: {ran}");
        assert!(ran.stderr.contains("SKILL.md") && ran.stderr.contains(why), "{why}: {ran}");
        fs::remove_file(&md).or_else(|_| fs::remove_dir(&md)).unwrap();
    }
    // A file of a terabyte is refused by its size.
    fs::File::create(&md).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(validate(&skill).exit, 6);
    // Mounted there, it belongs to somebody else.
    let on: Option<&str> = None;
    nix::mount::mount(Some("/proc/self/environ"), &md, on, nix::mount::MsFlags::MS_BIND, on).unwrap();
    let ran = validate(&skill);
    nix::mount::umount(&md).unwrap();
    assert!(ran.exit == 1 && ran.stderr.contains("mount"), "{ran}");
    fs::remove_file(&md).unwrap();
    // The folder itself, and what a stranger put on the way there.
    fs::create_dir(dir.join("private")).unwrap();
    fs::create_dir(dir.join("private/demo")).unwrap();
    fs::write(dir.join("private/demo/SKILL.md"), SECRET).unwrap();
    symlink("private/demo", dir.join("linked")).unwrap();
    for spelt in ["linked", "linked/"] {
        let ran = validate(&dir.join(spelt));
        assert!(ran.exit == 1 && ran.stderr.contains("symlink"), "{ran}");
    }
    symlink("private", dir.join("theirs")).unwrap();
    std::os::unix::fs::lchown(dir.join("theirs"), Some(65534), Some(65534)).unwrap();
    let ran = validate(&dir.join("theirs/demo"));
    assert!(ran.exit == 1 && ran.stderr.contains("symlink") && ran.stderr.contains("theirs"), "{ran}");
    let ran = validate(&dir.join("private/demo/SKILL.md"));
    assert!(ran.exit == 2 && ran.stderr.contains("is a file"), "{ran}");
    assert_eq!(validate(&dir.join("absent")).exit, 1);
}

#[test]
fn validate_tells_nothing_of_what_an_entry_point_leads_to() {
    let dir = reachable_dir("cyberos-paths-");
    let skill = Skill::default().write(&dir);
    let private = dir.join("private");
    fs::create_dir(&private).unwrap();
    fs::write(private.join("there"), "").unwrap();
    let mut said = Vec::new();
    for target in ["../private/there", "../private/absent", "/etc/shadow", "/etc/absent"] {
        fs::remove_file(skill.join("main")).unwrap();
        symlink(target, skill.join("main")).unwrap();
        let ran = validate(&skill);
        assert!(ran.stdout.contains("warning: ") && ran.stdout.contains("main"), "{ran}");
        said.push(ran.stdout);
    }
    said.dedup();
    assert_eq!(said.len(), 1, "what is outside is told from nothing: {said:?}");
}

#[test]
fn scaffold_writes_into_the_folder_that_it_made_alone() {
    let dir = reachable_dir("cyberos-paths-");
    let elsewhere = dir.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, dir.join("starter")).unwrap();
    let ran = cyberos(&["skill", "scaffold", "starter", "--dir"], &dir);
    assert!(ran.exit == 1 && ran.stderr.contains("already there"), "{ran}");
    // A link that a stranger made does not lead root to where he wants.
    symlink("elsewhere", dir.join("theirs")).unwrap();
    std::os::unix::fs::lchown(dir.join("theirs"), Some(65534), Some(65534)).unwrap();
    for end in ["theirs", "theirs/", "theirs/new/deep"] {
        let ran = cyberos(&["skill", "scaffold", "other", "--dir"], &dir.join(end));
        assert!(ran.exit == 1 && ran.stderr.contains("symlink"), "{end}: {ran}");
    }
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let ran = cyberos(&["skill", "scaffold", "other", "--dir"], &dir.join("new/deep"));
    assert_eq!(ran.exit, 0, "{ran}");
    assert_eq!(cyberos(&["skill", "validate"], &dir.join("new/deep/other")).exit, 0);
}

/// A skill that declares the digest of its content.
fn declare(skill: &Path, digest: &str) {
    let text = fs::read_to_string(skill.join("SKILL.md")).unwrap();
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with("x-content-sha256")).collect();
    let text = kept.join("\n").replacen("---\n", &format!("---\nx-content-sha256: {digest}\n"), 1);
    fs::write(skill.join("SKILL.md"), text + "\n").unwrap();
}

/// The first digest in a text that is not `declared`.
fn told(text: &str, declared: &str) -> String {
    let mut digests = text.match_indices("sha256:").filter_map(|(at, _)| text.get(at..at + 71));
    digests
        .find(|d| *d != declared && cyberos_proto::tree::is_written(d))
        .unwrap_or_else(|| panic!("no other digest in {text}"))
        .to_owned()
}

#[test]
fn content_that_differs_from_its_declared_digest_is_invalid_and_does_not_run() {
    let zeros = format!("sha256:{}", "0".repeat(64));
    let up = Up::new(|source| {
        let skill = Skill { id: "sums", ..Skill::default() }.write(source);
        fs::create_dir(skill.join("lib")).unwrap();
        fs::write(skill.join("lib/data"), "data").unwrap();
        declare(&skill, &zeros);
    });
    let skill = up.skills.join("sums");
    let valid = cyberos(&["skill", "validate"], &skill);
    assert_eq!(valid.exit, 6, "{valid}");
    assert!(valid.stdout.contains(&zeros) && valid.stdout.contains("line 2"), "{valid}");
    let right = told(&valid.stdout, &zeros);
    let json: Value =
        serde_json::from_str(&cyberos(&["--json", "skill", "validate"], &skill).stdout).unwrap();
    assert_eq!(
        (&json["status"], &json["errors"][0]["field"]),
        (&"invalid".into(), &"x-content-sha256".into())
    );
    for command in [&["skill", "run", "sums"][..], &["skill", "approve", "sums", "--yes"]] {
        let ran = up.cyberos(command);
        assert_eq!(ran.exit, 6, "{ran}");
        assert!(ran.stderr.contains(&zeros) && ran.stderr.contains(&right), "{ran}");
        assert!(ran.stderr.contains("skill validate"), "it says how to get the right one: {ran}");
    }
    assert!(up.rows("skill.invoked_started").is_empty());

    // The value that is told is right, and stays so while SKILL.md changes.
    declare(&skill, &right);
    assert_eq!(cyberos(&["skill", "validate"], &skill).exit, 0);
    up.shown("sums", "current");
    let ran = up.run("sums", &[]);
    assert_eq!(ran.exit, 0, "{ran}");
    fs::create_dir(skill.join(".git")).unwrap();
    fs::write(skill.join(".git/index"), "x").unwrap();
    let text = fs::read_to_string(skill.join("SKILL.md")).unwrap();
    fs::write(skill.join("SKILL.md"), text + "More.\n").unwrap();
    assert_eq!(cyberos(&["skill", "validate"], &skill).exit, 0);
    up.shown("sums", "current");
    assert_eq!(up.run("sums", &[]).exit, 0);
    // Any other change is one.
    fs::write(skill.join("lib/data"), "DATA").unwrap();
    up.shown("sums", "current");
    let ran = up.run("sums", &[]);
    assert!(ran.exit == 6 && ran.stderr.contains(&right), "{ran}");
    // What cannot be digested is said, not taken for right.
    symlink("/etc/passwd", skill.join("lib/out")).unwrap();
    let valid = cyberos(&["skill", "validate"], &skill);
    assert!(valid.exit == 6 && valid.stdout.contains("lib/out"), "{valid}");
}
