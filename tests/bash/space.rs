//! Bash does not fill a disk (`[2.8]`).

use super::*;
use std::time::Duration;
use support::disk::Small;
use support::up::eventually;

fn assert_out_of_space(bash: &Bash, answer: &Value) {
    assert_eq!((&answer[0], &answer[1]["code"]), (&json!("quota_exceeded"), &json!(-32603)), "{answer}");
    let rows = bash.up.rows("skill.tool_denied");
    assert_eq!(answer[1]["reason"], "disk_low");
    assert_eq!(rows.last().unwrap()["extra"]["reason"], "disk_low");
}

#[test]
fn a_command_that_fills_a_granted_file_system_is_ended() {
    let bash = Bash::new();
    let small = bash.directory("small");
    let _mount = Small::mount(&small, "64m");
    bash.give(&small);
    let dir = small.display();
    let fill = format!(
        "for i in $(seq 60); do head -c 1048576 /dev/zero > {dir}/$i; done; sleep 0.2; head -c 3145728 /dev/zero > {dir}/last; sleep 60"
    );
    let answers = bash.calls("writer", &json!([{"cmd": fill, "timeout_ms": 40000}, {"cmd": "true"}]));
    assert_out_of_space(&bash, &answers[0]);
    assert_out_of_space(&bash, &answers[1]);
    // Who only reads cannot have filled it.
    assert_eq!(bash.prints("reader", &format!("ls {dir} | wc -l")), "61");
}

#[test]
fn bash_is_ended_while_the_states_file_system_is_nearly_full() {
    let mut mount = None;
    let up = Up::new(|source| {
        mount = Some(Small::of_broker(source, "256m"));
        let main = python("print('ready', flush=True)\nprint(json.dumps(call('Bash', cmd='sleep 60')))");
        Skill { tools: &["Bash"], main: &main, ..Skill::default() }.write(source);
    });
    let mut up = up;
    let child = up.command(&["skill", "run", "demo"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let running = || up.rows("skill.tool_call_started").len() == 1;
    assert!(eventually(Duration::from_secs(20), running));
    let filler = mount.as_ref().unwrap().fill(8 << 20);
    // What it would print is not kept on such a disk; the ledger tells.
    let out = support::up::Ran::from(child.wait_with_output().unwrap());
    assert_eq!(out.exit, 0, "{out}");
    let denied = up.rows("skill.tool_denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["extra"]["reason"], "disk_low");
    let sentence = up.rows("skill.tool_denied")[0]["extra"]["sentence"].to_string();
    let named = format!("the disk at {} is nearly full", up.state.join("broker").display());
    assert!(sentence.contains(&named), "{sentence}");
    std::fs::remove_file(&filler).unwrap();
    up.stop();
    drop(mount);
}

/// One call would take all that is left before anybody could look; writing takes its time, and `posix_fallocate` writes.
#[test]
fn no_call_of_a_command_takes_a_whole_disk_at_once() {
    let bash = Bash::new();
    let dir = bash.directory("work");
    bash.give(&dir);
    let at = dir.display();
    let said = bash.prints("writer", &format!("fallocate -l 1M {at}/f 2>&1; ls -s {at}/f"));
    assert!(said.contains("not supported") && said.contains("\n0 "), "{said}");
    let python = format!(
        "import os; f = os.open('{at}/g', os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1 << 20); print(os.fstat(f).st_size)"
    );
    assert_eq!(bash.prints("writer", &format!("python3 -c \"{python}\"")), "1048576");
}
