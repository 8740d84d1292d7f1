//! Which limit an end tells of, and the key that raises it. Every limit has a signal or a sentence of its own, so none is
//! taken for another. Pure; the CLI says it of a run (`[2.7]`), Bash of a command line.

use crate::sandbox::End;
use cyberos_proto::message::Exit;
use cyberos_proto::plan::{Limits, MemoryLimit};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// The limits of one sandbox, as answers carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// MiB of memory.
    pub memory_mb: u32,
    /// Whether that is address space, as it is without `x-memory-mb`.
    pub address_space: bool,
    /// MiB of one file.
    pub file_mb: u32,
    /// MiB of /tmp, and of /dev/shm.
    pub tmp_mb: u32,
    /// Processes and threads.
    pub processes: u32,
    /// Open files of a process.
    pub open_files: u32,
    /// Seconds of processor time of a process.
    pub cpu_s: u32,
}

impl From<&Limits> for Bounds {
    fn from(l: &Limits) -> Self {
        Bounds {
            memory_mb: l.memory_mb,
            address_space: l.memory_kind == MemoryLimit::AddressSpace,
            file_mb: l.file_mb,
            tmp_mb: l.tmp_mb,
            processes: l.processes,
            open_files: l.open_files,
            cpu_s: l.cpu_s,
        }
    }
}

/// How a program ended, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Death<'a> {
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its exit status.
    pub status: Option<i32>,
    /// Whether the kernel ended one of its processes because the sandbox had no memory left.
    pub out_of_memory: bool,
    /// The end of what it printed.
    pub last_words: &'a str,
}

/// What is said of a command line that a limit ended for certain, and no fault of its own or wish of somebody's. A shell
/// says of some of these that a limit was exceeded, of others nothing, and of none which key raises it.
pub fn of_command(end: End, bounds: &Bounds) -> Option<String> {
    let (status, signal) = match end.exit {
        Exit::Code(code) => (Some(code.into()), None),
        Exit::Signal(signal) => (None, Some(signal.into())),
    };
    let death = Death { status, signal, out_of_memory: end.out_of_memory, last_words: "" };
    let number = signal.or(status.and_then(|status| status.checked_sub(128)));
    let by = number.and_then(|n| Signal::try_from(n).ok());
    let limit = end.out_of_memory || matches!(by, Some(Signal::SIGXCPU | Signal::SIGXFSZ | Signal::SIGSYS));
    if limit { told(&death, Some(bounds)) } else { None }
}

/// What is said of it; nothing of an end that tells of no limit. Without `bounds` only the ledger is left to ask.
pub fn told(death: &Death<'_>, bounds: Option<&Bounds>) -> Option<String> {
    let by_shell = death.status.filter(|s| (129..160).contains(s)).map(|s| s - 128);
    let by_shell = by_shell.and_then(|n| Signal::try_from(n).ok()).filter(|s| names_a_limit(*s));
    let what = match (death.signal.map(Signal::try_from), death.status) {
        (Some(Ok(signal)), _) => {
            format!(
                "ended by {} (signal {}): {}",
                signal.as_str(),
                signal as i32,
                cause(signal, death, bounds)
            )
        }
        // A real-time signal.
        (Some(Err(_)), _) => format!("ended by signal {}", death.signal.unwrap_or_default()),
        _ if death.out_of_memory => format!("a process of it was ended: {}", exhausted(bounds)),
        (None, Some(status)) if let Some(signal) = by_shell => format!(
            "status {status} is how a shell tells of {} (signal {}): {}",
            signal.as_str(),
            signal as i32,
            cause(signal, death, bounds)
        ),
        (None, Some(status)) if status != 0 => {
            format!("its last words tell of a limit: {}", words(death, bounds?)?)
        }
        _ => return None,
    };
    Some(what)
}

/// Whether a status that may be a shell's is worth a word: others are programs' own often enough.
fn names_a_limit(signal: Signal) -> bool {
    use Signal::{SIGABRT, SIGBUS, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ};
    matches!(signal, SIGABRT | SIGBUS | SIGILL | SIGSEGV | SIGSYS | SIGTRAP | SIGXCPU | SIGXFSZ)
}

