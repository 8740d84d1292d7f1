//! The real helper, started as systemd starts it, with a ceiling, uid range and lock directory of its own; and peers
//! of it that have the broker's, SkillFS's or a stranger's uid.

use cyberos_proto::ids::InvocationId;
use cyberos_proto::link::{self, Link, LinkError, Wait};
use cyberos_proto::message::{Event, Exit, FromHelper, Message, Refusal, Reply, Request};
use cyberos_proto::plan::{Bind, BindKind, Limits, MemoryLimit, Profile, SandboxPath, SpawnPlan};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const BROKER: u32 = 1_899_999_001;
pub(crate) const SKILLFS: u32 = 1_899_999_002;
pub(crate) const STRANGER: u32 = 1_899_999_099;
/// Longest wait for anything that must happen "within 1 s", on a machine that does other things too.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The path of the built helper.
pub(crate) fn binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests need root: they test a program that runs as root"
        );
        let out = Command::new(env!("CARGO"))
            .args(["build", "--locked", "-p", "cyberos-priv-helper", "--message-format=json"])
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo build");
        assert!(out.status.success(), "the helper does not build");
        String::from_utf8_lossy(&out.stdout)
            .lines()
            .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
            .filter_map(|v| v["executable"].as_str().map(PathBuf::from))
            .find(|p| p.ends_with("cyberos-priv-helper"))
            .expect("cargo names the executable")
    })
}

/// A system call that fails: its number; an argument and its value, if only then; errno.
pub(crate) type Lacking = (i64, Option<(u32, u32)>, i32);

/// A running helper. Dropping it ends it as systemd would.
pub(crate) struct Helper {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) uids: (u32, u32),
    child: Child,
    ceiling: PathBuf,
}

impl Helper {
    /// Starts one whose ceiling has `more` lines.
    pub(crate) fn start(more: &str) -> Helper {
        Helper::start_with(more, ACTIVATE)
    }

