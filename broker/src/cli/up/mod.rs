//! `cyberos up` (`[7.5]`): helper, SkillFS and broker in the foreground, from a checkout or an install.
//!
//! It runs as root, does what systemd and the package would do (directories, users, ceiling, socket activation,
//! restarts), and undoes it at the end. It judges nothing and serves nothing itself.

mod check;
mod copy;
mod ending;
pub(super) mod place;
pub(super) mod supervise;
mod work;

use super::output::note;
use anyhow::{Context, Result, bail};
use check::mount_point;
use clap::Args;
use copy::copy_tree;
use cyberos_proto::invoker;
use ending::Ending;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{Gid, Uid, chown, fchownat};
use place::{Ids, Place, Users, read_as_invoker, trusted_path, write_for};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use supervise::Daemon;
use tokio::sync::{mpsc, watch};
use work::WorkDirectory;

/// How long the start may take before it counts as failed.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Where an install keeps its example skills.
const INSTALLED_SKILLS: &str = "/usr/share/cyberos/skills";
/// Where the daemons of an install are.
const INSTALLED_BINARIES: &str = "/usr/libexec/cyberos";
const BINARIES: [&str; 5] =
    ["cyberos-priv-helper", "cyberos-broker", "skillfs", "skill-ledger", "cyberos-call"];

/// Run helper, SkillFS and broker in the foreground
#[derive(Debug, Args)]
pub(super) struct Up {
    /// Where to keep state; default: a fresh directory, removed at the end
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
    /// The skills folder; default: a copy of the example skills
    #[arg(long, value_name = "DIR")]
    pub(super) skills: Option<PathBuf>,
    /// The mount point of the view; default: STATE/mount
    #[arg(long, value_name = "DIR")]
    pub(super) mount: Option<PathBuf>,
    /// The operator's configuration; default: built-in defaults
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The decision provider; default: skill-ledger with a key of its own in STATE/keys
    #[arg(long, value_name = "CMD")]
    pub(super) decision_command: Option<String>,
    /// Grant what skills ask for, except what is never grantable
    #[arg(long)]
    pub(super) grant_requested: bool,
    /// Not of use here: it names a broker that runs
    #[arg(long, hide = true)]
    pub(super) socket: Option<PathBuf>,
}

impl Up {
    /// Runs until SIGINT, SIGTERM, SIGQUIT or SIGHUP: what ends a terminal's session ends this as cleanly.
    pub(super) async fn run(self) -> Result<()> {
        if !Uid::effective().is_root() {
            bail!(
                "'cyberos up' needs root, for namespaces, mounts and users of its own: run it with sudo \
                 (there is no rootless mode yet)"
            );
        }
        nix::sys::stat::umask(Mode::from_bits_truncate(0o022));
        // From the first moment: an end that came while a directory is made would leave it behind.
        let end = Ending::expect()?;
        let users = Users::find()?;
        // Everything that can be found out without making anything, first.
        self.check_paths(&users)?;
        let place = Place::take(self.state.as_deref(), &users)?;
        if self.skills.is_some() && self.state.is_none() && self.decision_command.is_none() {
            note!(
                "cyberos up: the key that certifies is made for this run and goes with it; with --state DIR \
                 certificates last"
            );
        }
        let work = WorkDirectory::take(&users)?;
        let result = self.run_in(&place, &users, end).await;
        drop(work);
        drop(place);
        result
    }

