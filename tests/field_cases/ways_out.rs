//! Ways out of a sandbox that others have found open: cases 52 to 61 (51, 55, 62, 63 and 64 are the measured tables').

use super::support::up::{Options, Ran, Skill, Up, eventually, reachable_dir};
use super::{ANY, host_mounts, sha256};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Opens for writing whatever may be the privileged program's, as fast as it can from its first moment.
const RACER: &str = r#"#!/usr/bin/python3 -I
import os, sys
won = []
for _ in range(2000):
    for path in ("/proc/1/exe", f"/proc/{os.getppid()}/exe", "/proc/0/exe", "/proc/self/exe", "/proc/thread-self/exe", "/proc/self/task/1/exe"):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC):
            try:
                os.open(path, flags)
                won.append(path)
            except OSError:
                pass
print(os.readlink("/proc/self/exe"), os.path.exists("/proc/1/exe"), won)
"#;

#[test]
fn case_052_the_helpers_own_program_cannot_be_reached_or_changed() {
    let up = Up::new(|source| {
        Skill { id: "racer", main: RACER, ..Skill::default() }.write(source);
        // The kernel takes /proc/self/exe for what it is before the skill is executed: the helper's program.
        Skill { id: "selfexe", main: "#!/proc/self/exe\n", ..Skill::default() }.write(source);
        Skill { id: "oneexe", main: "#!/proc/1/exe\n", ..Skill::default() }.write(source);
    });
    let program = up.state.join("bin/cyberos-priv-helper");
    let before = sha256(&program);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let ran = up.run("racer", &[]);
                    assert_eq!(ran.exit, 0, "{ran}");
                    assert!(ran.stdout.starts_with("/usr/bin/python3"), "{ran}");
                    assert!(ran.stdout.ends_with(" False []\n"), "{ran}");
                }
            });
        }
    });
    // As an ordinary user's, and with the arguments of a skill, it does nothing but say so.
    let ran = up.run("selfexe", &["--ceiling", "/etc/passwd"]);
    assert!(ran.exit != 0 && ran.stdout.is_empty(), "{ran}");
    let ran = up.run("oneexe", &[]);
    assert!(ran.exit == 127 || ran.exit == 126, "{ran}");
    assert_eq!(sha256(&program), before);
    assert_eq!(up.run("racer", &[]).exit, 0, "the helper goes on");
}

#[test]
fn case_053_links_named_like_mount_targets_lead_a_start_nowhere() {
    let up = Up::new(|source| {
        let names = Skill { id: "names", main: ANY, ..Skill::default() }.write(source);
        std::fs::create_dir_all(names.join("real")).unwrap();
        std::fs::create_dir_all(names.join("dev")).unwrap();
        for (name, to) in
            [("proc", "real"), ("tmp", "real"), ("etc", "real"), ("opt", "real"), ("dev/null", "../real")]
        {
            symlink(to, names.join(name)).unwrap();
        }
        for (id, name, to) in [
            ("dev-to-root", "dev", "/"),
            ("null-to-core", "null", "/proc/sys/kernel/core_pattern"),
            ("tmp-to-home", "tmp", "/home"),
            ("up-and-out", "etc", "../../../../etc"),
        ] {
            symlink(to, Skill { id, main: ANY, ..Skill::default() }.write(source).join(name)).unwrap();
        }
        Skill { id: "swapped", main: ANY, ..Skill::default() }.write(source);
    });
    let mounts = host_mounts();
    let ran = up.run(
        "names",
        &[
            "/bin/sh",
            "-c",
            "stat -c '%F %t,%T' /dev/null; stat -fc %T /proc /tmp; readlink proc; ls / | tr '\\n' ' '",
        ],
    );
    assert_eq!(ran.exit, 0, "{ran}");
    assert!(ran.stdout.starts_with("character special file 1,3\nproc\ntmpfs\nreal\n"), "{ran}");
    for id in ["dev-to-root", "null-to-core", "tmp-to-home", "up-and-out"] {
        let ran = up.run(id, &["/bin/true"]);
        assert_eq!(ran.exit, 6, "{id}: {ran}");
        assert!(ran.stderr.contains("link"), "{id}: {ran}");
    }
    // Starts while the links come and go: either what was there at one moment, or a refusal.
    let skill = up.skills.join("swapped");
    let swap = |n: usize| {
        let (name, to) = [("dev", "/"), ("proc", "/etc"), ("tmp", "/home"), ("etc", "..")][n % 4];
        let _ = symlink(to, skill.join(name));
        if !n.is_multiple_of(7) {
            let _ = std::fs::remove_file(skill.join(name));
        }
    };
    let look = ["/bin/sh", "-c", "ls /etc | grep -c shadow; ls /home"];
    let started = starts_during(&up, "swapped", &look, swap);
    let right = |ran: &Ran| ran.exit == 2 && ran.stdout == "0\n";
    assert!(right(&started[0]), "before the first change: {}", started[0]);
    for ran in &started {
        assert!(right(ran) || [5, 6].contains(&ran.exit), "{ran}");
    }
    // And when they have gone it runs again, however it was refused meanwhile.
    for name in ["dev", "proc", "tmp", "etc"] {
        let _ = std::fs::remove_file(skill.join(name));
    }
    let mut last = None;
    let again = eventually(Duration::from_secs(90), || right(last.insert(up.run("swapped", &look))));
    assert!(again, "{}", last.unwrap());
    assert_eq!(host_mounts(), mounts);
}

