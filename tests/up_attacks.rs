//! Attacks on `cyberos up`, which is root: by a broker that has been taken over, by the provider, by the skills of
//! another instance, and by who may only call it through sudo (`[0.2]`, `[4.0]`, `[7.5]`).

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::binaries::binary;
use support::up::{Options, Ran, Skill, Up, eventually, python, reachable_dir, signal};

const BROKER: u32 = 1_899_999_001;

fn owner(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().uid()
}

/// Whether everything below root that `up` prepares by name lies in a directory of root's.
#[test]
fn what_root_gives_away_by_name_lies_in_roots_directories() {
    let up = Up::new(|_| {});
    for given in ["broker", "skillfs", "sealed", "run/broker", "run/skillfs"] {
        let path = up.state.join(given);
        assert_eq!(owner(path.parent().unwrap()), 0, "{}", path.display());
    }
    assert_eq!(owner(&up.state.join("sealed")), BROKER);
}

#[test]
fn a_taken_over_broker_cannot_have_a_file_given_to_the_invoking_user() {
    let dir = reachable_dir("cyberos-victim-");
    let victim = dir.join("secret");
    std::fs::write(&victim, "root's").unwrap();
    let skills = dir.join("skills");
    std::fs::create_dir(&skills).unwrap();
    let mut command = Command::new(binary("cyberos"));
    command
        .args(["up", "--state"])
        .arg(dir.join("state"))
        .arg("--skills")
        .arg(&skills)
        .env("SUDO_UID", "12345");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let socket = Path::new(ready["operator_socket"].as_str().unwrap());
    assert!(eventually(Duration::from_secs(10), || owner(socket) == 12345), "an honest socket is given");
    // As the broker could: another thing under the socket's name, and a restart.
    std::fs::remove_file(socket).unwrap();
    symlink(&victim, socket).unwrap();
    nix::unistd::chown(socket.parent().unwrap(), Some(BROKER.into()), None).unwrap();
    let pid = std::fs::read_dir("/proc").unwrap().flatten().find_map(|e| {
        let line = std::fs::read(e.path().join("cmdline")).ok()?;
        let ours = line.split(|b| *b == 0).next()
            == Some(dir.join("state/bin/cyberos-broker").as_os_str().as_encoded_bytes());
        ours.then(|| e.file_name().to_string_lossy().parse::<i32>().ok()).flatten()
    });
    signal(pid.unwrap(), Signal::SIGKILL);
    // Either the broker puts its socket there again, or the link stays; the file behind it is root's all the time.
    let given = eventually(Duration::from_secs(3), || owner(&victim) != 0);
    assert!(!given, "{} belongs to {}", victim.display(), owner(&victim));
    signal(child.id().try_into().unwrap(), Signal::SIGTERM);
    assert!(support::up::wait(&mut child, Duration::from_secs(40)).is_some());
}

