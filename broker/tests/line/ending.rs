//! How calls end that do not simply end: deadline, end of the run, a peer that leaves, a tool that panics (`[2.4]`,
//! `[6.4]`).

use crate::support::{Client, Line, Options, call, frame};
use cyberos_broker::audit::{Row, Started};
use cyberos_broker::blocking_pool::{BlockingPool, Stop};
use cyberos_broker::call::Plan;
use cyberos_broker::catalogue::{Asking, Tool};
use cyberos_broker::tools::{CallResources, InFlight, Work};
use serde_json::{Map, Value, json};

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A tool that does what its arguments say: waits for a release, or panics.
struct Odd {
    began: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl Tool for Odd {
    type Work = Box<dyn Work>;

    fn name(&self) -> &'static str {
        "Bash"
    }

    fn description(&self) -> &'static str {
        "odd"
    }

    fn input_schema(&self) -> Value {
        json!({"type": "object", "properties": {}})
    }

    fn plan(&self, _: Asking<'_>, args: Map<String, Value>) -> Result<Plan<Box<dyn Work>>, String> {
        let how = args.get("how").and_then(Value::as_str).map(str::to_owned);
        let (began, release) = (self.began.clone(), self.release.clone());
        Ok(Plan::new(Vec::new(), Box::new(Doing { how, began, release })))
    }
}

