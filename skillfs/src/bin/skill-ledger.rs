//! The command line of the provider that ships with the project (`[9.10]`; `skill-ledger(1)` says the same for users). A few
//! lines a command; the work is in `skillfs::certify`. SkillFS runs `scan` and `resolve`, people run the rest.

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use cyberos_proto::terminal::Events;
use serde::Serialize;
use skillfs::certify::findings::{self, Findings};
use skillfs::certify::floor::{DEFAULT_STATE, Floors};
use skillfs::certify::issue::{Request, certify};
use skillfs::certify::keys::{self, DEFAULT_KEYS, DEFAULT_NAME, DEFAULT_TRUSTED, TrustedKeys};
use skillfs::certify::manifest::Version;
use skillfs::certify::prune::{DEFAULT_KEEP, Pruned, prune};
use skillfs::certify::resolution::Resolution;
use skillfs::certify::resolve::{Sources, resolve, scan};
use skillfs::certify::skill::{Skill, absolute};
use skillfs::certify::words::{quoted, shown};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Certify skills, and tell SkillFS what may be shown of them.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    folders: Folders,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Folders {
    /// Folder of signing keys; only init and certify look there
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_KEYS)]
    keys: PathBuf,
    /// Folder of the public keys (*.pub) that are believed
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_TRUSTED)]
    trusted: PathBuf,
    /// Folder in which the newest version seen of each skill is remembered
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_STATE)]
    state: PathBuf,
    /// Print one JSON object on stdout
    #[arg(long, global = true)]
    json: bool,
}

impl Folders {
    /// How this program is told to certify with these folders, up to the skill's path.
    fn certify_command(&self) -> String {
        let program = std::env::args().next().unwrap_or_else(|| "skill-ledger".into());
        let mut line = quoted(&program);
        for (option, dir, default) in [
            ("--keys", &self.keys, DEFAULT_KEYS),
            ("--trusted", &self.trusted, DEFAULT_TRUSTED),
            ("--state", &self.state, DEFAULT_STATE),
        ] {
            if dir.as_os_str() != default {
                line.push_str(&format!(" {option} {}", quoted(&dir.to_string_lossy())));
            }
        }
        line + " certify"
    }
}

