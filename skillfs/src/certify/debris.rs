//! Names of what programs and operating systems leave lying in folders. It counts as content like everything else; only what
//! people are told about it differs: nobody edited the skill.

/// Names of files and folders.
const NAMES: &[&str] = &[
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".cache",
    ".DS_Store",
    ".AppleDouble",
    ".Spotlight-V100",
    ".Trashes",
    ".fseventsd",
    "Thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    ".directory",
    ".idea",
    ".vscode",
    ".svn",
    ".hg",
];
const ENDINGS: &[&str] = &[".pyc", ".pyo", ".swp", ".swo", ".swn", "~"];
const BEGINNINGS: &[&str] = &["._", ".#", ".nfs", ".fuse_hidden", ".~lock."];

/// Whether a path below a skill, as a manifest spells it, is debris or lies in it.
pub fn is_debris(path: &str) -> bool {
    path.split('/').any(|name| {
        NAMES.contains(&name)
            || ENDINGS.iter().any(|end| name.len() > end.len() && name.ends_with(end))
            || BEGINNINGS.iter().any(|begin| name.len() > begin.len() && name.starts_with(begin))
    })
}

#[cfg(test)]
mod tests {
    use super::is_debris;

    #[test]
    fn debris_is_known_by_its_name_wherever_it_lies() {
        for path in [
            "__pycache__",
            "a/__pycache__/x.py",
            "x.pyc",
            ".DS_Store",
            "a/._b",
            "a~",
            ".main.py.swp",
            "d/.#x",
        ] {
            assert!(is_debris(path), "{path}");
        }
        for path in
            ["main", "pycache", "x.py", "~", ".pyc", "DS_Store", "a.swift", ".gitignore", "vscode/x", ""]
        {
            assert!(!is_debris(path), "{path}");
        }
    }
}
