//! What an `up` refuses before it starts anything: paths that cannot work, and a configuration with faults, each told
//! once and as the operator wrote it.

use super::place::{Ids, Place, Users, take_off_dead_views};
use super::{Up, demoted};
use anyhow::{Context, Result, bail};
use std::path::Path;

impl Up {
    /// Refuses paths that cannot work, before anything is made.
    pub(super) fn check_paths(&self, users: &Users) -> Result<()> {
        let given = [("--state", &self.state), ("--skills", &self.skills), ("--mount", &self.mount)];
        let mut real = Vec::new();
        for (option, dir) in given {
            let Some(dir) = dir else { continue };
            let dir = std::path::absolute(dir)?;
            real.push((option, dir.canonicalize().unwrap_or(dir)));
        }
        for (i, (one, a)) in real.iter().enumerate() {
            for (other, b) in &real[i + 1..] {
                // A mount point inside STATE is where the default one is, too.
                let usual = *one == "--state" && *other == "--mount" && a != b && b.starts_with(a);
                if !usual && (a.starts_with(b) || b.starts_with(a)) {
                    bail!(
                        "{one} {} and {other} {} lie in each other: choose separate directories",
                        a.display(),
                        b.display()
                    );
                }
            }
        }
        if let Some(state) = self.state.as_ref().filter(|_| self.decision_command.is_none())
            && state.to_string_lossy().contains(char::is_whitespace)
        {
            bail!(
                "--state {}: a decision command is split on blanks, so the built-in provider needs a path without any",
                state.display()
            );
        }
        if let Some((_, state)) = real.iter().find(|(option, _)| *option == "--state") {
            // What is not there yet is made so that everybody can pass through it.
            let there = state.ancestors().find(|dir| dir.exists()).unwrap_or(state);
            for (whose, ids) in [("the broker", users.broker), ("SkillFS", users.skillfs)] {
                if !allowed(ids, users, &["-x"], there)? {
                    bail!(
                        "--state {}: the user of {whose} (uid {}) cannot reach it: chmod o+x {} and each directory above \
                         it, or choose another directory",
                        state.display(),
                        ids.uid,
                        there.display()
                    );
                }
            }
        }
        let Some((_, skills)) = real.iter().find(|(option, _)| *option == "--skills") else { return Ok(()) };
        if !skills.is_dir() {
            bail!("--skills {}: not a directory", skills.display());
        }
        if !allowed(users.skillfs, users, &["-r", "-x"], skills)? {
            bail!(
                "--skills {0}: SkillFS's user (uid {1}) cannot read it: chmod o+rx {0}, and o+x each \
                 directory above it",
                skills.display(),
                users.skillfs.uid
            );
        }
        Ok(())
    }

    /// Has the broker's user look at the configuration, so that a fault is told once and with the path that was given.
    pub(super) async fn check_configuration(&self, place: &Place, users: &Users) -> Result<()> {
        let Some(given) = &self.config else { return Ok(()) };
        let copy = place.state.join("cyberos.yaml").display().to_string();
        let mut argv = demoted(Some(users.broker), &[]);
        argv.extend([
            place.state.join("bin/cyberos-broker").display().to_string(),
            "--check".into(),
            "--under-up".into(),
            "--config".into(),
            copy.clone(),
        ]);
        let checked = tokio::process::Command::new(&argv[0])
            .args(&argv[1..])
            .output()
            .await
            .context("cannot run the broker")?;
        if !checked.status.success() {
            let said = String::from_utf8_lossy(&checked.stderr).replace(&copy, &given.display().to_string());
            bail!("{}", said.trim().trim_start_matches("cyberos-broker: "));
        }
        Ok(())
    }
}

/// Whether a daemon's user may do with `dir` all that `tests` of test(1) say.
fn allowed(ids: Ids, users: &Users, tests: &[&str], dir: &Path) -> Result<bool> {
    for test in tests {
        let mut look = demoted(Some(ids), &[users.link.as_raw()]);
        look.extend(["/usr/bin/test".into(), (*test).into()]);
        let status = std::process::Command::new(&look[0]).args(&look[1..]).arg(dir).status();
        if !status.context("cannot run setpriv")?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes or takes an empty directory for the view: it would hide whatever else is there.
pub(super) fn mount_point(dir: &Path) -> Result<()> {
    take_off_dead_views(dir);
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    if entries.next().is_some() {
        bail!(
            "--mount {}: the directory is not empty, and a view would hide what is in it: name an empty one",
            dir.display()
        );
    }
    Ok(())
}
