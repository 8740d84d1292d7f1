//! The real helper, started as systemd starts it, with a ceiling, uid range and lock directory of its own. This is also
//! what a test of it imports: peers and plans come along.

pub(crate) use super::activation::{BECOME, HAND_OVER, activated, binary, ended, listen};
pub(crate) use super::asks::Asks;
pub(crate) use super::machine::{children, descriptors};
pub(crate) use super::peer::{Output, Peer, Pipes, Running};
pub(crate) use super::plans::{bash, bind, plan, python, skill};
pub(crate) use super::waiting::until;

use super::folders::Held;
use super::machine::mountinfo;
use super::waiting::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) const BROKER: u32 = 1_899_999_001;
pub(crate) const SKILLFS: u32 = 1_899_999_002;
pub(crate) const STRANGER: u32 = 1_899_999_099;
/// Longest time for anything that must happen "within 1 s", on a machine that does other things too.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A system call that fails: its number; an argument and its value, if only then; errno.
pub(crate) type Lacking = (i64, Option<(u32, u32)>, i32);

/// A running helper. Dropping it ends it as systemd would.
pub(crate) struct Helper {
    pub(crate) dir: Held,
    pub(crate) uids: (u32, u32),
    child: Child,
    ceiling: PathBuf,
    /// Whether another has the same uids, and goes on with what it has in them.
    twin: bool,
}

impl Helper {
    /// Starts one whose ceiling has `more` lines.
    pub(crate) fn start(more: &str) -> Helper {
        Helper::start_with(more, HAND_OVER)
    }

    /// The same in a mount namespace of its own, after `script` has changed something there.
    pub(crate) fn start_in_namespace(more: &str, script: &str) -> Helper {
        let inner = format!("{script}; {BECOME}");
        Helper::start_with(
            more,
            &format!("{HAND_OVER} exec unshare -m --propagation private /bin/sh -c '{inner}' \"$0\" \"$1\";"),
        )
    }

    /// The same on a kernel that answers some system calls with an error.
    pub(crate) fn start_lacking(more: &str, calls: &[Lacking]) -> Helper {
        // The filter: LD nr; for each call: JEQ nr, [LD argument; JEQ value], RET errno; RET allow.
        let mut program: Vec<(u16, u8, u8, u32)> = vec![(0x20, 0, 0, 0)];
        for (number, argument, errno) in calls {
            let number = u32::try_from(*number).unwrap();
            let fail = (0x06, 0, 0, 0x0005_0000 + u32::try_from(*errno).unwrap());
            match argument {
                None => program.extend([(0x15, 0, 1, number), fail]),
                Some((index, value)) => program.extend([
                    (0x15, 0, 4, number),
                    (0x20, 0, 0, 16 + 8 * index),
                    (0x15, 0, 1, *value),
                    fail,
                    (0x20, 0, 0, 0),
                ]),
            }
        }
        program.push((0x06, 0, 0, 0x7fff_0000));
        let python = format!(
            "import ctypes,struct,os,sys; p={program:?}; b=ctypes.create_string_buffer(b\"\".join(struct.pack(\"HBBI\",*i) for i in p)); \
             f=struct.pack(\"HxxxxxxP\",len(p),ctypes.addressof(b)); l=ctypes.CDLL(None,use_errno=True); \
             l.prctl(22,2,ctypes.c_char_p(f),0,0)==0 or sys.exit(os.strerror(ctypes.get_errno())); \
             os.environ.update(LISTEN_FDS=\"1\",LISTEN_PID=str(os.getpid())); os.execv(sys.argv[1],[sys.argv[1],\"--ceiling\",sys.argv[2]])"
        );
        Helper::start_with(
            more,
            &format!("{HAND_OVER} exec /usr/bin/python3 -I -c '{python}' \"$0\" \"$1\";"),
        )
    }