    async fn run_in(&self, place: &Place, users: &Users, end: Ending) -> Result<()> {
        let state = &place.state;
        install_binaries(&state.join("bin"))?;
        let skills = self.skills(state)?;
        let mount = self.mount.as_ref().map_or_else(|| Ok(state.join("mount")), std::path::absolute)?;
        trusted_path(&mount)?;
        let made_mount = !mount.exists();
        mount_point(&mount)?;
        self.write_configuration(place, users, &skills, &mount)?;
        self.check_configuration(place, users).await?;
        let daemons = self.daemons(place, users, &skills, &mount).await?;

        let (fatal, mut failed) = mpsc::channel(4);
        let (now_ready, is_ready) = watch::channel(false);
        let mut running = Vec::new();
        let (broker_started, mut broker_starts) = mpsc::channel(8);
        let (ignored, _never) = mpsc::channel(1);
        // SkillFS needs the helper, the broker both; each also waits by itself, so the order only saves log lines.
        for daemon in daemons {
            let started =
                if daemon.name == "cyberos-broker" { broker_started.clone() } else { ignored.clone() };
            let (stop, stopped) = watch::channel(false);
            running
                .push((stop, tokio::spawn(daemon.keep(stopped, is_ready.clone(), fatal.clone(), started))));
        }
        let operator = invoker::uid().map(Uid::from_raw);
        let socket = place.operator_socket();
        let giver = {
            let (socket, broker) = (socket.clone(), users.broker.uid);
            tokio::spawn(async move {
                // A restarted broker makes a new socket; it goes to the invoking user again.
                while broker_starts.recv().await.is_some() {
                    if let Some(uid) = operator {
                        give_socket(&socket, broker, uid).await;
                    }
                }
            })
        };
        let outcome = tokio::select! {
            why = failed.recv() => Err(anyhow::anyhow!(why.unwrap_or_default())),
            outcome = self.announce_and_wait(place, &mount, &skills, now_ready, end) => outcome,
        };
        // In the order of dependence: the broker ends its runs, then the view goes, then root.
        for (stop, task) in running.into_iter().rev() {
            let _ = stop.send(true);
            let _ = task.await;
        }
        giver.abort();
        let _ = nix::mount::umount2(
            &mount,
            nix::mount::MntFlags::MNT_DETACH | nix::mount::MntFlags::UMOUNT_NOFOLLOW,
        );
        let _ = std::fs::remove_file(place.helper_socket());
        if made_mount {
            let _ = std::fs::remove_dir(&mount);
        }
        outcome
    }

    async fn announce_and_wait(
        &self,
        place: &Place,
        mount: &Path,
        skills: &Path,
        now_ready: watch::Sender<bool>,
        mut end: Ending,
    ) -> Result<()> {
        let socket = place.operator_socket();
        let ready = async {
            tokio::time::timeout(READY_LIMIT, ready(mount, &socket))
                .await
                .with_context(|| format!("not ready within {} s; see the lines above", READY_LIMIT.as_secs()))
        };
        tokio::select! {
            answer = ready => answer?,
            () = end.comes() => return Ok(()),
        }
        now_ready.send_replace(true);
        let line = serde_json::json!({
            "ready": true,
            "operator_socket": socket,
            "mount": mount,
            "skills": skills,
            "state": place.state,
        });
        // If nobody can read it any more, what has been started is undone.
        let mut out = std::io::stdout();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .context("cannot print the line that says ready")?;
        end.comes().await;
        Ok(())
    }

    fn skills(&self, state: &Path) -> Result<PathBuf> {
        if let Some(dir) = &self.skills {
            return Ok(std::path::absolute(dir)?);
        }
        let examples = [
            PathBuf::from(INSTALLED_SKILLS),
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/skills"),
        ];
        let from = examples
            .iter()
            .find(|d| d.is_dir())
            .context("no example skills found; name a folder with --skills")?;
        let skills = state.join("skills");
        if !skills.exists() {
            copy_tree(from, &skills)?;
        }
        Ok(skills)
    }

