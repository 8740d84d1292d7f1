//! Skills that others have written, and a folder of awkward ones, through the whole line: mounted, listed and read byte
//! for byte, certified, edited, tampered with (`[9.1]`, `[9.5]`, `[9.6]`, `[9.10]`).
//!
//! `tests/run` fetches the npm package cc-sdd and names its folder in CYBEROS_CC_SDD; nothing of it is kept here.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use support::up::{Options, Up, eventually};

const ONE_AGENT: &str = "templates/agents/claude-code-skills/skills";

fn published() -> PathBuf {
    let here = std::env::var_os("CYBEROS_CC_SDD").map(PathBuf::from);
    let dir = here.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fixtures/cc-sdd"));
    let skills = dir.join(ONE_AGENT);
    assert!(skills.is_dir(), "{} is missing: tests/run fetches it", skills.display());
    skills
}

/// Every file below, with its bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|e| panic!("{}: {e}", next.display())).flatten()
        {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            if entry.file_name() == ".skill-meta" {
                continue;
            }
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                found.insert(
                    path.strip_prefix(dir).unwrap().to_owned(),
                    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
                );
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

fn names(dir: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn published_skills_are_certified_shown_whole_and_guarded() {
    let from = published();
    let built_in = Options { provider: Some(String::new()), ..Options::default() };
    let up = Up::with(built_in, |source| copy(&from, source));
    let skills = names(&from);
    assert_eq!(skills.len(), 17);
    assert_eq!(names(&up.mount()), Vec::<OsString>::new(), "nobody has vouched for them");
    for skill in &skills {
        up.certify(skill.to_str().unwrap());
    }
    for skill in &skills {
        up.shown(skill.to_str().unwrap(), "current");
    }
    assert_eq!(names(&up.mount()), skills);
    assert_eq!(files(&up.mount()), files(&from), "byte for byte");

    // Edited afterwards: served from its snapshot.
    let (edited, tampered) = (skills[0].to_str().unwrap(), skills[1].to_str().unwrap());
    std::fs::write(up.skills.join(edited).join("SKILL.md"), "EVIL\n").unwrap();
    let state = up.shown(edited, "fallback");
    assert_eq!(state["status"], "drifted");
    assert_eq!(files(&up.mount().join(edited)), files(&from.join(edited)));

    // Its manifest tampered with: not served live.
    let versions = up.skills.join(tampered).join(".skill-meta/versions");
    let manifest = versions.join("v000001.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replacen("sha256:", "sha256:0", 1)).unwrap();
    std::fs::write(up.skills.join(tampered).join("SKILL.md"), "EVIL\n").unwrap();
    let not_live =
        eventually(std::time::Duration::from_secs(15), || up.explain(tampered)["status"] == "tampered");
    assert!(not_live, "{}", up.explain(tampered));
    assert_ne!(up.explain(tampered)["verdict"], "current");
    let shown = std::fs::read_to_string(up.mount().join(tampered).join("SKILL.md")).unwrap_or_default();
    assert!(!shown.contains("EVIL"), "{shown}");

    // They are Agent Skills without a word on capabilities, so agents read them and none runs.
    let ran = up.run(skills[2].to_str().unwrap(), &[]);
    assert_eq!(ran.exit, 6, "{ran}");
}

#[test]
fn awkward_skills_are_shown_as_they_are_or_not_at_all() {
    let long = "l".repeat(64);
    let up = Up::new(|source| {
        for name in [
            "naïve-Übung",
            "日本語",
            "with space",
            "-rf",
            long.as_str(),
            "empty",
            "fifo",
            "links",
            "asset",
            "crlf",
        ] {
            std::fs::create_dir(source.join(name)).unwrap();
        }
        std::fs::create_dir(source.join("x".repeat(65))).unwrap();
        std::fs::create_dir(source.join(OsString::from_vec(b"bad\xffname".to_vec()))).unwrap();
        for name in ["naïve-Übung", "日本語", "with space", "-rf", long.as_str()] {
            std::fs::write(source.join(name).join("SKILL.md"), name).unwrap();
            std::fs::write(source.join(name).join("文書 é.txt"), "content\n").unwrap();
        }
        for name in ["empty", "links", "asset"] {
            std::fs::write(source.join(name).join("SKILL.md"), "").unwrap();
        }
        let asset: Vec<u8> = (0..2_097_152u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(source.join("asset/blob.bin"), asset).unwrap();
        std::fs::write(source.join("crlf/SKILL.md"), "---\r\nid: crlf\r\n---\r\n").unwrap();
        std::fs::write(source.join("links/real"), "real\n").unwrap();
        symlink("real", source.join("links/inside")).unwrap();
        symlink("/etc/passwd", source.join("links/absolute")).unwrap();
        symlink("../asset/blob.bin", source.join("links/sideways")).unwrap();
        nix::unistd::mkfifo(&source.join("fifo/SKILL.md"), nix::sys::stat::Mode::from_bits_truncate(0o644))
            .unwrap();
    });
    for name in
        ["naïve-Übung", "日本語", "with space", long.as_str(), "empty", "fifo", "links", "asset", "crlf"]
    {
        up.shown(name, "current");
    }
    let mount = up.mount();
    assert_eq!(
        names(&mount).len(),
        10,
        "the two that have no name in the protocol stay hidden: {:?}",
        names(&mount)
    );
    for name in ["naïve-Übung", "日本語", "with space", "-rf", long.as_str(), "asset", "crlf"] {
        assert_eq!(files(&mount.join(name)), files(&up.skills.join(name)), "{name}");
    }
    assert_eq!(names(&mount.join("empty")), ["SKILL.md"]);

    assert_eq!(std::fs::read_to_string(mount.join("links/inside")).unwrap(), "real\n");
    for out in ["absolute", "sideways"] {
        assert!(std::fs::read(mount.join("links").join(out)).is_err(), "{out} leads out");
    }
    // A pipe in the place of a file keeps nobody waiting: SkillFS goes on, and the run is refused at once.
    if let Ok(meta) = std::fs::symlink_metadata(mount.join("fifo/SKILL.md")) {
        assert!(!meta.is_file() && (meta.file_type().is_fifo() || meta.is_symlink()), "{meta:?}");
    }
    let ran = up.run("fifo", &[]);
    assert_eq!(ran.exit, 6, "{ran}");
    assert_eq!(up.run("crlf", &[]).exit, 6, "its frontmatter lacks fields, and says so");
}
