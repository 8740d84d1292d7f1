//! A real sandbox, made by a helper of our own with a ceiling of its own, and what it reports: the only word on what
//! this kernel enforces (`[10.6]`). It runs /bin/true, and each directory that is granted, by default or by
//! the configuration, is bound once.

use super::super::up::place::{Ids, Users};
use super::super::up::{helper_program, supervise};
use super::{Finding, Subject};
use crate::config::DEFAULT_PATH;
use crate::helper::{Helper, HelperError};
use crate::sandbox::{Ending, Sandbox, SandboxError};
use anyhow::{Context, Result};
use cyberos_proto::link::Link;
use cyberos_proto::message::{FromHelper, Refusal, Request};
use cyberos_proto::plan::{
    Bind, BindKind, Cgroup, Feature, Limits, MemoryLimit, Profile, SandboxPath, SandboxReport, SpawnPlan,
};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, chown, setegid, seteuid};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use uuid::Uuid;

/// How long the helper may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Directories of the configuration's grants that are tried.
const MOST_GRANTS: usize = 16;
/// The ABI from which on Landlock has scopes.
const SCOPES: u8 = 6;

pub(super) async fn run(subject: &Subject, findings: &mut Vec<Finding>) {
    if !Uid::effective().is_root() {
        findings.push(Finding::skipped(
            "sandbox",
            "not tried: only root can have one made",
            "what a sandbox is made of here is not known (control groups, Landlock, idmapped grants)",
            "run 'cyberos doctor' as root",
        ));
        return;
    }
    if let Err(e) = tried(subject, findings).await {
        findings.push(Finding::missing(
            "sandbox",
            format!("could not be tried: {e:#}"),
            "no skill runs",
            "see what the line says; without the helper's programs: cargo build --release --locked",
        ));
    }
}

