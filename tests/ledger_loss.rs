//! What is done when rows are gone (`[6.4]`, `[6.5]`): who notices, what the message says, and that the command which it names
//! exists and does it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;
#[path = "ledger_loss/whose.rs"]
mod whose;

use cyberos_broker::audit::accept::{LOSS_ACCEPTED, Loss, NotAccepted, accept_loss, damage};
use cyberos_broker::audit::frame;
use cyberos_broker::audit::recovery::LedgerError;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::binaries::binary;
use support::store::{current, open, store_of, whole};
use support::up::{Ran, Skill, Up, reachable_dir};
use support::waiting::until;

/// Remembers something, and prints.
const WRITER: &str = "#!/bin/sh
echo '{\"kind\":\"note.made\",\"payload\":\"x\"}' | /opt/cyberos/bin/cyberos-call MemoryEmit -
";

fn up() -> Up {
    Up::new(|source| {
        let tools = &["MemoryEmit"];
        Skill { id: "writer", main: WRITER, tools, scopes: &["memories/**"], ..Skill::default() }
            .write(source);
    })
}

fn broker_store(up: &Up) -> PathBuf {
    up.state.join("broker/store")
}

fn ran(command: &mut Command) -> Ran {
    command.stdin(Stdio::null()).output().unwrap().into()
}

/// `cyberos` on a store that no broker has.
fn audit(store: &Path, args: &[&str]) -> Ran {
    ran(Command::new(binary("cyberos")).arg("audit").args(args).arg("--store").arg(store))
}

/// Takes the last `rows` rows off the end, as somebody would who knows the format.
fn cut(store: &Path, rows: usize) {
    let bytes = fs::read(current(store)).unwrap();
    let mut ends = vec![0];
    while let Some(head) = bytes.get(ends[ends.len() - 1]..).filter(|rest| rest.len() > frame::HEADER) {
        let length = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        ends.push(ends[ends.len() - 1] + frame::HEADER + length);
    }
    let left = ends.len() - 1 - rows;
    let file = fs::File::options().write(true).open(current(store)).unwrap();
    file.set_len(ends[left] as u64).unwrap();
    let head = fs::File::options().write(true).open(store.join("HEAD")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&head, &(left as u64).to_le_bytes(), 0).unwrap();
}

/// The command that a message names, as an operator would copy it.
fn named_command(message: &str) -> Vec<String> {
    let at = message.find("`cyberos audit accept-loss").unwrap_or_else(|| panic!("no command in {message}"));
    let command = message[at + 1..].split('`').next().unwrap();
    command.split_whitespace().map(str::to_owned).collect()
}

/// Runs it, with a yes.
fn obey(message: &str) -> Ran {
    let words = named_command(message);
    ran(Command::new(binary(&words[0])).args(&words[1..]).arg("--yes"))
}

#[test]
fn a_cut_end_beside_a_running_broker_is_found() {
    let up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    assert_eq!(up.cyberos(&["audit", "verify"]).exit, 0);
    // HEAD follows the rows, and would be moved over what is written into it here.
    let rows = up.rows("").len() as u64;
    until("HEAD says all rows", || frame::read_head(&broker_store(&up)).unwrap() == Some(rows));
    cut(&broker_store(&up), 2);
    let said = up.cyberos(&["audit", "verify"]);
    assert!(said.exit == 3 && said.stdout.contains("BROKEN at seq"), "{said}");
    assert!(said.stdout.contains("the running broker has written rows up to"), "{said}");
    // And by the broker itself.
    says_what_it_knows(up, "was cut");
}

