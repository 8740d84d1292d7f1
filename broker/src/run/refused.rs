//! Why an entry point cannot be executed, and what a refusal of the helper means to whoever wanted the run: the cause in
//! words, and the exit status of `[2.1]`.

use crate::exit::{Exit, OperatorError};
use crate::helper::HelperError;
use crate::sandbox::SandboxError;
use crate::seal::Sealed;
use crate::skill::Skill;
use cyberos_proto::message::Refusal;
use nix::errno::Errno;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

/// Looks at the entry point, for what can be told before anything is made.
pub(super) fn entry_point(skill: &Skill, sealed: &Sealed) -> Result<(), OperatorError> {
    let path = &skill.extensions.entrypoint;
    let Some(file) = sealed.open(path) else {
        return Err(OperatorError::new(
            Exit::NOT_FOUND,
            format!(
                "{}/{path}: there is no such regular file in the skill (x-entrypoint, default main)",
                skill.id
            ),
        ));
    };
    let mode = file.metadata().map(|m| m.permissions().mode()).unwrap_or(0);
    if mode & 0o111 == 0 {
        return Err(OperatorError::new(
            Exit::NOT_EXECUTABLE,
            format!("{}/{path} is not executable: chmod +x it and certify again", skill.id),
        ));
    }
    Ok(())
}

/// What it means to whoever wanted the run that its sandbox was not prepared.
pub(super) fn not_prepared(error: &SandboxError, skill: &Skill, sealed: &Sealed) -> OperatorError {
    match error {
        SandboxError::Helper(error) => refused(error, skill, sealed),
        SandboxError::Lacks(_) => OperatorError::new(
            Exit::REFUSED,
            format!(
                "{}: its sandbox is not as the configuration requires (sandbox.require): {error}; `cyberos \
                 doctor` says why this machine does not give it",
                skill.id
            ),
        ),
    }
}

/// What a refusal of the helper means to whoever wanted the run.
pub(super) fn refused(error: &HelperError, skill: &Skill, sealed: &Sealed) -> OperatorError {
    let HelperError::Refused(refusal) = error else {
        return OperatorError::new(Exit::REFUSED, error.to_string());
    };
    let entry = format!("{}/{}", skill.id, skill.extensions.entrypoint);
    let Refusal::Exec { errno } = refusal else {
        return OperatorError::new(Exit::REFUSED, format!("{}: {refusal}", skill.id));
    };
    let interpreter = interpreter(sealed, &skill.extensions.entrypoint);
    match (Errno::from_raw(*errno), interpreter) {
        (Errno::ENOENT, Some(Interpreter::Script(path))) => OperatorError::new(
            Exit::NOT_FOUND,
            format!("{entry}: its interpreter {path} does not exist in the sandbox (first line of the file)"),
        ),
        (Errno::ENOENT, Some(Interpreter::Loader)) => OperatorError::new(
            Exit::NOT_FOUND,
            format!("{entry}: the program loader that it asks for does not exist in the sandbox"),
        ),
        (Errno::EACCES, Some(Interpreter::Script(path))) => OperatorError::new(
            Exit::NOT_EXECUTABLE,
            format!("{entry}: its interpreter {path} is not executable"),
        ),
        (Errno::ENOEXEC, None) => OperatorError::new(
            Exit::NOT_EXECUTABLE,
            format!(
                "{entry} is neither a program of this machine nor a script: begin a script with a line like \
                 #!/usr/bin/python3"
            ),
        ),
        (Errno::ENOEXEC, Some(_)) => OperatorError::new(
            Exit::NOT_EXECUTABLE,
            format!("{entry} is a program for another kind of machine"),
        ),
        (errno, _) => {
            OperatorError::new(Exit::NOT_EXECUTABLE, format!("{entry} cannot be executed: {}", errno.desc()))
        }
    }
}

enum Interpreter {
    /// A script's, as its first line names it.
    Script(String),
    /// A binary's.
    Loader,
}

fn interpreter(sealed: &Sealed, entry: &str) -> Option<Interpreter> {
    let mut head = [0u8; 256];
    let mut file = sealed.open(entry)?;
    let n = file.read(&mut head).ok()?;
    let head = &head[..n];
    if head.starts_with(b"\x7fELF") {
        return Some(Interpreter::Loader);
    }
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    // A carriage return is part of the name to the kernel, and the usual reason why it is not found.
    let name = String::from_utf8_lossy(line.trim_ascii_start().split(|b| matches!(b, b' ' | b'\t')).next()?)
        .into_owned();
    Some(Interpreter::Script(name.escape_default().to_string()))
}
