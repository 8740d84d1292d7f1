//! What an operator reads before he consents, on a terminal (`[4.0]`).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where it fails")]

mod support;

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use support::up::{Ran, Skill, Up, reachable_dir};

/// Answers the question of `approve`, which asks on a terminal alone.
fn answered(up: &Up, skill: &str, answer: &str) -> Ran {
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command = up.command(&["skill", "approve", skill]);
    command.stdin(File::from(terminal.slave)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    File::from(terminal.master.try_clone().unwrap()).write_all(answer.as_bytes()).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    drop(terminal.master);
    ran
}

#[test]
fn the_last_screen_before_the_question_has_what_is_dangerous_however_long_the_list_is() {
    let granted = reachable_dir("cyberos-consent-");
    let broker = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    nix::unistd::chown(&*granted, Some(broker.uid), None).unwrap();
    let files: Vec<String> = (0..250).map(|n| format!("  - /srv/project/docs{n}/*.md\n")).collect();
    let more = format!(
        "x-allowed-files:\n  - /**\n  - {}/**\n{}x-allowed-domains: [\"**\"]\neffort_minutes: 1000\n",
        granted.display(),
        files.concat()
    );
    let scopes: Vec<String> = (0..250).map(|n| format!("memories/notes/n{n}/*.md")).collect();
    let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let tools = ["Bash", "Edit", "MemoryEmit", "MemoryRead", "Read"];
    let up = Up::new(|source| {
        Skill { id: "asks", tools: &tools, scopes: &scopes, more: &more, ..Skill::default() }.write(source);
    });
    let ran = answered(&up, "asks", "n\n");
    assert_eq!(ran.exit, 1, "{ran}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines.len() > 500, "the whole list is there too: {ran}");
    let screen = &lines[lines.len() - 24..];
    let has = |what: &str| screen.iter().any(|line| line.trim_start().starts_with(what));
    for what in [
        "what matters most",
        "tools: 5: Bash, Edit, MemoryEmit, Read, MemoryRead",
        "Bash may write what user cyberos owns in 2 directories:",
        &format!("\"{}\"", granted.display()),
        "files: 252 patterns, the widest first:",
        "\"/**\"",
        "and 249 more",
        "those reach into everything below /",
        "hosts: 1 pattern, the widest first:",
        "\"**\"",
        "memory: 250 patterns, the widest first:",
        "limits: 1000 minutes",
        "Grant exactly this",
    ] {
        assert!(has(what), "{what} is not on the last screen:\n{}", screen.join("\n"));
    }
    assert!(lines.last().unwrap().starts_with("Grant exactly this"), "the question is last");
    assert!(screen.iter().all(|line| line.chars().count() <= 100), "{screen:#?}");

    let shown = up.cyberos(&["skill", "show", "asks"]);
    let last: Vec<&str> = shown.stdout.lines().rev().take(23).collect();
    assert!(last.iter().any(|line| line.contains("tools: 5: Bash, Edit")), "{last:#?}");
    assert!(shown.stdout.contains("approved: false"), "{shown}");
    let ran = answered(&up, "asks", "y\n");
    assert!(ran.exit == 0 && ran.stdout.contains("approved: asks"), "{ran}");
}
