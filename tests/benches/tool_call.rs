//! What a tool call costs. One side is MemoryRead of a note of 1 KiB, through a broker with everything on: rules, two
//! ledger rows, the file opened and read. The others are a call that the rules refuse, calls on eight connections at
//! once, a bare tokio echo of the same frames over a Unix socket, and the echo tool of an MCP server on its standard
//! streams, made with the Rust SDK. The last line is the JSON object of the ratios.
//!
//! Each peer is a process of its own: this program again. One client asks all of them, from outside the sandbox, with the
//! uid that the run was given; so no side has a filter on its system calls that another lacks. Where single calls are
//! timed, client and peer each have a processor of their own: left alone, an echo takes 6 µs in one minute and 75 in the
//! next, as the kernel puts it beside its client or not. The broker is left alone. Where many calls are counted, so are all.
//!
//! Rounds of the sides alternate, and who goes first does too. Each ratio is of the medians of one round, and the result is
//! their median. An answer that is not the right one is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench without a right result has none")]

#[path = "../support/mod.rs"]
mod support;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, Uid, seteuid};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{ServerHandler, ServiceExt, tool, tool_handler, tool_router};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;
use support::up::{Options, Skill, Up, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Rounds that count, after one that warms up; calls of each side in one.
const ROUNDS: usize = 11;
const CALLS: usize = 1_000;
/// Connections of the comparison of throughput, and calls on each in a round.
const CONNECTIONS: usize = 8;
const CALLS_EACH: usize = 500;
const NOTE: &str = "memories/bench/note.md";
const NOTE_BYTES: usize = 1024;

/// Says which peer this program is to be, and of the echo where it listens.
const PEER: &str = "CYBEROS_BENCH_PEER";
const SOCKET: &str = "CYBEROS_BENCH_SOCKET";

fn main() {
    let runtime = |threads: bool| {
        let mut builder = match threads {
            true => tokio::runtime::Builder::new_multi_thread(),
            // One thread asks all sides.
            false => tokio::runtime::Builder::new_current_thread(),
        };
        builder.enable_all().build().unwrap()
    };
    match std::env::var(PEER).as_deref() {
        Ok("echo") => runtime(true).block_on(echo(Path::new(&std::env::var_os(SOCKET).unwrap()))),
        Ok("mcp") => runtime(true).block_on(mcp()),
        _ => runtime(false).block_on(bench()),
    }
}

// ---- the peers

/// Answers each frame with itself.
async fn echo(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    println!("ready");
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut frame = Vec::new();
            while let Ok(length) = stream.read_u32().await {
                frame.clear();
                frame.extend_from_slice(&length.to_be_bytes());
                frame.resize(4 + length as usize, 0);
                stream.read_exact(&mut frame[4..]).await.unwrap();
                stream.write_all(&frame).await.unwrap();
            }
        });
    }
}

/// An MCP server with one tool, which answers with its argument.
struct Mcp {
    tools: ToolRouter<Self>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Said {
    /// What comes back.
    text: String,
}

#[tool_router(router = tools)]
impl Mcp {
    #[tool(description = "Answers with its argument.")]
    async fn echo(&self, Parameters(said): Parameters<Said>) -> String {
        said.text
    }
}

#[tool_handler(router = self.tools)]
impl ServerHandler for Mcp {}

async fn mcp() {
    let server = Mcp { tools: Mcp::tools() }.serve(rmcp::transport::stdio()).await.unwrap();
    server.waiting().await.unwrap();
}

/// An echo that listens there.
async fn echoing(socket: &Path) -> Child {
    let mut echo = peer("echo", socket);
    let mut ready = String::new();
    BufReader::new(echo.stdout.take().unwrap()).read_line(&mut ready).await.unwrap();
    assert_eq!(ready, "ready\n");
    echo
}

/// This program as that peer; it ends with the value.
fn peer(name: &str, socket: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PEER, name).env(SOCKET, socket).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The processors of this machine: all, one for the client, and the others for its peers.
struct Processors {
    all: CpuSet,
    client: CpuSet,
    peers: CpuSet,
}

impl Processors {
    fn new() -> Processors {
        let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let (mut client, mut peers) = (CpuSet::new(), CpuSet::new());
        let mut usable = (0..CpuSet::count()).filter(|n| all.is_set(*n).unwrap());
        client.set(usable.next().unwrap()).unwrap();
        usable.by_ref().for_each(|n| peers.set(n).unwrap());
        assert!((0..CpuSet::count()).any(|n| peers.is_set(n).unwrap()), "needs two processors");
        Processors { all, client, peers }
    }
}

/// Where this thread runs from now on, and whatever it starts.
fn run_on(processors: &CpuSet) {
    sched_setaffinity(Pid::from_raw(0), processors).unwrap();
}

// ---- the client

/// One connection, to the broker or to the echo: they speak the same frames.
struct Framed(UnixStream);

impl Framed {
    async fn ask(&mut self, frame: &[u8]) -> Vec<u8> {
        self.0.write_all(frame).await.unwrap();
        let length = self.0.read_u32().await.unwrap();
        let mut answer = vec![0; length as usize];
        self.0.read_exact(&mut answer).await.unwrap();
        answer
    }
}

/// The standard streams of the MCP server.
struct Lines {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Lines {
    async fn say(&mut self, message: &[u8]) {
        self.to.write_all(message).await.unwrap();
        self.to.flush().await.unwrap();
    }

