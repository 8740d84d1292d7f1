//! The CLI's end of the operator's socket: where it is, one question, and the frames that answer it.

use crate::exit::{Exit, OperatorError};
use crate::operator::{Ask, FrameKind, Question, Tell, VERSION, read_frame, write_json};
use interprocess::local_socket::GenericFilePath;
use interprocess::local_socket::ToFsName as _;
use interprocess::local_socket::tokio::Stream;
use interprocess::local_socket::traits::tokio::Stream as _;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where the packaged broker listens.
const DEFAULT_SOCKET: &str = "/run/cyberos/broker.sock";

/// `detail.reason` of a [`OperatorError`]: nobody listens at the socket.
pub const NO_BROKER: &str = "no_broker";
/// `detail.reason` of a [`OperatorError`]: the socket is not for whoever asks.
pub const NOT_AN_OPERATOR: &str = "not_an_operator";

/// A connection that ended before its answer.
pub(super) fn lost(e: std::io::Error) -> OperatorError {
    OperatorError::new(Exit::NOT_PERMITTED, format!("the broker went away: {e}"))
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
pub async fn open(socket: &Path, ask: Ask) -> Result<Stream, OperatorError> {
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
        OperatorError {
            exit: Exit::NOT_PERMITTED,
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
pub async fn tell(stream: &mut Stream) -> Result<Tell, OperatorError> {
    match read_frame(stream).await.map_err(lost)? {
        Some((FrameKind::Json, bytes)) => parse(&bytes),
        Some(_) => Err(OperatorError::new(
            Exit::NOT_PERMITTED,
            "the broker sent output where an answer was expected",
        )),
        None => Err(OperatorError::new(Exit::NOT_PERMITTED, "the broker went away")),
    }
}

/// The JSON of a frame.
pub fn parse(bytes: &[u8]) -> Result<Tell, OperatorError> {
    serde_json::from_slice(bytes).map_err(|e| {
        OperatorError::new(Exit::NOT_PERMITTED, format!("the broker's answer is not understood: {e}"))
    })
}

/// A question with one answer: its exit status and value.
pub async fn ask(socket: &Path, ask: Ask) -> Result<(Exit, Value), OperatorError> {
    ask_items(socket, ask, |_| {}).await
}

/// A question with many items and then an answer.
pub async fn ask_items(
    socket: &Path,
    ask: Ask,
    mut item: impl FnMut(Value),
) -> Result<(Exit, Value), OperatorError> {
    let mut stream = open(socket, ask).await?;
    loop {
        match tell(&mut stream).await? {
            Tell::Item { item: value } => item(value),
            Tell::Done { exit, answer } => return Ok((exit, answer)),
            Tell::Failed(error) => return Err(error),
            Tell::Started { .. } => {}
        }
    }
}
