//! What is granted to nobody (`[4.0]`), by name: the one list that the broker refuses by before it touches anything, and the
//! helper again by what the directories are. What a site adds is in its configuration and in its ceiling.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Trees of the kernel's and the system's: neither they, nor what lies in them, nor, to Bash, what lies around them.
pub const TREES: &[&str] = &["/proc", "/sys", "/dev", "/run", "/boot", "/etc/cyberos"];
/// Never given to Bash as a whole, nor what lies around them; what lies in them may be.
pub const WHOLE: &[&str] = &["/tmp", "/usr", "/etc"];
/// Names that begin so, with what lies in them.
pub const BEGINNINGS: &[&str] = &["/etc/shadow", "/tmp/cyberos-"];

/// The beginning by which `path`, or something that it lies in, is never granted.
pub fn beginning_of(path: &Path) -> Option<&'static Path> {
    BEGINNINGS.iter().map(Path::new).find(|beginning| begins(path, beginning))
}

/// Whether a component of `path` begins as the last one of `beginning` does, and those before are equal.
fn begins(path: &Path, beginning: &Path) -> bool {
    let (Some(parent), Some(name)) = (beginning.parent(), beginning.file_name()) else { return false };
    path.strip_prefix(parent).ok().and_then(|rest| rest.components().next()).is_some_and(|c| match c {
        Component::Normal(first) => OsStr::as_bytes(first).starts_with(name.as_bytes()),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_holds_what_begins_so_and_what_lies_in_that() {
        for path in ["/etc/shadow", "/etc/shadow-", "/etc/shadow.d/x", "/tmp/cyberos-a", "/tmp/cyberos-a/b"] {
            assert!(beginning_of(Path::new(path)).is_some(), "{path}");
        }
        for path in ["/etc", "/etc/shado", "/srv/etc/shadow", "/tmp/cyberos", "/tmp/x/cyberos-a", "/"] {
            assert!(beginning_of(Path::new(path)).is_none(), "{path}");
        }
    }
}
