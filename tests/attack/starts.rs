//! Strange starts of the helper: whatever execve and a parent's leftovers allow, and copies of it elsewhere.

use crate::support::helper::{Asks, HAND_OVER, Helper, STRANGER, binary, ended, plan};
use cyberos_proto::message::{Exit, Refusal};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Started in every strange way that execve and a parent's leftovers allow, it serves or says why not, and holds its tongue.
#[test]
fn case_150_strange_starts_are_served_or_refused_and_never_confused() {
    let helper = Helper::start("");
    for (what, script) in [
        (
            "no PATH and a large environment",
            "exec 3<&0 </dev/null; export BIG=$(printf %100000d 1); PATH=/evil;",
        ),
        ("a working directory that is gone", "exec 3<&0 </dev/null; d=$(mktemp -d); cd $d; rmdir $d;"),
        ("ignored signals", "trap '' INT QUIT HUP PIPE CHLD USR1 USR2 ALRM; exec 3<&0 </dev/null;"),
        ("no standard streams but the log", "exec 3<&0 0<&- 1>&-;"),
        ("an umask of nothing", "umask 0; exec 3<&0 </dev/null;"),
        (
            "libc's and Rust's own variables",
            "exec 3<&0 </dev/null; export RUST_LOG=trace RUST_BACKTRACE=full RUST_MIN_STACK=1 \
            GCONV_PATH=/tmp LOCPATH=/tmp TMPDIR=/evil MALLOC_PERTURB_=7 LD_BIND_NOW=1 GLIBC_TUNABLES=x=y NOTIFY_SOCKET=/evil;",
        ),
    ] {
        let other = helper.twin_with(script);
        let broker = other.broker();
        let out = broker.sh("env | wc -l; umask; ls /proc/self/fd | wc -l; kill -TERM $$; echo ignored");
        assert_eq!((&*out.stdout, out.exit), ("3\n0022\n4\n", Exit::Signal(15)), "{what}: {}", out.stderr);
    }
    // Where no file may grow, its log goes to a pipe, and it cannot raise the limit for a sandbox: refused, and it lives.
    let other = helper.twin_with(
        "exec 3<&0 </dev/null; mkfifo $1.pipe; cat <$1.pipe >&2 & exec 2>$1.pipe; rm $1.pipe; ulimit -f 0;",
    );
    let broker = other.broker();
    for _ in 0..2 {
        let (invocation, ..) = broker.invocation();
        match broker.refusal(&invocation.prepare(plan(&["/bin/true"])), &[]) {
            Refusal::System { .. } => {}
            refusal => panic!("{refusal:?}"),
        }
    }
    // What cannot be served: too few descriptors. It ends, in words, and not by a signal.
    let out = ended(&helper.dir.path().join("ceiling"), &format!("{HAND_OVER} ulimit -n 5;"));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && !said.contains("panicked"), "{out:?}");
    // No argv at all, and an argv[0] that is an option.
    let execve = "import ctypes,sys,os
l=ctypes.CDLL(None); p=sys.argv[1].encode()
a=(ctypes.c_char_p*2)(*([sys.argv[2].encode()] if len(sys.argv)>2 else []))
l.execve(p,a,(ctypes.c_char_p*1)())";
    for name in [None, Some(""), Some("--ceiling")] {
        let out = Command::new("/usr/bin/python3")
            .args(["-I", "-c", execve])
            .arg(binary())
            .args(name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("not started by socket activation"), "{name:?}: {said}");
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{name:?}");
    }
}

/// It has no companions to find and no set-id bit, so where a copy or link of it lies means nothing.
#[test]
fn case_151_a_copy_or_link_elsewhere_gains_nothing() {
    let meta = fs::metadata(binary()).unwrap();
    assert_eq!(meta.permissions().mode() & 0o6000, 0, "not set-id");
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let (copy, link) = (dir.path().join("copy"), dir.path().join("link"));
    fs::copy(binary(), &copy).unwrap();
    symlink(binary(), &link).unwrap();
    // A stranger may not even get as far as the program behind the link: if the way there is closed to others.
    let open = |dir: &Path| fs::metadata(dir).unwrap().permissions().mode() & 0o001 != 0;
    let reachable = binary().ancestors().skip(1).all(open);
    for (path, uid, runs) in
        [(&copy, STRANGER, true), (&copy, 0, true), (&link, STRANGER, reachable), (&link, 0, true)]
    {
        match Command::new(path).uid(uid).gid(uid).stdin(Stdio::null()).output() {
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                assert!(
                    runs && said.contains("not started by socket activation"),
                    "{path:?} as {uid}: {said}"
                );
                assert_eq!(out.status.code(), Some(1), "{path:?} as {uid}");
            }
            Err(e) => {
                assert!(!runs && e.kind() == ErrorKind::PermissionDenied, "{path:?} as {uid}: {e}");
            }
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing was made beside it");
}
