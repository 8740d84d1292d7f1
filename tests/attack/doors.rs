//! threats.md A9 and A10, test 6: who gets through which of the four sockets of a running system, and that nobody looks into
//! its daemons, not even their own users.

use crate::support::up::{Options, Skill, Up, eventually, write_executable};
use cyberos_proto::link;
use cyberos_proto::message::{FromHelper, Refusal, Reply};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TRY: &str = include_str!("doors.py");
const STRANGER: u32 = 65534;
const OPERATOR: u32 = 1_899_999_050;
/// What a denied look into a process answers.
const DENIED: [&str; 2] = ["EACCES", "EPERM"];

/// A run that waits; its end is the drop's.
struct Run {
    child: Child,
    uid: u32,
    socket: String,
}

impl Run {
    fn begin(up: &Up) -> Run {
        let mut child = up
            .command(&["skill", "run", "waits"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0u8; 5]).unwrap();
        let row = up.rows("skill.invoked_started").last().unwrap()["extra"].clone();
        let id = row["invocation_id"].as_str().unwrap();
        let uid = u32::try_from(row["uid"].as_u64().unwrap()).unwrap();
        Run { child, uid, socket: format!("/tmp/cyberos-skill-broker.{id}.sock") }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn results(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|l| l.rsplit_once(' ')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Runs the tries as a user, with one group and no other, and without capabilities.
fn as_user(uid: u32, gid: u32, words: &[String]) -> BTreeMap<String, String> {
    let out = Command::new("/usr/bin/setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()])
        .args(["--inh-caps=-all", "--bounding-set=-all", "/usr/bin/python3", "-I", "-c", TRY])
        .args(words)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    results(&String::from_utf8_lossy(&out.stdout))
}

fn hex(text: &str) -> Option<FromHelper> {
    let bytes: Result<Vec<u8>, _> =
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16)).collect();
    link::decode(&bytes.ok()?).ok()
}

/// The provider tries the same as everybody, each time it is asked, and leaves what came of it beside itself.
fn provider() -> String {
    format!(
        "#!/usr/bin/python3 -I
import glob, json, os, subprocess, sys
skill = sys.argv[2].rsplit('/', 1)[1]
here = os.path.dirname(os.path.abspath(sys.argv[0]))
if sys.argv[1] == 'resolve':
    doors = ['5:' + here + '/state/run/helper.sock', '1:' + here + '/state/run/broker/broker.sock',
             '5:' + here + '/state/run/skillfs/control.sock'] + ['1:' + s for s in glob.glob('/tmp/cyberos-skill-broker.*')]
    tried = [subprocess.run(['/usr/bin/python3', '-I', '-c', {TRY:?}] + words, capture_output=True, text=True)
             for words in (['connect'] + doors, ['look', str(os.getppid())])]
    for name, t in zip(('doors', 'look'), tried):
        new = here + '/out/' + name + '.' + str(os.getpid())
        with open(new, 'w') as f: f.write(t.stdout + t.stderr)
        os.replace(new, here + '/out/' + name)
    print(json.dumps({{'schemaVersion': 1, 'skillName': skill, 'status': 'pass', 'decision': 'current'}}))
"
    )
}

fn system() -> Up {
    Up::with(Options { provider: Some(provider()), ..Options::default() }, |source| {
        let out = source.parent().unwrap().join("out");
        std::fs::create_dir(&out).unwrap();
        std::fs::set_permissions(&out, PermissionsExt::from_mode(0o777)).unwrap();
        let main = "#!/bin/sh\necho runs\nexec sleep 1000\n";
        Skill { id: "waits", main, ..Skill::default() }.write(source);
        let inside = Skill { id: "inside", main: "", ..Skill::default() }.write(source);
        std::fs::write(inside.join("doors.py"), TRY).unwrap();
        let words = "#!/bin/sh\nexec /usr/bin/python3 -I \"${0%/*}/doors.py\" \"$@\"\n";
        write_executable(&inside.join("main"), words);
    })
}

#[test]
fn threat_a10_test_6_each_socket_lets_in_whom_it_is_for_and_nobody_else() {
    let up = system();
    up.shown("waits", "current");
    let (one, two) = (Run::begin(&up), Run::begin(&up));
    let helper = up.state.join("run/helper.sock").display().to_string();
    let operators = up.state.join("run/broker/broker.sock").display().to_string();
    assert_eq!(Path::new(&operators), up.socket());
    let control = up.state.join("run/skillfs/control.sock").display().to_string();
    let doors: Vec<String> = ["connect".into()]
        .into_iter()
        .chain([(5, &helper), (1, &operators), (5, &control), (1, &one.socket), (1, &two.socket)].map(
            |(kind, path)| {
                assert!(Path::new(path).exists(), "{path}");
                format!("{kind}:{path}")
            },
        ))
        .collect();
    let of = |path: &Path| std::fs::metadata(path).unwrap();
    let (broker, group) = (of(&up.state.join("broker")).uid(), of(&up.socket()).gid());
    let skillfs = of(&up.state.join("skillfs")).uid();
    let row = |tried: &BTreeMap<String, String>| {
        [&helper, &operators, &control, &one.socket, &two.socket].map(|d| tried[d].clone())
    };
    let no = || "EACCES".to_owned();
    let yes = || "in".to_owned();
    for (who, uid, gid, expected) in [
        ("a skill's uid", one.uid, one.uid, [no(), no(), no(), yes(), no()]),
        ("an operator", OPERATOR, group, [no(), yes(), yes(), no(), no()]),
        ("a stranger", STRANGER, STRANGER, [no(), no(), no(), no(), no()]),
        ("the broker's user without its groups", broker, broker, [no(), yes(), no(), no(), no()]),
        ("SkillFS's user without its groups", skillfs, skillfs, [no(), no(), yes(), no(), no()]),
        ("root without capabilities and groups", 0, 0, [yes(), no(), no(), no(), no()]),
    ] {
        let tried = row(&as_user(uid, gid, &doors));
        let mut shown = tried.clone();
        if let Some(said) = tried[0].strip_prefix("in:") {
            assert_eq!(hex(said), Some(FromHelper::Reply(Reply::Refused(Refusal::Role))), "{who}");
            shown[0] = "in".into();
        }
        assert_eq!(shown, expected, "{who}");
    }
    // From inside a sandbox there is no way to any of them but to its own.
    up.shown("inside", "current");
    let ran = up.run("inside", &doors.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(row(&results(&ran.stdout)), ["ENOENT"; 5], "{ran}");

    // The provider has no more than its user has, and that user is no operator.
    std::fs::write(up.skills.join("waits/more.txt"), "asks the provider again\n").unwrap();
    let told = || results(&std::fs::read_to_string(up.dir().join("out/doors")).unwrap_or_default());
    assert!(eventually(Duration::from_secs(15), || told().contains_key(&two.socket)), "{:?}", told());
    let tried = row(&told());
    let said = tried[0].strip_prefix("in:").and_then(hex);
    assert_eq!(said, Some(FromHelper::Reply(Reply::Refused(Refusal::Busy))), "the role is taken: {tried:?}");
    assert_eq!(tried[1], "EACCES", "a provider is no operator");
    assert_eq!(tried[3..], ["EACCES", "EACCES"]);
}

#[test]
fn test_6_nobody_looks_into_a_daemon_not_even_its_own_user() {
    let up = system();
    up.shown("waits", "current");
    let run = Run::begin(&up);
    let of = |name: &str| std::fs::metadata(up.state.join(name)).unwrap().uid();
    let mut looked = 0;
    for (daemon, users) in [
        ("cyberos-broker", vec![of("broker"), of("skillfs"), run.uid, OPERATOR]),
        ("skillfs", vec![of("skillfs"), of("broker"), run.uid, STRANGER]),
        // Root without capabilities is its own user.
        ("cyberos-priv-helper", vec![0, of("broker"), of("skillfs"), run.uid]),
    ] {
        let pids = up.pids(daemon);
        assert!(!pids.is_empty(), "{daemon}");
        for (pid, uid) in pids.iter().flat_map(|p| users.iter().map(move |u| (*p, *u))) {
            let tried = as_user(uid, uid, &["look".into(), pid.to_string()]);
            for (what, result) in &tried {
                // The numbers belong to uid 0; what is behind them does not.
                let numbers = uid == 0 && what == "fd";
                assert!(
                    numbers || DENIED.contains(&&**result),
                    "uid {uid} at {daemon} {pid}: {what}: {result}"
                );
                looked += 1;
            }
        }
    }
    assert!(looked > 200, "{looked}");
    // The provider at its parent, SkillFS.
    let told = results(&std::fs::read_to_string(up.dir().join("out/look")).unwrap());
    assert!(told.len() > 10 && told.values().all(|r| DENIED.contains(&&**r)), "{told:?}");
    // An ordinary process of one of these users is open to that user: the tries are real.
    let uid = of("broker");
    let mut open = Command::new("/bin/sleep").arg("1000").uid(uid).gid(uid).spawn().unwrap();
    let tried = as_user(uid, uid, &["look".into(), open.id().to_string()]);
    open.kill().unwrap();
    open.wait().unwrap();
    assert!(tried.len() > 10 && tried.values().all(|r| r == "in"), "{tried:?}");
}
