//! Memory paths in canonical form (`[4.3]`). Pure: no file is touched.

/// Longest memory path, in bytes.
pub const MAX_MEMORY_PATH: usize = 4096;

/// Why a text names no memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryPathFault {
    /// The empty text: bad parameters.
    #[error("the path is empty")]
    Empty,
    /// A NUL byte: bad parameters.
    #[error("the path holds a NUL")]
    Nul,
    /// Another control character: bad parameters. Names of memories are shown and listed line by line.
    #[error("the path holds a control character ({})", .0.escape_unicode())]
    Control(char),
    /// More than [`MAX_MEMORY_PATH`] bytes: bad parameters.
    #[error("the path has more than {MAX_MEMORY_PATH} bytes")]
    TooLong,
    /// A leading `/`.
    #[error("memory paths are relative: no leading '/'")]
    Absolute,
    /// A `\`.
    #[error("memory paths are divided by '/', not by '\\'")]
    Backslash,
    /// `..` at the root.
    #[error("'..' leads above the root")]
    AboveRoot,
    /// The first component is something else.
    #[error("memory paths begin with 'memories/'")]
    NotMemories,
    /// `memories` alone, and it is not the root of a search.
    #[error("nothing follows 'memories'")]
    Bare,
}

impl MemoryPathFault {
    /// Whether it is a fault of the parameters (−32602) rather than a scope violation.
    pub fn is_bad_params(self) -> bool {
        matches!(
            self,
            MemoryPathFault::Empty
                | MemoryPathFault::Nul
                | MemoryPathFault::Control(_)
                | MemoryPathFault::TooLong
        )
    }
}

/// The canonical form of `path`: `memories/` and components that are neither empty nor `.` nor `..`. With
/// `search_root`, `memories` alone is one too.
pub fn canonical_memory(path: &str, search_root: bool) -> Result<String, MemoryPathFault> {
    if path.is_empty() {
        return Err(MemoryPathFault::Empty);
    }
    if path.contains('\0') {
        return Err(MemoryPathFault::Nul);
    }
    if path.len() > MAX_MEMORY_PATH {
        return Err(MemoryPathFault::TooLong);
    }
    if let Some(c) = path.chars().find(|c| c.is_control()) {
        return Err(MemoryPathFault::Control(c));
    }
    if path.starts_with('/') {
        return Err(MemoryPathFault::Absolute);
    }
    if path.contains('\\') {
        return Err(MemoryPathFault::Backslash);
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or(MemoryPathFault::AboveRoot)?;
            }
            part => parts.push(part),
        }
    }
    match parts.as_slice() {
        ["memories"] if !search_root => Err(MemoryPathFault::Bare),
        ["memories", ..] => Ok(parts.join("/")),
        _ => Err(MemoryPathFault::NotMemories),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_vector_of_the_memory_rule_holds() {
        let text = include_str!("../../tests/vectors/memory_paths.json");
        let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(cases.len() >= 18);
        for case in cases {
            let found = canonical_memory(case["path"].as_str().unwrap(), false);
            match case["canonical"].as_str() {
                Some(canonical) => assert_eq!(found.as_deref(), Ok(canonical), "{case}"),
                None => assert_eq!(found.unwrap_err().is_bad_params(), case["refuse"].is_number(), "{case}"),
            }
        }
    }

    #[test]
    fn a_search_may_begin_at_the_root_and_nowhere_above() {
        assert_eq!(canonical_memory("memories/a/..", true).as_deref(), Ok("memories"));
        assert_eq!(canonical_memory("memories/a/..", false), Err(MemoryPathFault::Bare));
        assert_eq!(canonical_memory(".", true), Err(MemoryPathFault::NotMemories));
    }

    proptest! {
        #[test]
        fn canonical_paths_are_fixed_points(path in "(memories/)?(\\.{0,3}|[a-bé ]{0,2}|/|memories){0,8}") {
            for search_root in [false, true] {
                if let Ok(once) = canonical_memory(&path, search_root) {
                    prop_assert_eq!(canonical_memory(&once, search_root), Ok(once.clone()));
                    prop_assert!(once == "memories" || once.starts_with("memories/"));
                    prop_assert!(once.split('/').all(|c| !matches!(c, "" | "." | "..")));
                }
            }
        }
    }
}