    /// The same in a mount namespace of its own, after `script` has changed something there.
    pub(crate) fn start_in_namespace(more: &str, script: &str) -> Helper {
        let inner = format!("{script}; {EXEC}");
        Helper::start_with(
            more,
            &format!("{ACTIVATE} exec unshare -m --propagation private /bin/sh -c '{inner}' \"$0\" \"$1\";"),
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
        Helper::start_with(more, &format!("{ACTIVATE} exec /usr/bin/python3 -I -c '{python}' \"$0\" \"$1\";"))
    }

    fn start_with(more: &str, script: &str) -> Helper {
        let dir = tempfile::Builder::new().prefix("cyberos-helper-test-").tempdir().unwrap();
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
        let child = launch(dir.path(), &ceiling, script);
        let helper = Helper { dir, uids, child, ceiling };
        helper.until_ready();
        helper
    }

    /// Another one on the same ceiling's uids and locks, without a mount point.
    pub(crate) fn twin(&self) -> Helper {
        self.twin_with(ACTIVATE)
    }

    /// The same, started by a shell that runs `script` first, which must make descriptor 3 of descriptor 0.
    pub(crate) fn twin_with(&self, script: &str) -> Helper {
        let dir = tempfile::Builder::new().prefix("cyberos-helper-test-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let text = fs::read_to_string(&self.ceiling).unwrap();
        let text: String =
            text.lines().filter(|l| !l.starts_with("mount")).map(|l| format!("{l}\n")).collect();
        let ceiling = dir.path().join("ceiling");
        fs::write(&ceiling, text).unwrap();
        let child = launch(dir.path(), &ceiling, script);
        let helper = Helper { dir, uids: self.uids, child, ceiling };
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
        self.child = launch(self.dir.path(), &self.ceiling, ACTIVATE);
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
            if uid.is_some_and(ours) && !field("State:").starts_with('Z') {
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
        let end = Instant::now() + SOON;
        while !self.leftovers().is_empty() && Instant::now() < end {
            std::thread::yield_now();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the helper\n{}", self.log());
        }
    }
}

/// The mounts of this namespace. Others may mount at names that are no text.
fn mountinfo() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned()
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

/// Makes the listening socket descriptor 3.
const ACTIVATE: &str = "exec 3<&0 </dev/null;";
/// Becomes the helper.
const EXEC: &str = "LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" --ceiling \"$1\"";

fn launch(dir: &Path, ceiling: &Path, script: &str) -> Child {
    let socket = dir.join("helper.sock");
    let _ = fs::remove_file(&socket);
    let listener = link::listen(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let log = File::create(dir.join("log")).unwrap();
    Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("{script} {EXEC}"))
        .arg(binary())
        .arg(ceiling)
        .stdin(listener)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A process that has connected with a uid of its own and given its link to the test. It holds a copy until it is
/// killed, so a peer's death can be a real one.
pub(crate) struct Peer {
    pub(crate) link: Link<Request, FromHelper>,
    process: Child,
    /// While this is open, the process lives.
    _given: Link<Given, Given>,
    events: RefCell<Vec<Event>>,
}

const CONNECT: &str = "import socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
c=socket.socket(fileno=0); socket.send_fds(c,[bytes([int(sys.argv[2])])],[s.fileno()])
c.recv(1)";

impl Peer {
    pub(crate) fn connect(socket: &Path, uid: u32) -> Peer {
        let (ours, theirs) = link::pair::<Given, Given>().unwrap();
        let process = Command::new("/usr/bin/python3")
            .args(["-I", "-c", CONNECT])
            .arg(socket)
            .arg(cyberos_proto::PROTOCOL_VERSION.to_string())
            .stdin(theirs.as_fd().try_clone_to_owned().unwrap())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        drop(theirs);
        let (_, mut fds) = ours.receive(Wait::Block).expect("the peer connects");
        let link = Link::new(fds.pop().unwrap());
        link.set_receive_timeout(Duration::from_secs(30)).unwrap();
        Peer { link, process, _given: ours, events: RefCell::default() }
    }

    pub(crate) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.link.send(request, fds, Wait::Block).unwrap();
    }

    /// The reply to `request`; events that come before are kept.
    pub(crate) fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Reply, Vec<OwnedFd>) {
        self.send(request, fds);
        self.reply()
    }

    pub(crate) fn reply(&self) -> (Reply, Vec<OwnedFd>) {
        loop {
            match self.link.receive(Wait::Block).unwrap() {
                (FromHelper::Reply(reply), fds) => return (reply, fds),
                (FromHelper::Event(event), _) => self.events.borrow_mut().push(event),
            }
        }
    }

    pub(crate) fn refusal(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Refusal {
        match self.ask(request, fds) {
            (Reply::Refused(refusal), _) => refusal,
            (other, _) => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// How the program of `invocation` ended.
    pub(crate) fn exit(&self, invocation: InvocationId) -> Exit {
        loop {
            let mut events = self.events.borrow_mut();
            if let Some(i) = events.iter().position(|Event::Exited { invocation: id, .. }| *id == invocation)
            {
                let Event::Exited { exit, .. } = events.swap_remove(i);
                return exit;
            }
            match self.link.receive(Wait::Block).unwrap() {
                (FromHelper::Event(event), _) => events.push(event),
                (FromHelper::Reply(reply), _) => panic!("unexpected reply {reply:?}"),
            }
        }
    }

    /// Whether the helper has closed the link; anything that comes before is thrown away.
    pub(crate) fn closed(&self) -> bool {
        loop {
            match self.link.receive(Wait::Block) {
                Ok(_) => {}
                Err(LinkError::Closed) => return true,
                Err(_) => return false,
            }
        }
    }

    /// A new invocation: its id, its uid, its listening socket.
    pub(crate) fn invocation(&self) -> (InvocationId, u32, OwnedFd) {
        let invocation = InvocationId::from_random(*uuid::Uuid::new_v4().as_bytes());
        match self.ask(&Request::CreateSocket { invocation }, &[]) {
            (Reply::SocketCreated { uid }, mut fds) => (invocation, uid, fds.pop().unwrap()),
            (other, _) => panic!("expected a socket, got {other:?}"),
        }
    }

    /// Starts `plan` in a new invocation.
    pub(crate) fn start(&self, plan: SpawnPlan, sealed: &[BorrowedFd<'_>]) -> Running<'_> {
        let (invocation, uid, listener) = self.invocation();
        self.start_in(invocation, uid, listener, plan, sealed)
    }

    pub(crate) fn start_in(
        &self,
        invocation: InvocationId,
        uid: u32,
        listener: OwnedFd,
        plan: SpawnPlan,
        sealed: &[BorrowedFd<'_>],
    ) -> Running<'_> {
        match self.ask(&Request::Spawn { invocation, plan: Box::new(plan) }, sealed) {
            (Reply::Spawned { report }, fds) => {
                assert_eq!(report.uid, uid);
                let [stdin, stdout, stderr] = fds.try_into().unwrap();
                Running { peer: self, invocation, uid, listener, stdin: Some(stdin), stdout, stderr }
            }
            (other, _) => panic!("expected a sandbox, got {other:?}"),
        }
    }

    /// Runs `sh -c script` to its end.
    pub(crate) fn sh(&self, script: &str) -> Output {
        self.start(plan(&["/bin/sh", "-c", script]), &[]).output()
    }

    /// Ends the process, and with it the last copy of the link.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The link itself is closed after this, so the process's death is what the helper sees, or the close.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A running sandbox.
pub(crate) struct Running<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) invocation: InvocationId,
    pub(crate) uid: u32,
    pub(crate) listener: OwnedFd,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: Exit,
    pub(crate) uid: u32,
}

impl Running<'_> {
    /// Waits for its end, with its stdin closed, and releases it.
    pub(crate) fn output(mut self) -> Output {
        self.stdin = None;
        let (mut out, mut err) = (File::from(self.stdout), File::from(self.stderr));
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut text = Vec::new();
        out.read_to_end(&mut text).unwrap();
        let exit = self.peer.exit(self.invocation);
        assert_eq!(self.peer.ask(&Request::Release { invocation: self.invocation }, &[]).0, Reply::Done);
        let stdout = String::from_utf8_lossy(&text).into_owned();
        Output { stdout, stderr: errors.join().unwrap(), exit, uid: self.uid }
    }

    /// Reads its stdout up to `mark`.
    pub(crate) fn said(&self, mark: &str) {
        let mut file = File::from(self.stdout.try_clone().unwrap());
        let (mut text, mut byte) = (Vec::new(), [0u8]);
        while !String::from_utf8_lossy(&text).contains(mark) {
            assert_eq!(file.read(&mut byte).unwrap(), 1, "ended after {:?}", String::from_utf8_lossy(&text));
            text.push(byte[0]);
        }
    }
}

/// A plan for `words`, with the limits that a skill has by default, without binds.
pub(crate) fn plan(words: &[&str]) -> SpawnPlan {
    SpawnPlan {
        program: SandboxPath::new(words[0]).unwrap(),
        args: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/local/bin:/usr/bin:/bin".to_vec(), b"RUST_LOG=warn".to_vec()],
        cwd: SandboxPath::new("/tmp").unwrap(),
        binds: Vec::new(),
        socket: true,
        limits: Limits {
            memory_mb: 512,
            memory_kind: MemoryLimit::AddressSpace,
            cpu_s: 60,
            processes: 8,
            open_files: 256,
            file_mb: 256,
            tmp_mb: 64,
        },
        profile: Profile::Skill,
    }
}

/// A plan that runs the `main` of a sealed directory shown as skill `name`.
pub(crate) fn skill(name: &str) -> SpawnPlan {
    let dir = format!("/opt/cyberos/skills/{name}");
    let mut plan = plan(&[&format!("{dir}/main")]);
    plan.cwd = SandboxPath::new(&dir).unwrap();
    plan.binds.push(Bind { target: SandboxPath::new(&dir).unwrap(), kind: BindKind::Sealed });
    plan
}

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// Pids of the children of `pid`.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|p| p.parse().ok()).map(Pid::from_raw).collect()
}

/// What a peer's process says when it gives its link away: nothing but the descriptor.
#[derive(Serialize, Deserialize)]
struct Given;

impl Message for Given {
    fn descriptors(&self) -> usize {
        1
    }
}
