//! The broker as a service manager starts it, beside a helper whose ceiling is its own: whose socket it makes, and who
//! is an operator (`[7.2]`).

mod support;

use nix::sys::signal::{Signal, kill};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::helper::{BROKER, Helper, STRANGER, until};

/// A group of the broker's user, and one that it is not in. They need no entry in any file of the system's.
const OURS: u32 = 1_899_999_003;

/// A broker whose state and socket lie in the helper's folder.
struct Broker {
    dir: PathBuf,
    child: Child,
}

impl Broker {
    fn start(helper: &Helper, configuration: &str, groups: &str) -> Broker {
        let dir = helper.dir.path().to_owned();
        let run = dir.join("run");
        for (name, mode) in [("state", 0o700), ("run", 0o2755)] {
            fs::create_dir_all(dir.join(name)).unwrap();
            chown(dir.join(name), Some(BROKER), Some(OURS)).unwrap();
            fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let config = dir.join("cyberos.yaml");
        let own = format!(
            "state: {0}/state\nrun: {1}\nhelper_socket: {0}/helper.sock\nskillfs_control: {0}/none.sock\n",
            dir.display(),
            run.display()
        );
        fs::write(&config, own + configuration).unwrap();
        for name in ["cyberos", "cyberos-broker"] {
            support::binaries::copy(name, &dir.join(name));
        }
        let child = Command::new("setpriv")
            .args([format!("--reuid={BROKER}"), format!("--regid={BROKER}"), format!("--groups={groups}")])
            .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"])
            .arg(dir.join("cyberos-broker"))
            .arg("--config")
            .arg(&config)
            .stderr(fs::File::create(dir.join("broker.log")).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Broker { dir, child }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("broker.log")).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("run/broker.sock")
    }

    fn serves(&self) {
        until("the broker serves", || self.log().contains("serving operators"));
    }

    fn status(&self, uid: u32, gid: u32) -> Output {
        Command::new(self.dir.join("cyberos"))
            .arg("--socket")
            .arg(self.socket())
            .arg("status")
            .uid(uid)
            .gid(gid)
            .output()
            .unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = kill(nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGTERM);
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the broker\n{}", self.log());
        }
    }
}

fn group_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().gid()
}

/// A group that every system has, and its number.
fn system_group() -> (&'static str, u32) {
    ("games", nix::unistd::Group::from_name("games").unwrap().expect("group games").gid.as_raw())
}

#[test]
fn the_sockets_group_is_the_one_that_operator_group_names() {
    let helper = Helper::start("");
    let (name, gid) = system_group();
    let broker = Broker::start(&helper, &format!("operator_group: {name}\n"), &format!("{OURS},{gid}"));
    broker.serves();
    assert_eq!(group_of(&broker.socket()), gid);
    assert_eq!(fs::metadata(broker.socket()).unwrap().mode() & 0o777, 0o660);
    assert!(broker.status(STRANGER, gid).status.success(), "a member is an operator");
    assert_eq!(broker.status(STRANGER, OURS).status.code(), Some(4), "a member of another group is none");
}

#[test]
fn a_group_that_is_not_there_or_not_the_brokers_is_told_and_nothing_is_served() {
    let helper = Helper::start("");
    let (name, _) = system_group();
    for (group, told) in [("no-such-group", "groupadd no-such-group"), (name, "usermod -a -G games")] {
        let mut broker = Broker::start(&helper, &format!("operator_group: {group}\n"), &OURS.to_string());
        assert_eq!(broker.child.wait().unwrap().code(), Some(1));
        assert!(broker.log().contains(told), "{}", broker.log());
        assert!(!broker.socket().exists(), "no socket of a wrong group is left");
    }
}

#[test]
fn a_uid_that_the_helpers_ceiling_gives_to_sandboxes_is_never_an_operators() {
    let helper = Helper::start("");
    let (name, gid) = system_group();
    let broker = Broker::start(&helper, &format!("operator_group: {name}\n"), &format!("{OURS},{gid}"));
    broker.serves();
    for leased in [helper.uids.0, helper.uids.0 + 7, helper.uids.1, 1_900_000_000, 1_900_065_535] {
        until("a leased uid is refused", || {
            let said = broker.status(leased, gid);
            said.status.code() == Some(4)
                && String::from_utf8_lossy(&said.stderr).contains("a sandbox is not")
        });
    }
    for other in [helper.uids.0 - 1, helper.uids.1 + 1, 1_899_999_999, 1_900_065_536] {
        assert!(broker.status(other, gid).status.success(), "{other} is nobody's");
    }
}
