//! A real SkillFS on a real mount: helper as root, SkillFS as a user of its own, a provider that is a program.
//!
//! The provider here is a small shell script: it prints `STUB/<skill>.json` if that is there, runs `STUB/<skill>.sh`
//! if that is there, and otherwise says `hidden`. Everything is below one temporary folder, and goes when the value
//! is dropped.

use super::activation::{HAND_OVER, activated, listen};
use super::binaries;
use super::folders::Held;
use super::machine::mountinfo;
pub(crate) use super::waiting::until;
use super::waiting::{SOON, eventually};
use cyberos_proto::control::{ControlReply, ControlRequest, SkillState};
use cyberos_proto::ids::SkillName;
use cyberos_proto::link::{Link, Wait};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// SkillFS's user when no packaged one exists.
pub(crate) const SKILLFS_UID: u32 = 1_899_999_002;
const BROKER_UID: u32 = 1_899_999_001;
const LINK_GID: u32 = 1_899_999_003;

/// A folder with everything that a mount needs.
pub(crate) struct Bench {
    root: Held,
    user: u32,
    helper: Option<Child>,
    daemon: Option<Child>,
}

impl Bench {
    /// Folders, a ceiling and a running helper; nothing mounted.
    pub(crate) fn new() -> Self {
        Bench::of(SKILLFS_UID)
    }

    /// The same with SkillFS as that user: what the kernel counts for a user is then this bench's alone.
    pub(crate) fn of(user: u32) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests mount: run them as root");
        // Whoever is ended while programs are built leaves no folder.
        binaries::binary("skillfs");
        let root = Held::new("cyberos-view-");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut bench = Bench { root, user, helper: None, daemon: None };
        for folder in ["src", "mnt", "stub", "bin", "locks", "run"] {
            fs::create_dir(bench.path(folder)).unwrap();
            fs::set_permissions(bench.path(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(bench.path("locks"), fs::Permissions::from_mode(0o700)).unwrap();
        chown(bench.path("run"), Some(user), Some(LINK_GID)).unwrap();
        let binary = bench.path("bin/skillfs");
        binaries::copy("skillfs", &binary);
        bench.program(
            "provider",
            "said=\"$STUB/$skill\"\ncase $1 in scan) [ -e \"$said.scan\" ] && . \"$said.scan\"; exit 0;; esac\n\
             if [ -e \"$said.sh\" ]; then . \"$said.sh\"; fi\n\
             if [ -e \"$said.json\" ]; then exec cat -- \"$said.json\"; fi\n\
             echo \"{\\\"schemaVersion\\\":1,\\\"skillName\\\":\\\"$skill\\\",\\\"status\\\":\\\"none\\\",\\\"decision\\\":\\\"hidden\\\"}\"",
        );
        bench.start_helper();
        bench
    }

    /// A path below the folder.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.path().join(relative)
    }

    /// A path below the mount point.
    pub(crate) fn view(&self, relative: &str) -> PathBuf {
        self.path("mnt").join(relative)
    }

    /// A path below the source.
    pub(crate) fn source(&self, relative: &str) -> PathBuf {
        self.path("src").join(relative)
    }

    /// Makes `bin/NAME`, a shell script that knows `$STUB`, `$LOG`, `$dir` and `$skill`.
    pub(crate) fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        let head = format!(
            "#!/bin/sh\nSTUB={}\nLOG={}\ndir=\"$2\"\nskill=\"${{2##*/}}\"\n",
            self.path("stub").display(),
            self.path("log").display()
        );
        binaries::write_executable(&path, &(head + text + "\n"));
    }

