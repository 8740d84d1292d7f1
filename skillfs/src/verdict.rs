//! What a provider printed, validated into an [`Answer`] (`[9.2]`), or rejected.
//!
//! It judges form alone: whether the bytes are one answer of the decision protocol for the skill that was asked
//! about. It knows no file system (`snapshot.rs` looks whether a target is there and safe) and no policy
//! (`mapping.rs` decides what a rejected answer does). `provider.rs` calls it.

use cyberos_proto::ids::SkillName;
use cyberos_proto::{control, tree};
use serde::Deserialize;

/// The one version of the protocol that is understood.
const SCHEMA_VERSION: u64 = 1;
/// Where targets lie.
const VERSIONS: &str = ".skill-meta/versions/";
const SUFFIX: &str = ".snapshot";

/// The provider's judgement. It never overrides the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not certified yet.
    None,
    /// Good.
    Pass,
    /// Findings.
    Warn,
    /// Findings that forbid use.
    Deny,
    /// The live folder is not the certified one.
    Drifted,
    /// Metadata or snapshots were altered.
    Tampered,
    /// The provider could not judge.
    Error,
}

impl Status {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "none" => Status::None,
            "pass" => Status::Pass,
            "warn" => Status::Warn,
            "deny" => Status::Deny,
            "drifted" => Status::Drifted,
            "tampered" => Status::Tampered,
            "error" => Status::Error,
            _ => return None,
        })
    }

    /// The word of the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::None => "none",
            Status::Pass => "pass",
            Status::Warn => "warn",
            Status::Deny => "deny",
            Status::Drifted => "drifted",
            Status::Tampered => "tampered",
            Status::Error => "error",
        }
    }
}

/// Name of a snapshot: the one component below `.skill-meta/versions/`, ending in `.snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotName(String);

impl SnapshotName {
    /// From a `target`, which must be spelt exactly `.skill-meta/versions/NAME.snapshot`.
    pub fn from_target(target: &str) -> Option<Self> {
        let name = target.strip_prefix(VERSIONS)?;
        let stem = name.strip_suffix(SUFFIX)?;
        let bad = stem.is_empty()
            || name.len() > 255
            || target.contains("..")
            || name.bytes().any(|b| matches!(b, b'/' | b'\\' | 0));
        if bad { None } else { Some(SnapshotName(name.to_owned())) }
    }

    /// Of the version that a provider calls trusted.
    pub fn of_version(version: &str) -> Option<Self> {
        Self::from_target(&format!("{VERSIONS}{version}{SUFFIX}"))
    }

    /// The component.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path relative to the skill's folder.
    pub fn target(&self) -> String {
        format!("{VERSIONS}{}", self.0)
    }
}

/// What is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The live folder.
    Current,
    /// That snapshot.
    Fallback(SnapshotName),
    /// Nothing.
    Hidden,
}

/// An accepted answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is to be shown.
    pub choice: Choice,
    /// The provider's judgement.
    pub status: Status,
    /// Why, in its words.
    pub reason: Option<String>,
    /// Its version of the live folder.
    pub current_version: Option<String>,
    /// The last version that it trusts.
    pub trusted_version: Option<String>,
    /// Digest of what is to be shown (`[0.1]`).
    pub content_digest: Option<String>,
}

impl Answer {
    /// The snapshot that may be shown while the live folder is undecided: the target, or the trusted version's.
    pub fn trusted_snapshot(&self) -> Option<SnapshotName> {
        match &self.choice {
            Choice::Fallback(name) => Some(name.clone()),
            Choice::Current | Choice::Hidden => {
                self.trusted_version.as_deref().and_then(SnapshotName::of_version)
            }
        }
    }

    /// A sentence when the decision contradicts the status; the decision holds all the same.
    pub fn warning(&self) -> Option<String> {
        match (&self.choice, self.status) {
            (Choice::Current, Status::Deny | Status::Tampered | Status::Error) => Some(format!(
                "the provider shows the live folder although its status is {}",
                self.status.as_str()
            )),
            _ => None,
        }
    }
}

/// Why output is not an answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Nothing was printed.
    #[error("the provider printed nothing")]
    Empty,
    /// Not UTF-8.
    #[error("the provider's output is not UTF-8")]
    NotText,
    /// Not exactly one JSON object with fields of the right types.
    #[error("the provider's output is not one JSON object of the protocol: {0}")]
    Json(String),
    /// Another schemaVersion.
    #[error("schemaVersion is {0}, expected 1")]
    SchemaVersion(u64),
    /// A word that the protocol does not have.
    #[error("{field} is {value:?}, which the protocol does not know")]
    UnknownWord {
        /// Which field.
        field: &'static str,
        /// What it held.
        value: String,
    },
    /// The answer is about another skill.
    #[error("skillName is {0:?}, another than was asked about")]
    SkillName(String),
    /// A target with a decision that has none.
    #[error("decision {0} must not have a target")]
    SurplusTarget(&'static str),
    /// Fallback without a target of the right kind.
    #[error("decision fallback needs a target and targetKind relative_to_skill_dir")]
    NoTarget,
    /// A target that does not name a snapshot of this skill.
    #[error("target {0:?} is not of the form .skill-meta/versions/VERSION.snapshot")]
    Target(String),
    /// contentDigest is not a digest.
    #[error("contentDigest is not sha256: and 64 lower-case hex digits")]
    ContentDigest,
}