#[test]
fn a_state_that_the_invoking_user_has_prepared_is_refused() {
    let dir = reachable_dir("cyberos-sudo-");
    let (state, victim) = (dir.join("state"), dir.join("victim"));
    std::fs::create_dir(&state).unwrap();
    symlink(&victim, state.join("cyberos.yaml")).unwrap();
    std::os::unix::fs::chown(&state, Some(12345), Some(12345)).unwrap();
    let config = dir.join("mine.yaml");
    std::fs::write(&config, "on_hidden: tell\n").unwrap();
    let mut command = Command::new(binary("cyberos"));
    command.args(["up", "--state"]).arg(&state).arg("--config").arg(&config).env("SUDO_UID", "12345");
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.exit, 1, "{ran}");
    assert!(ran.stderr.contains("can be changed by others") && !victim.exists(), "{ran}");
    // Nor is root's reach lent out for reading.
    std::fs::write(dir.join("private.yaml"), "secret_word: 1\n").unwrap();
    std::fs::set_permissions(dir.join("private.yaml"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let mut command = Command::new(binary("cyberos"));
    command
        .args(["up", "--config"])
        .arg(dir.join("private.yaml"))
        .env("SUDO_UID", "12345")
        .env("SUDO_GID", "12345");
    let ran = Ran::from(command.output().unwrap());
    assert!(ran.exit == 1 && !ran.stderr.contains("secret_word"), "{ran}");
}

#[test]
fn the_provider_is_no_operator() {
    let provider = "#!/bin/sh\n[ \"$1\" = resolve ] || exit 0\nid -G > \"${0%/*}/groups\" 2>/dev/null\n\
                    printf '{\"schemaVersion\":1,\"skillName\":\"%s\",\"status\":\"pass\",\"decision\":\"current\"}\\n' \"${2##*/}\"\n";
    let options = Options { provider: Some(provider.into()), ..Options::default() };
    let up = Up::with(options, |source| drop(Skill::default().write(source)));
    let program = up.dir().join("cyberos");
    support::binaries::copy("cyberos", &program);
    let skillfs = up.pids("skillfs")[0];
    let groups = std::fs::read_to_string(format!("/proc/{skillfs}/status")).unwrap();
    let groups: Vec<u32> = groups
        .lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .unwrap()
        .split_whitespace()
        .map(|g| g.parse().unwrap())
        .collect();
    let operators = std::fs::metadata(up.socket()).unwrap().gid();
    assert!(
        !groups.contains(&operators),
        "SkillFS, and so its provider, has the operators' group: {groups:?}"
    );
    let mut command = Command::new(&program);
    command.env("CYBEROS_OPERATOR_SOCKET", up.socket()).arg("status").uid(1_899_999_002).gid(1_899_999_002);
    assert_eq!(Ran::from(command.output().unwrap()).exit, 4);
}

#[test]
fn a_skill_of_one_instance_reads_nothing_of_anothers_state() {
    let first = Up::new(|_| {});
    support::up::memory_file(&first, "memories/note/secret.md", "TENANT-A\n");
    let main = python("for p in sys.argv[1:]:\n    print(json.dumps(call('Read', path=p)))");
    let options = Options { grant_requested: true, ..Options::default() };
    let second = Up::with(options, |source| {
        let more = "x-allowed-files: [\"/var/tmp/**\"]\n";
        Skill { id: "nosy", tools: &["Read"], more, main: &main, ..Skill::default() }.write(source);
    });
    let tenant = "broker/tenants/00000000-0000-0000-0000-000000000000/memories/note/secret.md";
    let paths = [first.state.join(tenant), first.state.join("broker/store/audit/current.binlog")];
    let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let ran = second.run("nosy", &[&paths[0], &paths[1]]);
    assert_eq!(ran.stdout.matches("[\"file_violation\"").count(), 2, "{ran}");
    let denied = second.rows("skill.tool_denied");
    assert!(
        denied.iter().all(|r| r["extra"]["rule"].as_str().unwrap().contains("never grantable")),
        "{denied:?}"
    );
    assert!(!ran.stdout.contains("TENANT-A"), "{ran}");
}

#[test]
fn an_operator_who_leaves_ends_a_run_that_does_not_read_its_input() {
    let up = Up::new(|source| {
        drop(Skill { id: "deaf", main: "#!/bin/sh\nexec sleep 1000\n", ..Skill::default() }.write(source))
    });
    let mut command = up.command(&["skill", "run", "deaf", "--stdin"]);
    let mut child =
        command.stdin(std::fs::File::open("/dev/zero").unwrap()).stdout(Stdio::null()).spawn().unwrap();
    assert!(eventually(Duration::from_secs(10), || !up.rows("skill.invoked_started").is_empty()));
    // Not SIGINT, which is ignored here when a shell has started the tests in the background.
    signal(child.id().try_into().unwrap(), Signal::SIGTERM);
    child.wait().unwrap();
    assert!(eventually(Duration::from_secs(10), || !up.rows("skill.invoked_completed").is_empty()));
    assert_eq!(up.rows("skill.invoked_completed")[0]["extra"]["outcome"], "stopped");
}

#[test]
fn input_of_any_size_reaches_a_skill_that_reads_it() {
    let up = Up::new(|source| {
        drop(Skill { id: "counts", main: "#!/bin/sh\nwc -c\n", ..Skill::default() }.write(source))
    });
    let mut command = up.command(&["skill", "run", "counts", "--stdin"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer =
        std::thread::spawn(move || std::io::Write::write_all(&mut input, &vec![7u8; 5_000_001]).unwrap());
    let ran = Ran::from(child.wait_with_output().unwrap());
    writer.join().unwrap();
    assert_eq!(ran.stdout.trim(), "5000001", "{ran}");
}

#[test]
fn what_a_provider_leaves_behind_ends_with_its_run() {
    let provider = "#!/bin/sh\n[ \"$1\" = resolve ] || exit 0\nsetsid sh -c 'echo $$ > /var/tmp/cyberos-orphan-'$PPID'; exec sleep 4321' >/dev/null 2>&1 &\nsleep 0.2\n\
                    printf '{\"schemaVersion\":1,\"skillName\":\"%s\",\"status\":\"pass\",\"decision\":\"current\"}\\n' \"${2##*/}\"\n";
    let options = Options { provider: Some(provider.into()), ..Options::default() };
    let up = Up::with(options, |source| drop(Skill::default().write(source)));
    up.shown("demo", "current");
    let note = format!("/var/tmp/cyberos-orphan-{}", up.pids("skillfs")[0]);
    let pid: i32 = std::fs::read_to_string(&note).unwrap().trim().parse().unwrap();
    std::fs::remove_file(&note).unwrap();
    let gone = eventually(Duration::from_secs(5), || !Path::new(&format!("/proc/{pid}/cmdline")).exists());
    assert!(gone, "{pid} lives on");
}