/// A directory for the trial, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn make() -> Result<Place> {
        let path = PathBuf::from(format!("/run/cyberos-doctor-{}", Uuid::new_v4()));
        std::fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .with_context(|| format!("{}", path.display()))?;
        std::fs::create_dir_all(path.join("sealed/skill"))?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn tried(subject: &Subject, findings: &mut Vec<Finding>) -> Result<()> {
    let place = Place::make()?;
    let at = |name: &str| place.0.join(name);
    let broker = Users::find()?.broker;
    let granted = granted(subject, findings);
    let ceiling =
        format!("broker_uid {}\nroot sealed {}\nroot grant /\n", broker.uid, at("sealed").display());
    std::fs::write(at("ceiling"), ceiling)?;
    let listener: OwnedFd = cyberos_proto::link::listen(&at("socket"))?;
    chown(&at("socket"), Some(broker.uid), None)?;
    let argv = [helper_program()?, "--ceiling".into(), at("ceiling")].map(|w| w.display().to_string());
    let log = std::fs::File::create(at("log"))?;
    let mut command = supervise::activated(&argv, &listener)?;
    let mut helper = command.stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn()?;
    let socket = at("socket");
    let sealed = open(&at("sealed/skill"), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let trial = async {
        let helper = Helper::over(&socket, connect(&socket, broker)?);
        let plain = try_one(&helper, &sealed, None).await?;
        let mut with_grant = Vec::new();
        for dir in &granted {
            with_grant.push(try_one(&helper, &sealed, Some(dir)).await?);
        }
        Ok((plain, with_grant))
    };
    let answers: Result<_> = tokio::select! {
        status = helper.wait() => Err(anyhow::anyhow!("the helper ended: {}", status?)),
        answers = trial => answers,
    };
    supervise::end(&mut helper, "cyberos-priv-helper", PATIENCE).await;
    let log = super::read(at("log")).unwrap_or_default();
    let warned =
        |about: &str| log.lines().find(|l| l.contains("WARN") && l.contains(about)).map(str::to_owned);
    let said = |e: anyhow::Error| match log.lines().last() {
        Some(last) => e.context(last.to_owned()),
        None => e,
    };
    let (plain, with_grants) = answers.map_err(said)?;
    match plain {
        Ok(report) => {
            let words: Vec<_> = report.enforced.iter().map(|f| f.as_str()).collect();
            findings.push(Finding::ok("sandbox", format!("made and ended; enforced: {}", words.join(", "))));
            findings.push(landlock(&report));
            findings.push(cgroup(&report, warned("control group")));
        }
        Err(refusal) => findings.push(Finding::missing(
            "sandbox",
            refusal.to_string(),
            "no skill runs: none is run without this",
            "give this machine or container what the line names (CAP_SYS_ADMIN, namespaces, seccomp)",
        )),
    }
    findings.extend(granted.iter().zip(with_grants).map(|(dir, answer)| grant(dir, answer)));
    Ok(())
}

/// The real names of the directories to be tried: the one that the default grants give, and those that the
/// configuration grants. What is not there, and what no plan can name, is left out.
fn granted(subject: &Subject, findings: &mut Vec<Finding>) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in std::iter::once(&subject.work).chain(subject.grants.iter().flatten()) {
        let Ok(dir) = dir.canonicalize() else { continue };
        let named = dir.parent().is_some() && dir.to_str().is_some_and(|text| SandboxPath::new(text).is_ok());
        if named && dir.is_dir() && !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    let most = MOST_GRANTS + usize::from(subject.work.is_dir());
    if subject.grants.is_none() {
        findings.push(Finding::skipped(
            "grants",
            format!("not looked at: no configuration was read (the packaged one is {DEFAULT_PATH})"),
            "if the broker has a configuration, whether Bash can be given what it grants is not known",
            "name it: cyberos doctor --config FILE",
        ));
    } else if dirs.len() > most {
        findings.push(Finding::skipped(
            "grants",
            format!("{} of the directories that the configuration grants were not tried", dirs.len() - most),
            "whether Bash can be given them is not known",
            "try them with a configuration that grants fewer: cyberos doctor --config FILE",
        ));
    }
    dirs.truncate(most);
    dirs
}

/// Connects as the broker's user, the only one whom the helper of the trial serves.
fn connect(socket: &Path, as_whom: Ids) -> Result<Link<Request, FromHelper>> {
    setegid(as_whom.gid)?;
    let link = seteuid(as_whom.uid).map(|()| Link::connect(socket));
    seteuid(Uid::from_raw(0)).context("cannot become root again")?;
    setegid(Gid::from_raw(0)).context("cannot become root again")?;
    Ok(link??)
}

type Answer = std::result::Result<SandboxReport, Refusal>;

/// One sandbox from its making to its end.
async fn try_one(helper: &Helper, sealed: &OwnedFd, grant: Option<&Path>) -> Result<Answer> {
    let path = |text: &str| SandboxPath::new(text).map_err(|fault| anyhow::anyhow!("{text}: {fault}"));
    let mut binds = vec![Bind { target: path("/opt/cyberos/skills/doctor")?, kind: BindKind::Sealed }];
    let mut fds = vec![sealed.try_clone()?];
    if let Some(dir) = grant {
        let target = path(dir.to_str().context("the directory's name is not text")?)?;
        binds.push(Bind { target, kind: BindKind::Grant { writable: true } });
        fds.push(open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?);
    }
    let plan = SpawnPlan {
        program: path("/bin/true")?,
        args: vec![b"true".to_vec()],
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        cwd: path("/tmp")?,
        binds,
        socket: false,
        limits: Limits {
            memory_mb: 512,
            memory_kind: MemoryLimit::AddressSpace,
            cpu_s: 10,
            processes: 8,
            open_files: 64,
            file_mb: 1,
            tmp_mb: 1,
        },
        profile: Profile::Bash,
    };
    let sandbox = Sandbox::new(helper, &Ending::default());
    let report = match sandbox.prepare(plan, fds, &[]).await {
        Ok(prepared) => {
            let report = prepared.report.clone();
            match prepared.go().await {
                Ok(mut program) => {
                    program.end.wait().await;
                    Ok(report)
                }
                Err(HelperError::Refused(refusal)) => Err(refusal),
                Err(e) => return Err(e.into()),
            }
        }
        Err(SandboxError::Helper(HelperError::Refused(refusal))) => Err(refusal),
        Err(e) => return Err(e.into()),
    };
    sandbox.release().await;
    Ok(report)
}

fn landlock(report: &SandboxReport) -> Finding {
    const CHECK: &str = "landlock";
    let remedy = "use Linux 6.12 or later with landlock in CONFIG_LSM (or lsm= at boot)";
    match report.landlock {
        _ if report.skipped.contains(&Feature::Landlock) => Finding::weak(
            CHECK,
            "not in force",
            "one protection less: only its own mounts keep a sandbox from the host's files",
            remedy,
        ),
        abi if abi < SCOPES => Finding::weak(
            CHECK,
            format!("ABI {abi} in force, without scopes"),
            "signals and abstract sockets are kept in by the namespaces alone",
            remedy,
        ),
        abi => Finding::ok(CHECK, format!("ABI {abi} in force, with scopes")),
    }
}

fn cgroup(report: &SandboxReport, why: Option<String>) -> Finding {
    const CHECK: &str = "cgroup";
    match report.cgroup {
        Cgroup::V2 => Finding::ok(CHECK, "version 2 in force: memory, pids and cpu"),
        Cgroup::V1 => Finding::weak(
            CHECK,
            "version 1 in force: memory and pids",
            "a sandbox as a whole has no limit of cpu",
            "boot with version 2 and give the helper's group its controllers (systemd: Delegate=yes)",
        ),
        Cgroup::Absent => Finding::weak(
            CHECK,
            why.unwrap_or_else(|| "none in force".to_owned()),
            "memory is bounded for each process, not for a sandbox as a whole",
            "give the helper a group with memory and pids (systemd: Delegate=yes)",
        ),
    }
}

fn grant(dir: &Path, answer: Answer) -> Finding {
    let check = format!("idmap {}", dir.display());
    match answer {
        Ok(_) => Finding::ok(check, "can be given to Bash"),
        Err(Refusal::GrantUnsupported { fs, .. }) => Finding::weak(
            check,
            format!(
                "it, or something mounted above or below it, is {fs}: no idmapped mounts, or it may wait for others"
            ),
            "Bash is refused to every skill that is granted this directory (grant_unsupported)",
            "put it on ext4, xfs, btrfs, f2fs or tmpfs (in a container: on a volume, not on the overlay)",
        ),
        Err(other) => Finding::weak(
            check,
            other.to_string(),
            "Bash is refused to every skill that is granted this directory",
            "grant a directory that belongs to the work of skills alone",
        ),
    }
}
