//! `--check FILE`: whether a ceiling is well formed, and what it allows. For people and for `cyberos doctor`, which so
//! need no second reader of that file. It needs no rights beyond reading the file, and serves nobody.

use crate::policy::ceiling::{CeilingText, MAX_FILE};
use crate::policy::outcome::named;
use std::fs::File;
use std::io::{Read, Write, stderr, stdout};
use std::path::Path;

/// Writes to standard output what the ceiling allows, every key in the file's own language, and to standard error what
/// is wrong with it, a fault a line; whether nothing is.
///
/// Who owns the file is not looked at: it may be one that is still to be put in its place.
pub(crate) fn check(file: &Path) -> bool {
    let read: Result<CeilingText, String> = text(file).and_then(|text| text.parse());
    let fault = match &read {
        Err(fault) => Err(fault.clone()),
        Ok(ceiling) => {
            // Who has closed the other end does not want to know.
            let _ = write!(stdout(), "{ceiling}");
            ceiling.unused(|name| std::fs::read(Path::new("/etc").join(name)))
        }
    };
    let Err(fault) = fault else { return true };
    let _ = writeln!(stderr(), "{}: {fault}", file.display());
    false
}

/// As much of the file as shows that it is too long.
fn text(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let most = MAX_FILE as u64 + 1;
    named("read", File::open(file).and_then(|file| file.take(most).read_to_string(&mut text))).map(|_| text)
}