    async fn ask(&mut self, message: &[u8]) -> Vec<u8> {
        self.say(message).await;
        let mut line = Vec::new();
        assert!(self.from.read_until(b'\n', &mut line).await.unwrap() > 0, "the MCP server has ended");
        line
    }

    /// What a client has to say first.
    async fn begin(&mut self) {
        let me = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": me});
        let answer = self
            .ask(&line(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})))
            .await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        self.say(&line(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))).await;
    }
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn call(tool: &str, args: &Value) -> Vec<u8> {
    let params = json!({"tool": tool, "args": args});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tool.call", "params": params}).to_string();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body.as_bytes()].concat()
}

/// The broker's socket of a run, as its uid; and those of an echo that is kept apart from its client, and of one that is
/// not.
struct Sides {
    broker: PathBuf,
    uid: Uid,
    echo: PathBuf,
    free_echo: PathBuf,
}

impl Sides {
    async fn to_broker(&self) -> Framed {
        seteuid(self.uid).unwrap();
        let stream = UnixStream::connect(&self.broker).await;
        seteuid(Uid::from_raw(0)).unwrap();
        Framed(stream.unwrap())
    }

    async fn to_echo(echo: &Path) -> Framed {
        Framed(UnixStream::connect(echo).await.unwrap())
    }
}

/// The median time of a call in microseconds; each answer is looked at.
macro_rules! median {
    ($side:expr, $message:expr, $right:expr) => {{
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let began = Instant::now();
            let answer = $side.ask($message).await;
            times.push(began.elapsed().as_secs_f64() * 1e6);
            assert!($right(&answer), "{}", String::from_utf8_lossy(&answer));
        }
        middle(times)
    }};
}

