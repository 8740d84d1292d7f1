//! Limits that programs meet: that none comes before it should, and that each is named for what it is (cases 177, 179, 182,
//! 183).

use super::ANY;
use super::support::up::{Options, Ran, Skill, Up, python};
use std::os::unix::ffi::OsStrExt;

/// Processors of this machine, those that could be added included: `processor` lines would leave them out.
pub(super) fn processors() -> u64 {
    let most = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_CONF).unwrap().unwrap();
    u64::try_from(most).unwrap()
}

/// Skills that run their arguments, with these lines of frontmatter.
fn up(skills: &[(&str, &str)]) -> Up {
    let options = Options { grant_requested: true, ..Options::default() };
    Up::with(options, |source| {
        for (id, more) in skills {
            Skill { id, main: ANY, more, ..Skill::default() }.write(source);
        }
    })
}

/// That its end is told with these words, and with none of those.
#[track_caller]
fn told(ran: &Ran, says: &[&str], not: &[&str]) {
    let line = ran.stderr.lines().find(|l| l.starts_with("cyberos: ")).unwrap_or_else(|| panic!("{ran}"));
    assert!(says.iter().all(|word| line.contains(word)), "{line} should say {says:?}: {ran}");
    assert!(!not.iter().any(|word| line.contains(word)), "{line} should not say any of {not:?}");
}

#[test]
fn case_177_the_limit_of_processor_time_cannot_come_before_the_deadline() {
    let up = up(&[("minute", "effort_minutes: 1\n"), ("day", "effort_minutes: 1440\n")]);
    for (skill, minutes) in [("minute", 1), ("day", 1440)] {
        let ran = up.run(skill, &["/bin/sh", "-c", "ulimit -St"]);
        let least = minutes * 60 * processors();
        assert!(
            ran.exit == 0 && ran.stdout.trim().parse::<u64>().unwrap() >= least,
            "{skill}, {least}: {ran}"
        );
    }
    // A lower deadline lowers it.
    let ran =
        up.cyberos(&["skill", "run", "day", "--effort-minutes", "2", "--", "/bin/sh", "-c", "ulimit -St"]);
    assert_eq!(ran.stdout.trim(), (120 * processors()).to_string(), "{ran}");
}

#[test]
fn case_182_a_file_may_be_as_large_as_tmp_and_each_limit_is_named_for_what_it_is() {
    let up = up(&[
        ("plain", ""),
        ("large", "x-tmp-mb: 512\nx-memory-mb: 1024\n"),
        ("tight", "x-tmp-mb: 512\nx-memory-mb: 64\n"),
    ]);
    let sh = |skill: &str, script: &str| up.run(skill, &["/bin/sh", "-c", script]);
    // A line of its own, also after half a line of the program's.
    let ran = sh("plain", "printf 'half a line' >&2; kill -ABRT $$");
    assert!(ran.stderr.starts_with("half a line\ncyberos: the skill: ended by SIGABRT"), "{ran}");
    let ran = sh("large", "head -c 300000000 /dev/zero >/tmp/f && stat -c %s /tmp/f; ulimit -f");
    assert_eq!(
        (ran.exit, ran.stdout.as_str(), ran.stderr.as_str()),
        (0, "300000000\n1048576\n", ""),
        "{ran}"
    );

    let ran = sh("plain", "ulimit -f 10; head -c 1000000 /dev/zero >/tmp/f; exit $?");
    told(&ran, &["SIGXFSZ (signal 25)", "256 MiB", "x-tmp-mb"], &["memory"]);
    assert_eq!(ran.exit, 153, "{ran}");
    let ran = sh("plain", "ulimit -St 1; while :; do :; done");
    told(&ran, &["SIGXCPU (signal 24)", "effort_minutes"], &["memory", "x-tmp-mb"]);
    assert_eq!(ran.exit, 152, "{ran}");
    // Getpid by the 32-bit table.
    let code = "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3')); \
                ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()";
    let ran = up.run("plain", &["/usr/bin/python3", "-c", code]);
    told(&ran, &["SIGSYS (signal 31)", "32-bit"], &["memory", "x-"]);
    let code = "import mmap; f = open('/tmp/f', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); f.truncate(0); m[0]";
    let ran = up.run("plain", &["/usr/bin/python3", "-c", code]);
    told(&ran, &["SIGBUS (signal 7)", "64 MiB each", "x-tmp-mb"], &["memory"]);
    told(&sh("plain", "kill -9 $$"), &["SIGKILL (signal 9)", "from inside"], &["x-"]);
    told(&sh("plain", "kill -PIPE $$"), &["SIGPIPE (signal 13)"], &["memory", "x-"]);
    told(&sh("plain", "head -c 100000000 /dev/zero >/tmp/f"), &["64 MiB each", "x-tmp-mb"], &["x-memory-mb"]);
    let threads = "import threading, time\nfor i in range(20): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()";
    let ran = up.run("plain", &["/usr/bin/python3", "-c", threads]);
    told(&ran, &["8 processes", "x-max-processes"], &["x-memory-mb"]);

    // What all processes and files take together is the control group's to count.
    let (_, begun) = up.run_json("tight", &["/bin/true"]);
    if begun["started"]["sandbox"]["cgroup"] == "absent" {
        panic!("this machine has no control groups for memory, so its limit cannot be tried");
    }
    for script in
        ["head -c 200000000 /dev/zero >/tmp/f", "head -c 200000000 /dev/zero >/tmp/f & wait $!; exit 0"]
    {
        told(&sh("tight", script), &["limit of 64 MiB", "x-memory-mb", "/dev/shm"], &["from inside"]);
    }
    let (_, ended) = up.run_json("tight", &["/bin/sh", "-c", "exec head -c 200000000 /dev/zero >/tmp/f"]);
    assert_eq!((&ended["ended"]["signal"], &ended["ended"]["out_of_memory"]), (&9.into(), &true.into()));
    let (_, ended) = up.run_json("tight", &["/bin/sh", "-c", "kill -9 $$"]);
    assert_eq!((&ended["ended"]["signal"], &ended["ended"]["out_of_memory"]), (&9.into(), &false.into()));
}

