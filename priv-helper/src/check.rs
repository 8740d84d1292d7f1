//! `--check FILE`: whether a ceiling is well formed, and what it allows. For people and for `cyberos doctor`, which so
//! need no second reader of that file. It needs no rights beyond reading the file, and serves nobody.

use crate::policy::ceiling::{CeilingText, Faults, MAX_FILE};
use crate::policy::outcome::named;
use std::fs::File;
use std::io::{Read, Write, stderr, stdout};
use std::path::Path;

/// Writes to standard output what the ceiling allows, every key in the file's own language, and to standard error what
/// is wrong with it, a fault a line; whether nothing is.
///
/// Who owns the file is not looked at: it may be one that is still to be put in its place.
pub(crate) fn check(file: &Path) -> bool {
    let Faults(faults) = match text(file).map_err(|fault| Faults(vec![fault])).and_then(|text| text.parse()) {
        Err(faults) => faults,
        Ok(ceiling) => told(&ceiling),
    };
    for fault in &faults {
        let _ = writeln!(stderr(), "{}: {fault}", file.display());
    }
    faults.is_empty()
}

/// Tells what a ceiling allows; what keeps a helper from starting with it on this machine.
fn told(ceiling: &CeilingText) -> Faults {
    // Who has closed the other end does not want to know.
    let _ = write!(stdout(), "{ceiling}");
    let unused = ceiling.unused(|name| std::fs::read(Path::new("/etc").join(name)));
    Faults(unused.err().into_iter().collect())
}

/// As much of the file as shows that it is too long.
fn text(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let most = MAX_FILE as u64 + 1;
    named("read", File::open(file).and_then(|file| file.take(most).read_to_string(&mut text))).map(|_| text)
}
