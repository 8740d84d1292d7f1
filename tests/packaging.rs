//! What ships beside the code: the Python client, and the example skills.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Runs a Python test file in its folder and shows what it printed if it fails.
fn python(folder: &str, file: &str) {
    let run = Command::new("python3")
        .args(["-B", file])
        .current_dir(root().join(folder))
        .output()
        .expect("python3 is needed; tests/run installs it");
    assert!(run.status.success(), "{folder}/{file}:\n{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_python_client_speaks_the_wire() {
    python("packaging/sdk/python", "test_cyberos.py");
}

#[test]
fn the_example_skills_notice_when_a_promise_is_broken() {
    python("tests/packaging", "test_skills.py");
}

#[test]
fn each_skill_has_the_client_as_it_is() {
    let client = std::fs::read(root().join("packaging/sdk/python/cyberos.py")).unwrap();
    for skill in ["memory-capture", "escape-artist"] {
        let copy = root().join("packaging/skills").join(skill).join("cyberos.py");
        assert!(
            std::fs::read(&copy).unwrap() == client,
            "{} differs from packaging/sdk/python/cyberos.py: copy that over it",
            copy.display()
        );
    }
}

#[test]
fn each_skill_has_a_description_and_an_executable() {
    use std::os::unix::fs::PermissionsExt;
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("packaging/skills")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(folder.join("SKILL.md")).unwrap();
        assert!(text.starts_with("---\n"), "{name}: SKILL.md begins with its frontmatter [1.1]");
        assert!(text.contains(&format!("\nid: {name}\n")), "{name}: id is the folder's name [1.2]");
        let mode = std::fs::metadata(folder.join("main")).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name}/main is not executable");
        seen += 1;
    }
    assert_eq!(seen, 3, "a skill is missing, or a new one is not counted here");
}