/// The known fields; unknown ones are the provider's own. Words are read as text and matched here, because serde
/// would also take a map for an enum.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: u64,
    skill_name: String,
    #[serde(default, rename = "declaredName")]
    _declared_name: Option<String>,
    status: String,
    decision: String,
    reason: Option<String>,
    current_version: Option<String>,
    trusted_version: Option<String>,
    target: Option<String>,
    target_kind: Option<String>,
    content_digest: Option<String>,
}

/// Validates the standard output of `resolve` for `skill`.
pub fn validate(stdout: &[u8], skill: &SkillName) -> Result<Answer, Rejected> {
    let text = std::str::from_utf8(stdout).map_err(|_| Rejected::NotText)?;
    let body = text.trim_start_matches([' ', '\t', '\r', '\n']);
    if body.is_empty() {
        return Err(Rejected::Empty);
    }
    if !body.starts_with('{') {
        // serde would also read the fields from an array, in order.
        return Err(Rejected::Json("it does not begin with {".to_owned()));
    }
    let raw: Raw =
        serde_json::from_str(body).map_err(|e| Rejected::Json(control::bounded(&e.to_string())))?;
    if raw.schema_version != SCHEMA_VERSION {
        return Err(Rejected::SchemaVersion(raw.schema_version));
    }
    if raw.skill_name != skill.as_str() {
        return Err(Rejected::SkillName(control::bounded(&raw.skill_name)));
    }
    let unknown = |field, value: &str| Rejected::UnknownWord { field, value: control::bounded(value) };
    let status = Status::parse(&raw.status).ok_or_else(|| unknown("status", &raw.status))?;
    let relative = match raw.target_kind.as_deref() {
        None => false,
        Some("relative_to_skill_dir") => true,
        Some(other) => return Err(unknown("targetKind", other)),
    };
    let choice = match (raw.decision.as_str(), raw.target, relative) {
        ("current", None, false) => Choice::Current,
        ("current", ..) => return Err(Rejected::SurplusTarget("current")),
        ("hidden", None, false) => Choice::Hidden,
        ("hidden", ..) => return Err(Rejected::SurplusTarget("hidden")),
        ("fallback", Some(target), true) => match SnapshotName::from_target(&target) {
            Some(name) => Choice::Fallback(name),
            None => return Err(Rejected::Target(control::bounded(&target))),
        },
        ("fallback", ..) => return Err(Rejected::NoTarget),
        (other, ..) => return Err(unknown("decision", other)),
    };
    if raw.content_digest.as_deref().is_some_and(|d| !tree::is_written(d)) {
        return Err(Rejected::ContentDigest);
    }
    Ok(Answer {
        choice,
        status,
        reason: raw.reason,
        current_version: raw.current_version,
        trusted_version: raw.trusted_version,
        content_digest: raw.content_digest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill() -> SkillName {
        SkillName::new("demo-weather").unwrap()
    }

    #[test]
    fn every_vector_is_judged_as_it_says() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/decisions.json");
        let vectors: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(cases.len() > 40);
        for case in cases.iter().filter(|c| c["exit"] == 0) {
            let got = validate(case["stdout"].as_str().unwrap().as_bytes(), &skill());
            let word = match &got {
                Ok(a) => match &a.choice {
                    Choice::Current => "current",
                    Choice::Fallback(name) => {
                        assert_eq!(case["target"], name.target(), "{}", case["name"]);
                        "fallback"
                    }
                    Choice::Hidden => "hidden",
                },
                Err(_) => "reject",
            };
            assert_eq!(case["expect"], word, "{}: {got:?}", case["name"]);
            let warned = got.is_ok_and(|a| a.warning().is_some());
            assert_eq!(warned, case["warn"] == true, "{}", case["name"]);
        }
    }

    #[test]
    fn shapes_that_serde_would_bend_are_rejected() {
        let head = r#"{"schemaVersion":1,"skillName":"demo-weather","status":"pass","#;
        for bad in [
            format!("{head}\"decision\":{{\"current\":null}}}}"),
            r#"[1,"demo-weather",null,"pass","current",null,null,null,null,null,null]"#.to_owned(),
            r#"{"schemaVersion":1.0,"skillName":"demo-weather","status":"pass","decision":"current"}"#
                .to_owned(),
            format!("{head}\"decision\":\"current\"}} trailing"),
            format!("{head}\"decision\":\"current\",\"reason\":7}}"),
            "{}".to_owned(),
        ] {
            assert!(validate(bad.as_bytes(), &skill()).is_err(), "{bad}");
        }
        assert_eq!(validate(b"\xff\xfe", &skill()), Err(Rejected::NotText));
    }

    #[test]
    fn a_trusted_version_names_a_snapshot_or_nothing() {
        for bad in ["", "../v1", "a/b", "a\\b", "a\0b", "v1..2", &"x".repeat(250)] {
            assert_eq!(SnapshotName::of_version(bad), None, "{bad:?}");
        }
        assert_eq!(SnapshotName::of_version("v1").unwrap().target(), ".skill-meta/versions/v1.snapshot");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let _ = validate(&bytes, &skill());
        }

        #[test]
        fn a_target_is_always_one_component(text in ".{0,60}") {
            if let Some(name) = SnapshotName::from_target(&format!(".skill-meta/versions/{text}.snapshot")) {
                proptest::prop_assert!(!name.as_str().contains('/') && !name.as_str().contains(".."));
            }
        }
    }
}
