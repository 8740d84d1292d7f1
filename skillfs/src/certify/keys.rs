//! The signing key of `certify` and the public keys that `scan` and `resolve` believe. It knows no skills.
//!
//! The two live apart on purpose: the provider reads hostile folders with SkillFS's user, so that user must never be able
//! to read what signs (`[9.10]`). A public key that lies in a skill's folder is never looked at.

use super::words::shown;
use crate::beneath;
use cyberos_proto::tree::written;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, KeypairBytes,
};
use ed25519_dalek::{SigningKey, VerifyingKey};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::fstat;
use nix::unistd::{User, geteuid};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where signing keys are kept unless `--keys` says otherwise.
pub const DEFAULT_KEYS: &str = "/etc/cyberos/ledger-keys";
/// Where public keys that are believed are kept unless `--trusted` says otherwise.
pub const DEFAULT_TRUSTED: &str = "/etc/cyberos/trusted-ledger";
/// Name of the key pair unless `--name` says otherwise.
pub const DEFAULT_NAME: &str = "local";

/// User that SkillFS and its providers run as, in packages and, where that user does not exist, from a checkout.
const SKILLFS_USER: &str = "cyberos-skillfs";
const SKILLFS_UID: u32 = 1_899_999_002;

const EXPOSED_TRUST: &str = "can be written by others: give it to root with mode 0755";

const MAX_KEY_FILE: u64 = 4 << 10;
const MAX_KEYS: usize = 256;
/// How long another run with the same key is waited for, and when that is told.
const PATIENCE: Duration = Duration::from_secs(600);
const TELL: Duration = Duration::from_secs(3);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A name that is no plain file name.
    #[error("the key name {0:?} is not plain: use letters, digits, '-', '_' and '.', not first")]
    Name(String),
    /// There is no such signing key.
    #[error("there is no signing key {}: run `skill-ledger init`, or name the right folder with --keys", .0.display())]
    Missing(PathBuf),
    /// The signing key could be read by somebody who must not.
    #[error("the signing key {} {why}", path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// How, and what to do.
        why: &'static str,
    },
    /// The file holds no Ed25519 key in PEM.
    #[error("{} holds no Ed25519 {what} key in PEM form", path.display())]
    Malformed {
        /// The key file.
        path: PathBuf,
        /// Private or public.
        what: &'static str,
    },
    /// A public key of this name is there already and belongs to another pair.
    #[error("{} is the public key of another pair: choose another --name, or remove it", .0.display())]
    Taken(PathBuf),
    /// No public key is believed, so nothing can be verified.
    #[error("no public key in {}: run `skill-ledger init`, or copy the signer's .pub file there", .0.display())]
    NoneTrusted(PathBuf),
    /// The folder of believed keys is not safe.
    #[error("the folder of trusted keys {} {why}", path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// Why, and what to do.
        why: &'static str,
    },
    /// Somebody else signs with it, and does not end.
    #[error("another certify with this key has been running for ten minutes; is it stuck?")]
    Busy,
    /// It cannot be locked.
    #[error("the signing key cannot be locked: {}", .0.desc())]
    Lock(Errno),
    /// The kernel refused.
    #[error("{}: {doing}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// The short name of a public key: the first half of its SHA-256.
pub fn key_id(key: &VerifyingKey) -> String {
    written(&Sha256::digest(key.as_bytes()).into()).chars().take("sha256:".len() + 32).collect()
}

/// What `init` did.
pub struct Pair {
    /// The private key's file.
    pub private: PathBuf,
    /// The public key's file.
    pub public: PathBuf,
    /// The key's short name.
    pub id: String,
    /// Whether the pair is new; an existing private key is never replaced.
    pub made: bool,
}

