//! A control group for each lease, named by its uid, in a directory of this instance: version 2 where that is
//! delegated to the helper, else version 1 with memory and pids, else none. It knows nothing of what runs there.

use crate::log::log;
use crate::policy::groups::{instance, kills, kills_file, pid_of, settings, suffices};
use crate::policy::outcome::{must, named};
use crate::sys;
use crate::table::Table;
use cyberos_proto::message::{Refusal, step};
use cyberos_proto::mounts::{Mount, own_group};
use cyberos_proto::plan::{Cgroup, Limits};
use nix::fcntl::OFlag;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where the helper itself goes in version 2, in which only leaves may have both processes and controllers.
const HELPER: &str = "cyberos-helper";

/// Whose group it is tried with whether sandboxes can have one, and to what that is set: MiB and processes.
const TRIAL: (u32, u32, u32) = (0, 64, 8);

/// The control groups of this instance.
pub(crate) struct Groups {
    pub(crate) version: Cgroup,
    /// This instance's directory in each hierarchy: memory and pids in version 1, one for both in version 2, or none.
    ours: Vec<PathBuf>,
    /// What a sandbox may have of one core, where that can be said.
    cpu_percent: u32,
}

impl Groups {
    /// What this machine has for us. Called once, with every capability; it also removes what dead instances left.
    pub(crate) fn find(cpu_percent: u32) -> Groups {
        let mounts = Table::read().map(|table| table.mounts).unwrap_or_default();
        let no_second = match Groups::second(&mounts, cpu_percent) {
            Ok(groups) => return groups,
            Err(why) => why,
        };
        let no_first = match Groups::first(&mounts, cpu_percent) {
            Ok(groups) => return groups,
            Err(why) => why,
        };
        log(&format!(
            "WARN: no control groups, so nothing bounds a sandbox's processes together: version 2: {no_second}; \
             version 1: {no_first}"
        ));
        Groups { version: Cgroup::Absent, ours: Vec::new(), cpu_percent }
    }

    fn second(mounts: &[Mount], cpu_percent: u32) -> Result<Groups, String> {
        let own = own(mounts, "")?;
        delegated(&own)?;
        Groups::begin(Cgroup::V2, &[own], cpu_percent)
    }

    fn first(mounts: &[Mount], cpu_percent: u32) -> Result<Groups, String> {
        Groups::begin(Cgroup::V1, &[own(mounts, "memory")?, own(mounts, "pids")?], cpu_percent)
    }

    /// Makes this instance's directories in the helper's `own`, one of each hierarchy.
    fn begin(version: Cgroup, own: &[PathBuf], cpu_percent: u32) -> Result<Groups, String> {
        let namespace = sys::open("self/ns/pid", OFlag::O_RDONLY).and_then(sys::identity);
        let namespace = named("pid namespace", namespace)?.inode();
        let us = std::process::id();
        // Who had our own pid in our pid namespace is dead too.
        let dead = |pid: u32| pid == us || !Path::new(&pid.to_string()).exists();
        for own in own {
            sweep(own, |name| pid_of(namespace, name).is_some_and(dead));
        }
        let ours = own.iter().map(|own| own.join(instance(namespace, us))).collect();
        let groups = Groups { version, ours, cpu_percent };
        match groups.prepare() {
            Ok(()) => Ok(groups),
            Err(e) => {
                groups.end();
                Err(format!("{}: {e}", own[0].display()))
            }
        }
    }

    /// Makes the directories, and tries whether a sandbox could have a group there.
    fn prepare(&self) -> io::Result<()> {
        for ours in &self.ours {
            fs::create_dir(ours)?;
            if self.version == Cgroup::V2 {
                hand_on(ours)?;
            }
        }
        let (uid, memory_mb, processes) = TRIAL;
        self.of(uid).try_for_each(fs::create_dir)?;
        let set = self.set(uid, memory_mb, processes);
        self.remove(uid);
        set
    }

    /// The group of `uid` in each hierarchy.
    fn of(&self, uid: u32) -> impl Iterator<Item = PathBuf> {
        self.ours.iter().map(move |ours| ours.join(uid.to_string()))
    }

    /// Makes the group of `uid`, for one sandbox after another of that lease.
    pub(crate) fn make(&self, uid: u32) -> Result<(), Refusal> {
        let made = self.of(uid).try_for_each(|group| {
            // One that is left from before, if nothing is in it.
            let _ = fs::remove_dir(&group);
            fs::create_dir(group)
        });
        step("control group", made).inspect_err(|_| self.remove(uid))
    }