struct Doing {
    how: Option<String>,
    began: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl Work for Doing {
    fn run(self: Box<Self>, _: Started, _: CallResources) -> InFlight {
        if self.how.as_deref() == Some("panic at once") {
            panic!("on purpose");
        }
        Box::pin(async move {
            self.began.add_permits(1);
            match self.how.as_deref() {
                Some("panic") => panic!("on purpose"),
                Some("wait") => self.release.acquire().await.unwrap().forget(),
                _ => {}
            }
            Ok(Map::from_iter([("done".to_owned(), true.into())]))
        })
    }
}

struct Odds {
    line: Line,
    began: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl Odds {
    fn new() -> Self {
        let (began, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let odd = Odd { began: began.clone(), release: release.clone() };
        let line = Line::new(Options {
            frontmatter: "allowed_tools: [Bash]\nallowed_memory_scopes: []".into(),
            tools: Some(vec![Box::new(odd)]),
            ..Options::default()
        });
        Odds { line, began, release }
    }

    /// A client with that many calls in the middle of their tool.
    async fn amid(&self, calls: u64) -> Client {
        let mut client = self.line.client().await;
        for id in 0..calls {
            client.send(call(id, "Bash", json!({"how": "wait"}))).await;
        }
        self.began.acquire_many(u32::try_from(calls).unwrap()).await.unwrap().forget();
        client
    }
}

fn completed(rows: &[Row]) -> Vec<(&str, &str)> {
    let rows = rows.iter().filter(|r| r.op == "skill.tool_call_completed");
    rows.map(|r| {
        (r.extra["outcome"].as_str().unwrap(), r.extra.get("error").map_or("", |e| e.as_str().unwrap()))
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn after_sigterm_calls_are_served_for_ten_seconds_then_refused_and_those_in_flight_cut() {
    let odds = Odds::new();
    let mut waiting = odds.amid(1).await;
    let mut client = odds.line.client().await;
    odds.line.session.enter_grace();
    odds.line.session.enter_grace();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(client.call("Bash", json!({})).await["result"]["done"], true);
    let cut = waiting.recv().await.unwrap();
    assert_eq!(cut["error"]["code"], -32000, "{cut}");
    assert_eq!(cut["error"]["data"]["reason"], "timeout");
    let refused = client.call("Bash", json!({})).await;
    assert_eq!(refused["error"]["code"], -32603);
    assert_eq!(refused["error"]["message"], "deadline_exceeded");
    assert_eq!(
        refused["error"]["data"],
        json!({"reason": "deadline_exceeded", "tool": "Bash", "skill_id": "demo"})
    );
    assert_eq!(client.status().await["denied"], 1);
    let rows = odds.line.settled().await;
    assert_eq!(completed(&rows), [("success", ""), ("timeout", "")]);
    assert_eq!(rows.last().unwrap().extra["reason"], "deadline_exceeded");
    assert_eq!(odds.line.session.last_tool_call(), Some((3, "Bash".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_run_ends_calls_in_flight_are_cut_and_completed() {
    let odds = Odds::new();
    let client = odds.amid(8).await;
    let rows = odds.line.settled().await;
    assert_eq!(completed(&rows), [("error", "run_ended"); 8]);
    assert_eq!(odds.line.session.totals().calls, 8);
    drop(client);
    let again = tokio::net::UnixStream::connect(odds.line.dir.path().join("sock")).await;
    assert!(again.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_after_sigterm_is_cut_by_the_deadline() {
    let odds = Odds::new();
    let _client = odds.amid(1).await;
    odds.line.session.enter_grace();
    assert_eq!(completed(&odds.line.settled().await), [("timeout", "")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_094_a_peer_that_leaves_with_calls_in_flight_leaves_no_row_open() {
    let odds = Odds::new();
    for _ in 0..13 {
        drop(odds.amid(8).await);
    }
    // Their ends are recorded without anything else happening.
    while completed(&odds.line.rows()).len() < 13 * 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(completed(&odds.line.settled().await), [("error", "disconnected"); 13 * 8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_hangs_holds_no_end_up() {
    let pool = BlockingPool::default();
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let (began, all_begin) = std::sync::mpsc::channel();
    // Every thread that all invocations have together waits for a disk that does not answer.
    let mut hung = Vec::new();
    for _ in 0..16 {
        let share = pool.share();
        for _ in 0..4 {
            let (share, gate, began) = (share.clone(), gate.clone(), began.clone());
            hung.push(tokio::spawn(async move {
                let wait = move |_: &Stop| {
                    began.send(()).unwrap();
                    gate.lock().unwrap().recv().is_ok()
                };
                share.run(wait).await
            }));
        }
    }
    tokio::task::spawn_blocking(move || (0..64).for_each(|_| all_begin.recv().unwrap())).await.unwrap();
    let frontmatter = "allowed_tools: [Read]\nallowed_memory_scopes: []\nx-allowed-files: [\"$DIR/work/**\"]";
    let line = Line::new(Options { frontmatter: frontmatter.into(), pool, ..Options::default() });
    let mut client = line.client().await;
    for id in 0..8 {
        client.send(call(id, "Read", json!({"path": line.work("x")}))).await;
    }
    let mut other = line.client().await;
    while other.status().await["calls"] != 8 {}
    let rows = line.settled().await;
    assert_eq!(completed(&rows), [("error", "run_ended"); 8]);
    drop(release);
    for task in hung {
        assert_eq!(task.await.unwrap(), Ok(false));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_095_the_ninth_request_in_flight_on_a_connection_waits() {
    let odds = Odds::new();
    let mut client = odds.amid(8).await;
    for id in 8..12 {
        client.send(call(id, "Bash", json!({"how": "wait"}))).await;
    }
    let mut other = odds.line.client().await;
    for _ in 0..100 {
        assert_eq!(other.status().await["calls"], 8);
    }
    odds.release.add_permits(1);
    odds.began.acquire().await.unwrap().forget();
    odds.release.add_permits(11);
    for _ in 0..12 {
        assert_eq!(client.recv().await.unwrap()["result"]["done"], true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_runs_to_its_end_though_nobody_stays_to_hear_of_it() {
    let odds = Odds::new();
    let mut client = odds.line.client().await;
    client
        .send(r#"{"jsonrpc":"2.0","method":"tool.call","params":{"tool":"Bash","args":{"how":"wait"}}}"#)
        .await;
    client.send(call(1, "Bash", json!({"how": "wait"}))).await;
    odds.began.acquire_many(2).await.unwrap().forget();
    drop(client);
    let rows_of_ends = |n: usize| {
        let line = &odds.line;
        async move {
            while completed(&line.rows()).len() < n {
                tokio::task::yield_now().await;
            }
        }
    };
    // That the call beside it, which wants an answer, is cut shows that the end has been noticed.
    rows_of_ends(1).await;
    odds.release.add_permits(1);
    rows_of_ends(2).await;
    assert_eq!(completed(&odds.line.settled().await), [("error", "disconnected"), ("success", "")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_panics_is_an_error_and_the_next_call_works() {
    let odds = Odds::new();
    let mut client = odds.line.client().await;
    for how in ["panic", "panic at once"] {
        let answer = client.call("Bash", json!({"how": how})).await;
        assert_eq!(answer["error"]["code"], -32000, "{answer}");
        assert_eq!(answer["error"]["message"], "tool_error");
        assert_eq!(answer["error"]["data"]["reason"], "internal");
        assert_eq!(answer["error"]["data"]["tool"], "Bash");
    }
    assert_eq!(client.call("Bash", json!({})).await["result"]["done"], true);
    let rows = odds.line.settled().await;
    assert_eq!(completed(&rows), [("error", "internal"), ("error", "internal"), ("success", "")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_recorded_is_refused_and_does_not_run() {
    let odds = Odds::new();
    let mut client = odds.line.client().await;
    odds.line.audit.close().unwrap();
    for (tool, args) in [("Bash", json!({})), ("Read", json!({}))] {
        let answer = client.call(tool, args).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(answer["error"]["message"], "audit_unavailable", "whether it is allowed or not");
    }
    assert_eq!(odds.began.available_permits(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_connection_is_told_and_no_earlier() {
    let line = Line::with_tools("Read").await;
    let first = line.session.first_connection();
    tokio::pin!(first);
    tokio::select! {
        biased;
        () = &mut first => panic!("nobody has connected"),
        () = std::future::ready(()) => {}
    }
    let mut client = line.client().await;
    client.status().await;
    first.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixty_requests_sent_ahead_eight_are_begun_and_the_rest_wait_for_an_end() {
    let odds = Odds::new();
    let mut ahead = odds.line.client().await;
    let sixty: Vec<u8> = (0..60).flat_map(|id| frame(call(id, "Bash", json!({"how": "wait"})))).collect();
    ahead.send_raw(&sixty).await;
    odds.began.acquire_many(8).await.unwrap().forget();
    // Each of these is answered after a turn in which the others could have begun.
    let mut other = odds.line.client().await;
    for _ in 0..50 {
        assert_eq!(other.status().await["calls"], 8);
    }
    odds.release.add_permits(60);
    for _ in 0..60 {
        assert_eq!(ahead.recv().await.unwrap()["result"]["done"], true);
    }
    assert_eq!(completed(&odds.line.settled().await).len(), 60);
}