    fn write_configuration(&self, place: &Place, users: &Users, skills: &Path, mount: &Path) -> Result<()> {
        let state = &place.state;
        let mut ceiling = String::from("# written by 'cyberos up'; what the helper may do at most\n");
        writeln!(ceiling, "broker_uid {}", users.broker.uid)?;
        writeln!(ceiling, "skillfs_uid {}", users.skillfs.uid)?;
        // Two hundred invocations at once, each with a Bash sandbox beside it.
        writeln!(ceiling, "max_sandboxes 400")?;
        writeln!(ceiling, "root sealed {}", state.join("sealed").display())?;
        // What may be granted of all the rest is the broker's to decide.
        writeln!(ceiling, "root grant /")?;
        writeln!(ceiling, "never {}", state.display())?;
        writeln!(ceiling, "never {}", skills.display())?;
        writeln!(ceiling, "mount 0 ro {}", mount.display())?;
        writeln!(ceiling, "bin {}", state.join("bin/sandbox").display())?;
        let path = state.join("helper/ceiling");
        write_for(&path, Gid::from_raw(0), ceiling.as_bytes())?;
        if let Some(config) = &self.config {
            trusted_path(&std::path::absolute(config)?)?;
            trusted_path(
                &config.canonicalize().with_context(|| format!("cannot read {}", config.display()))?,
            )?;
            let text = read_as_invoker(config)?;
            write_for(&state.join("cyberos.yaml"), users.broker.gid, &text)?;
        }
        Ok(())
    }

    async fn daemons(
        &self,
        place: &Place,
        users: &Users,
        skills: &Path,
        mount: &Path,
    ) -> Result<Vec<Daemon>> {
        let state = &place.state;
        let bin = |name: &str| state.join("bin").join(name).display().to_string();
        let text = |p: &Path| p.display().to_string();

        let _ = std::fs::remove_file(place.helper_socket());
        let listener: OwnedFd = cyberos_proto::link::listen(&place.helper_socket())?;
        chown(&place.helper_socket(), Some(Uid::from_raw(0)), Some(users.link))?;
        std::fs::set_permissions(place.helper_socket(), std::fs::Permissions::from_mode(0o660))?;
        let mut helper = demoted(None, &[]);
        helper.extend([bin("cyberos-priv-helper"), "--ceiling".into(), text(&state.join("helper/ceiling"))]);

        let command = match &self.decision_command {
            Some(command) => command.clone(),
            None => {
                let (keys, trusted) = (text(&state.join("keys")), text(&state.join("trusted")));
                if std::fs::read_dir(state.join("trusted"))?.next().is_none() {
                    let made = tokio::process::Command::new(bin("skill-ledger"))
                        .args(["init", "--keys", &keys, "--trusted", &trusted])
                        .output()
                        .await?;
                    if !made.status.success() {
                        bail!("skill-ledger init failed: {}", String::from_utf8_lossy(&made.stderr));
                    }
                }
                let kept = text(&state.join("skillfs/ledger"));
                format!("{} --keys {keys} --trusted {trusted} --state {kept}", bin("skill-ledger"))
            }
        };
        // No operator: its provider has the groups that it has. The directory gives its socket the group.
        let mut skillfs = demoted(Some(users.skillfs), &[users.link.as_raw()]);
        skillfs.extend([bin("skillfs"), "mount".into(), text(skills), text(mount)]);
        skillfs.extend(["--decision-command".into(), command, "--read-only".into(), "--foreground".into()]);
        skillfs.extend(["--control".into(), text(&place.control_socket())]);
        skillfs.extend([
            "--helper".into(),
            text(&place.helper_socket()),
            "--mount-number".into(),
            "0".into(),
        ]);

        let mut broker = demoted(Some(users.broker), &[users.link.as_raw(), users.operators.as_raw()]);
        broker.extend([bin("cyberos-broker"), "--under-up".into()]);
        if self.config.is_some() {
            broker.extend(["--config".into(), text(&state.join("cyberos.yaml"))]);
        } else {
            broker.push("--no-config".into());
        }
        broker.extend(["--state".into(), text(&state.join("broker"))]);
        broker.extend(["--sealed".into(), text(&state.join("sealed"))]);
        broker.extend(["--operator-socket".into(), text(&place.operator_socket())]);
        broker.extend(["--helper-socket".into(), text(&place.helper_socket())]);
        broker.extend(["--skillfs-control".into(), text(&place.control_socket())]);
        broker.extend(["--mount".into(), text(mount), "--source".into(), text(skills)]);
        broker.extend(["--never".into(), text(state)]);
        if self.grant_requested {
            broker.push("--grant-requested".into());
        }
        Ok(vec![
            Daemon { name: "cyberos-priv-helper", argv: helper, listener: Some(listener) },
            Daemon { name: "skillfs", argv: skillfs, listener: None },
            Daemon { name: "cyberos-broker", argv: broker, listener: None },
        ])
    }
}

