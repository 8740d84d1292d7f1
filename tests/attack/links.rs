//! Tests 17 and 18: whose runs end with a link process, and who a skill and the broker see on the other side.

use crate::support::helper::{Helper, plan, until};
use crate::support::up::{Skill, Up, eventually, python};
use cyberos_proto::link::{self, Wait};
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Two instances on one range of uids, a broker of each: kill -9 of one link process is felt by its peer alone.
#[test]
fn test_17_kill_9_of_a_link_process_ends_that_peers_runs_and_no_others() {
    let helper = Helper::start("");
    let twin = helper.twin();
    let (one, two, skillfs) = (helper.broker(), twin.broker(), helper.peer(crate::support::helper::SKILLFS));
    let begin = |p: &crate::support::helper::Peer| {
        let run = p.start(plan(&["/bin/sh", "-c", "echo ready; sleep 1000; sleep 1000"]), &[]);
        run.said("ready");
        run.uid
    };
    let (mine, other) = ([begin(&one), begin(&one)], begin(&two));
    let alive = |uid: u32| {
        fs::read_dir("/proc").unwrap().flatten().any(|e| {
            let status = fs::read_to_string(e.path().join("status")).unwrap_or_default();
            status.contains(&format!("\nUid:\t{uid}\t")) && !status.contains("\nState:\tZ")
        })
    };
    assert!(mine.into_iter().chain([other]).all(alive));
    // The first child is the first link's process: SkillFS came later.
    kill(helper.children()[0], Signal::SIGKILL).unwrap();
    until("both of its runs are dead", || !mine.into_iter().any(alive));
    assert!(one.closed(), "its peer sees it");
    assert!(alive(other), "the other instance's run goes on");
    let unmount = cyberos_proto::message::Request::Unmount { mount: crate::raw::first_mount() };
    assert_eq!(
        skillfs.refusal(&unmount, &[]),
        cyberos_proto::message::Refusal::Phase,
        "so does the other link"
    );
    assert_eq!(two.sh("echo served").stdout, "served\n");
    drop(one);
    assert_eq!(helper.broker().sh("echo again").stdout, "again\n");
    assert!(alive(other));
}

/// The skill sees the helper behind its socket, by a number that means nothing in its namespace, and root's uid.
#[test]
fn test_18_a_skill_sees_nothing_but_root_and_no_pid_behind_its_socket() {
    let helper = Helper::start("");
    let broker = helper.broker();
    let (invocation, uid, listener) = broker.invocation();
    let script = format!(
        "import socket,struct
s=socket.socket(1); s.connect('/tmp/cyberos-skill-broker.{invocation}.sock')
print(struct.unpack('3i',s.getsockopt(socket.SOL_SOCKET,socket.SO_PEERCRED,12)))
try: print(s.getsockopt(socket.SOL_SOCKET,77,4))
except OSError as e: print('no pidfd')"
    );
    let out = broker
        .start_in(invocation, uid, listener, plan(&["/usr/bin/python3", "-I", "-c", &script]), &[])
        .output();
    let first = out.stdout.lines().next().unwrap_or_default();
    assert_eq!(first, "(0, 0, 0)", "{}", out.stderr);
    // A pidfd of a process outside could only be used to wait for its end, and here there is not even that.
    assert!(out.stdout.contains("no pidfd") || out.stdout.lines().count() == 2, "{out:?}");
}

const WAITS: &str = "#!/bin/sh\necho runs\nexec sleep 1000\n";

/// A run of the skill `waits`: its uid and socket.
fn begin(up: &Up) -> (std::process::Child, u32, String) {
    let mut child = up.command(&["skill", "run", "waits"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0u8; 5]).unwrap();
    let row = up.rows("skill.invoked_started").last().unwrap()["extra"].clone();
    let id = row["invocation_id"].as_str().unwrap().to_owned();
    let uid = u32::try_from(row["uid"].as_u64().unwrap()).unwrap();
    (child, uid, format!("/tmp/cyberos-skill-broker.{id}.sock"))
}

fn request(id: u32) -> Vec<u8> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tool.list"}}"#);
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body.as_bytes()].concat()
}