/// Makes the key pair `name`, or completes an existing one whose public half is not in `trusted`.
pub fn init(keys: &Path, trusted: &Path, name: &str) -> Result<Pair, KeyError> {
    plain(name)?;
    make_dir(keys, 0o700)?;
    make_dir(trusted, 0o755)?;
    let there = nix::sys::stat::stat(trusted).map_err(|e| io_error(trusted, "looking at it", e.into()))?;
    if !ours(&there) {
        return Err(KeyError::Unsafe { path: trusted.to_owned(), why: EXPOSED_TRUST });
    }
    let private = keys.join(format!("{name}.key"));
    let public = trusted.join(format!("{name}.pub"));
    let (key, made) = match signing_key(keys, name) {
        Ok(signer) => (signer.key, false),
        Err(KeyError::Missing(_)) => {
            let mut seed = [0; 32];
            draw(&mut seed).map_err(|e| io_error(&private, "drawing a key", e))?;
            (SigningKey::from_bytes(&seed), true)
        }
        Err(other) => return Err(other),
    };
    let pem =
        key.verifying_key().to_public_key_pem(LineEnding::LF).map_err(|_| malformed(&public, "public"))?;
    let complete = match fs::read_to_string(&public) {
        Ok(there) if there.trim() == pem.trim() => true,
        Ok(_) => return Err(KeyError::Taken(public)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(io_error(&public, "reading", e)),
    };
    // The private half first: a pair that was cut short is then completed by the next `init`.
    if made {
        // Without the public half inside (PKCS #8 version 1), which is the form that OpenSSL reads too.
        let bytes = KeypairBytes { secret_key: key.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(LineEnding::LF).map_err(|_| malformed(&private, "private"))?;
        write_new(&private, 0o600, pem.as_bytes())?;
    }
    if !complete {
        write_new(&public, 0o644, pem.as_bytes())?;
    }
    Ok(Pair { private, public, id: key_id(&key.verifying_key()), made })
}

/// A key that signs, with its open file.
pub struct Signer {
    /// The key.
    pub key: SigningKey,
    file: File,
}

impl Signer {
    /// One certify at a time with a key. The lock is the key's own file: nobody can open that but who may sign, while a
    /// folder in a source can be opened, and so locked for ever, by any stranger.
    pub fn alone(self) -> Result<(SigningKey, Flock<File>), KeyError> {
        let Signer { key, mut file } = self;
        let (start, mut told) = (Instant::now(), false);
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok((key, lock)),
                Err((back, Errno::EAGAIN | Errno::EINTR)) if start.elapsed() < PATIENCE => file = back,
                Err((_, Errno::EAGAIN)) => return Err(KeyError::Busy),
                Err((_, e)) => return Err(KeyError::Lock(e)),
            }
            if !told && start.elapsed() > TELL {
                told = true;
                tracing::warn!("another certify with this key is at work; this one waits for it");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The signing key `name` from `keys`, if nobody but its owner can read it and its owner may sign.
pub fn signing_key(keys: &Path, name: &str) -> Result<Signer, KeyError> {
    plain(name)?;
    let path = keys.join(format!("{name}.key"));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => KeyError::Missing(path.clone()),
            _ => io_error(&path, "opening the signing key", e),
        })?;
    let stat = fstat(&file).map_err(|e| io_error(&path, "looking at the signing key", e.into()))?;
    let exposed = |why| Err(KeyError::Exposed { path: path.clone(), why });
    if cyberos_proto::beneath::kind(&stat) != nix::sys::stat::SFlag::S_IFREG {
        return exposed("is no regular file");
    }
    if beneath::permissions(&stat) & 0o077 != 0 {
        return exposed(
            "can be read by others than its owner: chmod 0600 it, and make a new one if anyone may have",
        );
    }
    if is_skillfs(stat.st_uid) || is_skillfs(geteuid().as_raw()) {
        return exposed(
            "can be read by SkillFS's user, which also reads hostile skills: keep it with root or an operator",
        );
    }
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return exposed("belongs to somebody else: it must be root's or your own");
    }
    let folder = nix::sys::stat::stat(keys).map_err(|e| io_error(keys, "looking at it", e.into()))?;
    if !ours(&folder) {
        return exposed("lies in a folder that others can write: chmod 0700 that");
    }
    let bytes = beneath::read_open(&file, MAX_KEY_FILE).map_err(|e| io_error(&path, "reading", e.into()))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| malformed(&path, "private"))?;
    let key = SigningKey::from_pkcs8_pem(text).map_err(|_| malformed(&path, "private"))?;
    Ok(Signer { key, file })
}

/// Fills `bytes` from the kernel's random source.
pub(super) fn draw(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes)
        .map_err(|e| e.raw_os_error().map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error))
}

/// Whether SkillFS, and so a provider, runs as `uid`.
fn is_skillfs(uid: u32) -> bool {
    uid == SKILLFS_UID || matches!(User::from_name(SKILLFS_USER), Ok(Some(user)) if user.uid.as_raw() == uid)
}

/// The public keys that are believed.
pub struct TrustedKeys {
    keys: Vec<(String, VerifyingKey)>,
    /// Files that were passed over, with the reason: for the message when a key is unknown.
    pub ignored: Vec<String>,
}