/// A broker whose ledger somebody has changed: whoever asks is told `what`, nothing begins that could not be recorded, and
/// its end says where things stand.
fn says_what_it_knows(mut up: Up, what: &str) {
    let refused = up.run("writer", &[]);
    assert!(refused.exit == 125 && refused.stderr.contains("nothing runs unrecorded"), "{refused}");
    assert!(refused.stderr.contains(what), "{refused}");
    let status = up.cyberos(&["--json", "status"]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(status["audit"]["tampered"].as_str().is_some_and(|said| said.contains(what)), "{status}");
    let doctor = up.cyberos(&["--json", "doctor"]);
    let said: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let ledger = said["checks"].as_array().unwrap().iter().find(|check| check["check"] == "audit ledger");
    let found = ledger.unwrap_or_else(|| panic!("{doctor}"));
    assert!(doctor.exit == 1 && found["state"] == "missing", "{doctor}");
    assert!(found["found"].as_str().unwrap().contains(what), "{doctor}");
    up.stop();
    let log = up.log();
    let end = log
        .lines()
        .find(|line| line.contains("somebody else changed the audit ledger while this broker wrote it"));
    let end = end.unwrap_or_else(|| panic!("{log}"));
    assert!(end.contains(what) && end.contains("cyberos audit accept-loss --store"), "{end}");
    assert!(!log.contains("0 rows could not be written"), "{log}");
}

#[test]
fn a_store_that_is_removed_beside_the_broker_is_said_and_nothing_runs_unrecorded() {
    let up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    assert!(up.cyberos(&["--json", "status"]).stdout.contains("\"tampered\":null"));
    let store = broker_store(&up);
    fs::rename(&store, up.dir().join("taken away")).unwrap();
    says_what_it_knows(up, "was removed");
}

#[test]
fn a_row_that_is_not_the_one_that_the_broker_wrote_is_found() {
    let up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    // Another ledger of as many rows, whole in itself.
    let rows = up.rows("").len() as u64;
    let other = store_of(rows);
    fs::copy(current(other.path()), current(&broker_store(&up))).unwrap();
    let said = up.cyberos(&["audit", "verify"]);
    assert!(
        said.exit == 3 && said.stdout.contains("another row than the one that the running broker wrote"),
        "{said}"
    );
}

#[test]
fn a_store_that_is_removed_is_found_beside_the_broker_and_refused_at_a_start_until_the_loss_is_accepted() {
    let mut up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    let store = broker_store(&up);
    // The broker may put a HEAD into it meanwhile, and then it is not empty.
    while let Err(e) = fs::remove_dir_all(&store) {
        assert_eq!(e.kind(), ErrorKind::DirectoryNotEmpty, "{e}");
    }
    let said = up.cyberos(&["audit", "verify"]);
    assert!(said.exit == 3 && said.stdout.contains("there is no ledger any more"), "{said}");
    up.stop();
    let said = up.again().expect_err("a start without its ledger is refused");
    assert!(said.contains("is gone or empty, but there must have been one"), "{said}");
    assert!(said.contains("memories/note/made/"), "what tells of it is named: {said}");
    let accepted = obey(&said);
    assert_eq!(accepted.exit, 0, "{accepted}");
    up.again().unwrap();
    assert_eq!(up.rows(LOSS_ACCEPTED).len(), 1);
    assert_eq!(up.run("writer", &[]).exit, 0);
    let said = up.cyberos(&["audit", "verify"]);
    assert_eq!(said.exit, 0, "{said}");
    assert_eq!(up.stop(), Some(0));
    assert_eq!(whole(&store)[0].op, LOSS_ACCEPTED);
}

#[test]
fn a_store_whose_head_is_put_back_to_nothing_is_refused_too() {
    let mut up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    assert_eq!(up.stop(), Some(0));
    fs::write(current(&broker_store(&up)), "").unwrap();
    fs::write(broker_store(&up).join("HEAD"), 0u64.to_le_bytes()).unwrap();
    let said = up.again().expect_err("there were rows");
    assert!(said.contains("is gone or empty"), "{said}");
}

#[test]
fn an_end_that_was_cut_while_no_broker_ran_is_found_by_what_else_there_is() {
    let mut up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    let first = up.rows("").len();
    assert_eq!(up.run("writer", &[]).exit, 0);
    let all = up.rows("").len();
    assert_eq!(up.stop(), Some(0));
    let store = broker_store(&up);
    assert_eq!(audit(&store, &["verify"]).exit, 0);
    cut(&store, all - first);
    let said = audit(&store, &["verify"]);
    assert!(said.exit == 3 && said.stdout.contains("rows are missing at the end"), "{said}");
    for sign in ["memories/note/made/", "have printed something that no row tells of"] {
        assert!(said.stdout.contains(sign), "{sign}: {said}");
    }
    let accepted = audit(&store, &["accept-loss", "--yes"]);
    assert_eq!(accepted.exit, 0, "{accepted}");
    assert_eq!(audit(&store, &["verify"]).exit, 0, "what was accepted is not said again");
    up.again().unwrap();
    assert_eq!(up.cyberos(&["audit", "verify"]).exit, 0);
}

#[test]
fn one_bad_byte_stops_a_start_and_the_command_that_it_names_helps() {
    let mut up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    assert_eq!(up.stop(), Some(0));
    let store = broker_store(&up);
    let owner = fs::metadata(&store).unwrap().uid();
    let mut bytes = fs::read(current(&store)).unwrap();
    let rows = whole(&store).len();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    fs::write(current(&store), &bytes).unwrap();
    let said = up.again().expect_err("a damaged ledger is not gone on with");
    assert!(said.contains("has lost rows"), "{said}");

    // Nobody is asked where nobody can answer, and nothing happens without a yes.
    let unasked = audit(&store, &["accept-loss"]);
    assert!(unasked.exit == 2 && unasked.stderr.contains("--yes"), "{unasked}");
    assert_eq!(fs::read(current(&store)).unwrap(), bytes);
    let accepted = obey(&said);
    assert_eq!(accepted.exit, 0, "{accepted}");
    for said in ["is not whole", &format!("Rows 1 to {} stay", rows - 1), "will count as lost", "records it"]
    {
        assert!(accepted.stdout.contains(said), "{said}: {accepted}");
    }
    let kept = fs::read_dir(store.join("lost")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read(kept.join("current.binlog")).unwrap(), bytes, "the damaged file itself is kept");
    for path in [current(&store), store.join("HEAD"), kept.join("HEAD"), kept] {
        assert_eq!(fs::metadata(&path).unwrap().uid(), owner, "{}", path.display());
    }
    up.again().unwrap();
    assert_eq!(up.rows(LOSS_ACCEPTED).len(), 1);
    assert_eq!(up.cyberos(&["audit", "verify"]).exit, 0);
    // Under a running broker nothing is accepted.
    let running = audit(&store, &["accept-loss", "--yes"]);
    assert_eq!(running.exit, 0, "it is whole: {running}");
    assert!(running.stdout.contains("no loss to accept"), "{running}");
}

#[test]
fn a_missing_head_stops_a_start_and_the_command_that_it_names_helps() {
    let mut up = up();
    assert_eq!(up.run("writer", &[]).exit, 0);
    assert_eq!(up.stop(), Some(0));
    let store = broker_store(&up);
    let rows = whole(&store).len();
    fs::remove_file(store.join("HEAD")).unwrap();
    let said = up.again().expect_err("nobody knows whether rows are missing");
    assert_eq!(obey(&said).exit, 0);
    up.again().unwrap();
    assert_eq!(up.stop(), Some(0));
    let now = whole(&store);
    assert_eq!(
        (now[rows].op.as_str(), now[rows].extra["from_seq"].as_u64()),
        (LOSS_ACCEPTED, Some(rows as u64 + 1))
    );
}

#[test]
fn only_root_accepts_a_loss_and_no_link_of_the_stores_owner_leads_it_elsewhere() {
    let dir = reachable_dir("cyberos-test-loss-");
    let store = dir.join("state/store");
    fs::create_dir(dir.join("state")).unwrap();
    let whole = store_of(3);
    let copied = Command::new("cp").arg("-a").arg(whole.path()).arg(&store).status().unwrap();
    assert!(copied.success());
    let mut bytes = fs::read(current(&store)).unwrap();
    bytes[40] ^= 1;
    fs::write(current(&store), &bytes).unwrap();
    let owner = 1_899_999_001;
    let ours =
        Command::new("chown").args(["-R", &format!("{owner}:{owner}")]).arg(dir.join("state")).status();
    assert!(ours.unwrap().success());
    support::binaries::copy("cyberos", &dir.join("cyberos"));
    fs::set_permissions(dir.join("cyberos"), fs::Permissions::from_mode(0o755)).unwrap();

    let command = || {
        let mut command = Command::new(dir.join("cyberos"));
        command.args(["audit", "accept-loss", "--yes", "--store"]).arg(&store);
        command
    };
    let refused = ran(command().uid(owner).gid(owner));
    assert!(refused.exit == 4 && refused.stderr.contains("only root"), "{refused}");

    // A place of root's, and links of the owner's that lead there.
    let place = dir.join("place");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("file"), "root's").unwrap();
    for (name, target) in [("lost", place.clone()), (".HEAD.spare", place.join("file"))] {
        let _ = fs::remove_file(store.join(name));
        symlink(target, store.join(name)).unwrap();
        chown(&store, Some(owner), Some(owner)).unwrap();
    }
    let refused = ran(&mut command());
    assert_eq!(refused.exit, 1, "{refused}");
    assert_eq!(fs::read(place.join("file")).unwrap(), b"root's");
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "nothing was made there");
}

