//! A control group for each lease, named by its uid, in a directory of this instance: version 2 where that is
//! delegated to the helper, else version 1 with memory and pids, else none. It knows nothing of what runs there.

use crate::policy::groups::{instance, kills, kills_file, pid_of, settings, suffices};
use crate::{prelude::*, table::Table};
use cyberos_proto::mounts::own_group;
use cyberos_proto::plan::{Cgroup, Limits};
use std::io::{self, ErrorKind, Write};
use std::ops::RangeInclusive;

/// Where the helper itself goes in version 2, in which only leaves may have both processes and controllers.
const HELPER: &str = "cyberos-helper";

pub(crate) struct Groups {
    pub(crate) version: Cgroup,
    /// This instance's directory in each hierarchy: memory and pids in version 1, one for both in version 2, or none.
    ours: Vec<PathBuf>,
}

impl Groups {
    /// What this machine has for us. Called once, with every capability; it also removes what dead instances left.
    pub(crate) fn find() -> Groups {
        let table = Table::read().map(|table| table.mounts).unwrap_or_default();
        let own = fs::read_to_string("self/cgroup").unwrap_or_default();
        let group = |controller| own_group(&table, &own, controller).ok_or("there is none".to_owned());
        let second = || group("").and_then(delegated).and_then(|own| Groups::begin(Cgroup::V2, &[own]));
        let first = || Groups::begin(Cgroup::V1, &[group("memory")?, group("pids")?]);
        let found = second().or_else(|why| first().map_err(|e| format!("version 2: {why}; version 1: {e}")));
        let lost = "WARN: no control groups, so nothing bounds a sandbox's processes together";
        found.unwrap_or_else(|why| {
            log(&format!("{lost}: {why}"));
            Groups { version: Cgroup::Absent, ours: Vec::new() }
        })
    }

    /// Makes this instance's directories, and tries whether a sandbox could have a group there.
    fn begin(version: Cgroup, own: &[PathBuf]) -> Result<Groups, String> {
        let ns = named("pid namespace", sys::open("self/ns/pid", OFlag::O_RDONLY).and_then(sys::identity))?;
        let (ns, us) = (ns.key.2, std::process::id());
        // Who had our own pid in our pid namespace is dead too.
        let dead = |pid: u32| pid == us || !Path::new(&pid.to_string()).exists();
        own.iter().for_each(|own| sweep(own, |name| pid_of(ns, name).is_some_and(dead)));
        let ours = own.iter().map(|own| own.join(instance(ns, us))).collect();
        let groups = Groups { version, ours };
        let made = groups.ours.iter().try_for_each(|ours| {
            fs::create_dir(ours)?;
            if version == Cgroup::V2 { hand_on(ours) } else { Ok(()) }
        });
        let tried = made.and_then(|()| groups.at(0).try_for_each(fs::create_dir));
        let tried = tried.and_then(|()| groups.set(0, 64, 8, 100));
        groups.remove(0);
        named(own[0].display(), tried.inspect_err(|_| groups.end())).map(|()| groups)
    }

    fn at(&self, uid: u32) -> impl Iterator<Item = PathBuf> {
        self.ours.iter().map(move |ours| ours.join(uid.to_string()))
    }

    /// Makes the group of `uid`, for one sandbox after another of that lease.
    pub(crate) fn make(&self, uid: u32) -> Step<()> {
        let made = self.at(uid).try_for_each(|dir| {
            // One that is left from before, if nothing is in it.
            let _ = fs::remove_dir(&dir);
            fs::create_dir(dir)
        });
        step("control group", made).inspect_err(|_| self.remove(uid))
    }

    /// Sets limits for all of a sandbox's processes together, its init among them.
    pub(crate) fn limit(&self, uid: u32, ceiling: &Ceiling, l: &Limits) -> Step<()> {
        step("control group", self.set(uid, l.memory_mb, l.processes, ceiling.text.cpu_percent))
    }