impl TrustedKeys {
    /// Reads every `*.pub` in `dir`, which must not lie in the skill's folder `skill`, nor be writable by others than root
    /// and this process's user.
    pub fn load(dir: &Path, skill: &Path) -> Result<Self, KeyError> {
        let unsafe_dir = |why| KeyError::Unsafe { path: dir.to_owned(), why };
        if let (Ok(here), Ok(there)) = (dir.canonicalize(), skill.canonicalize())
            && here.starts_with(&there)
        {
            return Err(unsafe_dir(
                "lies in the skill that it should judge: name another one with --trusted",
            ));
        }
        let opened = File::open(dir).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => KeyError::NoneTrusted(dir.to_owned()),
            _ => io_error(dir, "opening the folder of trusted keys", e),
        })?;
        let stat = fstat(&opened).map_err(|e| io_error(dir, "looking at it", e.into()))?;
        if !ours(&stat) {
            return Err(unsafe_dir(EXPOSED_TRUST));
        }
        let mut found = TrustedKeys { keys: Vec::new(), ignored: Vec::new() };
        let names = fs::read_dir(dir).map_err(|e| io_error(dir, "listing", e))?;
        for entry in names {
            let path = entry.map_err(|e| io_error(dir, "listing", e))?.path();
            if path.extension().is_none_or(|e| e != "pub") {
                continue;
            }
            if found.keys.len() >= MAX_KEYS {
                found.ignored.push(format!("more than {MAX_KEYS} keys"));
                break;
            }
            match public_key(&path) {
                Ok(key) => found.keys.push((key_id(&key), key)),
                Err(why) => found.ignored.push(format!(
                    "{}: {why}",
                    shown(path.file_name().unwrap_or_default().as_encoded_bytes(), 64)
                )),
            }
        }
        if found.keys.is_empty() && found.ignored.is_empty() {
            return Err(KeyError::NoneTrusted(dir.to_owned()));
        }
        Ok(found)
    }

    /// A set of one key: what a signer believes of himself.
    pub fn only(key: VerifyingKey) -> Self {
        TrustedKeys { keys: vec![(key_id(&key), key)], ignored: Vec::new() }
    }

    /// Adds a key.
    pub fn add(&mut self, key: VerifyingKey) {
        self.keys.push((key_id(&key), key));
    }

    /// The key with this short name.
    pub fn get(&self, id: &str) -> Option<&VerifyingKey> {
        self.keys.iter().find(|(known, _)| known == id).map(|(_, key)| key)
    }
}

fn public_key(path: &Path) -> Result<VerifyingKey, String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| format!("cannot be opened ({e})"))?;
    let stat = fstat(&file).map_err(|e| e.desc().to_owned())?;
    if cyberos_proto::beneath::kind(&stat) != nix::sys::stat::SFlag::S_IFREG {
        return Err("is no regular file".to_owned());
    }
    if !ours(&stat) {
        return Err("can be written by others".to_owned());
    }
    let bytes = beneath::read_open(file, MAX_KEY_FILE).map_err(|e| e.desc().to_owned())?;
    let key = std::str::from_utf8(&bytes).ok().and_then(|text| VerifyingKey::from_public_key_pem(text).ok());
    match key {
        Some(key) if !key.is_weak() => Ok(key),
        _ => Err("holds no Ed25519 public key in PEM form".to_owned()),
    }
}

/// Whether only root and this process's own user can change the thing.
fn ours(stat: &nix::sys::stat::FileStat) -> bool {
    beneath::permissions(stat) & 0o022 == 0 && (stat.st_uid == 0 || stat.st_uid == geteuid().as_raw())
}

fn plain(name: &str) -> Result<(), KeyError> {
    let good = !name.is_empty()
        && name.len() <= 64
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if good { Ok(()) } else { Err(KeyError::Name(name.to_owned())) }
}

/// Makes `dir` with `mode`; its parents too, as 0755.
fn make_dir(dir: &Path, mode: u32) -> Result<(), KeyError> {
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(|e| io_error(parent, "making", e))?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(io_error(dir, "making", e)),
    }
}

/// Writes a file that must not exist; a half-written one is taken away again.
fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), KeyError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(|e| io_error(path, "creating", e))?;
    let written = nix::sys::stat::fchmod(&file, nix::sys::stat::Mode::from_bits_truncate(mode))
        .map_err(io::Error::from)
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all());
    written.map_err(|e| {
        // Nothing more can be done about a file that cannot even be removed; the first error is the one to tell.
        let _ = fs::remove_file(path);
        io_error(path, "writing", e)
    })
}

fn malformed(path: &Path, what: &'static str) -> KeyError {
    KeyError::Malformed { path: path.to_owned(), what }
}

fn io_error(path: &Path, doing: &'static str, error: io::Error) -> KeyError {
    KeyError::Io { path: path.to_owned(), doing, error }
}
