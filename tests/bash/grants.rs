//! What Bash sees of the host: the granted directories, as its own, and nothing else.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_granted_repository_can_be_read_and_written_only_with_write() {
    let bash = Bash::new();
    let dir = bash.dir.display();
    let repo = bash.directory("repo");
    let commit =
        "git init -q . && echo one > a && git add a && git -c user.name=n -c user.email=e@x commit -qm first";
    bash.prints(
        "writer",
        &format!("cd {} && {commit} && mkdir sub && echo two > sub/b && chmod 640 sub/b", repo.display()),
    );
    // On the host all of it is the broker's.
    for (path, meta) in below(&repo) {
        assert_eq!((meta.uid(), meta.gid()), bash.broker(), "{}", path.display());
    }
    assert_eq!(std::fs::read_to_string(repo.join("sub/b")).unwrap(), "two\n");
    // In the sandbox it is the sandbox's own.
    let seen =
        bash.prints("reader", &format!("cd {dir}/repo && stat -c %u:%g a sub/b . | sort -u; id -u; id -g"));
    let lines: Vec<_> = seen.lines().collect();
    assert_eq!(lines[0], format!("{}:{}", lines[1], lines[2]));
    assert_eq!(
        bash.prints(
            "reader",
            &format!("git -C {dir}/repo status --porcelain; git -C {dir}/repo log --format=%s")
        ),
        "?? sub/\nfirst"
    );
    assert_eq!(bash.prints("reader", &format!("ls {dir}/repo")), "a\nsub");
    let refused =
        bash.run("reader", &format!("echo x > {dir}/repo/c; mount -o remount,rw {dir}; touch {dir}/c"));
    assert_ne!(refused["exit_code"], 0);
    assert!(refused["stderr"].as_str().unwrap().contains("Read-only file system"), "{refused}");
    assert!(!repo.join("c").exists() && !bash.dir.join("c").exists());
}

#[test]
fn what_belongs_to_root_can_be_copied_into_a_granted_directory_with_its_modes() {
    let bash = Bash::new();
    let dir = bash.directory("copies");
    let said = bash.run(
        "writer",
        &format!("cd {} && cp -p /etc/passwd . && cp -a /usr/bin/env . && chown 0:0 passwd", dir.display()),
    );
    let stderr = said["stderr"].as_str().unwrap();
    assert!(
        stderr.lines().count() == 1 && stderr.contains("Operation not permitted"),
        "chown alone fails: {said}"
    );
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    for (name, of) in [("passwd", "/etc/passwd"), ("env", "/usr/bin/env")] {
        let copied = std::fs::metadata(dir.join(name)).unwrap();
        assert_eq!((copied.uid(), copied.gid()), bash.broker(), "{name}");
        // The sandbox's passwd is its own; a mode of 700 is what an interrupted copy leaves.
        assert_eq!(mode(&dir.join(name)), if name == "env" { mode(Path::new(of)) } else { 0o444 }, "{name}");
    }
}

/// Whichever git it is: one in /usr/local would read no /etc/gitconfig of itself.
#[test]
fn a_granted_repository_of_another_user_can_be_read_by_every_git() {
    let bash = Bash::new();
    let repo = bash.dir.join("theirs");
    let commit = "git init -q \"$0\" && cd \"$0\" && echo one > a && git add a && \
                  git -c user.name=n -c user.email=e@x commit -qm first && chown -R 1000:1000 . && chmod -R go+rX .";
    let made = std::process::Command::new("sh").args(["-ec", commit]).arg(&repo).status().unwrap();
    assert!(made.success());
    for git in ["git", "/usr/bin/git"] {
        let there = format!("{git} -C {}", repo.display());
        let seen = bash.run("reader", &format!("{there} status --porcelain && {there} log --format=%s"));
        assert_eq!((&seen["exit_code"], &seen["stdout"]), (&json!(0), &json!("first\n")), "{git}: {seen}");
        assert_eq!(seen["stderr"], "", "{git}: {seen}");
    }
}