/// The start of a command line that gives root up (none: keeps it) and has the daemon end when `up` does.
fn demoted(ids: Option<Ids>, groups: &[u32]) -> Vec<String> {
    let mut argv = vec!["setpriv".to_owned(), "--pdeathsig=TERM".to_owned()];
    if let Some(ids) = ids {
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        argv.push(format!("--reuid={}", ids.uid));
        argv.push(format!("--regid={}", ids.gid));
        argv.push(if groups.is_empty() {
            "--clear-groups".into()
        } else {
            format!("--groups={}", groups.join(","))
        });
        argv.extend(["--inh-caps=-all".into(), "--bounding-set=-all".into(), "--no-new-privs".into()]);
    }
    argv.push("--".into());
    argv
}

/// Copies the binaries to where the daemons' users can reach them and nobody else can change them.
fn install_binaries(to: &Path) -> Result<()> {
    let sandbox = to.join("sandbox");
    std::fs::create_dir_all(&sandbox)?;
    for name in BINARIES {
        let from = installed(name)?;
        let target = if name == "cyberos-call" { sandbox.join(name) } else { to.join(name) };
        // A new file each time: one that still runs cannot be written.
        let _ = std::fs::remove_file(&target);
        std::fs::copy(&from, &target).with_context(|| format!("cannot copy {}", from.display()))?;
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Where a binary of ours is, that nobody else can change.
fn installed(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = own.parent().context("cannot tell where this program is")?;
    let from = [beside.join(name), Path::new(INSTALLED_BINARIES).join(name)];
    let from = from.into_iter().find(|p| p.is_file()).with_context(|| {
        format!(
            "{name} is neither beside {} nor in {INSTALLED_BINARIES}: build it (cargo build --release --locked)",
            own.display()
        )
    })?;
    trusted_path(&from)?;
    Ok(from)
}

/// The helper's program.
pub(super) fn helper_program() -> Result<PathBuf> {
    installed("cyberos-priv-helper")
}

/// Gives the operator's socket to the invoking user, by descriptor: its directory belongs to the broker, which could put
/// something else in its place.
async fn give_socket(socket: &Path, broker: Uid, uid: Uid) {
    let give = || -> nix::Result<bool> {
        let fd =
            nix::fcntl::open(socket, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let stat = nix::sys::stat::fstat(&fd)?;
        let is_socket = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
        if is_socket && stat.st_uid == broker.as_raw() {
            fchownat(&fd, "", Some(uid), None, AtFlags::AT_EMPTY_PATH)?;
        }
        Ok(is_socket)
    };
    for _ in 0..100 {
        if give() == Ok(true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns when a read through the mount and a status call have both worked.
async fn ready(mount: &Path, socket: &Path) {
    loop {
        let dir = mount.to_owned();
        let read = tokio::task::spawn_blocking(move || -> Result<bool> {
            let fs = nix::sys::statfs::statfs(&dir)?;
            let fuse = fs.filesystem_type() == nix::sys::statfs::FUSE_SUPER_MAGIC;
            Ok(fuse && std::fs::read_dir(&dir)?.all(|e| e.is_ok()))
        });
        let mounted = matches!(tokio::time::timeout(Duration::from_secs(2), read).await, Ok(Ok(Ok(true))));
        if mounted && super::client::ask(socket, crate::operator::Ask::Status {}).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