fn cause(signal: Signal, death: &Death<'_>, bounds: Option<&Bounds>) -> String {
    let number = |pick: fn(&Bounds) -> u32, unit: &str| {
        bounds.map_or(String::new(), |b| format!(", {} {unit}", pick(b)))
    };
    match signal {
        Signal::SIGXFSZ => format!(
            "a file grew beyond the largest size of one{}, or less if it set itself a limit (ulimit -f); \
             raise x-tmp-mb in its SKILL.md",
            number(|b| b.file_mb, "MiB")
        ),
        Signal::SIGXCPU => format!(
            "a process used up its processor time{}, which is effort_minutes on every processor, or less if \
             it set itself a limit (ulimit -t)",
            number(|b| b.cpu_s, "s")
        ),
        Signal::SIGSYS => {
            "a system call of another kind of machine, as 32-bit programs make; the sandbox runs 64-bit \
                           programs alone"
                .into()
        }
        Signal::SIGBUS => format!(
            "a mapped file had no room or no more content; most often /tmp or /dev/shm is full{}: raise \
             x-tmp-mb in its SKILL.md",
            number(|b| b.tmp_mb, "MiB each")
        ),
        _ if death.out_of_memory => exhausted(bounds),
        Signal::SIGKILL => {
            "neither its deadline nor its memory limit: it was killed from inside, went on after SIGXCPU \
                            of a limit of its own, or the machine itself ran out of memory"
                .into()
        }
        Signal::SIGSEGV => format!(
            "a fault of the program, or its stack is full (8 MiB; `ulimit -s` gives up to 64){}",
            failed_allocation(bounds)
        ),
        Signal::SIGABRT | Signal::SIGTRAP | Signal::SIGILL => {
            format!("the program gave up by itself; its last lines say why{}", failed_allocation(bounds))
        }
        Signal::SIGPIPE => "it wrote to a pipe or socket that nobody reads any more".into(),
        _ => "that signal came from inside its sandbox".into(),
    }
}

/// Of ends that a failed allocation may be behind.
fn failed_allocation(bounds: Option<&Bounds>) -> String {
    bounds.map_or(String::new(), |b| format!(". If memory could not be had: {}", memory(b)))
}

/// What the kernel ends processes for.
fn exhausted(bounds: Option<&Bounds>) -> String {
    let limit = bounds.map_or(String::new(), |b| format!(" of {} MiB", b.memory_mb));
    format!(
        "all its processes together, with what is in /tmp and /dev/shm, reached the memory limit{limit}: \
         raise x-memory-mb in its SKILL.md. {RUNTIMES}"
    )
}

/// Runtimes see the machine's memory and not the limit.
const RUNTIMES: &str = "java and node take the machine's memory for theirs: tell them less with java -Xmx, \
                        node --max-old-space-size";

fn memory(b: &Bounds) -> String {
    let mb = b.memory_mb;
    if b.address_space {
        format!(
            "without x-memory-mb a process has {mb} MiB of address space, which node, java and go reserve \
             and never use; the key itself makes room, since it counts what is used: x-memory-mb: {mb} in \
             its SKILL.md, or more"
        )
    } else {
        format!("its limit is {mb} MiB: raise x-memory-mb in its SKILL.md. {RUNTIMES}")
    }
}

