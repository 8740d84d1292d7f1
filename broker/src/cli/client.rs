//! The CLI's end of the operator's socket: where it is, one question, and the frames that answer it.

use crate::operator::{Ask, FrameKind, Question, Tell, VERSION, read_frame, write_json};
use interprocess::local_socket::GenericFilePath;
use interprocess::local_socket::ToFsName as _;
use interprocess::local_socket::tokio::Stream;
use interprocess::local_socket::traits::tokio::Stream as _;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where the packaged broker listens.
const DEFAULT_SOCKET: &str = "/run/cyberos/broker.sock";

/// `detail.reason` of a [`Failure`]: nobody listens at the socket.
pub const NO_BROKER: &str = "no_broker";
/// `detail.reason` of a [`Failure`]: the socket is not for whoever asks.
pub const NOT_AN_OPERATOR: &str = "not_an_operator";

/// A command that did not go well: what it exits with and what it says.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Exit status (`[2.1]`).
    pub exit: u8,
    /// For a person.
    pub message: String,
    /// For a program; null when there is nothing more.
    pub detail: Value,
}

impl Failure {
    /// A failure with nothing more to tell.
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), detail: Value::Null }
    }
}

/// A connection that ended before its answer.
pub(super) fn lost(e: std::io::Error) -> Failure {
    Failure::new(4, format!("the broker went away: {e}"))
}

/// The operator's socket: `--socket`, then CYBEROS_OPERATOR_SOCKET, then the packaged one.
pub fn socket_path(given: Option<&Path>) -> PathBuf {
    match given {
        Some(path) => path.to_owned(),
        // Empty is what a shell makes of a variable that it does not know: no path.
        None => std::env::var_os("CYBEROS_OPERATOR_SOCKET")
            .filter(|path| !path.is_empty())
            .map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from),
    }
}

/// Connects and puts the question.
pub async fn open(socket: &Path, ask: Ask) -> Result<Stream, Failure> {
    let unreachable = |e: std::io::Error| {
        let (reason, why) = match e.kind() {
            std::io::ErrorKind::PermissionDenied => {
                let group = std::fs::metadata(socket)
                    .ok()
                    .and_then(|m| {
                        let gid = std::os::unix::fs::MetadataExt::gid(&m);
                        nix::unistd::Group::from_gid(gid.into()).ok().flatten().map(|g| g.name)
                    })
                    .unwrap_or_else(|| "cyberos".into());
                let why = format!("you are not an operator: ask an administrator to add you to group '{group}'");
                (Some(NOT_AN_OPERATOR), why)
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => (
                Some(NO_BROKER),
                "no broker listens there: start the service, or 'cyberos up', or name the socket with --socket".into(),
            ),
            _ => (None, e.to_string()),
        };
        Failure {
            exit: 4,
            message: format!("cannot reach the broker at {}: {why}", socket.display()),
            detail: reason.map_or(Value::Null, |reason| serde_json::json!({ "reason": reason })),
        }
    };
    let name = socket.to_fs_name::<GenericFilePath>().map_err(unreachable)?;
    let mut stream = Stream::connect(name).await.map_err(unreachable)?;
    write_json(&mut stream, &Question { version: VERSION, ask }).await.map_err(lost)?;
    Ok(stream)
}

/// One JSON frame.
pub async fn tell(stream: &mut Stream) -> Result<Tell, Failure> {
    match read_frame(stream).await.map_err(lost)? {
        Some((FrameKind::Json, bytes)) => parse(&bytes),
        Some(_) => Err(Failure::new(4, "the broker sent output where an answer was expected")),
        None => Err(Failure::new(4, "the broker went away")),
    }
}

/// The JSON of a frame.
pub fn parse(bytes: &[u8]) -> Result<Tell, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|e| Failure::new(4, format!("the broker's answer is not understood: {e}")))
}

/// A question with one answer: its exit status and value.
pub async fn ask(socket: &Path, ask: Ask) -> Result<(u8, Value), Failure> {
    ask_items(socket, ask, |_| {}).await
}

/// A question with many items and then an answer.
pub async fn ask_items(socket: &Path, ask: Ask, mut item: impl FnMut(Value)) -> Result<(u8, Value), Failure> {
    let mut stream = open(socket, ask).await?;
    loop {
        match tell(&mut stream).await? {
            Tell::Item { item: value } => item(value),
            Tell::Done { exit, answer } => return Ok((exit, answer)),
            Tell::Failed { exit, message, detail } => return Err(Failure { exit, message, detail }),
            Tell::Started { .. } => {}
        }
    }
}
