//! The installation or the running `up`: users, who may write what (`[0.3]`, `[0.5]`), sources that others can write
//! (`[9.3]`), and directories in which user cyberos can write nothing (`[4.6]`).

use super::super::up::{helper_program, place::Users};
use super::{Finding, Subject};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Gid, Group, Uid, User};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Entries of a tree that are looked at.
const MOST: usize = 20_000;
/// The packaged state; elsewhere it is an `up`'s.
const PACKAGED_STATE: &str = "/var/lib/cyberos";
/// What the packaged helper may do at most; an `up` writes one of its own, with the default uids.
const PACKAGED_CEILING: &str = "/etc/cyberos/ceiling";
const UNIT_DIRECTORIES: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const UNITS: [&str; 4] = [
    "cyberos-priv-helper.socket",
    "cyberos-priv-helper.service",
    "cyberos-skillfs.service",
    "cyberos-broker.service",
];
pub(super) fn look(subject: &Subject, findings: &mut Vec<Finding>) {
    let Ok(users) = Users::find() else {
        findings.push(Finding::missing(
            "users",
            "cannot be looked up",
            "no daemon starts",
            "mend /etc/nsswitch.conf",
        ));
        return;
    };
    findings.push(package_users());
    ceiling(findings);
    findings.push(units());
    permissions(subject, &users, findings);
    findings.push(executable_state(&subject.state));
    for source in &subject.sources {
        findings.push(shared_source(source, &users));
    }
    findings.push(work(&subject.work, &users));
}

fn package_users() -> Finding {
    const CHECK: &str = "users";
    let user = |name| User::from_name(name).ok().flatten();
    let group = |name| Group::from_name(name).ok().flatten();
    let (broker, skillfs) = (user("cyberos"), user("cyberos-skillfs"));
    let (Some(broker), Some(skillfs)) = (&broker, &skillfs) else {
        let which = if broker.is_none() { "cyberos" } else { "cyberos-skillfs" };
        return match (&broker, &skillfs) {
            (None, None) => {
                Finding::ok(CHECK, "none of the package's; 'cyberos up' takes numbers of its own")
            }
            _ => Finding::missing(
                CHECK,
                format!("no user {which}"),
                "its daemon cannot start",
                "systemd-sysusers",
            ),
        };
    };
    let (Some(link), Some(operators)) = (group("cyberos-link"), group("cyberos")) else {
        let remedy = "systemd-sysusers";
        return Finding::missing(
            CHECK,
            "no group cyberos-link or cyberos",
            "the daemons cannot reach each other",
            remedy,
        );
    };
    let outsiders: Vec<_> =
        link.mem.iter().filter(|m| **m != broker.name && **m != skillfs.name).cloned().collect();
    if !outsiders.is_empty() {
        return Finding::weak(
            CHECK,
            format!("in group cyberos-link: {}", outsiders.join(", ")),
            "they can connect to the helper's socket, and only the check of their uid keeps them out",
            "remove them from the group: it is for the two daemons",
        );
    }
    let in_group = |user: &User, group: &Group| user.gid == group.gid || group.mem.contains(&user.name);
    let lacking =
        [(broker, &link), (broker, &operators), (skillfs, &link)].into_iter().find(|(u, g)| !in_group(u, g));
    match lacking {
        Some((user, group)) => Finding::missing(
            CHECK,
            format!("{} is not in group {}", user.name, group.name),
            "the daemons cannot reach each other",
            format!("usermod -a -G {} {}", group.name, user.name),
        ),
        None => {
            Finding::ok(CHECK, "cyberos and cyberos-skillfs, in the groups that they need and nobody else")
        }
    }
}

/// What the helper says of its ceiling: whether it is well formed, and that no account has a uid of a sandbox's. Where
/// there is none, of what it allows by itself, as an `up`'s does.
fn ceiling(findings: &mut Vec<Finding>) {
    const CEILING: &str = "ceiling";
    const UIDS: &str = "uid_range";
    const IN_USE: &str = " is in use: ";
    let no_start = "the helper does not start";
    let (file, what) = match Path::new(PACKAGED_CEILING).exists() {
        true => (PACKAGED_CEILING, "well formed"),
        false => ("/dev/null", "none of the package's; an 'up' writes its own"),
    };
    let asked =
        helper_program().and_then(|program| Ok(Command::new(program).args(["--check", file]).output()?));
    let asked = match asked {
        Ok(asked) => asked,
        Err(e) => {
            let weakens = "it is not known what the helper may do here";
            findings.push(Finding::skipped(CEILING, format!("{e:#}"), weakens, "install again"));
            return;
        }
    };
    let allowed = String::from_utf8_lossy(&asked.stdout);
    let range = allowed.lines().find_map(|line| line.strip_prefix("uid_range "));
    let faults = String::from_utf8_lossy(&asked.stderr);
    let (used, faults): (Vec<_>, Vec<_>) = faults.lines().partition(|line| line.contains(IN_USE));
    findings.push(match faults.as_slice() {
        [] => Finding::ok(CEILING, what),
        faults => Finding::missing(CEILING, faults.join("; "), no_start, "mend the lines that are named"),
    });
    findings.extend(match (range, used.first().and_then(|line| line.split_once(IN_USE))) {
        (_, Some((_, hit))) => Some(Finding::missing(
            UIDS,
            hit,
            "the helper does not start: a sandbox would share a uid with an account",
            "give the account other numbers, or the ceiling another uid_range",
        )),
        (Some(range), None) => Some(Finding::ok(UIDS, format!("{range} is nobody's"))),
        (None, None) => None,
    });
}