#[test]
fn case_179_a_runtime_that_does_not_see_its_limit_is_told_what_to_say_to_it() {
    let up = up(&[
        ("plain", ""),
        ("same", "x-memory-mb: 512\nx-max-processes: 32\n"),
        ("small", "x-memory-mb: 256\nx-max-processes: 32\n"),
    ]);
    // Without the key it is address space that lacks, and the key cures it at the same number.
    let ran = up.run("plain", &["node", "-e", "console.log(1)"]);
    assert_ne!(ran.exit, 0, "{ran}");
    told(&ran, &["the key itself makes room", "x-memory-mb: 512"], &["its limit is"]);
    let ran = up.run("same", &["node", "-e", "console.log(1)"]);
    assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, "1\n", ""));

    let hungry = "const a = []; for (;;) a.push(new Array(1e5).fill({}))";
    told(&up.run("small", &["node", "-e", hungry]), &["256 MiB", "--max-old-space-size"], &["makes room"]);
    let ran = up.run("small", &["node", "--max-old-space-size=64", "-e", hungry]);
    assert!(ran.stderr.contains("heap out of memory"), "{ran}");
    let ran = up.run("small", &["java", "-Xms1g", "-version"]);
    told(&ran, &["256 MiB", "-Xmx"], &["makes room"]);
    let ran = up.run("small", &["java", "-Xmx64m", "-version"]);
    assert_eq!(ran.exit, 0, "{ran}");
}

#[test]
fn case_183_arguments_are_taken_up_to_a_bound_that_the_refusal_names() {
    let up = up(&[("plain", "")]);
    let script = "import sys; print(len(sys.argv) - 1, sum(map(len, sys.argv[1:])))";
    let run = |args: &[String]| {
        let mut all = vec!["/usr/bin/python3", "-c", script];
        all.extend(args.iter().map(String::as_str));
        up.run("plain", &all)
    };
    for (count, length) in [(0, 0), (1000, 60), (2000, 60), (40_000, 1), (30_000, 0), (1, 120_000)] {
        let ran = run(&vec!["x".repeat(length); count]);
        let said = format!("{count} {}\n", count * length);
        assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, said.as_str(), ""), "{count}");
    }
    for (count, length) in [(3000, 60), (2, 70_000), (70_000, 1)] {
        let ran = run(&vec!["x".repeat(length); count]);
        assert_eq!((ran.exit, ran.stdout.as_str()), (2, ""), "{ran}");
        for word in ["arguments and environment", "131072", "--stdin"] {
            assert!(ran.stderr.contains(word), "{word}: {ran}");
        }
    }
    // Bytes that are no text arrive as they are.
    let mut command = up.command(&["skill", "run", "plain", "--", "/usr/bin/printf", "%s"]);
    let ran = command.arg(std::ffi::OsStr::from_bytes(b"a\xffb\n")).output().unwrap();
    assert_eq!(ran.stdout, b"a\xffb\n");
}

#[test]
fn case_182_bash_says_which_limit_ended_a_command_line() {
    let main = python("print(json.dumps([call('Bash', cmd=cmd)[1] for cmd in sys.argv[1:]]))");
    let options = Options { grant_requested: true, ..Options::default() };
    let up = Up::with(options, |source| {
        let more = "x-tmp-mb: 512\nx-memory-mb: 128\n";
        Skill { id: "caller", tools: &["Bash"], main: &main, more, ..Skill::default() }.write(source);
    });
    let ran = up.run(
        "caller",
        &[
            "ulimit -f 10; exec head -c 1000000 /dev/zero >/tmp/f",
            "head -c 400000000 /dev/zero >/tmp/f; exit 3",
            "kill -SEGV $$",
            "echo fine >&2",
        ],
    );
    let results: Vec<serde_json::Value> =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}"));
    let said = |n: usize| results[n]["stderr"].as_str().unwrap();
    assert!(said(0).contains("SIGXFSZ (signal 25)") && said(0).contains("512 MiB"), "{ran}");
    assert!(said(1).contains("limit of 128 MiB") && results[1]["exit_code"] != 0, "{ran}");
    assert_eq!((said(2), said(3)), ("", "fine\n"), "{ran}");
}