#[derive(Subcommand)]
enum Command {
    /// Make a key pair: the private half for certify, the public half for SkillFS to believe
    Init {
        /// Name of the pair: its files are NAME.key and NAME.pub
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
    },
    /// Certify a skill as it is now: take a snapshot and sign a manifest of it
    Certify {
        /// The skill's folder
        dir: PathBuf,
        /// A scanner's report (SARIF 2.1.0; - is standard input): errors make the version deny, warnings warn
        #[arg(long, value_name = "SARIF")]
        findings: Option<PathBuf>,
        /// Name of the key pair that signs
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
        /// Certify only this content (status --json tells the digest of what lies there)
        #[arg(long, value_name = "sha256:HEX")]
        expect: Option<String>,
        /// Number the version after this one, which SkillFS has seen
        #[arg(long, value_name = "vNNNNNN", value_parser = version)]
        after: Option<Version>,
        /// How many versions stay; older ones are removed, but never one that is or may be shown
        #[arg(long, value_name = "N", default_value_t = DEFAULT_KEEP, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
    /// Remove old versions of a skill, but never one that is or may be shown
    Prune {
        /// The skill's folder
        dir: PathBuf,
        /// How many versions stay
        #[arg(long, value_name = "N", default_value_t = DEFAULT_KEEP, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
    /// Look whether resolve will have what it needs (SkillFS runs this)
    Scan {
        /// The skill's folder
        dir: PathBuf,
    },
    /// Decide what may be shown of a skill (SkillFS runs this)
    Resolve {
        /// The skill's folder
        dir: PathBuf,
    },
    /// Show the state of a skill, or of every skill in a folder of skills
    Status {
        /// A skill's folder, or a folder of skills
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(|| Events(io::stderr()))
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // A reader that has gone away needs no message.
            if e.downcast_ref::<io::Error>().is_none_or(|e| e.kind() != io::ErrorKind::BrokenPipe) {
                tracing::error!("{}", shown(format!("{e:#}").as_bytes(), 2000));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let sources = |record| Sources {
        trusted: cli.folders.trusted.clone(),
        state: cli.folders.state.clone(),
        record,
        certify: cli.folders.certify_command(),
    };
    match &cli.command {
        Command::Init { name } => init(&cli.folders, name),
        Command::Certify { dir, findings, name, expect, after, keep } => {
            let wanted = Wanted {
                report: findings.as_deref(),
                name,
                expect: expect.clone(),
                after: *after,
                keep: *keep,
            };
            certify_one(&cli.folders, dir, wanted)
        }
        Command::Prune { dir, keep } => prune_one(&cli.folders, dir, *keep),
        Command::Scan { dir } => print_json(&scan(dir, &sources(true))),
        Command::Resolve { dir } => print_json(&resolve(dir, &sources(true))),
        Command::Status { dir } => status(dir, &sources(false), cli.folders.json),
    }
}

fn init(folders: &Folders, name: &str) -> Result<()> {
    let pair = keys::init(&folders.keys, &folders.trusted, name)?;
    if folders.json {
        return print_json(&serde_json::json!({
            "privateKey": pair.private, "publicKey": pair.public, "keyId": pair.id, "made": pair.made,
        }));
    }
    let made = if pair.made { "made" } else { "kept" };
    print(&format!(
        "{made} signing key {} (keep it from SkillFS's user)\ntrusted as {} ({})\n",
        pair.private.display(),
        pair.public.display(),
        pair.id
    ))
}

/// What was said besides the folder.
struct Wanted<'a> {
    report: Option<&'a Path>,
    name: &'a str,
    expect: Option<String>,
    after: Option<Version>,
    keep: u32,
}

fn certify_one(folders: &Folders, dir: &Path, wanted: Wanted<'_>) -> Result<()> {
    // This process holds a key that signs: nobody else of this user may look into it.
    nix::sys::prctl::set_dumpable(false).context("making this process unreadable for others")?;
    let key = keys::signing_key(&folders.keys, wanted.name)?;
    let findings = wanted.report.map_or(Ok(Findings::default()), |report| findings::read(report, dir))?;
    let skill = Skill::open_unlinked(dir)?;
    let name = skill.name.clone();
    let done = certify(Request {
        skill,
        findings,
        key,
        trusted: folders.trusted.clone(),
        state: folders.state.clone(),
        expected_digest: wanted.expect,
        after: wanted.after,
        keep: wanted.keep,
    })?;
    for note in &done.notes {
        tracing::warn!("{}", shown(note.as_bytes(), 1000));
    }
    if folders.json {
        return print_json(&serde_json::json!({
            "skillName": name, "version": done.version.to_string(), "treeDigest": done.tree_digest,
            "status": done.status, "made": done.made, "notes": done.notes,
        }));
    }
    let what = if done.made { "certified" } else { "unchanged" };
    let (name, status) = (shown(name.as_str().as_bytes(), 64), done.status.word());
    print(&format!("{what} {name} {} {status} {}\n", done.version, done.tree_digest))
}

fn prune_one(folders: &Folders, dir: &Path, keep: u32) -> Result<()> {
    let skill = Skill::open_unlinked(dir)?;
    // What SkillFS shows is known from there alone, so without it nothing is removed.
    let floor = Floors::new(&folders.state).read(&skill.path)?;
    let Pruned { removed, beside } = match skill.versions()? {
        Some(versions) if !versions.present.is_empty() => {
            let keys = TrustedKeys::load(&folders.trusted, &skill.path)?;
            prune(&skill, &versions, &keys, floor.as_ref(), keep)?
        }
        _ => Pruned::default(),
    };
    let removed: Vec<String> = removed.iter().map(Version::to_string).collect();
    if folders.json {
        let beside: Vec<_> = beside
            .iter()
            .map(|(version, why)| serde_json::json!({ "version": version.to_string(), "why": why }))
            .collect();
        return print_json(&serde_json::json!({
            "skillName": skill.name.as_str(), "removed": removed, "keptBeside": beside,
        }));
    }
    let what = if removed.is_empty() { "no version was old enough".to_owned() } else { removed.join(" ") };
    let mut told = format!("pruned {}: {what}\n", shown(skill.name.as_str().as_bytes(), 64));
    for (version, why) in beside {
        told.push_str(&format!("kept {version} beside the newest {keep}: {why}\n"));
    }
    print(&told)
}

fn version(text: &str) -> Result<Version, String> {
    text.parse().map_err(|()| "a version is written v and six digits, as v000003".to_owned())
}

fn status(dir: &Path, sources: &Sources, json: bool) -> Result<()> {
    let dir = absolute(dir).with_context(|| dir.display().to_string())?;
    if is_skill(&dir) {
        let answer = resolve(&dir, sources);
        return if json { print_json(&answer) } else { print(&table(&[answer])) };
    }
    let listing = || format!("listing the skills in {}", dir.display());
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(listing)? {
        let entry = entry.with_context(listing)?;
        // As the view lists them: a link is no skill, and neither is a folder without SKILL.md.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !entry.file_name().as_encoded_bytes().starts_with(b".") && is_folder && is_skill(&entry.path()) {
            folders.push(entry.path());
        }
    }
    if folders.is_empty() && !json {
        bail!("{} is no skill (it has no SKILL.md) and holds none", dir.display());
    }
    folders.sort();
    let resolutions: Vec<Resolution> = folders.iter().map(|folder| resolve(folder, sources)).collect();
    if json { print_json(&serde_json::json!({ "skills": resolutions })) } else { print(&table(&resolutions)) }
}

fn is_skill(dir: &Path) -> bool {
    ["SKILL.md", ".skill-meta"].iter().any(|name| dir.join(name).symlink_metadata().is_ok())
}

/// One line a skill, in columns.
fn table(resolutions: &[Resolution]) -> String {
    let mut rows = vec![["SKILL", "STATUS", "SHOWN", "VERSION", "TRUSTED", "WHY"].map(str::to_owned)];
    rows.extend(resolutions.iter().map(|a| {
        let version = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".to_owned());
        [
            shown(a.skill_name.as_bytes(), 64),
            a.status.word().to_owned(),
            a.decision.word().to_owned(),
            version(&a.current_version),
            version(&a.trusted_version),
            a.reason.clone().unwrap_or_default(),
        ]
    }));
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).chain([0]).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
