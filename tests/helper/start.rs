//! The helper starts only as it should, on a ceiling that only root can have written.

use crate::support::helper::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the helper with `socket` (if any) as descriptor 3 to its end, and answers what it said.
fn run(env: &str, socket: bool, ceiling: &Path) -> Output {
    let third = if socket { "0" } else { "-" };
    ended(ceiling, &format!("exec 3<&{third} </dev/null; {env} exec \"$0\" --ceiling \"$1\";"))
}

#[test]
fn cases_151_158_a_start_without_its_socket_is_refused_in_clear_words() {
    let nowhere = Path::new("/nowhere");
    for (env, socket, words) in [
        ("", true, "not started by socket activation"),
        ("LISTEN_FDS=1 LISTEN_PID=1", true, "not started by socket activation"),
        ("LISTEN_FDS=0 LISTEN_PID=$$", true, "expected one listening socket"),
        ("LISTEN_FDS=2 LISTEN_PID=$$", true, "expected one listening socket"),
        ("LISTEN_FDS=x LISTEN_PID=$$", true, "expected one listening socket"),
        ("LISTEN_FDS=1 LISTEN_PID=$$", false, "descriptor 3"),
    ] {
        let out = run(env, socket, nowhere);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains(words) && said.lines().count() == 1, "{env}: {said}");
        assert_eq!(out.status.code(), Some(1));
    }
}

#[test]
fn a_ceiling_that_is_not_roots_alone_or_not_right_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ceiling");
    let d = dir.path().display();
    let long = "#".repeat(5000);
    for (text, words) in [
        ("colour blue", "line 1: unknown key colour"),
        ("broker_uid 7\n# x\nbroker_uid 8", "line 3: broker_uid is given twice"),
        ("broker_uid", "line 1: "),
        ("broker_uid 0", "cannot be a peer"),
        ("broker_uid 1900000001", "cannot be a peer"),
        ("broker_uid 9\nskillfs_uid 9", "must differ"),
        ("uid_range 1-2", "uid_range must lie above"),
        ("uid_range 1900000000-1900000100", "multiple of 256"),
        ("uid_range 5", "line 1: expected uid_range"),
        ("root sealed relative", "line 1: expected an absolute path"),
        ("root sealed /nowhere/at/all", "/nowhere/at/all: ENOENT"),
        ("root other /tmp", "line 1: expected root sealed|grant|backing"),
        ("mount 16 ro /tmp", "line 1: 16: no such mount"),
        ("mount 0 maybe /tmp", "line 1: expected mount"),
        ("mount 0 ro /nowhere/at/all", "/nowhere/at/all"),
        ("max_sandboxes 0", "max_sandboxes"),
        ("max_cpu_s -1", "line 1: -1"),
        (&long, "longer than 4096"),
    ] {
        fs::write(&file, format!("{text}\nlock_dir {d}/locks\n")).unwrap();
        let out = run("LISTEN_FDS=1 LISTEN_PID=$$", true, &file);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains(words) && said.contains("ceiling"), "{text}: {said}");
        assert_eq!(out.status.code(), Some(1));
    }
    fs::write(&file, "").unwrap();
    let refused = |path: &Path| {
        let out = run("LISTEN_FDS=1 LISTEN_PID=$$", true, path);
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(refused(&file).contains("nobody else can write"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&file, Some(1), None).unwrap();
    assert!(refused(&file).contains("nobody else can write"));
    chown(&file, Some(0), None).unwrap();
    symlink(&file, dir.path().join("link")).unwrap();
    assert!(refused(&dir.path().join("link")).contains("ceiling"));
    assert!(refused(dir.path()).contains("regular file"));
    assert!(refused(Path::new("/dev/zero")).contains("regular file"));
}

#[test]
fn a_ceiling_is_judged_and_told_without_a_start_or_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ceiling");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let out = Command::new(binary()).arg("--check").arg(&file).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let (status, allowed, faults) = check("# mine\nbroker_uid 7\nroot grant /srv\nmax_processes 9\n");
    assert_eq!((status, faults.as_str()), (Some(0), ""));
    for line in ["uid_range 1900000000-1900065535", "broker_uid 7", "root grant /srv", "max_processes 9"] {
        assert!(allowed.lines().any(|l| l == line), "{line} in {allowed}");
    }
    // What it tells is a ceiling that allows the same.
    assert_eq!(check(&allowed).1, allowed);
    let (status, allowed, faults) = check("broker_uid 7\ncolour blue\nbin relative\n");
    assert_eq!((status, allowed.as_str(), faults.lines().count()), (Some(1), "", 2), "{faults}");
    assert!(faults.contains("line 3: expected an absolute path"), "{faults}");
    assert!(
        faults.contains(file.to_str().unwrap()) && faults.contains("line 2: unknown key colour"),
        "{faults}"
    );
    let absent = Command::new(binary()).args(["--check", "/nowhere"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(1));
    assert!(!dir.path().join("locks").exists());
}

#[test]
fn case_150_a_hostile_environment_changes_nothing() {
    let helper = Helper::start("");
    // With its standard streams closed, signals ignored, and an environment full of what libraries listen to.
    let other = helper.twin_with(
        "trap '' CHLD PIPE TERM HUP; exec 3<&0 0<&- 1>&-; export LD_PRELOAD= GCONV_PATH=/tmp MALLOC_CHECK_=3 \
         RUST_BACKTRACE=full TMPDIR=/evil LD_LIBRARY_PATH=/tmp; umask 0; ulimit -c unlimited; cd /; exec 7</etc/passwd 8</;",
    );
    let broker = other.broker();
    let out = broker.sh("env | wc -l; ls /proc/self/fd | wc -l; umask; sleep 0 & wait; yes | head -1");
    assert_eq!(out.stdout, "3\n4\n0022\ny\n", "{}", out.stderr);
    let pid = other.pid();
    let environ = fs::read(format!("/proc/{pid}/fd/0"));
    assert!(environ.is_ok(), "0 is open");
    for fd in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let to = fs::read_link(fd.path()).unwrap_or_default();
        assert!(!to.ends_with("passwd"), "inherited descriptors are closed");
    }
}

#[test]
fn the_helper_keeps_few_capabilities_and_runs_under_a_filter() {
    let helper = Helper::start("");
    let status = fs::read_to_string(format!("/proc/{}/status", helper.pid())).unwrap();
    let field = |k: &str| status.lines().find_map(|l| l.strip_prefix(k)).unwrap().trim().to_owned();
    // What the parent keeps besides, for its own end, no link has.
    assert_eq!((field("CapEff:"), field("CapPrm:")), ("00000000002400ec".into(), "00000000002400ee".into()));
    for none in ["CapBnd:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(none), "0".repeat(16), "{none}");
    }
    let broker = helper.broker();
    broker.sh(":");
    let link = fs::read_to_string(format!("/proc/{}/status", helper.children()[0])).unwrap();
    for set in ["CapEff:", "CapPrm:"] {
        assert!(link.contains(&format!("{set}\t00000000002400ec")), "{link}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    // Nobody but root can look into it.
    let tried = Command::new("setpriv")
        .args([format!("--reuid={BROKER}"), format!("--regid={BROKER}"), "--clear-groups".into()])
        .args(["cat", &format!("/proc/{}/environ", helper.pid())])
        .output()
        .unwrap();
    assert!(!tried.status.success());
}