/// Case 58: seen from outside, only the granted directory changes, whatever the command writes to.
#[test]
fn case_058_only_what_is_granted_changes_on_the_host() {
    let bash = Bash::new();
    let mark = format!("cyberos-mark-{}", std::process::id());
    let places = [
        "/tmp",
        "/var/tmp",
        "/opt",
        "/usr/local",
        "/home",
        "/srv",
        "/root",
        "/dev/shm",
        "/etc",
        "/run",
        "/mnt",
        "/",
    ];
    let writes: String = places.iter().map(|p| format!("mkdir -p {p}; echo x > {p}/{mark}; ")).collect();
    bash.run("writer", &format!("{writes} echo x > {}/{mark}", bash.dir.display()));
    for place in places {
        assert!(!Path::new(place).join(&mark).exists(), "{place}");
    }
    assert!(bash.dir.join(&mark).exists());
    let host =
        bash.run("reader", "ls /home /root /srv /var /mnt 2>&1; cat /etc/shadow; ls /etc | tr '\\n' ' '");
    let listing = host["stdout"].as_str().unwrap();
    assert!(
        !listing.contains("shadow") && !listing.contains("crontab") && !listing.contains("root:"),
        "{listing}"
    );
}

#[test]
fn what_is_not_the_brokers_is_nobodys_and_cannot_be_written() {
    let bash = Bash::new();
    for (name, mode) in [("open", 0o644), ("shut", 0o600)] {
        std::fs::write(bash.dir.join(name), name).unwrap();
        std::fs::set_permissions(bash.dir.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let dir = bash.dir.display();
    let seen = bash.run("writer", &format!("cd {dir}; stat -c %u open; cat open; cat shut; echo x >> open; chmod 666 open; chown $(id -u) open"));
    assert!(seen["stdout"].as_str().unwrap().starts_with("65534\nopen"), "{seen}");
    assert_eq!(std::fs::read_to_string(bash.dir.join("open")).unwrap(), "open");
    let meta = std::fs::metadata(bash.dir.join("open")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o644));
}

#[test]
fn nested_grants_are_merged_and_siblings_are_not_seen() {
    let bash = Bash::with("", &["DIR/a/b/**", "DIR/a/**", "DIR/c"]);
    for below in ["a", "a/b", "c", "d"] {
        bash.directory(below);
    }
    let dir = bash.dir.display();
    assert_eq!(bash.prints("writer", &format!("touch {dir}/a/x {dir}/a/b/y {dir}/c/z; ls {dir}")), "a\nc");
    for made in ["a/x", "a/b/y", "c/z"] {
        assert!(bash.dir.join(made).exists(), "{made}");
    }
}

/// Case 81 and threat A7: a rule applies to the real name; a link in a granted tree leads to nothing that is not granted.
#[test]
fn threat_a7_links_lead_nowhere_and_symlinked_roots_are_named() {
    let bash = Bash::with("", &["DIR/link/**", "DIR/real/**", "DIR/*.md", "DIR/file", "/tmp/**", "/**"]);
    let real = bash.directory("real");
    symlink("real", bash.dir.join("link")).unwrap();
    symlink("/etc/shadow", real.join("out")).unwrap();
    symlink("../other", real.join("up")).unwrap();
    std::fs::write(bash.directory("other").join("secret"), "SECRET").unwrap();
    std::fs::write(bash.dir.join("file"), "").unwrap();
    let dir = bash.dir.display();
    let seen =
        bash.run("writer", &format!("ls {dir}; cat {dir}/real/out {dir}/real/up/secret; ls {dir}/link"));
    assert!(seen["stdout"].as_str().unwrap() == "real\n", "{seen}");
    let (_, answer) = bash.up.run_json("reader", &["[]"]);
    let named: Vec<_> =
        answer["started"]["not_granted"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    for (wish, why) in [
        (format!("{dir}/link/**"), "rules apply to the real name"),
        (format!("{dir}/*.md"), "whole directories only"),
        (format!("{dir}/file"), "not a directory"),
        ("/tmp/**".into(), "never given all of /tmp"),
        ("/**".into(), "never given all of"),
    ] {
        let line =
            named.iter().find(|l| l.contains(&format!(": {wish} ")) && l.contains("gives Bash nothing"));
        assert!(line.is_some_and(|l| l.contains(why)), "{wish}: {named:#?}");
    }
}

#[test]
fn a_directory_that_was_replaced_during_the_run_is_not_given() {
    let bash = Bash::with("", &["DIR/here/**"]);
    bash.directory("here");
    let wait = python(
        "call('Bash', cmd='true')\nprint('ready', flush=True)\nsys.stdin.readline()\nprint(json.dumps(call('Bash', cmd='true')))",
    );
    let files = format!("x-allowed-files: [\"{}/here/**\"]\n", bash.dir.display());
    Skill { id: "waiter", tools: &["Bash"], main: &wait, more: &files, ..Skill::default() }
        .write(&bash.up.skills);
    bash.up.shown("waiter", "current");
    let mut command = bash.up.command(&["skill", "run", "waiter", "--stdin"]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    std::fs::rename(bash.dir.join("here"), bash.dir.join("gone")).unwrap();
    bash.directory("here");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(answer[1]["reason"], "grant_gone", "{answer}");
    child.wait().unwrap();
}

/// A mount that is taken off when the test ends.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn overlay(bash: &Bash, at: &str) -> Mount {
    let (lower, upper, work) = (bash.directory("lower"), bash.directory("upper"), bash.directory("work"));
    let target = bash.directory(at);
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let none = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("overlay"), &target, Some("overlay"), none, Some(options.as_str())).unwrap();
    bash.give(&target);
    Mount(target)
}

#[test]
fn a_grant_on_an_overlay_is_unsupported_and_never_attached_plain() {
    let bash = Bash::with("", &["DIR/over/**"]);
    let mount = overlay(&bash, "over");
    for skill in ["reader", "writer"] {
        let answer = bash.call(skill, json!({"cmd": format!("touch {}/x", mount.0.display())}));
        assert_eq!(
            (&answer[0], &answer[1]["reason"]),
            (&json!("tool_error"), &json!("grant_unsupported")),
            "{answer}"
        );
        let message = answer[1]["message"].as_str().unwrap();
        assert!(message.contains(mount.0.to_str().unwrap()) && message.contains("overlay"), "{message}");
    }
    assert!(!mount.0.join("x").exists());
    let row = bash.up.rows("skill.tool_call_completed");
    assert_eq!(row[0]["extra"]["outcome"], "error", "{row:?}");
}

#[test]
fn threat_a7_an_overlay_that_is_mounted_inside_a_grant_is_not_shown_nor_what_is_under_it() {
    let bash = Bash::with("", &["DIR/**"]);
    bash.directory("over");
    std::fs::write(bash.dir.join("over/under"), "UNDER").unwrap();
    std::fs::remove_file(bash.dir.join("over/under")).unwrap();
    std::fs::remove_dir(bash.dir.join("over")).unwrap();
    let _mount = overlay(&bash, "over");
    let answer = bash.call("reader", json!({"cmd": "true"}));
    assert_eq!(answer[1]["reason"], "grant_unsupported", "{answer}");
    assert!(answer[1]["message"].as_str().unwrap().contains("overlay"), "{answer}");
}

#[test]
fn a_grant_on_fuse_is_unsupported() {
    let other = Up::new(|source| {
        Skill::default().write(source);
    });
    let view = other.mount();
    let bash = Bash::with("", &[&format!("{}/**", view.display())]);
    let answer = bash.call("reader", json!({"cmd": "true"}));
    assert_eq!(
        (&answer[0], &answer[1]["reason"]),
        (&json!("tool_error"), &json!("grant_unsupported")),
        "{answer}"
    );
    let message = answer[1]["message"].as_str().unwrap();
    assert!(message.contains(view.to_str().unwrap()) && message.contains("fuse"), "{message}");
}

#[test]
fn threat_a2_an_entry_that_is_mounted_a_second_time_inside_a_grant_gives_nothing() {
    let bash = Bash::with("", &["DIR/**"]);
    let target = bash.directory("again");
    let none: Option<&str> = None;
    let state = bash.up.state.join("broker/tenants");
    nix::mount::mount(Some(&state), &target, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
    let _mount = Mount(target.clone());
    let dir = bash.dir.display();
    let seen = bash.run("writer", &format!("ls {dir}"));
    assert_ne!(seen["exit_code"], 0, "{seen}");
    let (_, answer) = bash.up.run_json("reader", &["[]"]);
    assert!(answer["started"]["not_granted"].to_string().contains("under another name"), "{answer}");
}
