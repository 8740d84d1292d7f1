//! How the helper is started: what its environment and arguments must say.

use crate::policy::outcome::must;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Whether the process `pid` was started with exactly one listening socket; `variable` is what its environment says.
pub(crate) fn activated(pid: u32, variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let number = |key| variable(key).and_then(|value| value.parse::<u32>().ok());
    let why = "not started by socket activation (LISTEN_PID is not this process): start it with systemd, or with \
        systemd-socket-activate --seqpacket -l SOCKET";
    must(number("LISTEN_PID") == Some(pid), why)?;
    let count = number("LISTEN_FDS");
    must(count == Some(1), format!("expected one listening socket, got LISTEN_FDS={count:?}"))
}

/// What the helper is started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve, within the ceiling in that file.
    Serve(PathBuf),
    /// To say whether that file is a ceiling, and what it allows.
    Check(PathBuf),
}

/// What it is started for, by the arguments without the program's name.
pub(crate) fn purpose(arguments: impl Iterator<Item = OsString>) -> Result<Purpose, String> {
    let arguments: Vec<_> = arguments.collect();
    match arguments.iter().map(OsString::as_os_str).collect::<Vec<&OsStr>>().as_slice() {
        [] => Ok(Purpose::Serve("/etc/cyberos/ceiling".into())),
        [flag, file] if *flag == "--ceiling" => Ok(Purpose::Serve(file.into())),
        [flag, file] if *flag == "--check" => Ok(Purpose::Check(file.into())),
        _ => Err("usage: cyberos-priv-helper [--ceiling FILE | --check FILE]".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_for_this_very_process_is_a_start() {
        for (pid, fds, words) in [
            (Some("7"), Some("1"), ""),
            (Some("8"), Some("1"), "not started by socket activation"),
            (None, Some("1"), "not started by socket activation"),
            (Some("x"), Some("1"), "not started by socket activation"),
            (Some("7"), Some("2"), "expected one listening socket, got LISTEN_FDS=Some(2)"),
            (Some("7"), None, "expected one listening socket, got LISTEN_FDS=None"),
        ] {
            let said = activated(7, |key| if key == "LISTEN_PID" { pid } else { fds }.map(str::to_owned));
            assert!(said.clone().err().unwrap_or_default().starts_with(words), "{pid:?} {fds:?}: {said:?}");
            assert_eq!(said.is_ok(), words.is_empty());
        }
    }

    #[test]
    fn the_ceiling_is_where_it_is_said_or_where_packages_put_it() {
        let said = |arguments: &[&str]| purpose(arguments.iter().map(OsString::from));
        assert_eq!(said(&[]), Ok(Purpose::Serve("/etc/cyberos/ceiling".into())));
        assert_eq!(said(&["--ceiling", "x"]), Ok(Purpose::Serve("x".into())));
        assert_eq!(said(&["--check", "x"]), Ok(Purpose::Check("x".into())));
        for wrong in [&["--ceiling"][..], &["--check"], &["x"], &["--ceiling", "x", "y"], &["-c", "x"]] {
            assert!(said(wrong).unwrap_err().starts_with("usage: "), "{wrong:?}");
        }
    }
}