/// Accepts what there is now.
fn accept_shown(store: &Path) -> Result<Loss, NotAccepted> {
    accept_loss(store, &damage(store).unwrap().unwrap(), "root")
}

#[test]
fn no_other_loss_is_accepted_than_the_one_that_was_shown() {
    let dir = store_of(5);
    let path = current(dir.path());
    let good = fs::read(&path).unwrap();
    let spoil = |row: usize| {
        let mut damaged = good.clone();
        damaged[good.len() / 5 * row + 40] ^= 1;
        fs::write(&path, &damaged).unwrap();
        damaged
    };
    spoil(3);
    let shown = damage(dir.path()).unwrap().unwrap();
    // Meanwhile more of it goes.
    let worse = spoil(1);
    let refused = accept_loss(dir.path(), &shown, "root").unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("Shown was: row 4") && said.contains("Now: row 2"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), worse, "nothing was changed");
    assert!(!dir.path().join("lost").exists(), "nor set aside");
    // Or somebody has restored it.
    fs::write(&path, &good).unwrap();
    let refused = accept_loss(dir.path(), &shown, "root").unwrap_err();
    assert!(matches!(refused, NotAccepted::Changed { found: None, .. }), "{refused}");
    assert_eq!(whole(dir.path()).len(), 5);
}

