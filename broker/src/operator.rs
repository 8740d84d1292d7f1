//! What the CLI and the broker say to each other on the operator's socket: shapes and framing, used by both ends.
//!
//! A frame is a 4-byte big-endian length, one byte of kind, and that many bytes: `J` JSON, `I` standard input
//! (empty = end; one piece at a time, and an empty `I` comes back when it has been taken), `O` and `E` the program's
//! output. The CLI sends one [`Ask`]; the broker answers with any number of
//! frames and last with a JSON [`Tell`] that says so. Both come from one build; `version` guards against a mix.

use crate::exit::{Exit, OperatorError};
use cyberos_proto::control::SkillState;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Version of this exchange.
pub const VERSION: u32 = 1;
/// Longest frame.
pub const MAX_FRAME: u32 = 4 * 1024 * 1024;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// JSON text.
    Json = b'J',
    /// Bytes for the program's standard input.
    Stdin = b'I',
    /// Bytes of its standard output.
    Stdout = b'O',
    /// Bytes of its standard error.
    Stderr = b'E',
}

/// A question of the CLI.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// [`VERSION`] of the asker.
    pub version: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What an operator may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Run a skill (`[2.1]`).
    Run {
        skill: String,
        tenant: Option<String>,
        effort_minutes: Option<u32>,
        stdin: bool,
        detach: bool,
        /// Arguments as bytes: they need not be UTF-8.
        args: Vec<Vec<u8>>,
    },
    /// End an invocation.
    Stop { invocation: String },
    /// What it printed; with `follow` until its end.
    Logs { invocation: String, follow: bool },
    /// Wait for its end.
    Wait { invocation: String },
    /// The broker's status.
    Status {},
    /// The skills, with verdicts.
    List {},
    /// One skill: wishes, grants, verdict.
    Show { skill: String },
    /// Consent to what a skill asks for; `wishes` is the digest that `show` gave, so that nobody consents unseen.
    Approve { skill: String, wishes: String, tenant: Option<String> },
    /// What SkillFS knows of one skill.
    Explain { skill: String },
    /// Let the provider decide again; all skills without a name.
    Refresh { skill: Option<String> },
    /// Rows as they come; of one invocation until its end.
    Tail { invocation: Option<String> },
    /// The calls of an invocation, told from its rows.
    Replay { invocation: String },
    /// Why calls of an invocation were refused: one, or all that were.
    Why { invocation: String, call: Option<u64> },
    /// Walk the ledger.
    AuditVerify {},
    /// Rows of the ledger.
    AuditShow {
        since: Option<String>,
        skill: Option<String>,
        invocation: Option<String>,
        kind: Option<String>,
        denied: bool,
    },
}

/// JSON that the broker sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// A run has begun.
    Started { invocation: String, started: Value },
    /// One of many (a row, a skill).
    Item { item: Value },
    /// The last frame: it went well, with this exit status for the CLI (a run's own) and this answer.
    Done { exit: Exit, answer: Value },
    /// The last frame: it did not.
    Failed(OperatorError),
}

/// SkillFS's answer as the CLI has it.
pub fn skill_json(state: &SkillState) -> Value {
    json!({
        "skill": state.skill.as_str(),
        "verdict": state.verdict.as_str(),
        "status": state.status,
        "version": state.version,
        "target": state.target,
        "reason": state.reason,
        "warning": state.warning,
        "pending": state.pending,
        "epoch": state.epoch.to_string(),
        "content_digest": state.content_digest,
    })
}

/// Writes one frame.
pub async fn write_frame<W: AsyncWrite + Unpin>(
    to: &mut W,
    kind: FrameKind,
    bytes: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|n| *n <= MAX_FRAME);
    let length =
        length.ok_or_else(|| std::io::Error::other("a frame larger than the operator's socket allows"))?;
    let mut head = [0u8; 5];
    head[..4].copy_from_slice(&length.to_be_bytes());
    head[4] = kind as u8;
    to.write_all(&head).await?;
    to.write_all(bytes).await?;
    to.flush().await
}

/// Writes one JSON frame.
pub async fn write_json<W: AsyncWrite + Unpin, T: Serialize>(to: &mut W, value: &T) -> std::io::Result<()> {
    write_frame(to, FrameKind::Json, &serde_json::to_vec(value)?).await
}

/// Reads one frame; none at the end of the stream between frames. Not cancellation-safe.
pub async fn read_frame<R: AsyncRead + Unpin>(from: &mut R) -> std::io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut head = [0u8; 5];
    let mut have = 0;
    while have < head.len() {
        match from.read(&mut head[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
    }
    let kind = match head[4] {
        b'J' => FrameKind::Json,
        b'I' => FrameKind::Stdin,
        b'O' => FrameKind::Stdout,
        b'E' => FrameKind::Stderr,
        other => return Err(std::io::Error::other(format!("an unknown kind of frame ({other})"))),
    };
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    if length > MAX_FRAME {
        return Err(std::io::Error::other(format!("a frame of {length} bytes (at most {MAX_FRAME})")));
    }
    // Grows with what arrives, not with what was announced.
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes).await?;
    if bytes.len() != length as usize {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(Some((kind, bytes)))
    }
}