/// Whether the broker answers on `stream`; a close is no.
fn answered(stream: &mut UnixStream, id: u32) -> bool {
    let mut head = [0u8; 4];
    if stream.write_all(&request(id)).is_err() || stream.read_exact(&mut head).is_err() {
        return false;
    }
    let mut body = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice::<serde_json::Value>(&body).unwrap()["id"] == id
}

/// A connection made by a process with `uid`, which then hands it over and ends.
fn handed_over(uid: u32, path: &str) -> UnixStream {
    let (ours, theirs) = link::pair::<Handed, Handed>().unwrap();
    let script = "import socket,sys
s=socket.socket(1); s.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0),[sys.argv[2].encode('latin1')],[s.fileno()])";
    let mut dial = Command::new("/usr/bin/setpriv");
    dial.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]);
    // Root's way past the mode of the socket, so that it is the broker that has to refuse.
    dial.args(["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]);
    let said = dial
        .args(["/usr/bin/python3", "-I", "-c", script, path])
        .arg(char::from(cyberos_proto::PROTOCOL_VERSION).to_string())
        .stdin(theirs.as_fd().try_clone_to_owned().unwrap())
        .output()
        .unwrap();
    let (_, mut fds) = ours.receive(Wait::Block).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let stream = UnixStream::from(fds.pop().unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A packet of one descriptor and nothing else.
#[derive(serde::Serialize, serde::Deserialize)]
struct Handed;

impl cyberos_proto::message::Message for Handed {
    fn descriptors(&self) -> usize {
        1
    }
}

#[test]
fn test_18_the_broker_serves_no_uid_but_the_leases_also_on_sockets_handed_over() {
    let up = Up::new(|source| drop(Skill { id: "waits", main: WAITS, ..Skill::default() }.write(source)));
    let ((mut one, uid, socket), (mut two, other, _)) = (begin(&up), begin(&up));
    assert_ne!(uid, other);
    let broker = std::os::unix::fs::MetadataExt::uid(&fs::metadata(up.state.join("broker")).unwrap());
    for stranger in [0, other, broker, 65534, uid + 1000] {
        let mut stream = handed_over(stranger, &socket);
        assert!(!answered(&mut stream, 1), "uid {stranger} is served");
    }
    // The lease's own is, whoever holds it now, and nobody gains by that: it is that invocation's and ends with it.
    let mut stream = handed_over(uid, &socket);
    assert!(answered(&mut stream, 2));
    one.kill().unwrap();
    one.wait().unwrap();
    let id = socket.trim_start_matches("/tmp/cyberos-skill-broker.").trim_end_matches(".sock").to_owned();
    up.cyberos(&["skill", "stop", &id]);
    assert!(eventually(Duration::from_secs(10), || !std::path::Path::new(&socket).exists()));
    assert!(!answered(&mut stream, 3), "case 148: dead with its invocation");
    two.kill().unwrap();
    two.wait().unwrap();
}

/// Case 148: what a skill makes of its connection, by fork or by passing it on, stays that invocation's.
#[test]
fn case_148_a_connection_that_is_passed_on_keeps_its_invocations_rights() {
    let main = python(
        "import socket, struct
a, b = socket.socketpair()
s = socket.socket(1); s.connect(os.environ['CYBEROS_BROKER_SOCKET'])
if os.fork() == 0:
    t = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
    params = {'tool': 'MemoryRead', 'args': {'path': 'memories/other/x.md'}}
    body = json.dumps({'jsonrpc': '2.0', 'id': 5, 'method': 'tool.call', 'params': params}).encode()
    t.sendall(struct.pack('>I', len(body)) + body)
    print(t.recv(struct.unpack('>I', t.recv(4))[0]).decode(), flush=True); os._exit(0)
socket.send_fds(a, [b'x'], [s.fileno()]); s.close(); os.wait()",
    );
    let up = Up::new(|source| {
        let skill =
            Skill { id: "passes", tools: &["MemoryRead"], scopes: &["memories/note/**"], ..Skill::default() };
        drop(Skill { main: &main, ..skill }.write(source));
    });
    let ran = up.run("passes", &[]);
    assert!(ran.stdout.contains("scope_violation"), "{ran}");
    let denied = up.rows("skill.tool_denied");
    let started = up.rows("skill.invoked_started");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["extra"]["invocation_id"], started[0]["extra"]["invocation_id"]);
}
