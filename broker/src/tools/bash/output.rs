//! One stream of a command: its beginning is kept, the rest read and dropped.

use std::os::fd::OwnedFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// What is kept of each stream; more is read and dropped, so that the command goes on.
pub(super) const MAX_OUTPUT: usize = 1 << 20;

/// What is kept of one stream.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) kept: Vec<u8>,
    pub(super) truncated: bool,
}

impl Output {
    /// Reads until its end.
    pub(super) async fn read(pipe: OwnedFd) -> Output {
        let mut output = Output::default();
        let Ok(mut pipe) = pipe::Receiver::from_owned_fd(pipe) else { return output };
        let mut buffer = vec![0u8; 64 * 1024];
        while let Ok(n) = pipe.read(&mut buffer).await {
            if n == 0 {
                break;
            }
            output.keep(&buffer[..n]);
        }
        output
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        let room = (MAX_OUTPUT - self.kept.len()).min(bytes.len());
        self.kept.extend_from_slice(&bytes[..room]);
        self.truncated |= room < bytes.len();
    }

    /// As text: what is not UTF-8 becomes U+FFFD, but a character that the cut went through is left out.
    pub(super) fn into_text(mut self) -> String {
        if self.truncated
            && let Err(e) = std::str::from_utf8(&self.kept)
            && e.error_len().is_none()
        {
            self.kept.truncate(e.valid_up_to());
        }
        String::from_utf8(self.kept).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }
}