    /// Writes a file below the source, with its folders.
    pub(crate) fn write(&self, relative: &str, content: impl AsRef<[u8]>) {
        let path = self.source(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// What the provider says of a skill from now on, exchanged in one step.
    pub(crate) fn says(&self, skill: &str, json: &str) {
        let path = self.path("stub").join(format!("{skill}.json"));
        let new = self.path("stub").join(format!(".{skill}.new"));
        fs::write(&new, json).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// `current`.
    pub(crate) fn says_current(&self, skill: &str) {
        self.says(skill, &answer(skill, "pass", "current", None));
    }

    /// `fallback` to that version.
    pub(crate) fn says_fallback(&self, skill: &str, version: &str) {
        self.says(skill, &answer(skill, "drifted", "fallback", Some(version)));
    }

    /// `hidden`.
    pub(crate) fn says_hidden(&self, skill: &str) {
        self.says(skill, &answer(skill, "none", "hidden", None));
    }

    fn start_helper(&mut self) {
        let ceiling = self.path("ceiling");
        let text = format!(
            "uid_range 1800000000-1800000255\nbroker_uid {BROKER_UID}\nskillfs_uid {}\nlock_dir {}\nmount 0 ro {}\n",
            self.user,
            self.path("locks").display(),
            self.path("mnt").display()
        );
        fs::write(&ceiling, text).unwrap();
        let listener = listen(&self.path("helper.sock"));
        chown(self.path("helper.sock"), None, Some(LINK_GID)).unwrap();
        fs::set_permissions(self.path("helper.sock"), fs::Permissions::from_mode(0o660)).unwrap();
        let log = fs::File::create(self.path("helper.log")).unwrap();
        let helper = activated(listener, &ceiling, HAND_OVER).stderr(log).spawn().unwrap();
        self.helper = Some(helper);
    }

    /// Ends the helper without ceremony and starts another one.
    pub(crate) fn restart_helper(&mut self) {
        let mut helper = self.helper.take().unwrap();
        helper.kill().unwrap();
        helper.wait().unwrap();
        self.start_helper();
    }

    /// `skillfs` with these arguments, as SkillFS's user.
    pub(crate) fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(self.path("bin/skillfs"));
        command.args(arguments).uid(self.user).gid(LINK_GID).current_dir("/");
        command.env("RUST_LOG", "info,fuser=error").stdin(Stdio::null());
        command
    }

    /// The arguments of `mount` on this bench with these options.
    pub(crate) fn arguments(&self, options: &[&str]) -> Vec<String> {
        let mut all = vec!["mount".to_owned(), self.path("src").display().to_string()];
        all.push(self.path("mnt").display().to_string());
        all.extend(["--read-only", "--foreground", "--helper"].map(str::to_owned));
        all.push(self.path("helper.sock").display().to_string());
        all.push("--control".to_owned());
        all.push(self.path("run/control.sock").display().to_string());
        if !options.contains(&"--unprotected") && !options.contains(&"--decision-command") {
            all.push("--decision-command".to_owned());
            all.push(self.path("bin/provider").display().to_string());
        }
        all.extend(options.iter().map(|o| (*o).to_owned()));
        all
    }

    /// Mounts with these options; returns when it is mounted.
    pub(crate) fn mount(&mut self, options: &[&str]) {
        self.mount_with(&self.arguments(options));
    }

    /// Mounts with exactly these arguments.
    pub(crate) fn mount_with(&mut self, arguments: &[impl AsRef<OsStr>]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("skillfs.log")).unwrap();
        let mut command = self.command(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.daemon = Some(child);
        assert!(line.contains("\"mounted\""), "not mounted:\n{}\n{}", self.log(), self.helper_log());
    }

    /// Mounts with these options, the provider saying `current` of those skills; returns when all are decided.
    pub(crate) fn mount_current(&mut self, skills: &[&str], options: &[&str]) {
        for skill in skills {
            self.says_current(skill);
        }
        self.mount(options);
        self.settle();
    }

    /// What SkillFS has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("skillfs.log")).unwrap_or_default()
    }

    fn helper_log(&self) -> String {
        fs::read_to_string(self.path("helper.log")).unwrap_or_default()
    }

    /// SkillFS's process id.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.daemon.as_ref().unwrap().id()).unwrap()
    }