/// Runs a command in a terminal of its own, and prints what it printed and what waits to be read by the next program there.
const TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
said = b""
while True:
    try:
        more = os.read(terminal, 65536)
    except OSError:
        break
    if not more:
        break
    said += more
print(os.waitpid(pid, 0)[1], said.decode(errors="replace"))
"#;

/// Types into every terminal that it can find.
const TYPIST: &str = r#"#!/usr/bin/python3 -I
import fcntl, os, sys
for request in (0x5412, 0x541c, 0x5412 | 1 << 32, 0x541c | 1 << 32):
    for name in (0, 1, 2, "/dev/tty", "/dev/stdin", "/dev/stdout", "/proc/self/fd/0", "/dev/pts/0", "/dev/console"):
        try:
            handle = name if isinstance(name, int) else os.open(name, os.O_RDWR | os.O_NOCTTY)
            for letter in b"echo TYPED\n":
                fcntl.ioctl(handle, request & 0xffffffff, bytes([letter]))
            print("TYPED", name)
        except OSError as e:
            print(e.errno in (1, 2, 6, 13, 25), os.isatty(0) or os.isatty(1) or os.isatty(2))
"#;

#[test]
fn case_054_nothing_is_typed_into_the_operators_terminal() {
    let up = Up::new(|source| drop(Skill { id: "typist", main: TYPIST, ..Skill::default() }.write(source)));
    let in_terminal = |command: &str| -> Ran {
        let mut python = Command::new("/usr/bin/python3");
        python.env("CYBEROS_OPERATOR_SOCKET", up.socket()).stdin(Stdio::null());
        python.args(["-I", "-c", TERMINAL, "/bin/sh", "-c", command]).output().unwrap().into()
    };
    // What is typed is echoed, and read by whoever reads next.
    let cyberos = super::support::binaries::binary("cyberos");
    let after = "stty -icanon min 0 time 3; dd bs=64 count=1 2>/dev/null | od -c | head -1; echo END";
    for flags in ["", "--stdin"] {
        let ran = in_terminal(&format!("{} skill run {flags} typist </dev/tty; {after}", cyberos.display()));
        assert!(ran.stdout.starts_with("0 ") && ran.stdout.contains("END"), "{ran}");
        assert!(!ran.stdout.contains("TYPED"), "{ran}");
        assert_eq!(ran.stdout.matches("True False").count(), 36, "{ran}");
        assert!(ran.stdout.contains("0000000\r\nEND"), "something waits to be read: {ran}");
    }
    // The control experiment: outside a sandbox the same is typed.
    let script = up.skills.join("typist/main");
    let ran = in_terminal(&format!("/usr/bin/python3 -I {}; {after}", script.display()));
    assert!(ran.stdout.contains("TYPED 0"), "{ran}");
}

/// Writes a file of a name that is looked for afterwards, wherever it can.
const WRITER: &str = "#!/bin/sh
for d in . / /root /home /var/tmp /var /opt /opt/cyberos /usr/local /usr/local/bin /usr /etc /run /srv /srv/cyberos/work /dev /proc /sys /mnt \
/media /boot /tmp /dev/shm \"$@\"; do (echo x >\"$d/$MARK\") 2>/dev/null && echo \"$d\"; done; exit 0
";