    /// Sets limits for all of a sandbox's processes together, its init among them.
    pub(crate) fn limit(&self, uid: u32, limits: &Limits) -> Result<(), Refusal> {
        step("control group", self.set(uid, limits.memory_mb, limits.processes))
    }

    fn set(&self, uid: u32, memory_mb: u32, processes: u32) -> io::Result<()> {
        for setting in settings(self.version, memory_mb, processes, self.cpu_percent) {
            let group = self.ours[setting.hierarchy].join(uid.to_string());
            match put(group.join(setting.file), &setting.value) {
                Err(e) if setting.optional && e.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Version 2: the directory that an init is to be born into. In version 1 it enters by itself.
    pub(crate) fn birthplace(&self, uid: u32) -> Result<Option<OwnedFd>, Refusal> {
        if self.version != Cgroup::V2 {
            return Ok(None);
        }
        let group = self.of(uid).next().map(|group| sys::open(group, OFlag::O_PATH | OFlag::O_DIRECTORY));
        step("control group", group.transpose())
    }

    /// Version 1: the calling process, and what it will fork, goes into the group of `uid`. It has one thread, and a
    /// thread that moves itself needs no lock on all processes of the machine.
    pub(crate) fn enter(&self, uid: u32) -> io::Result<()> {
        if self.version != Cgroup::V1 {
            return Ok(());
        }
        self.of(uid).try_for_each(|group| put(group.join("tasks"), "0"))
    }

    /// How many processes of `uid` the kernel has ended for want of memory since the group was made.
    pub(crate) fn kills(&self, uid: u32) -> u64 {
        let Some((hierarchy, file)) = kills_file(self.version) else { return 0 };
        let file = self.ours[hierarchy].join(uid.to_string()).join(file);
        fs::read_to_string(file).map_or(0, |text| kills(&text))
    }

    /// Removes the group of `uid`, whose last process has ended; if one is left, it is ended.
    pub(crate) fn remove(&self, uid: u32) {
        self.of(uid).for_each(|group| remove(&group));
    }

    /// Removes the groups of `uids`.
    pub(crate) fn sweep(&self, uids: RangeInclusive<u32>) {
        for ours in &self.ours {
            sweep(ours, |name| name.parse().is_ok_and(|uid| uids.contains(&uid)));
        }
    }

    /// Removes everything of this instance.
    pub(crate) fn end(&self) {
        self.ours.iter().for_each(|ours| remove(ours));
    }
}

/// The helper's own group in the hierarchy of that controller; in that of version 2 without one.
fn own(mounts: &[Mount], controller: &str) -> Result<PathBuf, String> {
    let groups = fs::read_to_string("self/cgroup").unwrap_or_default();
    own_group(mounts, &groups, controller).ok_or_else(|| "there is none".to_owned())
}

/// Removes a group with those below it. Where a process is left, it is ended.
fn remove(group: &Path) {
    if fs::remove_dir(group).is_err_and(|e| e.kind() != ErrorKind::NotFound) {
        let _ = put(group.join("cgroup.kill"), "1");
        sweep(group, |_| true);
        let _ = fs::remove_dir(group);
    }
}

/// Removes the groups in `dir` that have a name which `which` takes.
fn sweep(dir: &Path, which: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_group && entry.file_name().to_str().is_some_and(&which) {
            remove(&entry.path());
        }
    }
}

/// Has the helper's own group hand controllers on. Only one without processes may, so the helper moves into a leaf of it,
/// unless it is the root of all.
fn delegated(own: &Path) -> Result<(), String> {
    let controllers = named(own.display(), fs::read_to_string(own.join("cgroup.controllers")))?;
    must(suffices(&controllers), format!("{}: no controllers for memory and pids", own.display()))?;
    let is_root = !own.join("cgroup.type").exists();
    let leaf = own.join(HELPER);
    let enter = |group: &Path| put(group.join("cgroup.procs"), "0");
    let moved = if is_root { Ok(()) } else { fs::create_dir_all(&leaf).and_then(|()| enter(&leaf)) };
    moved.and_then(|()| hand_on(own)).map_err(|e| {
        let _ = enter(own).and_then(|()| fs::remove_dir(&leaf));
        format!("{} is not delegated to the helper alone: {e}", own.display())
    })
}

/// Lets the groups below `dir` have controllers. cpu is worth having, but less than the others.
fn hand_on(dir: &Path) -> io::Result<()> {
    let file = dir.join("cgroup.subtree_control");
    put(&file, "+memory +pids")?;
    let _ = put(&file, "+cpu");
    Ok(())
}

/// Writes into a file that is there.
fn put(path: impl AsRef<Path>, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}
