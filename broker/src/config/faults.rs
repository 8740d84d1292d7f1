//! What can be wrong with a configuration, as whoever wrote it is told.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The key, from the top: `grants.default.files`. Empty when it is the file as a whole.
    pub key: String,
    /// Its line.
    pub line: u32,
    /// What is wrong, and what to write.
    pub message: String,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(f, "line {}: {}{colon}{}", self.line, self.key, self.message)
    }
}

/// Why there is no configuration. Its text has a line for each fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Others could have written it.
    #[error("{0}: writable by group or others; it decides what skills may do, so `chmod go-w` it first")]
    Writable(PathBuf),
    /// It is somebody's who can write it whenever he likes.
    #[error(
        "{path}: belongs to uid {uid}, who can change it; it decides what skills may do, so `chown root` it \
         first"
    )]
    Owner {
        /// Which.
        path: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// What it says is wrong.
    #[error("{path}: {}", .faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Faults {
        /// Which file.
        path: PathBuf,
        /// All that is wrong, in the order of lines.
        faults: Vec<ConfigFault>,
    },
}