    /// Sends SkillFS a signal.
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits for SkillFS to end, and gives its exit status.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        if !eventually(SOON, || daemon.try_wait().unwrap().is_some()) {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            panic!("SkillFS does not end:\n{}", self.log());
        }
        daemon.wait().unwrap()
    }

    /// How many mounts there are on the mount point.
    pub(crate) fn mounts(&self) -> usize {
        let at = format!(" {} ", self.path("mnt").display());
        mountinfo().lines().filter(|l| l.contains(&at)).count()
    }

    /// A link to the control socket.
    pub(crate) fn control(&self) -> Link<ControlRequest, ControlReply> {
        Link::connect(&self.path("run/control.sock")).unwrap()
    }

    /// One question on a link of its own.
    pub(crate) fn ask(&self, request: &ControlRequest) -> ControlReply {
        let link = self.control();
        link.send(request, &[], Wait::Block).unwrap();
        link.receive(Wait::Block).unwrap().0
    }

    /// Asks the provider again about one skill.
    pub(crate) fn refresh(&self, skill: &str) -> ControlReply {
        self.ask(&ControlRequest::Refresh { skill: Some(name(skill)) })
    }

    /// What is known of a skill when it is decided.
    pub(crate) fn state(&self, skill: &str) -> SkillState {
        match self.ask(&ControlRequest::Await { skill: name(skill), timeout_ms: 30_000 }) {
            ControlReply::Skill(state) => state,
            other => panic!("{skill}: {other:?}\n{}", self.log()),
        }
    }

    /// Waits until all skills that are there now are decided.
    pub(crate) fn settle(&self) {
        let mut names: Vec<String> = fs::read_dir(self.path("src"))
            .unwrap()
            .filter_map(|e| e.unwrap().file_name().into_string().ok())
            .filter(|n| {
                SkillName::new(n).is_ok()
                    && self.source(n).symlink_metadata().is_ok_and(|m| m.is_dir())
                    && self.source(n).join("SKILL.md").symlink_metadata().is_ok()
            })
            .collect();
        names.sort();
        for name in names {
            assert!(!self.state(&name).pending, "{name} stays pending:\n{}", self.log());
        }
    }

    /// Makes `.skill-meta/versions/VERSION.snapshot` of a skill with that SKILL.md.
    pub(crate) fn snapshot(&self, skill: &str, version: &str, content: &str) {
        self.write(&format!("{skill}/.skill-meta/versions/{version}.snapshot/SKILL.md"), content);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon.id()).unwrap());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            eventually(Duration::from_secs(8), || !matches!(daemon.try_wait(), Ok(None)));
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if let Some(mut helper) = self.helper.take() {
            let _ = helper.kill();
            let _ = helper.wait();
        }
        // Whatever went wrong, no mount stays behind.
        while self.mounts() > 0 {
            let flags = nix::mount::MntFlags::MNT_DETACH | nix::mount::MntFlags::MNT_FORCE;
            if nix::mount::umount2(&self.path("mnt"), flags).is_err() {
                break;
            }
        }
        if std::thread::panicking() {
            eprintln!("--- SkillFS\n{}\n--- helper\n{}", self.log(), self.helper_log());
        }
    }
}

/// A bench with one skill `s`, shown as it is (`live`), which also has a snapshot `v1` (`trusted`).
pub(crate) fn one(options: &[&str]) -> Bench {
    let mut bench = Bench::new();
    bench.write("s/SKILL.md", "live");
    bench.snapshot("s", "v1", "trusted");
    bench.mount_current(&["s"], options);
    bench
}

/// The errno of what must fail.
pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// The names in a directory.
pub(crate) fn list(path: impl AsRef<Path>) -> BTreeSet<OsString> {
    fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect()
}

/// A skill's name.
pub(crate) fn name(skill: &str) -> SkillName {
    SkillName::new(skill).unwrap()
}

/// An answer of the decision protocol.
pub(crate) fn answer(skill: &str, status: &str, decision: &str, version: Option<&str>) -> String {
    let target = version.map(|v| format!(".skill-meta/versions/{v}.snapshot"));
    serde_json::json!({
        "schemaVersion": 1, "skillName": skill, "status": status, "decision": decision, "reason": "as the test says",
        "currentVersion": "v000009", "trustedVersion": version, "target": target,
        "targetKind": target.as_ref().map(|_| "relative_to_skill_dir"),
    })
    .to_string()
}

/// Reads a small file as text.
pub(crate) fn read(path: impl AsRef<Path>) -> std::io::Result<String> {
    fs::read_to_string(path)
}
