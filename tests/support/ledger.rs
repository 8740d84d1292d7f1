//! A place with keys, records and skills, in which `skill-ledger` runs as those who run it: certify as root, scan and resolve
//! as SkillFS's user. Every answer is checked against the protocol's rules before a test sees it.

use super::binaries::binary;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// SkillFS's user and group where the packaged ones don't exist.
pub(crate) const SKILLFS: u32 = 1_899_999_002;

pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A place with a key pair that is trusted.
    pub(crate) fn new() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests certify as root and resolve as SkillFS's user: run them as root"
        );
        let place = Place { dir: tempfile::tempdir().unwrap() };
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        open(place.dir.path());
        fs::create_dir(place.path("source")).unwrap();
        open(&place.path("source"));
        fs::create_dir(place.path("state")).unwrap();
        chown(place.path("state"), Some(SKILLFS), Some(SKILLFS)).unwrap();
        // The provider must run where SkillFS's user can reach it, wherever the checkout lies. Copied by a process of its own:
        // a child that another thread starts meanwhile would inherit the open file and make it busy.
        let copied = Command::new("cp").arg(binary("skill-ledger")).arg(place.path("skill-ledger")).output();
        succeeded(&copied.unwrap());
        open(&place.path("skill-ledger"));
        succeeded(&place.root(["init"]));
        place
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A skill's folder.
    pub(crate) fn skill(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path("source").join(name)
    }

    /// A file or folder of a skill's versions.
    pub(crate) fn version(&self, skill: &str, name: &str) -> PathBuf {
        self.skill(skill).join(".skill-meta/versions").join(name)
    }

    /// Makes a skill with a SKILL.md, an executable, a folder and a link.
    pub(crate) fn make(&self, name: impl AsRef<Path>) -> PathBuf {
        let skill = self.skill(name);
        fs::create_dir_all(skill.join("lib")).unwrap();
        fs::write(skill.join("SKILL.md"), "---\nname: declared\n---\nText.\n").unwrap();
        fs::write(skill.join("main"), "#!/bin/sh\necho one\n").unwrap();
        fs::set_permissions(skill.join("main"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(skill.join("lib/data"), "data").unwrap();
        std::os::unix::fs::symlink("lib/data", skill.join("link")).unwrap();
        skill
    }

    /// A report with these levels.
    pub(crate) fn report(&self, levels: &[&str]) -> PathBuf {
        let results: Vec<Value> = levels
            .iter()
            .map(|level| serde_json::json!({"ruleId": "R", "level": level, "message": {"text": "found"}}))
            .collect();
        let report = serde_json::json!({"version": "2.1.0", "runs": [
            {"tool": {"driver": {"name": "scanner"}}, "results": results}]});
        let path = self.path(format!("report-{}.sarif", levels.join("-")));
        fs::write(&path, report.to_string()).unwrap();
        path
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.path("skill-ledger"));
        for (option, dir) in [("--trusted", "trusted"), ("--state", "state/ledger")] {
            command.arg(option).arg(self.path(dir));
        }
        command.current_dir("/").env_clear();
        command
    }

    /// The command as root would give it, with the place's keys.
    pub(crate) fn root_command(&self) -> Command {
        let mut command = self.command();
        command.arg("--keys").arg(self.path("keys"));
        command
    }

    /// The command as SkillFS would give it.
    pub(crate) fn skillfs_command(&self) -> Command {
        let mut command = self.command();
        command.uid(SKILLFS).gid(SKILLFS);
        command
    }

    /// The same under a umask, which a process's threads share: so it is set in a shell of its own.
    pub(crate) fn root_with_umask(&self, umask: &str, args: &[&OsStr]) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", "umask $0; exec \"$@\"", umask]).arg(self.path("skill-ledger"));
        shell.args(self.root_command().get_args()).args(args).output().unwrap()
    }

    pub(crate) fn root<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.root_command().args(args).output().unwrap()
    }

    /// Certifies and returns what it says as JSON.
    pub(crate) fn certify(&self, skill: &str, findings: Option<&Path>) -> Value {
        let mut command = self.root_command();
        command.arg("certify").arg("--json").args(findings.map(|f| format!("--findings={}", f.display())));
        let output = command.arg("--").arg(self.skill(skill)).output().unwrap();
        succeeded(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Certifies what must not be certified and returns the message.
    pub(crate) fn refused(&self, skill: &str) -> String {
        let output = self.root([OsStr::new("certify"), self.skill(skill).as_os_str()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Scans and resolves as SkillFS does.
    pub(crate) fn resolve(&self, skill: impl AsRef<Path>) -> Answer {
        let skill = self.skill(skill);
        let scanned = self.skillfs_command().arg("scan").arg(&skill).arg("--json").output().unwrap();
        succeeded(&scanned);
        self.resolve_only(&skill)
    }

    pub(crate) fn resolve_only(&self, skill: &Path) -> Answer {
        let output = self.skillfs_command().arg("resolve").arg(skill).arg("--json").output().unwrap();
        succeeded(&output);
        Answer::checked(&output.stdout, skill)
    }
}

/// An answer that keeps the protocol.
#[derive(Debug)]
pub(crate) struct Answer(pub(crate) Value);

impl Answer {
    /// Checks the rules that SkillFS applies, and those that a provider owes it.
    fn checked(stdout: &[u8], skill: &Path) -> Self {
        let text = std::str::from_utf8(stdout).expect("stdout is UTF-8");
        // Exactly one object: a second one would be trailing data.
        let value: Value = serde_json::from_str(text).expect("stdout is one JSON value");
        let object = value.as_object().expect("an object");
        let seen: usize = object.keys().map(|key| text.matches(&format!("\"{key}\":")).count()).sum();
        assert!(seen >= object.len(), "{text}");
        assert_eq!(value["schemaVersion"], 1);
        if let Some(name) = skill.file_name().and_then(OsStr::to_str)
            && name.len() <= 64
        {
            assert_eq!(value["skillName"], *name);
        }
        let word = |field: &str| value[field].as_str().unwrap_or_else(|| panic!("{field} in {text}"));
        assert!(["none", "pass", "warn", "deny", "drifted", "tampered", "error"].contains(&word("status")));
        for field in ["reason", "declaredName", "currentVersion", "trustedVersion"] {
            assert!(
                object.contains_key(field) && (value[field].is_null() || value[field].is_string()),
                "{text}"
            );
        }
        if let Some(reason) = value["reason"].as_str() {
            assert!(!reason.chars().any(char::is_control), "{reason:?}");
        }
        let trusted = value["trustedVersion"].as_str();
        // The recommended table.
        let decision = match (word("status"), trusted) {
            ("pass", Some(_)) => "current",
            ("warn" | "deny" | "drifted" | "tampered", Some(_)) => "fallback",
            ("warn" | "deny" | "drifted" | "tampered" | "none" | "error", _) => "hidden",
            other => panic!("{other:?} in {text}"),
        };
        assert_eq!(word("decision"), decision, "{text}");
        if decision == "fallback" {
            assert_eq!(word("targetKind"), "relative_to_skill_dir");
            assert_eq!(word("target"), format!(".skill-meta/versions/{}.snapshot", trusted.unwrap()));
            assert!(skill.join(word("target")).symlink_metadata().unwrap().is_dir());
        } else {
            assert!(value["target"].is_null() && value["targetKind"].is_null(), "{text}");
        }
        // A digest of what is shown, and none where nothing is.
        let digest = object.get("contentDigest");
        assert_eq!(digest.is_some(), decision != "hidden", "{text}");
        assert!(digest.is_none_or(|d| cyberos_proto::tree::is_written(d.as_str().unwrap())), "{text}");
        Answer(value)
    }

    pub(crate) fn str(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or("")
    }

    /// Status, decision and trusted version in one.
    pub(crate) fn is(&self, status: &str, decision: &str, trusted: &str) -> &Self {
        let found = (self.str("status"), self.str("decision"), self.str("trustedVersion"));
        assert_eq!(found, (status, decision, trusted), "{}", self.0);
        self
    }

    /// The reason says this.
    pub(crate) fn because(&self, words: &str) -> &Self {
        assert!(self.str("reason").contains(words), "{words:?} in {}", self.0);
        self
    }
}

pub(crate) fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{:?}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    succeeded(&Command::new("cp").arg("-a").arg(from).arg(to).output().unwrap());
}

/// A place with one skill, `demo`, which has been certified once.
pub(crate) fn certified() -> (Place, PathBuf) {
    let place = Place::new();
    let skill = place.make("demo");
    place.certify("demo", None);
    (place, skill)
}

/// Puts a copy of `kept` in the place of `skill`.
pub(crate) fn replace(skill: &Path, kept: &Path) {
    fs::remove_dir_all(skill).unwrap();
    copy_tree(kept, skill);
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