/// Calls a second, over all connections together.
async fn rate(
    clients: &mut Vec<Framed>,
    message: &[u8],
    right: impl Fn(&[u8]) -> bool + Copy + Send + 'static,
) -> f64 {
    let began = Instant::now();
    let asking = clients.drain(..).map(|mut client| {
        let message = message.to_vec();
        tokio::spawn(async move {
            for _ in 0..CALLS_EACH {
                let answer = client.ask(&message).await;
                assert!(right(&answer), "{}", String::from_utf8_lossy(&answer));
            }
            client
        })
    });
    let asking: Vec<_> = asking.collect();
    for each in asking {
        clients.push(each.await.unwrap());
    }
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    let calls = (CONNECTIONS * CALLS_EACH) as f64;
    calls / began.elapsed().as_secs_f64()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn has(answer: &[u8], words: &str) -> bool {
    answer.windows(words.len()).any(|w| w == words.as_bytes())
}

fn is_note(answer: &[u8]) -> bool {
    has(answer, "\"result\"") && has(answer, &"x".repeat(NOTE_BYTES))
}

fn is_refusal(answer: &[u8]) -> bool {
    has(answer, "\"tool_not_allowed\"")
}

/// A running system with one skill, which waits until its standard input ends.
fn up() -> Up {
    // So many calls that their rows would use up what one invocation is given.
    let config = Some("quota:\n  invocation_ledger_mb: 4096\n".to_owned());
    Up::with(Options { config, grant_requested: true, ..Options::default() }, |source| {
        let (tools, scopes) = (&["MemoryRead", "MemoryEmit"], &["memories/bench/**"]);
        Skill { id: "bench", tools, scopes, main: "#!/bin/sh\nexec cat\n", ..Skill::default() }.write(source);
    })
}

async fn bench() {
    assert!(nix::unistd::geteuid().is_root(), "needs root: it starts the helper");
    let up = up();
    up.shown("bench", "current");
    let mut run = up.command(&["skill", "run", "--stdin", "bench"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut rows = Vec::new();
    let started = eventually(support::waiting::SOON, || {
        rows = up.rows("skill.invoked_started");
        !rows.is_empty()
    });
    assert!(started, "the run does not start: {}", up.log());
    let started = &rows[0]["extra"];
    let socket = format!("/tmp/cyberos-skill-broker.{}.sock", started["invocation_id"].as_str().unwrap());
    let uid = Uid::from_raw(started["uid"].as_u64().unwrap().try_into().unwrap());
    let [echo, free_echo] = ["echo.sock", "free.sock"].map(|name| up.dir().join(name));
    let sides = Sides { broker: socket.into(), uid, echo, free_echo };

    let processors = Processors::new();
    let _free = echoing(&sides.free_echo).await;
    run_on(&processors.peers);
    let _apart = echoing(&sides.echo).await;
    let mut serving = peer("mcp", Path::new("-"));
    let from = BufReader::new(serving.stdout.take().unwrap());
    let mut to_mcp = Lines { to: serving.stdin.take().unwrap(), from };
    to_mcp.begin().await;

    measure(&sides, &mut to_mcp, &processors).await;

    drop(run.stdin.take());
    assert!(run.wait().unwrap().success(), "the run did not end well");
    // What was measured was done: a row of its start and one of its end for each call.
    let read = |kind: &str| up.rows(kind).iter().filter(|r| r["extra"]["tool_name"] == "MemoryRead").count();
    let calls = (ROUNDS + 1) * (CALLS + CONNECTIONS * CALLS_EACH);
    assert_eq!((read("skill.tool_call_started"), read("skill.tool_call_completed")), (calls, calls));
    assert_eq!(up.rows("skill.tool_denied").len(), (ROUNDS + 1) * CALLS);
}

async fn measure(sides: &Sides, to_mcp: &mut Lines, processors: &Processors) {
    let text = "x".repeat(NOTE_BYTES);
    let (mut to_broker, mut to_echo) = (sides.to_broker().await, Sides::to_echo(&sides.echo).await);
    let wrote = to_broker
        .ask(&call("MemoryEmit", &json!({"kind": "bench.note", "path": NOTE, "payload": text})))
        .await;
    assert!(has(&wrote, "\"result\""), "{}", String::from_utf8_lossy(&wrote));
    let read = call("MemoryRead", &json!({"path": NOTE}));
    let denied = call("Bash", &json!({"cmd": "true"}));
    let echoed: &'static [u8] = read[4..].to_vec().leak();
    let is_same = move |answer: &[u8]| answer == echoed;
    let params = json!({"name": "echo", "arguments": {"text": text}});
    let ask_mcp = line(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    let (mut many_to_broker, mut many_to_echo) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        many_to_broker.push(sides.to_broker().await);
        many_to_echo.push(Sides::to_echo(&sides.free_echo).await);
    }
    let [mut by_echo, mut refused, mut rates, mut by_mcp] = [const { Vec::new() }; 4];
    for round in 0..=ROUNDS {
        let [mut bare, mut called, mut denial, mut mcp, mut all_bare, mut all_called] = [0.0; 6];
        let order = if round % 2 == 0 { [0, 1, 2, 3, 4, 5] } else { [1, 0, 3, 2, 5, 4] };
        for side in order {
            run_on(if side < 4 { &processors.client } else { &processors.all });
            match side {
                0 => bare = median!(to_echo, &read, is_same),
                1 => called = median!(to_broker, &read, is_note),
                2 => denial = median!(to_broker, &denied, is_refusal),
                3 => mcp = median!(to_mcp, &ask_mcp, is_note),
                4 => all_bare = rate(&mut many_to_echo, &read, is_same).await,
                _ => all_called = rate(&mut many_to_broker, &read, is_note).await,
            }
        }
        println!(
            "round {round}: echo {bare:.1} µs, MemoryRead {called:.1} µs, denied {denial:.1} µs, MCP {mcp:.1} µs; \
             {CONNECTIONS} connections: echo {all_bare:.0}/s, MemoryRead {all_called:.0}/s"
        );
        if round > 0 {
            by_echo.push(called / bare);
            refused.push(denial / bare);
            rates.push(all_called / all_bare);
            by_mcp.push(called / mcp);
        }
    }
    let ratio = |values: Vec<f64>| (middle(values) * 1000.0).round() / 1000.0;
    let ratios = json!({
        "ratio_echo": ratio(by_echo), "ratio_denied": ratio(refused),
        "ratio_throughput": ratio(rates), "ratio_rmcp": ratio(by_mcp),
    });
    println!("{ratios}");
}
