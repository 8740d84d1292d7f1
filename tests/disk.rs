//! What is kept on the state's disk, and what a nearly full one stops (`[2.6]`, `[2.8]`): output, sealed copies and memory
//! do; runs that need none of them go on, and so does the ledger.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod support;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;
use support::disk::Small;
use support::up::{Options, Ran, Skill, Up, eventually, python};

/// Connects, says that it has begun, and ends when its standard input does.
const WAITS: &str = "print('begun', flush=True); sys.stdin.read(); print('done', flush=True)";

#[test]
fn the_output_of_a_run_that_goes_on_is_never_removed_and_the_bounds_of_the_configuration_hold() {
    let options = Options { config: Some("logs:\n  keep: 2\n  max_mb: 20\n".into()), ..Options::default() };
    let up = Up::with(options, |source| {
        let more = "effort_minutes: 9\n";
        let long = python("print('kept', flush=True)\nwhile True: os.read(os.pipe()[0], 1)");
        Skill { id: "long", more, main: &long, ..Skill::default() }.write(source);
        let short = python("print('x' * int(sys.argv[1]))");
        Skill { id: "short", more, main: &short, ..Skill::default() }.write(source);
    });
    let logs = |id: &str| up.cyberos(&["skill", "logs", id]);
    let long = up.cyberos(&["skill", "run", "long", "--detach"]).stdout.trim().to_owned();
    assert!(eventually(Duration::from_secs(30), || logs(&long).stdout == "kept\n"), "{}", logs(&long));
    let short = |bytes: &str| {
        let (_, told) = up.run_json("short", &[bytes]);
        assert_eq!(told["ended"]["outcome"], "success", "{told}");
        told["ended"]["invocation_id"].as_str().unwrap().to_owned()
    };
    let ended: Vec<String> = (0..5).map(|_| short("3")).collect();
    // Pruned when the run has been forgotten, which is after its answer.
    let gone = |id: &String| logs(id).exit == 1;
    assert!(eventually(Duration::from_secs(30), || ended[..3].iter().all(gone)));
    for id in &ended[3..] {
        assert_eq!(logs(id).stdout, "xxx\n");
    }
    let said = logs(&ended[0]).stderr;
    assert!(said.contains("logs.keep: 2, logs.max_mb: 20"), "{said}");
    assert_eq!(logs(&long).stdout, "kept\n");
    // 9 MiB each: with the second the first is more than 20 MiB keep.
    let large: Vec<String> = (0..3).map(|_| short("9000000")).collect();
    assert!(eventually(Duration::from_secs(30), || gone(&large[0])));
    assert_eq!(logs(&large[2]).stdout.len(), 9_000_001);
    assert_eq!(up.cyberos(&["skill", "stop", &long]).exit, 0);
    assert!(eventually(Duration::from_secs(30), || gone(&large[1])), "what ended last is the newest");
    assert_eq!(logs(&long).stdout, "kept\n");
}

#[test]
fn below_five_percent_nothing_is_written_but_the_ledger_and_what_is_refused_names_the_disk() {
    let mut disk = None;
    let mut up = Up::new(|source| {
        disk = Some(Small::of_broker(source, "128m"));
        let main = python(&format!(
            "{WAITS}; print(json.dumps(call('MemoryEmit', kind='a.b', payload='x'))); print('y' * 2000000)"
        ));
        Skill {
            id: "talks",
            tools: &["MemoryEmit"],
            scopes: &["memories/**"],
            main: &main,
            ..Skill::default()
        }
        .write(source);
        for id in ["known", "new"] {
            Skill { id, main: &python("print('it ran')"), ..Skill::default() }.write(source);
        }
    });
    let disk = disk.unwrap();
    let named = format!("the disk at {} is nearly full", disk.path().display());
    let ran = up.run("known", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str()), (0, "it ran\n"), "{ran}");
    let mut talks = up.command(&["--json", "skill", "run", "talks", "--stdin"]);
    let mut talks =
        talks.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // With --json what the skill prints comes on the CLI's standard error.
    let mut printed = BufReader::new(talks.stderr.take().unwrap()).lines();
    assert_eq!(printed.next().unwrap().unwrap(), "begun");
    // Read on, so that nothing waits for this pipe.
    let rest = std::thread::spawn(move || printed.map_while(Result::ok).collect::<Vec<_>>());
    let filler = disk.fill(4 << 20);
    let before = up.rows("").len();
    drop(talks.stdin.take());
    let out = Ran::from(talks.wait_with_output().unwrap());
    assert!(rest.join().unwrap().iter().all(|line| !line.starts_with("yy")), "it was kept to be shown");
    let told: Value = serde_json::from_str(&out.stdout).unwrap();
    let ended = &told["ended"];
    assert_eq!((&ended["outcome"], &ended["stdout_truncated"]), (&json!("success"), &json!(true)), "{told}");
    assert_eq!(ended["stdout_bytes"], 6, "nothing is kept of what came after the disk was full: {told}");
    assert!(ended["stdout_cut"].as_str().unwrap().contains(&named), "{told}");
    let denied = up.rows("skill.tool_denied");
    assert_eq!(denied[0]["extra"]["reason"], "disk_low", "{denied:?}");
    assert!(denied[0]["extra"]["sentence"].as_str().unwrap().contains(&named), "{denied:?}");
    assert!(up.rows("").len() >= before + 3, "the ledger goes on");

    // A person reads it from `run`, and from `logs` later.
    let ran = up.run("known", &[]);
    assert_eq!(
        (ran.exit, ran.stdout.as_str()),
        (0, ""),
        "its copy is there, and nothing of its output is kept"
    );
    assert!(ran.stderr.contains(&format!("stdout was truncated after 0 bytes: {named}")), "{ran}");
    assert!(!ran.stderr.contains("10 MiB"), "{ran}");
    let rows = up.rows("skill.invoked_completed");
    let id = rows.last().unwrap()["extra"]["invocation_id"].as_str().unwrap();
    let logs = up.cyberos(&["skill", "logs", id]);
    assert_eq!((logs.exit, logs.stdout.as_str()), (1, ""), "{logs}");
    let why = format!("nothing is kept of what invocation {id} printed: when it began, {named}");
    assert!(logs.stderr.contains(&why) && !logs.stderr.contains("logs.keep"), "{logs}");
    let ran = up.cyberos(&["skill", "logs", ended["invocation_id"].as_str().unwrap()]);
    assert_eq!(ran.stdout, "begun\n");
    assert!(ran.stderr.contains("stdout was truncated after 6 bytes: the disk was nearly full"), "{ran}");

    let ran = up.run("new", &[]);
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stderr.contains(&format!("new runs from a copy, and there is none yet: {named}")), "{ran}");
    for part in ["logs", "tenants"] {
        let part = up.state.join("broker").join(part);
        let files = std::fs::read_dir(&part).unwrap().count();
        assert!(files <= if part.ends_with("logs") { 2 } else { 0 }, "{} has {files}", part.display());
    }

    std::fs::remove_file(&filler).unwrap();
    let ran = up.run("new", &[]);
    assert_eq!((ran.exit, ran.stdout.as_str(), ran.stderr.as_str()), (0, "it ran\n", ""), "{ran}");
    assert_eq!(up.stop(), Some(0));
    drop(disk);
}
