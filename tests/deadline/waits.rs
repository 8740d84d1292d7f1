//! Deadlines (`[2.4]`): SIGTERM at 90 % of the effort, SIGKILL of the whole sandbox at 100 %, calls served for 10 s
//! after the SIGTERM. The shortest effort in which those 10 s are over before the SIGKILL is two minutes (SIGTERM at
//! 108 s, refusals from 118 s, SIGKILL at 120 s), so this takes two minutes: all its runs at once, in one `up`.

use crate::support::up::{Skill, Up, python};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Between two instants seconds apart on a busy machine.
const SLACK: f64 = 3.5;

/// Prints what a call answers, with the time since the start.
const HEAD: &str = "\
import time, signal, threading, subprocess
begun = time.monotonic()
def say(word, answer=None):
    print(json.dumps([word, round(time.monotonic() - begun, 1), answer]), flush=True)
def bash(word, cmd, **more):
    say(word, call('Bash', cmd=cmd, **more))
";

struct Ran {
    exit: i32,
    seconds: f64,
    said: Vec<Value>,
    stderr: String,
    /// `skill.invoked_completed`'s payload.
    row: Value,
    invocation: String,
}

impl Ran {
    /// What it printed under a word: the second, and the answer.
    fn said(&self, word: &str) -> (f64, &Value) {
        let line = self
            .said
            .iter()
            .find(|l| l[0] == word)
            .unwrap_or_else(|| panic!("no {word}: {:?} {}", self.said, self.stderr));
        (line[1].as_f64().unwrap(), &line[2])
    }
}

fn run(up: &Up, skill: &str) -> Ran {
    let begun = Instant::now();
    let ran = up.run(skill, &[]);
    let seconds = begun.elapsed().as_secs_f64();
    let rows = up.rows("skill.invoked_completed");
    let row =
        rows.iter().find(|r| r["extra"]["skill_id"] == skill).expect("a completed row")["extra"].clone();
    Ran {
        exit: ran.exit,
        seconds,
        said: ran.stdout.lines().filter_map(|l| serde_json::from_str(l).ok()).collect(),
        stderr: ran.stderr,
        invocation: row["invocation_id"].as_str().unwrap().to_owned(),
        row,
    }
}

/// Rows of one kind of one run.
fn rows(up: &Up, kind: &str, ran: &Ran) -> Vec<Value> {
    let all = up.rows(kind).into_iter().map(|r| r["extra"].clone());
    all.filter(|r| r["invocation_id"] == ran.invocation.as_str()).collect()
}

fn near(what: f64, expected: f64) -> bool {
    what > expected - 1.0 && what < expected + SLACK
}

