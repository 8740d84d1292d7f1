//! Programs that begin in odd ways or want much: cases 69 to 82 (66 to 68, 72, 76 to 78 and 83 are in `tests/programs.rs`).

use super::ANY;
use super::support::up::{Options, Ran, Skill, Up, python, reachable_dir};
use std::os::unix::fs::{PermissionsExt, symlink};

/// As many threads as it is told, all alive together; then a process of its own.
const THREADS: &str = r#"#!/usr/bin/python3 -I
import os, sys, threading
n, go = int(sys.argv[1]), threading.Event()
threads = [threading.Thread(target=go.wait, daemon=True) for _ in range(n)]
for t in threads: t.start()
print(threading.active_count(), flush=True)
go.set()
for t in threads: t.join()
print(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])
"#;

/// Forks for as long as it may, and says how far it came.
const BOMB: &str = r#"#!/usr/bin/python3 -I
import os, signal, sys, time
most, end = 0, time.monotonic() + 3
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            while True:
                try: os.fork()
                except OSError: time.sleep(0.01)
    except OSError:
        most = max(most, sum(p.isdigit() for p in os.listdir("/proc")))
print(most, flush=True)
os.kill(0, signal.SIGKILL)
"#;

#[test]
fn case_069_processes_are_counted_for_each_sandbox_and_a_bomb_starves_nobody() {
    let up = Up::new(|source| {
        let more = "x-max-processes: 32\nx-memory-mb: 512\n";
        Skill { id: "threads", main: THREADS, more, ..Skill::default() }.write(source);
        Skill { id: "bomb", main: BOMB, more, ..Skill::default() }.write(source);
    });
    // Twenty at once with 28 threads each: 560 tasks, where each may have 32.
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| up.run("bomb", &[]));
        let all: Vec<_> = (0..20).map(|_| scope.spawn(|| up.run("threads", &["28"]))).collect();
        for ran in all.into_iter().map(|r| r.join().unwrap()) {
            assert_eq!((ran.exit, ran.stdout.as_str()), (0, "29\n0\n"), "{ran}");
        }
        let ran = bomb.join().unwrap();
        assert_eq!(ran.exit, 137, "{ran}");
        let most: u32 = ran.stdout.trim().parse().unwrap();
        assert!((8..=32).contains(&most), "{ran}");
    });
    let ran = up.run("threads", &["40"]);
    assert!(ran.exit != 0 && ran.stderr.contains("can't start new thread"), "{ran}");
    assert_eq!(up.run("threads", &["28"]).exit, 0, "nothing of the bomb is left to be counted");
}

#[test]
fn case_074_nonsense_for_a_limit_is_refused_with_the_fields_name_and_a_default_applies() {
    let up = Up::new(|source| drop(Skill { id: "plain", main: ANY, ..Skill::default() }.write(source)));
    let dir = reachable_dir("cyberos-case-074-");
    for (field, values) in [
        (
            "effort_minutes",
            &["0", "-1", "0.5", "1e9", "ten", "null", "1441", "[1]", "\"5\"", "18446744073709551617"][..],
        ),
        ("x-memory-mb", &["0", "-1", "0.5", "ten", "null", "4294967297"]),
        ("x-max-processes", &["0", "-1", "1.5", "many", "null", "4294967297"]),
        ("x-tmp-mb", &["0", "-1", "ten", "null", "4294967297"]),
    ] {
        for value in values {
            let more = format!("{field}: {value}\n");
            let skill = Skill { id: "odd", more: &more, ..Skill::default() }.write(&dir);
            let ran = up.cyberos(&["skill", "validate", &skill.display().to_string()]);
            assert_eq!(ran.exit, 6, "{more}{ran}");
            assert!(format!("{}{}", ran.stdout, ran.stderr).contains(field), "{more}{ran}");
            std::fs::remove_dir_all(&skill).unwrap();
        }
    }
    // Without any, 30 minutes of time: that much of RLIMIT_CPU on each processor, and 8 processes.
    let ran = up.run("plain", &["/bin/sh", "-c", "ulimit -t; ulimit -p 2>/dev/null || ulimit -u"]);
    let cpu_s = 1800 * super::limits::processors();
    assert_eq!((ran.exit, ran.stdout), (0, format!("{cpu_s}\n8\n")));
}

