//! Which uids sandboxes have: the blocks of the ceiling's range, and whether nobody else may be given any of them
//! (`[10.3]`). It reads no file.

use crate::policy::ceiling::{BLOCK, CeilingText};
use std::io;

/// The files of /etc that may give uids to somebody else: the column where they begin, and whether a count follows.
const USERS: [(&str, usize, bool); 3] = [("passwd", 2, false), ("subuid", 1, true), ("subgid", 1, true)];

impl CeilingText {
    /// The first uids of all blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> {
        (self.uids.0..=self.uids.1).step_by(BLOCK as usize)
    }

    /// The first uid of the block that a lock of that name is of, or is in.
    pub(crate) fn block_named(&self, lock: &str) -> Option<u32> {
        let uid = lock.parse().ok().filter(|uid| (self.uids.0..=self.uids.1).contains(uid));
        uid.map(|uid| self.init_uid(uid))
    }

    /// The uid of the inits of the block that `uid`, which is in the range, belongs to.
    pub(crate) fn init_uid(&self, uid: u32) -> u32 {
        uid - (uid - self.uids.0) % BLOCK
    }

    /// Whether nobody else may be given uids of the range. `read` answers the bytes of a file of /etc; one that is not
    /// there gives none.
    pub(crate) fn unused(&self, read: impl Fn(&str) -> io::Result<Vec<u8>>) -> Result<(), String> {
        for (name, start, counted) in USERS {
            let file = match read(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|e| format!("/etc/{name}: {e}"))?,
            };
            if let Some(line) = self.touched(&String::from_utf8_lossy(&file), start, counted) {
                let (first, last) = self.uids;
                return Err(format!("uid_range {first}-{last} is in use: /etc/{name}: {line}"));
            }
        }
        Ok(())
    }

    /// The first line of a file of /etc whose uid, or `counted` uids, touch the range; they begin in column `start`.
    fn touched<'t>(&self, file: &'t str, start: usize, counted: bool) -> Option<&'t str> {
        file.lines().find(|line| {
            let column = |n| line.split(':').nth(n).and_then(|c| c.trim().parse::<u64>().ok());
            let count = if counted { column(start + 1).unwrap_or(0) } else { 1 };
            column(start)
                .is_some_and(|s| s <= self.uids.1.into() && s.saturating_add(count) > self.uids.0.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_touches_the_range_is_found() {
        let ceiling = CeilingText::default();
        for (file, start, counted, found) in [
            ("a:x:1000:1000", 2, false, false),
            ("a:x:1900000000:1", 2, false, true),
            ("a:100000:65536", 1, true, false),
            ("a:1899999999:1", 1, true, false),
            ("a:1899999999:2", 1, true, true),
            ("a:1:18446744073709551615", 1, true, true),
            ("a:1900065535:1", 1, true, true),
        ] {
            assert_eq!(ceiling.touched(file, start, counted).is_some(), found, "{file}");
        }
    }

    #[test]
    fn the_range_is_refused_where_one_of_three_files_gives_it_away() {
        let ceiling = CeilingText::default();
        let with = |file: &str, line: &str| {
            let (file, line) = (file.to_owned(), line.to_owned());
            ceiling.unused(move |name| match name {
                "passwd" if file != name => Err(io::ErrorKind::NotFound.into()),
                _ if file == name => Ok(format!("root:0:1\n{line}\n").into_bytes()),
                _ => Ok(Vec::new()),
            })
        };
        assert_eq!(with("passwd", "a:x:1000:1000"), Ok(()));
        for (file, line) in
            [("passwd", "a:x:1900000001:1"), ("subuid", "a:1:4000000000"), ("subgid", "a:1900000000:1")]
        {
            let said = with(file, line).unwrap_err();
            assert_eq!(said, format!("uid_range 1900000000-1900065535 is in use: /etc/{file}: {line}"));
        }
        let unreadable = |_: &str| Err(io::ErrorKind::PermissionDenied.into());
        assert!(ceiling.unused(unreadable).unwrap_err().starts_with("/etc/passwd: "));
    }
}