#[test]
fn calls_and_sandboxes_meet_the_deadline_as_the_rules_say() {
    let skills = [
        // SIGTERM's own moment, a call right after it, one after the grace, and an end of its own.
        (
            "graceful",
            "\
term = threading.Event()
signal.signal(signal.SIGTERM, lambda *a: term.set())
say('status', c.status()['remaining_ms'])
while not term.wait(0.2): pass
say('term')
bash('in grace', 'echo served')
time.sleep(10.7)
bash('after grace', 'echo late')
say('memory', call('MemoryRead', path='memories/x/y'))
sys.exit(3)",
        ),
        // A call in flight at the end of the grace: longer than that, with something in the background.
        (
            "inflight",
            "\
signal.signal(signal.SIGTERM, signal.SIG_IGN)
bash('cut', 'setsid sleep 1000 & sleep 1000')
sys.exit(0)",
        ),
        // A call that begins in the grace and ends in it.
        (
            "begun",
            "\
term = threading.Event()
signal.signal(signal.SIGTERM, lambda *a: term.set())
while not term.wait(0.2): pass
bash('short', 'sleep 4; echo done')
sys.exit(0)",
        ),
        // Deaf to SIGTERM, with grandchildren in sessions of their own that hold its pipes.
        (
            "deaf",
            "\
signal.signal(signal.SIGTERM, signal.SIG_IGN)
bash('first', 'true')
for _ in range(2): subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; while :; do sleep 1; done'])
while True: time.sleep(1)",
        ),
        // Default disposition: it has not asked for SIGTERM, and dies of it.
        ("plain", "time.sleep(1000)"),
        // It ends at once and leaves a grandchild with its pipes.
        ("leaver", "subprocess.Popen(['setsid', 'sleep', '1000'])\nsay('left')\nsys.exit(5)"),
    ];
    let up = Up::new(|source| {
        for (id, body) in skills {
            let main = python(&format!("{HEAD}{body}"));
            let tools = &["Bash", "MemoryRead"];
            let scopes = &["memories/**"];
            Skill { id, tools, scopes, more: "effort_minutes: 2\n", main: &main }.write(source);
        }
    });
    let ran: Vec<Ran> = std::thread::scope(|s| {
        let runs: Vec<_> = skills.iter().map(|(id, _)| s.spawn(|| run(&up, id))).collect();
        runs.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let [graceful, inflight, begun, deaf, plain, leaver] = &ran[..] else { panic!("six runs") };

    // 90 %, and a call that is answered in the grace is completed.
    assert!(near(graceful.said("term").0, 108.0), "{:?}", graceful.said);
    let remaining = graceful.said("status").1.as_u64().unwrap();
    assert!((110_000..=120_000).contains(&remaining), "{remaining}");
    let (at, served) = graceful.said("in grace");
    assert!(served[0] == "ok" && served[1]["stdout"] == "served\n" && at < 118.0, "{served}");
    // After it everything is refused, of whatever tool, and recorded as such.
    for word in ["after grace", "memory"] {
        let (_, answer) = graceful.said(word);
        assert_eq!(
            (&answer[0], &answer[1]["code"]),
            (&json!("deadline_exceeded"), &json!(-32603)),
            "{answer}"
        );
        assert_eq!(answer[1]["reason"], "deadline_exceeded");
    }
    let completed = rows(&up, "skill.tool_call_completed", graceful);
    assert!(completed.len() == 1 && completed[0]["outcome"] == "success", "{completed:?}");
    let denied = rows(&up, "skill.tool_denied", graceful);
    assert_eq!(denied.iter().map(|r| &r["reason"]).collect::<Vec<_>>(), ["deadline_exceeded"; 2]);
    // It ended by itself, but after SIGTERM; SIGKILL was not needed.
    assert_eq!(
        (graceful.exit, &graceful.row["outcome"], &graceful.row["exit_code"]),
        (124, &json!("timeout"), &json!(3))
    );
    assert!(rows(&up, "skill.timeout", graceful).is_empty());

    // In flight at the end of the grace: cut there, answered, and recorded as timeout.
    let (at, cut) = inflight.said("cut");
    assert!(near(at, 118.0), "cut at {at}");
    assert_eq!(
        (&cut[0], &cut[1]["reason"], &cut[1]["code"]),
        (&json!("tool_error"), &json!("timeout"), &json!(-32000))
    );
    let completed = rows(&up, "skill.tool_call_completed", inflight);
    assert!(completed.len() == 1 && completed[0]["outcome"] == "timeout", "{completed:?}");
    assert_eq!(
        (inflight.exit, &inflight.row["outcome"], &inflight.row["exit_code"]),
        (124, &json!("timeout"), &json!(0))
    );

    let (at, short) = begun.said("short");
    assert!(short[1]["stdout"] == "done\n" && near(at, 112.0), "{short} at {at}");
    assert_eq!(rows(&up, "skill.tool_call_completed", begun)[0]["outcome"], "success");

    // 100 %: the whole sandbox, at once, whoever holds its pipes.
    assert!(near(deaf.seconds, 120.0), "{}", deaf.seconds);
    assert_eq!((deaf.exit, &deaf.row["outcome"], &deaf.row["signal"]), (124, &json!("timeout"), &json!(9)));
    // Case 75: what the operator reads is the limit, what was done when, and what would help.
    let told = "deaf: deadline of 120 s reached: SIGTERM at 108 s, killed by SIGKILL at 12";
    assert!(deaf.stderr.contains(told) && deaf.stderr.contains("last call was 1, Bash"), "{}", deaf.stderr);
    assert!(deaf.stderr.contains("effort_minutes"), "{}", deaf.stderr);
    let timeout = rows(&up, "skill.timeout", deaf);
    assert_eq!(timeout.len(), 1);
    assert_eq!(timeout[0]["last_tool_call"], json!({"call": 1, "tool_name": "Bash"}));
    assert!(near(timeout[0]["elapsed_ms"].as_f64().unwrap() / 1000.0, 120.0), "{timeout:?}");

    // Case 71: SIGTERM reaches a skill that has not asked for it.
    assert!(near(plain.seconds, 108.0), "{}", plain.seconds);
    assert_eq!(
        (plain.exit, &plain.row["outcome"], &plain.row["signal"]),
        (124, &json!("timeout"), &json!(15))
    );
    assert!(rows(&up, "skill.timeout", plain).is_empty());
    assert!(plain.stderr.contains("ended by SIGTERM at 108 s"), "{}", plain.stderr);

    // Nobody waits for a grandchild.
    assert!(leaver.seconds < 30.0, "{}", leaver.seconds);
    assert_eq!((leaver.exit, &leaver.row["outcome"]), (5, &json!("error")));

    // The rows of each run's end: none without its start, and the ledger is whole.
    let verified = up.cyberos(&["audit", "verify"]);
    assert_eq!(verified.exit, 0, "{verified}");
    let status: Value = serde_json::from_str(&up.cyberos(&["--json", "status"]).stdout).unwrap();
    assert_eq!(status["active_invocations"], 0);
    for ran in &ran {
        let milliseconds = ran.row["duration_ms"].as_f64().unwrap();
        assert!(Duration::from_secs_f64(milliseconds / 1000.0) < Duration::from_secs(125), "{:?}", ran.row);
    }
}

/// A minute, the shortest effort: in it two threads use up more processor time than there is time. They leave the
/// processors to whatever else is tested.
#[test]
fn case_177_two_busy_threads_are_ended_by_the_deadline_and_by_no_other_limit() {
    let main = python(
        "import hashlib, os, signal, threading, time\nos.nice(19)\n\
         signal.signal(signal.SIGTERM, lambda *a: (print('term', flush=True), os._exit(0)))\n\
         def busy():\n    while True: hashlib.sha256(bytes(1 << 20))\n\
         for _ in range(2): threading.Thread(target=busy, daemon=True).start()\n\
         while True: time.sleep(1)",
    );
    let up = Up::new(|source| {
        Skill { id: "busy", more: "effort_minutes: 1\n", main: &main, ..Skill::default() }.write(source);
    });
    let begun = Instant::now();
    let ran = up.run("busy", &[]);
    assert!(near(begun.elapsed().as_secs_f64(), 54.0), "{ran}");
    assert_eq!((ran.exit, ran.stdout.as_str()), (124, "term\n"), "{ran}");
    assert!(ran.stderr.contains("SIGTERM at 54 s, ended by itself with status 0"), "{ran}");
    let row = up.rows("skill.invoked_completed")[0]["extra"].clone();
    assert_eq!(row["outcome"], "timeout");
}