#[test]
fn case_081_the_systems_own_links_resolve_and_a_granted_link_is_named_as_one() {
    let dir = reachable_dir("cyberos-case-081-");
    std::fs::create_dir_all(dir.join("usr-home/ann/tree")).unwrap();
    symlink("usr-home", dir.join("home")).unwrap();
    symlink("/etc/passwd", dir.join("usr-home/ann/tree/out")).unwrap();
    symlink("inside.txt", dir.join("usr-home/ann/tree/in")).unwrap();
    std::fs::write(dir.join("usr-home/ann/tree/inside.txt"), "inside\n").unwrap();
    let (link, real) =
        (format!("{}/home/ann/tree/**", dir.display()), format!("{}/usr-home/ann/tree/**", dir.display()));
    let more = format!("x-allowed-files: [\"{link}\", \"{real}\"]\n");
    let main = python("for p in sys.argv[1:]: print(json.dumps(call('Read', path=p)))");
    let options = Options { grant_requested: true, ..Options::default() };
    let up = Up::with(options, |source| {
        Skill { id: "reader", tools: &["Read"], more: &more, main: &main, ..Skill::default() }.write(source);
        Skill { id: "any", main: ANY, ..Skill::default() }.write(source);
    });
    // Inside, what the system links is found by every name.
    let script = "for f in /bin/sh /usr/bin/sh /lib64/ld-linux-x86-64.so.2 /usr/bin/awk /etc/localtime /dev/fd /dev/stdin; do \
                  test -e $f || test -L $f || echo missing $f; done; /bin/sh -c 'echo /bin'; cc --version >/dev/null && echo cc";
    let ran = up.run("any", &["/bin/sh", "-c", script]);
    assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, "/bin\ncc\n", ""), "{ran}");
    let at = |name: &str| format!("{}/usr-home/ann/tree/{name}", dir.display());
    let ran = up.run(
        "reader",
        &[&at("inside.txt"), &at("in"), &at("out"), &format!("{}/home/ann/tree/inside.txt", dir.display())],
    );
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].contains("inside\\n") && lines[1].contains("inside\\n"), "{ran}");
    assert!(lines[2].contains("file_violation") && !lines[2].contains("root:"), "{ran}");
    assert!(lines[3].contains("file_violation"), "{ran}");
    // The grant through a link gives nothing, and the operator reads where it leads.
    assert!(
        ran.stderr.contains("not granted")
            && ran.stderr.contains("leads to")
            && ran.stderr.contains("usr-home"),
        "{ran}"
    );
    assert!(!format!("{}{}", ran.stdout, ran.stderr).to_lowercase().contains("loop"), "{ran}");
}

#[test]
fn case_082_a_start_that_fails_names_the_cause_and_keeps_126_and_127_apart() {
    let elf = |machine: u8, class: u8| {
        let mut head = vec![0x7f, b'E', b'L', b'F', class, 1, 1, 0];
        head.resize(16, 0);
        head.extend([2, 0, machine, 0, 1, 0, 0, 0]);
        head.resize(64, 0);
        head
    };
    let up = Up::new(|source| {
        let write = |id: &str, main: &[u8]| {
            let dir = Skill { id, ..Skill::default() }.write(source);
            std::fs::write(dir.join("main"), main).unwrap();
            dir
        };
        write("node", b"#!/usr/bin/env node\nconsole.log(6*7)\n");
        std::fs::write(
            source.join("node/SKILL.md"),
            front("node", "x-memory-mb: 1024\nx-max-processes: 16\n"),
        )
        .unwrap();
        write("env-s", b"#!/usr/bin/env -S python3 -u\nprint(42)\n");
        write("crlf", b"#!/usr/bin/python3\r\nprint(42)\r\n");
        write("crlf-env", b"#!/usr/bin/env python3\r\nprint(42)\r\n");
        write("missing", b"#!/opt/nowhere/bin/python9 -u\nprint(42)\n");
        write("missing-env", b"#!/usr/bin/env python9\nprint(42)\n");
        write("directory", b"#!/usr/bin\n");
        write("relative", b"#!bin/sh\necho 42\n");
        write("arm", &elf(0xb7, 2));
        write("i386", &elf(3, 1));
        write("text", b"echo 42\n");
        write("empty", b"");
        let plain = write("not-executable", b"#!/bin/sh\necho 42\n");
        std::fs::set_permissions(plain.join("main"), std::fs::Permissions::from_mode(0o644)).unwrap();
        let spaces = write("spaces", b"#!/bin/sh\necho \"$0\"\n");
        std::fs::create_dir(spaces.join("a b")).unwrap();
        std::fs::rename(spaces.join("main"), spaces.join("a b/the main")).unwrap();
        std::fs::write(spaces.join("SKILL.md"), front("spaces", "x-entrypoint: \"a b/the main\"\n")).unwrap();
    });
    for (id, exit, said) in [
        ("node", 0, "42"),
        ("env-s", 0, "42"),
        ("spaces", 0, "a b/the main"),
        ("crlf", 127, "/usr/bin/python3\\r"),
        ("crlf-env", 127, "python3\\r"),
        ("missing", 127, "/opt/nowhere/bin/python9"),
        ("missing-env", 127, "python9"),
        ("directory", 126, "/usr/bin"),
        ("arm", 126, "another kind of machine"),
        ("i386", 126, ""),
        ("text", 126, "neither a program of this machine nor a script"),
        ("empty", 126, ""),
        ("not-executable", 126, "chmod +x"),
    ] {
        let ran = up.run(id, &[]);
        assert_eq!(ran.exit, exit, "{id}: {ran}");
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(said), "{id}: {ran}");
        assert!(exit == 0 || !ran.stderr.is_empty() && !ran.stdout.contains("42"), "{id}: {ran}");
    }
    let ran: Ran = up.run("relative", &[]);
    assert!([126, 127].contains(&ran.exit) && ran.stderr.contains("bin/sh"), "{ran}");
}

/// The frontmatter of a skill that asks for nothing but `more`.
fn front(id: &str, more: &str) -> String {
    format!(
        "---\nid: {id}\nversion: 1.0.0\ndescription: A test skill.\nallowed_memory_scopes: []\nallowed_tools: []\n{more}---\n"
    )
}
