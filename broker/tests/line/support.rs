//! One invocation served on a real socket, and a client that speaks frames. Each test takes its part of this.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, dead_code)]

use cyberos_broker::audit::reader::Reader;
use cyberos_broker::audit::{Audit, AuditOptions, Row};
use cyberos_broker::blocking_pool::BlockingPool;
use cyberos_broker::call::{Invocation, TraceId};
use cyberos_broker::config::{Config, GrantSet};
use cyberos_broker::disk_guard::DiskGuard;
use cyberos_broker::grants::{Grants, NeverGrantable, Operator};
use cyberos_broker::helper::Helper;
use cyberos_broker::memory::Store;
use cyberos_broker::session::{Serving, Session, serve};
use cyberos_broker::tools::{self, Catalogue, Deps, Tool};
use cyberos_proto::ids::{InvocationId, TenantId};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A field of this process's status, in bytes.
pub(crate) fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(100);

pub(crate) struct Line {
    pub(crate) session: Session,
    pub(crate) audit: Audit,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) invocation: Arc<Invocation>,
}

pub(crate) struct Options {
    /// Lines of frontmatter beside the required ones.
    pub(crate) frontmatter: String,
    pub(crate) uid: u32,
    pub(crate) write_quota: u64,
    pub(crate) tenant_quota: u64,
    /// Tools beside the standard ones.
    pub(crate) tools: Option<Vec<Box<Tool>>>,
    pub(crate) audit: AuditOptions,
    pub(crate) sync_private: bool,
    pub(crate) pool: BlockingPool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            frontmatter: "allowed_tools: [Read]\nallowed_memory_scopes: []".into(),
            uid: nix::unistd::geteuid().as_raw(),
            write_quota: 1 << 20,
            tenant_quota: 1 << 30,
            tools: None,
            audit: AuditOptions::default(),
            sync_private: false,
            pool: BlockingPool::default(),
        }
    }
}

impl Line {
    pub(crate) async fn with_tools(tools: &str) -> Line {
        let frontmatter = format!("allowed_tools: [{tools}]\nallowed_memory_scopes: []");
        Line::new(Options { frontmatter, ..Options::default() })
    }

    /// `$DIR` in the frontmatter stands for the line's own directory.
    pub(crate) fn new(options: Options) -> Line {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["store", "work"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let audit = Audit::open(&dir.path().join("store"), options.audit).unwrap();
        let text = format!(
            "---\nid: demo\nversion: 1.0.0\ndescription: d\n{}\n---\n",
            options.frontmatter.replace("$DIR", dir.path().to_str().unwrap())
        );
        let skill = cyberos_broker::skill::parse(text.as_bytes(), None, &|_| false).unwrap();
        let mut config = Config::default();
        config.grants.skills.insert("demo".into(), GrantSet::requested());
        let never = Arc::new(NeverGrantable::new(&config));
        let grants = Grants::compile(&skill, &Operator::new(&config.grants, "demo", true), never);
        let catalogue = match options.tools {
            Some(tools) => Catalogue::of(tools).unwrap(),
            None => tools::standard(deps(&audit, dir.path(), options.tenant_quota)).unwrap(),
        };
        let invocation = Arc::new(Invocation {
            id: InvocationId::from_random([7; 16]),
            skill_id: "demo".into(),
            version: "1.0.0".into(),
            tenant: TenantId::NIL,
            trace: TraceId::new([3; 16]).unwrap(),
            sync_private: options.sync_private,
        });
        let serving = Serving {
            invocation: invocation.clone(),
            grants: Arc::new(grants),
            copy: Arc::new(std::fs::File::open(dir.path().join("work")).unwrap().into()),
            catalogue: Arc::new(catalogue),
            audit: audit.clone(),
            pool: options.pool,
            deadline: Instant::now() + Duration::from_secs(60),
            write_quota: options.write_quota,
        };
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("sock")).unwrap();
        let session = serve(OwnedFd::from(listener), options.uid, serving).unwrap();
        Line { session, audit, dir, invocation }
    }

    pub(crate) fn work(&self, below: &str) -> PathBuf {
        self.dir.path().join("work").join(below)
    }

    pub(crate) async fn client(&self) -> Client {
        Client { stream: UnixStream::connect(self.dir.path().join("sock")).await.unwrap() }
    }

    /// Every row of the ledger so far: kind and payload.
    pub(crate) fn rows(&self) -> Vec<Row> {
        Reader::open(&self.dir.path().join("store")).unwrap().rows().map(|row| row.unwrap()).collect()
    }

    /// Ends the session; every started call must then have been completed, and the ledger must verify.
    pub(crate) async fn settled(&self) -> Vec<Row> {
        within(self.session.close()).await;
        let report = Reader::open(&self.dir.path().join("store")).unwrap().verify().unwrap();
        assert!(report.broken.is_none(), "{report:?}");
        assert!(report.open_calls.is_empty(), "{report:?}");
        self.rows()
    }
}

impl Drop for Line {
    /// Tasks of the session may hold the ledger a moment longer; it must not write into a folder that is being removed.
    fn drop(&mut self) {
        let _ = self.audit.close();
    }
}

fn deps(audit: &Audit, dir: &Path, tenant_quota: u64) -> Deps {
    let store = Arc::new(Store::open(&dir.join("tenants")).unwrap());
    // Nobody serves that socket: Bash is tested where there is a helper.
    let helper = Helper::new(&dir.join("helper.sock"));
    let space = DiskGuard::open(dir).unwrap();
    Deps { audit: audit.clone(), store, tenant_quota, helper, require: Vec::new(), space }
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

impl Client {
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    pub(crate) async fn send(&mut self, body: impl AsRef<[u8]>) {
        self.send_raw(&frame(body)).await;
    }

    /// The next answer; None when the broker has closed.
    pub(crate) async fn recv(&mut self) -> Option<Value> {
        self.recv_raw().await.map(|body| serde_json::from_slice(&body).unwrap())
    }

    pub(crate) async fn recv_raw(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 4];
        within(self.stream.read_exact(&mut header)).await.ok()?;
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        within(self.stream.read_exact(&mut body)).await.unwrap();
        Some(body)
    }

    pub(crate) async fn ask(&mut self, body: impl AsRef<[u8]>) -> Value {
        self.send(body).await;
        self.recv().await.expect("an answer")
    }

    pub(crate) async fn call(&mut self, tool: &str, args: Value) -> Value {
        self.ask(call(1, tool, args)).await
    }

    pub(crate) async fn status(&mut self) -> Value {
        self.ask(r#"{"jsonrpc":"2.0","id":"status","method":"broker.status"}"#).await["result"].clone()
    }

    /// Whether the broker has closed this connection.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut byte = [0; 1];
        !matches!(within(self.stream.read(&mut byte)).await, Ok(1))
    }
}

pub(crate) fn call(id: u64, tool: &str, args: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tool.call", "params": {"tool": tool, "args": args}})
        .to_string()
}

pub(crate) fn frame(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut out = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(body);
    out
}

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("not within the time that any test waits")
}
