//! Freezes processes, so that they are as one is that the kernel holds in a call: in version 1 of control groups they
//! then cannot even be killed.

use super::waiting::until;
use std::fs;
use std::path::{Path, PathBuf};

/// A control group; thawed and removed when it is dropped.
pub(crate) struct Freezer(PathBuf);

impl Freezer {
    /// With these processes in it.
    pub(crate) fn of(pids: &[i32]) -> Freezer {
        let first = Path::new("/sys/fs/cgroup/freezer");
        let root = if first.is_dir() { first } else { Path::new("/sys/fs/cgroup") };
        let dir = root.join(format!("cyberos-test-{}-{}", std::process::id(), pids[0]));
        fs::create_dir(&dir).expect("a machine with control groups, of either version");
        for pid in pids {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        Freezer(dir)
    }

    /// Whether who is frozen cannot be killed.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.0.join("freezer.state").exists()
    }

    pub(crate) fn freeze(&self) {
        self.set("FROZEN", "1");
        let state = || fs::read_to_string(self.0.join("freezer.state")).unwrap();
        let frozen = || !self.keeps_alive() || state().trim() == "FROZEN";
        until("it is frozen", frozen);
    }

    fn set(&self, first: &str, second: &str) {
        let (file, value) =
            if self.keeps_alive() { ("freezer.state", first) } else { ("cgroup.freeze", second) };
        fs::write(self.0.join(file), value).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set("THAWED", "0");
        until("its group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}
