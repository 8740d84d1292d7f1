//! Whether a network namespace is as good as new, from what the kernel says of it. The helper reads that.

/// Whether no socket of any kind is in a network namespace of which these are net/unix and net/sockstat. One that nobody
/// has by a descriptor may still be on its way in a message that nobody has read.
pub(crate) fn is_empty(unix: &str, sockstat: &str) -> bool {
    let used = sockstat.lines().find_map(|line| line.strip_prefix("sockets: used "));
    let mut lines = unix.lines();
    // A table without its head is none.
    lines.next().is_some_and(|head| head.starts_with("Num")) && lines.next().is_none() && used == Some("0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_socket_of_any_kind_is_too_many_and_what_cannot_be_read_is_not_empty() {
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n";
        let none = "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 1 mem 94\n";
        let one = format!("{head}0000000000000000: 00000002 00000000 00010000 0001 01 34568 @x\n");
        let unnamed = format!("{head}0000000000000000: 00000003 00000000 00000000 0001 03 34569\n");
        for (unix, sockstat, empty) in [
            (head, none, true),
            (head, "sockets: used 1\n", false),
            (head, "sockets: used 10\n", false),
            (head, "", false),
            ("", none, false),
            (&*one, none, false),
            (&*unnamed, none, false),
        ] {
            assert_eq!(is_empty(unix, sockstat), empty, "{unix} {sockstat}");
        }
    }
}