fn units() -> Finding {
    const CHECK: &str = "units";
    let installed = |unit: &&&str| UNIT_DIRECTORIES.iter().any(|dir| Path::new(dir).join(unit).exists());
    let (there, absent): (Vec<_>, Vec<_>) = UNITS.iter().partition(|unit| installed(unit));
    if there.is_empty() {
        return Finding::ok(CHECK, "none installed; 'cyberos up' needs none");
    }
    if !absent.is_empty() {
        let absent: Vec<&str> = absent.into_iter().copied().collect();
        return Finding::missing(
            CHECK,
            format!("no {}", absent.join(", ")),
            "that daemon does not start",
            "install again",
        );
    }
    if !Path::new("/run/systemd/system").exists() {
        return Finding::weak(
            CHECK,
            "installed, but systemd does not run here",
            "nothing starts them",
            "run 'cyberos up'",
        );
    }
    let active = |unit: &&&str| {
        let status = Command::new("systemctl").args(["is-active", "--quiet", unit]).status();
        // The helper's service is started by its socket.
        **unit == "cyberos-priv-helper.service" || status.is_ok_and(|s| s.success())
    };
    let down: Vec<&str> = UNITS.iter().filter(|unit| !active(unit)).copied().collect();
    if down.is_empty() {
        return Finding::ok(CHECK, "installed and active");
    }
    let down = down.join(" ");
    Finding::weak(
        CHECK,
        format!("not active: {down}"),
        "skills are not shown or not run",
        format!("systemctl start {down}"),
    )
}

/// One path of `[0.5]`: who must own it, and what at most it may allow.
struct Owned {
    path: PathBuf,
    uid: Uid,
    gid: Option<Gid>,
    mode: u32,
}

/// The paths of the installation that is there, or of the running `up`.
fn layout(subject: &Subject, users: &Users) -> Vec<Owned> {
    let root = Uid::from_raw(0);
    let (broker, skillfs) = (users.broker.uid, users.skillfs.uid);
    let owned = |path: PathBuf, uid, gid, mode| Owned { path, uid, gid, mode };
    if subject.state == Path::new(PACKAGED_STATE) {
        let operators = Some(users.operators);
        return vec![
            owned("/etc/cyberos".into(), root, None, 0o755),
            owned("/etc/cyberos/ceiling".into(), root, None, 0o644),
            owned("/run/cyberos-helper".into(), root, None, 0o755),
            owned("/run/cyberos-helper/helper.sock".into(), root, Some(users.link), 0o660),
            owned("/run/cyberos".into(), broker, operators, 0o2755),
            owned("/run/cyberos/broker.sock".into(), broker, operators, 0o660),
            owned("/run/cyberos-skillfs".into(), skillfs, operators, 0o2755),
            owned("/run/cyberos-skillfs/control.sock".into(), skillfs, operators, 0o660),
            owned(PACKAGED_STATE.into(), broker, None, 0o700),
            owned("/var/lib/cyberos-skillfs".into(), skillfs, None, 0o700),
            owned("/var/lib/cyberos-helper".into(), root, None, 0o700),
        ];
    }
    let Some(up) = subject.state.parent() else { return Vec::new() };
    vec![
        owned(up.to_owned(), root, None, 0o755),
        owned(up.join("bin"), root, None, 0o755),
        owned(up.join("helper"), root, None, 0o700),
        owned(up.join("keys"), root, None, 0o700),
        owned(up.join("trusted"), root, None, 0o755),
        owned(up.join("broker"), broker, None, 0o700),
        owned(up.join("skillfs"), skillfs, None, 0o700),
        owned(up.join("run/helper.sock"), root, Some(users.link), 0o660),
        owned(up.join("run/broker"), broker, Some(users.operators), 0o2755),
        owned(up.join("run/skillfs"), skillfs, Some(users.operators), 0o2755),
    ]
}

