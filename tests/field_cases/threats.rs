//! Threats whose answer is the sandbox, and the tests that they ask for: what a skill can make of set-id bits through the
//! view (A1), who may write where (A10), core handlers (A13), what the next holder of a uid finds (test 12).

use super::ANY;
use super::support::up::{Ran, Skill, Up, eventually, reachable_dir, write_executable};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Somebody of no group and no account.
const STRANGER: u32 = 1_899_999_077;

/// Runs Python as a user of the host's.
fn as_user(uid: u32, gid: u32, script: &str, args: &[&str]) -> Ran {
    Command::new("/usr/bin/setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()])
        .args(["/usr/bin/python3", "-I", "-c", script])
        .args(args)
        .current_dir("/")
        .output()
        .unwrap()
        .into()
}

/// Every way to a set-id file through a path, each of which is to fail.
const SET_ID: &str = r#"
import ctypes, os, shutil, subprocess, sys
view = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
def raw(number, *args):
    if libc.syscall(ctypes.c_long(number), *args) < 0: raise OSError(ctypes.get_errno(), "")
main, new = f"{view}/main", f"{view}/new"
for mode in (0o4755, 0o2755, 0o6755):
    for name, how in (
        ("chmod", lambda: os.chmod(main, mode)), ("fchmod", lambda: os.fchmod(os.open(main, os.O_RDONLY), mode)),
        ("fchmodat2", lambda: raw(452, -100, main.encode(), mode, 0)), ("open", lambda: os.open(new, os.O_CREAT | os.O_WRONLY, mode)),
        ("openat2", lambda: raw(437, -100, new.encode(), (ctypes.c_ulong * 3)(os.O_CREAT | os.O_WRONLY, mode, 0), 24)),
        ("tmpfile", lambda: os.open(view, os.O_TMPFILE | os.O_WRONLY, mode)), ("mkdir", lambda: os.mkdir(new, mode)),
        ("mknod", lambda: os.mknod(new, mode | 0o100000)), ("link", lambda: os.link(main, new)),
        ("rename", lambda: os.rename(main, new)), ("chown", lambda: os.chown(main, 0, 0)),
        ("setxattr", lambda: os.setxattr(main, "security.capability", bytes([0, 0, 0, 2, 1] + [0] * 15))),
        ("write", lambda: os.open(main, os.O_WRONLY)), ("device", lambda: os.mknod(new, mode | 0o20000, os.makedev(1, 3)))):
        try:
            how()
            print("DONE", name, oct(mode))
        except OSError: pass
for command in (["cp", "-p", f"{view}/set-id", new], ["tar", "-C", view, "-xpf", sys.argv[2]], ["install", "-m", "6755", "/bin/true", new]):
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0: print("DONE", command)
print("tried")
"#;

#[test]
fn threat_a1_test_1_no_set_id_file_is_made_through_the_view_or_works_there() {
    let dir = reachable_dir("cyberos-threat-a1-");
    let tar = dir.join("t.tar").display().to_string();
    let made = Command::new("sh")
        .arg("-c")
        .arg(format!("cd {} && cp /usr/bin/id new && chmod 6755 new && tar cpf t.tar new", dir.display()))
        .status();
    assert!(made.unwrap().success());
    let up = Up::new(|source| {
        let skill = Skill { id: "s", main: ANY, ..Skill::default() }.write(source);
        // The source of somebody who is trusted with it holds one; nobody gains by it.
        std::fs::copy("/usr/bin/id", skill.join("set-id")).unwrap();
        std::fs::set_permissions(skill.join("set-id"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    });
    up.shown("s", "current");
    let source = up.skills.join("s");
    let inventory = || {
        let out =
            Command::new("find").arg(&source).args(["-printf", "%P %m %U %G %s %T@\n"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let before = inventory();
    let view = up.mount().join("s").display().to_string();
    let owner = |path: &str| std::fs::metadata(up.state.join(path)).unwrap().uid();
    for uid in [0, owner("broker"), owner("skillfs"), STRANGER] {
        let ran = as_user(uid, uid, SET_ID, &[&view, &tar]);
        assert_eq!((ran.exit, ran.stdout.as_str()), (0, "tried\n"), "{uid}: {ran}");
    }
    assert_eq!(inventory(), before);
    // Executed by its name in the view it runs as whoever executes it.
    let ran = as_user(
        STRANGER,
        STRANGER,
        "import subprocess,sys; subprocess.run([sys.argv[1], '-u'])",
        &[&format!("{view}/set-id")],
    );
    assert_eq!(ran.stdout.trim(), STRANGER.to_string(), "{ran}");
    // And the sealed copy that skills run from has the bit no longer.
    let ran = up.run("s", &["/bin/sh", "-c", "stat -c %a set-id main; ./set-id -u; id -u"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((&lines[..2], lines[2]), (&["555", "555"][..], lines[3]), "{ran}");
}

#[test]
fn threat_a10_each_directory_is_written_by_its_owner_and_nobody_else() {
    let main = "#!/bin/sh\necho ready\nread line\nexit 0\n";
    let up = Up::new(|source| drop(Skill { id: "s", main, ..Skill::default() }.write(source)));
    let mut running = up
        .command(&["skill", "run", "s", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let id = |path: &str| std::fs::metadata(up.state.join(path)).unwrap();
    let lease = u32::try_from(up.rows("skill.invoked_started")[0]["extra"]["uid"].as_u64().unwrap()).unwrap();
    let (broker, skillfs) = (id("broker").uid(), id("skillfs").uid());
    let operators = std::fs::metadata(up.socket()).unwrap().gid();
    let who = [
        ("broker", broker, broker),
        ("skillfs", skillfs, skillfs),
        ("skill", lease, lease),
        ("operator", STRANGER, operators),
        ("stranger", STRANGER, STRANGER),
    ];
    let mut wrote: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut read: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, uid, gid) in who {
        let script = "
import os, sys
for top in sys.argv[1:]:
    for dir, dirs, files in os.walk(top):
        dirs[:] = [d for d in dirs if d not in ('mount', '.skill-meta')]
        for name in files:
            path = os.path.join(dir, name)
            for how, flags in (('wrote', os.O_WRONLY), ('read', os.O_RDONLY)):
                try: os.close(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)); print(how, path)
                except OSError: pass
        try: os.close(os.open(dir + '/of-another', os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.unlink(dir + '/of-another'); print('wrote', dir)
        except OSError: pass
";
        let (state, skills) = (up.state.display().to_string(), up.skills.display().to_string());
        // Each of the folders by itself as well: what cannot be listed may still be entered by whoever knows the name.
        let known = [
            "broker/store",
            "broker/tenants",
            "sealed",
            "skillfs",
            "keys",
            "helper",
            "run/broker",
            "run/skillfs",
        ];
        let known: Vec<String> = known.iter().map(|d| format!("{state}/{d}")).collect();
        let tops: Vec<&str> =
            [state.as_str(), skills.as_str()].into_iter().chain(known.iter().map(String::as_str)).collect();
        let ran = as_user(uid, gid, script, &tops);
        assert_eq!(ran.exit, 0, "{ran}");
        for line in ran.stdout.lines() {
            let (how, path) = line.split_once(' ').unwrap();
            let short = path.replace(&state, "STATE").replace(&skills, "SKILLS");
            let short: String = short
                .split('/')
                .take(if short.contains("/run/") { 3 } else { 2 })
                .collect::<Vec<_>>()
                .join("/");
            let all = if how == "wrote" { &mut wrote } else { &mut read };
            let all = all.entry(short).or_default();
            if all.last() != Some(&name) {
                all.push(name);
            }
        }
    }
    let wanted = |all: &[(&str, &[&'static str])]| -> BTreeMap<String, Vec<&'static str>> {
        all.iter().map(|(path, who)| ((*path).to_owned(), who.to_vec())).collect()
    };
    assert_eq!(
        wrote,
        wanted(&[
            ("STATE/broker", &["broker"]),
            ("STATE/run/broker", &["broker"]),
            ("STATE/run/skillfs", &["skillfs"]),
            ("STATE/sealed", &["broker"]),
            ("STATE/skillfs", &["skillfs"]),
        ])
    );
    for (path, readers) in &read {
        let public = ["SKILLS", "STATE/bin", "STATE/trusted"].iter().any(|p| path.starts_with(p));
        let own = ["STATE/broker", "STATE/sealed"].contains(&path.as_str()) && *readers == ["broker"]
            || path == "STATE/skillfs" && *readers == ["skillfs"];
        assert!(public || own, "{path} is read by {readers:?}");
    }
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
}

/// Restores the machine's core pattern when the test ends, however it does.
struct CorePattern(Vec<u8>);
const PATTERN: &str = "/proc/sys/kernel/core_pattern";

impl Drop for CorePattern {
    fn drop(&mut self) {
        std::fs::write(PATTERN, &self.0).unwrap();
    }
}

#[test]
fn threat_a13_test_8_a_crash_runs_no_core_handler_of_the_machine() {
    let dir = reachable_dir("cyberos-threat-a13-");
    let (handler, log) = (dir.join("handler"), dir.join("log"));
    write_executable(&handler, &format!("#!/bin/sh\necho \"$1\" >>{}\ncat >/dev/null\n", log.display()));
    let crash = "
import os, resource, signal, sys
value = int(sys.argv[1])
try: resource.setrlimit(resource.RLIMIT_CORE, (value, value))
except (OSError, ValueError): pass
if value == 2:
    # Lowered by a child for its parent, and by a shell.
    os.system('ulimit -c 0'); os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'ulimit -c 0; ulimit -c 1; kill -SEGV $$'], {}), 0)
os.kill(os.getpid(), signal.SIGSEGV)
";
    let up = Up::new(|source| drop(Skill { id: "any", main: ANY, ..Skill::default() }.write(source)));
    let before = CorePattern(std::fs::read(PATTERN).unwrap());
    std::fs::write(PATTERN, format!("|{} %u", handler.display())).unwrap();
    for value in ["0", "1", "-1", "2"] {
        let ran = up.run("any", &["/usr/bin/python3", "-c", crash, value]);
        assert_eq!(ran.exit, 139, "{value}: {ran}");
    }
    // The control experiment: a limit of 0 alone runs it, as root and on that process's memory.
    let ran = as_user(STRANGER, STRANGER, crash, &["0"]);
    assert_eq!(ran.exit, -11, "{ran}");
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        eventually(Duration::from_secs(20), || logged().contains(&STRANGER.to_string())),
        "the handler was never run"
    );
    drop(before);
    let leases: Vec<_> =
        up.rows("skill.invoked_started").iter().map(|r| r["extra"]["uid"].to_string()).collect();
    assert_eq!(leases.len(), 4);
    for lease in leases {
        assert!(!logged().lines().any(|l| l == lease), "{lease}: {}", logged());
    }
}

#[test]
fn threat_test_11_programs_that_look_into_proc_work_with_the_little_that_is_there() {
    let up = Up::new(|source| {
        Skill { id: "any", main: ANY, ..Skill::default() }.write(source);
        let more = "x-memory-mb: 2048\nx-max-processes: 32\n";
        Skill { id: "roomy", main: ANY, more, ..Skill::default() }.write(source);
    });
    let script = "ls /proc | grep -v '^[0-9]' | tr '\\n' ' '; nproc >/dev/null && echo counted; ps -e 2>/dev/null | wc -l; cat /proc/self/comm; \
                  ls /proc/self/task | wc -w; cat /proc/cpuinfo 2>&1 | grep -c 'No such'; head -1 /proc/self/status";
    let ran = up.run("any", &["/bin/sh", "-c", script]);
    assert_eq!(ran.exit, 0, "{ran}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "self thread-self counted", "{ran}");
    assert_eq!(&lines[2..], ["cat", "1", "1", "Name:\thead"], "{ran}");
    let node = "const os=require('os');console.log(os.cpus().length, os.availableParallelism()>0, os.totalmem()>0, os.uptime()>0)";
    let ran = up.run("roomy", &["node", "-e", node]);
    assert!(ran.exit == 0 && ran.stdout.starts_with("0 true true "), "{ran}");
    let ran = up.run("roomy", &["java", "-XshowSettings:system", "-version"]);
    assert_eq!(ran.exit, 0, "{ran}");
}

/// Leaves what it can behind, or looks for what another has left.
const TENANT: &str = r#"#!/usr/bin/python3 -I
import ctypes, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
own = os.environ["CYBEROS_BROKER_SOCKET"]
def there():
    found = [d + "/" + n for d in ("/tmp", "/dev/shm") for n in os.listdir(d) if d + "/" + n != own]
    found += [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
    with open("/proc/self/net/unix") as f: found += [l.split()[7] for l in f.read().splitlines()[1:] if len(l.split()) > 7]
    for name in ("tenant", "other"):
        with socket.socket(socket.AF_UNIX) as s:
            try: s.connect("\0" + name); found.append("@" + name)
            except OSError: pass
    for key in range(1, 200):
        if libc.shmget(key, 0, 0) >= 0: found.append(f"segment {key}")
    for number in (250, 249):
        if libc.syscall(number, 0, -3, 0, 0, 0) >= 0: found.append("a keyring")
    return found
print(sorted(there()), flush=True)
open("/tmp/left", "w").write("x"); os.mkfifo("/dev/shm/fifo"); os.symlink("/etc", "/tmp/link")
for key in range(1, 20): libc.shmget(key, 4096, 0o1666)
libc.msgget(7, 0o1666); libc.semget(8, 1, 0o1666)
s = socket.socket(socket.AF_UNIX); s.bind("\0tenant"); s.listen()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
    time.sleep(1000)
"#;

#[test]
fn threat_test_12_the_next_holder_of_a_uid_finds_nothing_of_the_last() {
    // 255 leases of a block until one comes back: first in, first out.
    let up = Up::new(|source| {
        Skill { id: "tenant", main: TENANT, ..Skill::default() }.write(source);
        Skill { id: "quick", main: "#!/bin/sh\n", ..Skill::default() }.write(source);
    });
    let uid = || up.rows("skill.invoked_started").last().unwrap()["extra"]["uid"].as_u64().unwrap();
    let ran = up.run("tenant", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, "[]\n"), "{ran}");
    let first = uid();
    let mut seen = vec![first];
    let mut came_back = false;
    for _ in 0..600 {
        assert_eq!(up.run("quick", &[]).exit, 0);
        // The one that is next is known from the order: it has been used before all others.
        seen.push(uid());
        if seen.len() > 1 && next_is(&seen, first) {
            came_back = true;
            break;
        }
    }
    assert!(came_back, "{first} was not due after {} runs", seen.len());
    let ran = up.run("tenant", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, "[]\n"), "{ran}");
    assert_eq!(uid(), first, "the same uid");
    // Nor has the host anything of it, now that it has ended again.
    let of_it = |path: &str, column: usize| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|l| l.split_whitespace().nth(column) == Some(&first.to_string())).count()
    };
    assert_eq!(
        (of_it("/proc/sysvipc/shm", 7), of_it("/proc/sysvipc/msg", 7), of_it("/proc/sysvipc/sem", 4)),
        (0, 0, 0)
    );
    assert_eq!(of_it("/proc/key-users", 0), 0);
    assert_eq!(super::processes_of(first), 0);
}

/// Whether all others of the block have been used since `first` was.
fn next_is(seen: &[u64], first: u64) -> bool {
    let block = |uid: u64| uid / 256;
    let others =
        seen.iter().skip(1).filter(|u| block(**u) == block(first)).collect::<std::collections::BTreeSet<_>>();
    others.len() == 254
}
