//! Skills for the source of an `up`, and what a run of theirs finds in memory.

use super::binaries::write_executable;
use super::up::Up;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What is in a skill's environment, sorted.
pub const ENVIRONMENT: [&str; 8] = [
    "CYBEROS_BROKER_SOCKET",
    "CYBEROS_INVOCATION_ID",
    "CYBEROS_SKILL_ID",
    "CYBEROS_TENANT_ID",
    "HOME",
    "LANG",
    "PATH",
    "RUST_LOG",
];

/// A skill to be written into a source.
pub struct Skill<'a> {
    /// Its name.
    pub id: &'a str,
    /// `allowed_tools`.
    pub tools: &'a [&'a str],
    /// `allowed_memory_scopes`.
    pub scopes: &'a [&'a str],
    /// More lines of frontmatter.
    pub more: &'a str,
    /// The entry point's text.
    pub main: &'a str,
}

impl Default for Skill<'_> {
    fn default() -> Self {
        Skill { id: "demo", tools: &[], scopes: &[], more: "", main: "#!/bin/sh\n" }
    }
}

impl Skill<'_> {
    /// Writes its folder. A Python entry point can `import cyberos`, the client.
    pub fn write(&self, source: &Path) -> PathBuf {
        let dir = source.join(self.id);
        std::fs::create_dir(&dir).unwrap();
        let quoted = |items: &[&str]| items.iter().map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(", ");
        let text = format!(
            "---\nid: {}\nversion: 1.0.0\ndescription: A test skill.\nallowed_memory_scopes: [{}]\nallowed_tools: [{}]\n{}---\n# Test\n",
            self.id,
            quoted(self.scopes),
            quoted(self.tools),
            self.more
        );
        std::fs::write(dir.join("SKILL.md"), text).unwrap();
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/sdk/python/cyberos.py");
        std::fs::copy(client, dir.join("cyberos.py")).unwrap();
        write_executable(&dir.join("main"), self.main);
        dir
    }
}

/// An entry point in Python: `c` is a connected client, `call(tool, **args)` gives `("ok", result)` or
/// `(message, data)` of the error.
pub fn python(body: &str) -> String {
    let head = "#!/usr/bin/python3\nimport sys, os, json\nsys.dont_write_bytecode = True\nimport cyberos\nc = cyberos.connect()\n\
                def call(tool, **args):\n    try:\n        return 'ok', c.call(tool, args)\n    except cyberos.RpcError as e:\n        return e.message, dict(e.data or {}, code=e.code)\n";
    format!("{head}{body}\n")
}

/// Puts a memory file into a tenant's store, as an earlier run would have left it. The broker owns it.
pub fn memory_file(up: &Up, path: &str, text: &str) {
    let file = up.state.join("broker/tenants/00000000-0000-0000-0000-000000000000").join(path);
    let owner = std::fs::metadata(up.state.join("broker")).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&owner);
    let mut made = Vec::new();
    for dir in file.parent().unwrap().ancestors() {
        if dir.exists() {
            break;
        }
        made.push(dir.to_owned());
    }
    for dir in made.iter().rev() {
        std::fs::create_dir(dir).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        nix::unistd::chown(dir, Some(owner.into()), Some(owner.into())).unwrap();
    }
    let mut f = std::fs::File::create(&file).unwrap();
    f.write_all(text.as_bytes()).unwrap();
    nix::unistd::chown(&file, Some(owner.into()), Some(owner.into())).unwrap();
}

/// A symlink, for sources.
pub fn link(target: &str, at: &Path) {
    symlink(target, at).unwrap();
}