#[test]
fn case_058_what_a_skill_writes_is_found_nowhere_on_the_host() {
    let mark = format!("case-058-{}", std::process::id());
    let main = WRITER.replace("$MARK", &mark);
    let write = |options: Options| {
        let up = Up::with(options, |source| {
            drop(Skill { id: "writer", main: &main, ..Skill::default() }.write(source))
        });
        let elsewhere = reachable_dir("cyberos-case-058-");
        std::fs::set_permissions(&elsewhere, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (skills, state) = (up.skills.display().to_string(), up.state.display().to_string());
        let ran = up.run("writer", &[&elsewhere.display().to_string(), &skills, &state]);
        assert_eq!((ran.exit, ran.stdout.as_str()), (0, "/tmp\n/dev/shm\n"), "only what is the run's own");
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        std::fs::remove_dir(&elsewhere).unwrap();
        // Everywhere but in the kernel's own trees, and without following mounts of others.
        let found = Command::new("find")
            .args(["/", "/tmp", "/dev/shm", "/run", "/var/tmp", "-xdev", "-name", &mark])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    };
    write(Options::default());
    write(Options { within: super::containers::overlay("pivot"), ..Options::default() });
}

#[test]
fn case_059_no_run_finds_what_another_has_left() {
    let up = Up::new(|source| drop(Skill { id: "any", main: ANY, ..Skill::default() }.write(source)));
    let places = "for d in /tmp /dev/shm .; do";
    let leave = format!(
        "{places} ln -s /root/.ssh $d/link; ln -s /etc $d/state; mkdir $d/d; echo x >$d/f; done 2>/dev/null; ls /tmp | wc -l; \
         mv /tmp /tmp2 2>&1 | grep -c . ; rm -rf /dev/shm 2>/dev/null; ln -sfn /root /dev/shm 2>/dev/null; ls -d /dev/shm"
    );
    for _ in 0..2 {
        let ran = up.run("any", &["/bin/sh", "-c", &leave]);
        assert_eq!((ran.exit, ran.stdout.as_str()), (0, "5\n1\n/dev/shm\n"), "{ran}");
        let ran = up.run(
            "any",
            &[
                "/bin/sh",
                "-c",
                "ls -A /dev/shm; ls -A /tmp | grep -v '^cyberos-skill-broker'; ls; cat /tmp/link/* 2>&1",
            ],
        );
        assert_eq!(
            ran.stdout, "SKILL.md\ncyberos.py\nmain\ncat: '/tmp/link/*': No such file or directory\n",
            "{ran}"
        );
    }
}

#[test]
fn case_060_names_and_arguments_are_data_whatever_they_look_like() {
    let up = Up::new(|source| {
        for (id, entry) in [("dashes", "--help"), ("short", "-c"), ("bind", "--bind")] {
            let more = format!("x-entrypoint: \"{entry}\"\n");
            let dir = Skill {
                id,
                main: "#!/usr/bin/python3\nimport sys\nprint(sys.argv)\n",
                more: &more,
                ..Skill::default()
            }
            .write(source);
            std::fs::rename(dir.join("main"), dir.join(entry)).unwrap();
        }
        let rf = source.join("-rf");
        std::fs::create_dir(&rf).unwrap();
        std::fs::write(rf.join("SKILL.md"), "---\nid: rf\n---\n").unwrap();
        Skill { id: "after", main: ANY, ..Skill::default() }.write(source);
    });
    let arguments = [
        "--bind",
        "/",
        "/",
        "-rf",
        "--",
        "-c",
        "--help",
        "--ceiling",
        "",
        "a b",
        "$(id)",
        "`id`",
        "\u{202e}",
    ];
    for (id, entry) in [("dashes", "--help"), ("short", "-c"), ("bind", "--bind")] {
        let ran = up.run(id, &arguments);
        let wanted = format!(
            "['/opt/cyberos/skills/{id}/{entry}', '--bind', '/', '/', '-rf', '--', '-c', '--help', '--ceiling', '', 'a b', '$(id)', '`id`', "
        );
        assert!(ran.exit == 0 && ran.stdout.starts_with(&wanted), "{ran}");
    }
    // A folder of such a name is no skill that can be run, and no option to anybody.
    let ran = up.cyberos(&["skill", "run", "--", "-rf"]);
    assert_eq!(ran.exit, 2, "{ran}");
    assert!(up.skills.join("-rf/SKILL.md").exists() && up.skills.join("after/main").exists());
    assert_eq!(up.run("after", &["/bin/echo", "--help", "-n"]).stdout, "--help -n\n");
}

#[test]
fn case_061_a_path_that_is_swapped_under_a_start_mounts_nothing_else() {
    let up = Up::new(|source| {
        Skill { id: "good", main: "#!/bin/sh\nls -A . | tr '\\n' ' '\n", ..Skill::default() }.write(source);
    });
    let (mounts, etc) = (host_mounts(), names(Path::new("/etc")));
    let (good, aside) = (up.skills.join("good"), up.skills.join(".aside"));
    let swap = |_| {
        std::fs::rename(&good, &aside).unwrap();
        symlink("/etc", &good).unwrap();
        std::fs::remove_file(&good).unwrap();
        std::fs::rename(&aside, &good).unwrap();
    };
    let mut ended = [0, 0];
    for ran in starts_during(&up, "good", &[], swap) {
        let ok = ran.exit == 0 && ran.stdout == "SKILL.md cyberos.py main ";
        assert!(ok || [5, 6].contains(&ran.exit) && ran.stdout.is_empty(), "{ran}");
        ended[usize::from(ok)] += 1;
    }
    println!("refused and run: {ended:?}");
    assert_eq!(host_mounts(), mounts, "nothing is mounted on the host");
    assert_eq!(names(Path::new("/etc")), etc);
    up.shown("good", "current");
    assert_eq!(up.run("good", &[]).exit, 0, "and it runs once it is left alone");
}

/// Starts a skill again and again while `swap` changes its source, for a while that differs from start to start: the
/// changes end before, during and after the walk that makes the sealed copy.
fn starts_during(up: &Up, skill: &str, args: &[&str], swap: impl Fn(usize) + Sync) -> Vec<Ran> {
    (0..24)
        .map(|round: usize| {
            std::thread::scope(|scope| {
                let run = scope.spawn(|| up.run(skill, args));
                (0..round * round * 4).for_each(&swap);
                run.join().unwrap()
            })
        })
        .collect()
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    all.sort();
    all
}
