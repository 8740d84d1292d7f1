//! Plain plans of sandboxes, for a test to change what it is about.

use cyberos_proto::plan::{Bind, BindKind, Limits, MemoryLimit, Profile, SandboxPath, SpawnPlan};
use std::path::Path;

/// A plan for `words`, with the limits that a skill has by default, without binds.
pub(crate) fn plan(words: &[&str]) -> SpawnPlan {
    SpawnPlan {
        program: SandboxPath::new(words[0]).unwrap(),
        args: words.iter().map(|w| w.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/local/bin:/usr/bin:/bin".to_vec(), b"RUST_LOG=warn".to_vec()],
        cwd: SandboxPath::new("/tmp").unwrap(),
        binds: Vec::new(),
        socket: true,
        limits: Limits {
            memory_mb: 512,
            memory_kind: MemoryLimit::AddressSpace,
            cpu_s: 60,
            processes: 8,
            open_files: 256,
            file_mb: 256,
            tmp_mb: 64,
        },
        profile: Profile::Skill,
    }
}

/// A plan that runs the `main` of a sealed directory shown as skill `name`.
pub(crate) fn skill(name: &str) -> SpawnPlan {
    let dir = format!("/opt/cyberos/skills/{name}");
    let mut plan = plan(&[&format!("{dir}/main")]);
    plan.cwd = SandboxPath::new(&dir).unwrap();
    plan.binds.push(Bind { target: SandboxPath::new(&dir).unwrap(), kind: BindKind::Sealed });
    plan
}

/// A plan for a Python script.
pub(crate) fn python(script: &str) -> SpawnPlan {
    plan(&["/usr/bin/python3", "-I", "-c", script])
}

/// What the Bash tool asks for.
pub(crate) fn bash(script: &str, binds: Vec<Bind>) -> SpawnPlan {
    let mut p = plan(&["/bin/bash", "-c", script]);
    p.profile = Profile::Bash;
    p.socket = false;
    p.env = ["HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin"]
        .map(|e| e.as_bytes().to_vec())
        .into();
    p.limits.processes = 32;
    p.binds = binds;
    p
}

/// A directory that is granted where it is.
pub(crate) fn bind(dir: &Path, writable: bool) -> Bind {
    let target = SandboxPath::new(dir.to_str().unwrap()).unwrap();
    Bind { target, kind: BindKind::Grant { writable } }
}