    fn set(&self, uid: u32, memory_mb: u32, processes: u32, cpu_percent: u32) -> io::Result<()> {
        for s in settings(self.version, memory_mb, processes, cpu_percent) {
            let group = self.ours[s.hierarchy].join(uid.to_string());
            match put(group.join(s.file), &s.value) {
                Err(e) if s.optional && e.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Version 2: the directory that an init is to be born into. In version 1 it enters by itself.
    pub(crate) fn birthplace(&self, uid: u32) -> Step<Option<OwnedFd>> {
        let second = self.at(uid).next().filter(|_| self.version == Cgroup::V2);
        let dir = second.map(|dir| sys::open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY));
        step("control group", dir.transpose())
    }

    /// Version 1: the calling process, and what it will fork, goes into the group of `uid`. It has one thread, and a
    /// thread that moves itself needs no lock on all processes of the machine.
    pub(crate) fn enter(&self, uid: u32) -> io::Result<()> {
        let mut dirs = self.at(uid).filter(|_| self.version == Cgroup::V1);
        dirs.try_for_each(|dir| put(dir.join("tasks"), "0"))
    }

    /// How many processes of `uid` the kernel has ended for want of memory since the group was made.
    pub(crate) fn kills(&self, uid: u32) -> u64 {
        let file = kills_file(self.version).map(|(at, file)| self.ours[at].join(uid.to_string()).join(file));
        file.and_then(|file| fs::read_to_string(file).ok()).map_or(0, |text| kills(&text))
    }

    /// Removes the group of `uid`, whose last process has ended; if one is left, it is ended.
    pub(crate) fn remove(&self, uid: u32) {
        self.at(uid).for_each(|dir| remove(&dir));
    }

    /// Removes the groups of `uids`.
    pub(crate) fn sweep(&self, uids: RangeInclusive<u32>) {
        let theirs = |name: &str| name.parse().is_ok_and(|uid| uids.contains(&uid));
        self.ours.iter().for_each(|ours| sweep(ours, theirs));
    }

    /// Removes everything of this instance.
    pub(crate) fn end(&self) {
        self.ours.iter().for_each(|ours| remove(ours));
    }
}

/// Removes a group with those below it. Where a process is left, it is ended.
fn remove(dir: &Path) {
    if fs::remove_dir(dir).is_err_and(|e| e.kind() != ErrorKind::NotFound) {
        let _ = put(dir.join("cgroup.kill"), "1");
        sweep(dir, |_| true);
        let _ = fs::remove_dir(dir);
    }
}

/// Removes the groups in `dir` that have a name which `which` takes.
fn sweep(dir: &Path, which: impl Fn(&str) -> bool) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    groups.filter(|e| e.file_name().to_str().is_some_and(&which)).for_each(|e| remove(&e.path()));
}

/// The helper's own group, if it may hand controllers on from there: only a group without processes may.
fn delegated(own: PathBuf) -> Result<PathBuf, String> {
    let has = named(own.display(), fs::read_to_string(own.join("cgroup.controllers")))?;
    must(suffices(&has), format!("{}: no controllers for memory and pids", own.display()))?;
    let (root, leaf) = (!own.join("cgroup.type").exists(), own.join(HELPER));
    let enter = |group: &Path| put(group.join("cgroup.procs"), "0");
    let moved = if root { Ok(()) } else { fs::create_dir_all(&leaf).and_then(|()| enter(&leaf)) };
    moved.and_then(|()| hand_on(&own)).map_err(|e| {
        let _ = enter(&own).and_then(|()| fs::remove_dir(&leaf));
        format!("{} is not delegated to the helper alone: {e}", own.display())
    })?;
    Ok(own)
}

/// Lets the groups below `dir` have controllers. cpu is worth having, but less than the others.
fn hand_on(dir: &Path) -> io::Result<()> {
    let file = dir.join("cgroup.subtree_control");
    put(&file, "+memory +pids").map(|()| _ = put(&file, "+cpu"))
}

/// Writes into a file that is there.
fn put(path: impl AsRef<Path>, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}