fn permissions(subject: &Subject, users: &Users, findings: &mut Vec<Finding>) {
    let mut looked = 0;
    for Owned { path, uid, gid, mode } in layout(subject, users) {
        // What is not there is not open to anybody; what needs it says so.
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        looked += 1;
        let group = gid.is_none_or(|gid| meta.gid() == gid.as_raw());
        let surplus = meta.mode() & 0o777 & !mode;
        if meta.uid() == uid.as_raw() && group && surplus == 0 && !meta.is_symlink() {
            continue;
        }
        let group = gid.map_or(String::new(), |gid| format!(":{gid}"));
        findings.push(Finding::missing(
            format!("permissions {}", path.display()),
            format!("owner {}:{}, mode {:o}", meta.uid(), meta.gid(), meta.mode() & 0o7777),
            "whoever can change or read it has the rights of the daemon that trusts it",
            format!("chown {uid}{group} {0}; chmod {mode:o} {0}", path.display()),
        ));
    }
    if looked == 0 {
        findings
            .push(Finding::ok("permissions", "nothing is installed or running that could have wrong ones"));
    } else if !findings.iter().any(|f| f.check.starts_with("permissions")) {
        findings.push(Finding::ok("permissions", format!("{looked} paths belong to whom they should")));
    }
}

/// Sealed copies are executed where the state is.
fn executable_state(state: &Path) -> Finding {
    const CHECK: &str = "state_exec";
    let there = state.ancestors().find_map(|dir| statvfs(dir).ok());
    match there {
        Some(fs) if fs.flags().contains(FsFlags::ST_NOEXEC) => Finding::missing(
            CHECK,
            format!("{} is on a file system mounted noexec", state.display()),
            "no skill runs: they are executed from sealed copies there",
            "mount it without noexec, or set `state` to a directory elsewhere",
        ),
        Some(_) => Finding::ok(CHECK, format!("programs can be executed in {}", state.display())),
        None => Finding::ok(CHECK, format!("{} is not there yet", state.display())),
    }
}

/// All entries of a tree, at most [`MOST`], with the tree itself first. Symlinks are not followed.
fn entries(top: &Path) -> Vec<(PathBuf, std::fs::Metadata)> {
    let mut left = vec![top.to_owned()];
    let mut out = Vec::new();
    while let Some(path) = left.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
        out.push((path, meta));
        if out.len() >= MOST {
            break;
        }
    }
    out
}

fn shared_source(source: &Path, users: &Users) -> Finding {
    let check = format!("source {}", source.display());
    let ours = [0, users.skillfs.uid.as_raw()];
    let mut who = BTreeSet::new();
    let mut first = None;
    let above = source.ancestors().skip(1).filter_map(|dir| Some((dir.to_owned(), dir.metadata().ok()?)));
    let inside = entries(source);
    if inside.is_empty() {
        let remedy = "make it, or name the right directory";
        return Finding::weak(check, "there is no such directory", "there is no skill", remedy);
    }
    for (path, meta) in above.chain(inside) {
        // In a sticky directory others can add, but neither replace nor rename.
        let open = meta.mode() & 0o022 != 0 && !meta.is_symlink() && meta.mode() & 0o1000 == 0;
        let owner = meta.uid();
        if open {
            who.insert(format!("whom mode {:o} lets", meta.mode() & 0o7777));
        } else if !ours.contains(&owner) {
            who.insert(
                User::from_uid(Uid::from_raw(owner)).ok().flatten().map_or(owner.to_string(), |u| u.name),
            );
        } else {
            continue;
        }
        first.get_or_insert(path);
    }
    match first {
        None => Finding::ok(check, "only root and SkillFS can write it"),
        Some(first) => Finding::weak(
            check,
            format!(
                "source_shared: can also be written by {}, e.g. {}",
                who.into_iter().collect::<Vec<_>>().join(", "),
                first.display()
            ),
            "what others store through a memory mapping is not seen, so an agent may read it before it is \
             judged; what runs is a sealed copy all the same",
            "have it owned by root, writable by nobody else, and changed by deployment only",
        ),
    }
}

/// What Bash and Write can change there belongs to the broker's user and group.
fn work(dir: &Path, users: &Users) -> Finding {
    let check = format!("work {}", dir.display());
    let inside = entries(dir);
    let Some((_, top)) = inside.first() else {
        let weakens = "the default grants give nothing";
        let (uid, gid) = (users.broker.uid, users.broker.gid);
        let remedy = format!("install -d -o {uid} -g {gid} {}", dir.display());
        return Finding::weak(check, "there is no such directory", weakens, remedy);
    };
    let mine =
        |m: &std::fs::Metadata| (m.uid(), m.gid()) == (users.broker.uid.as_raw(), users.broker.gid.as_raw());
    let others = inside.iter().filter(|(_, m)| !mine(m)).count();
    if others == 0 {
        return Finding::ok(
            check,
            format!("all of its {} entries belong to the broker's user", inside.len()),
        );
    }
    Finding::weak(
        check,
        format!(
            "{others} of {} entries do not belong to the broker's user (the top: {}:{})",
            inside.len(),
            top.uid(),
            top.gid()
        ),
        "skills can read those only as far as everybody can, and Bash sees them as user nobody's",
        format!(
            "chown -R {}:{} {}, if skills are to write it",
            users.broker.uid,
            users.broker.gid,
            dir.display()
        ),
    )
}