    fn start_with(more: &str, script: &str) -> Helper {
        // Whoever is ended while it is built leaves no folder.
        binary();
        let dir = Held::new("cyberos-helper-test-");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["sealed", "bin", "view", "outside"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        // Every helper of every test process has four blocks of its own.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = 1_000_000_000
            + (std::process::id() % 10_000) * 65_536
            + NEXT.fetch_add(1, Ordering::Relaxed) * 1024;
        let uids = (first, first + 1023);
        let d = dir.path().display();
        let ceiling = dir.path().join("ceiling");
        let text = format!(
            "# test\nuid_range {}-{}\nbroker_uid {BROKER}\nskillfs_uid {SKILLFS}\nlock_dir {d}/locks\n\
             root sealed {d}/sealed\nbin {d}/bin\nmount 0 ro {d}/view\n{more}\n",
            uids.0, uids.1
        );
        fs::write(&ceiling, text).unwrap();
        let child = served(dir.path(), &ceiling, script);
        let helper = Helper { dir, uids, child, ceiling, twin: false };
        helper.until_ready();
        helper
    }

    /// Another one on the same ceiling's uids and locks, without a mount point.
    pub(crate) fn twin(&self) -> Helper {
        self.twin_with(HAND_OVER)
    }

    /// The same, started by a shell that runs `script` first, which must make descriptor 3 of descriptor 0.
    pub(crate) fn twin_with(&self, script: &str) -> Helper {
        let dir = Held::new("cyberos-helper-test-");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let text = fs::read_to_string(&self.ceiling).unwrap();
        let text: String =
            text.lines().filter(|l| !l.starts_with("mount")).map(|l| format!("{l}\n")).collect();
        let ceiling = dir.path().join("ceiling");
        fs::write(&ceiling, text).unwrap();
        let child = served(dir.path(), &ceiling, script);
        let helper = Helper { dir, uids: self.uids, child, ceiling, twin: true };
        helper.until_ready();
        helper
    }

    fn until_ready(&self) {
        until("the helper is ready", || self.log().lines().any(|l| l.ends_with(": ready")));
    }

    /// What it has logged since its last start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("helper.sock")
    }

    /// Pids of its link processes and whatever else it has as children.
    pub(crate) fn children(&self) -> Vec<Pid> {
        children(self.pid())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end and starts it again, on the same ceiling and directories.
    pub(crate) fn restart(&mut self) {
        self.child.wait().unwrap();
        self.child = served(self.dir.path(), &self.ceiling, HAND_OVER);
        self.until_ready();
    }

    /// Asserts that nothing of any sandbox of it is left.
    pub(crate) fn leaves_nothing(&self) {
        until("processes, sockets and mounts are gone", || self.leftovers().is_empty());
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        let ours = |uid: u32| (self.uids.0..=self.uids.1).contains(&uid);
        let mut left = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let field =
                |k: &str| status.lines().find_map(|l| l.strip_prefix(k)).unwrap_or("").trim().to_owned();
            let uid = field("Uid:").split_whitespace().next().and_then(|u| u.parse().ok());
            // Dead, though not all of it has gone yet.
            if uid.is_some_and(ours) && !field("State:").starts_with(['Z', 'X']) {
                left.push(format!("process {} {}", entry.path().display(), field("Name:")));
            }
        }
        for entry in fs::read_dir("/tmp").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("cyberos-skill-broker.") && entry.metadata().is_ok_and(|m| ours(m.uid())) {
                left.push(name);
            }
        }
        left.extend(
            groups()
                .into_iter()
                .filter(|g| g.file_name().and_then(|n| n.to_str()?.parse().ok()).is_some_and(ours))
                .map(|g| g.display().to_string()),
        );
        let mounts = mountinfo();
        let dir = self.dir.path().to_str().unwrap();
        left.extend(mounts.lines().filter(|l| l.contains(dir)).map(str::to_owned));
        left
    }

    pub(crate) fn peer(&self, uid: u32) -> Peer {
        Peer::connect(&self.socket(), uid)
    }

    pub(crate) fn broker(&self) -> Peer {
        self.peer(BROKER)
    }

    /// Makes a sealed directory with `main` as its executable, and answers its descriptor.
    pub(crate) fn sealed(&self, name: &str, main: &str) -> OwnedFd {
        let dir = self.dir.path().join("sealed").join(name);
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("main");
        fs::write(&file, main).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o555)).unwrap();
        File::open(&dir).unwrap().into()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = kill(self.pid(), Signal::SIGTERM);
        let _ = self.child.wait();
        // What is in a twin's uids may be the other's, whose end waits for all of it.
        let gone = || self.twin || self.leftovers().is_empty();
        eventually(SOON, gone);
        if std::thread::panicking() {
            eprintln!("--- log of the helper\n{}", self.log());
        }
    }
}

/// A helper on that ceiling, whose socket and log are in `dir`.
fn served(dir: &Path, ceiling: &Path, script: &str) -> Child {
    let log = File::create(dir.join("log")).unwrap();
    let mut helper = activated(listen(&dir.join("helper.sock")), ceiling, script);
    helper.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Every control group of any helper, and the directories that they are in.
pub(crate) fn groups() -> Vec<PathBuf> {
    let table = cyberos_proto::mounts::mounts(mountinfo());
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let ours = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().starts_with("cyberos-sandboxes.");
    ["", "memory", "pids"]
        .iter()
        .filter_map(|controller| cyberos_proto::mounts::own_group(&table, &own, controller))
        .flat_map(list)
        .filter(ours)
        .flat_map(|dir| list(dir.clone()).filter(|p| p.is_dir()).chain([dir]).collect::<Vec<_>>())
        .collect()
}