#[test]
fn an_accepted_loss_is_recorded_and_what_was_damaged_is_kept() {
    let dir = store_of(5);
    let path = current(dir.path());
    let good = fs::read(&path).unwrap();
    assert_eq!(damage(dir.path()).unwrap(), None, "nothing is lost yet");
    let mut damaged = good.clone();
    damaged[good.len() / 5 * 2 + 40] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(matches!(open(dir.path()), Err(LedgerError::Missing { from: 3, to: 5, .. })));
    let loss = accept_shown(dir.path()).unwrap();
    assert_eq!((loss.damage.fault.seq, loss.damage.head, loss.recorded), (3, Some(5), 3));
    assert_eq!(loss.damage.behind, good.len() as u64 / 5 * 3);
    assert_eq!(fs::read(loss.kept_in.join("current.binlog")).unwrap(), damaged);
    let rows = whole(dir.path());
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (rows[2].op.as_str(), rows[2].number("head"), rows[2].text("by")),
        (LOSS_ACCEPTED, Some(5), Some("root"))
    );
    // A lost HEAD: every row is still there.
    fs::remove_file(dir.path().join("HEAD")).unwrap();
    assert!(matches!(open(dir.path()), Err(LedgerError::HeadLost { .. })));
    accept_shown(dir.path()).unwrap();
    assert_eq!(whole(dir.path()).len(), 4);
    // Nobody accepts anything under a running broker.
    let (_ledger, _) = open(dir.path()).unwrap();
    fs::write(dir.path().join("HEAD"), 9u64.to_le_bytes()).unwrap();
    assert!(matches!(accept_shown(dir.path()), Err(NotAccepted::Ledger(LedgerError::Locked { .. }))));
}