/// What a program says when a limit was in its way: that alone is looked for, never repeated.
fn words(death: &Death<'_>, b: &Bounds) -> Option<String> {
    let says = |any: &[&str]| any.iter().any(|word| death.last_words.contains(word));
    let found = if says(&["No space left on device", "ENOSPC"]) {
        format!("/tmp and /dev/shm have {} MiB each: raise x-tmp-mb in its SKILL.md", b.tmp_mb)
    } else if says(&[
        "can't start new thread",
        "Cannot fork",
        "fork: ",
        "EAGAIN",
        "unable to create native thread",
    ]) || says(&["Resource temporarily unavailable"])
    {
        format!(
            "it may have {} processes and threads together: raise x-max-processes in its SKILL.md",
            b.processes
        )
    } else if says(&["Too many open files", "EMFILE"]) {
        format!("a process may have {} files open", b.open_files)
    } else if says(&[
        "MemoryError",
        "OutOfMemoryError",
        "Cannot allocate memory",
        "std::bad_alloc",
        "out of memory",
        "insufficient memory",
        "Could not reserve enough space",
        "ENOMEM",
    ]) {
        memory(b)
    } else {
        return None;
    };
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        memory_mb: 700,
        address_space: false,
        file_mb: 300,
        tmp_mb: 64,
        processes: 8,
        open_files: 256,
        cpu_s: 3600,
    };

    #[test]
    fn case_182_each_signal_names_its_own_limit_and_key_and_no_other() {
        // Signal; what is said of it; what is not.
        for (signal, says, not) in [
            (25, &["SIGXFSZ (signal 25)", "300 MiB", "x-tmp-mb"][..], &["memory"][..]),
            (24, &["SIGXCPU (signal 24)", "3600 s", "effort_minutes", "ulimit -t"], &["memory", "x-tmp-mb"]),
            (31, &["SIGSYS (signal 31)", "32-bit"], &["memory", "x-"]),
            (7, &["SIGBUS (signal 7)", "64 MiB each", "x-tmp-mb"], &["memory"]),
            (9, &["SIGKILL (signal 9)", "from inside"], &["x-"]),
            (11, &["SIGSEGV (signal 11)", "ulimit -s", "x-memory-mb"], &["x-tmp-mb"]),
            (6, &["SIGABRT (signal 6)", "last lines", "x-memory-mb"], &["x-tmp-mb"]),
            (13, &["SIGPIPE (signal 13)"], &["memory", "x-"]),
            (1, &["SIGHUP (signal 1)", "inside"], &["memory", "x-"]),
            (34, &["signal 34"], &["memory", "x-"]),
        ] {
            let told = told(&Death { signal: Some(signal), ..Death::default() }, Some(&BOUNDS)).unwrap();
            assert!(says.iter().all(|word| told.contains(word)), "{told}");
            let without = told.replace("nor its memory limit", "").replace("ran out of memory", "");
            assert!(!not.iter().any(|word| without.contains(word)), "{told}");
        }
    }

    #[test]
    fn memory_that_ran_out_is_told_from_other_kills_and_of_a_child_too() {
        for (signal, status) in [(Some(9), None), (None, Some(137)), (None, Some(1)), (None, Some(0))] {
            let death = Death { signal, status, out_of_memory: true, ..Death::default() };
            let told = told(&death, Some(&BOUNDS)).unwrap();
            assert!(told.contains("limit of 700 MiB") && told.contains("-Xmx"), "{told}");
        }
    }

    #[test]
    fn without_the_key_it_is_the_key_that_makes_room() {
        let plain = Bounds { address_space: true, memory_mb: 512, ..BOUNDS };
        let aborted = Death { signal: Some(6), ..Death::default() };
        let said = told(&aborted, Some(&plain)).unwrap();
        assert!(said.contains("the key itself makes room") && said.contains("x-memory-mb: 512"), "{said}");
        let said = told(&aborted, Some(&BOUNDS)).unwrap();
        assert!(!said.contains("makes room") && said.contains("its limit is 700 MiB"), "{said}");
    }

    #[test]
    fn a_shells_status_and_last_words_are_read_and_ordinary_ends_are_not() {
        let of = |status, last_words| {
            told(&Death { status: Some(status), last_words, ..Death::default() }, Some(&BOUNDS))
        };
        assert!(of(153, "").unwrap().contains("SIGXFSZ"));
        for (words, key) in [
            ("OSError: [Errno 28] No space left on device", "x-tmp-mb"),
            ("RuntimeError: can't start new thread", "x-max-processes"),
            ("OSError: [Errno 24] Too many open files: 'x'", "256 files"),
            ("MemoryError", "x-memory-mb"),
            ("Exception: java.lang.OutOfMemoryError: Java heap space", "-Xmx"),
        ] {
            assert!(of(1, words).unwrap().contains(key), "{words}");
            assert_eq!(of(0, words), None, "it went well");
        }
        for status in [0, 1, 2, 127, 130, 137, 141, 143, 255] {
            assert_eq!(of(status, "usage: x"), None, "{status}");
        }
        // Of the ledger's row alone, no limits are known.
        let told = told(&Death { signal: Some(6), ..Death::default() }, None).unwrap();
        assert!(!told.contains("MiB") && told.contains("SIGABRT"), "{told}");
    }
}
