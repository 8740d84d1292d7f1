//! What every sandbox sees beside what is its own (`[10.5]`), as a list of names: the helper makes each, in this order,
//! in an empty root.

use crate::policy::ceiling::block;

/// What is at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A directory for others to be in, or for mounts of the sandbox's own.
    Directory,
    /// What the host has there, if it has it: links as links, the rest read-only.
    Host,
    /// A character device of the host's, with this major and minor number.
    Device((u32, u32)),
    /// A link.
    Link(&'static str),
    /// A file of its own with that text, for everybody to read.
    File(String),
}

/// The directories of which a change may change what the host has at the names below: their own, and what is most
/// likely to be mounted over.
pub(crate) const LOOKED_AT: [&str; 4] = ["/", "/usr", "/etc", "/etc/ssl"];

const OWN: [&str; 5] = ["etc/ssl", "dev/pts", "dev/shm", "proc", "tmp"];
/// Of /etc what programs were seen to open (`tests/programs` has them) and what can hold no secret.
const SYSTEM: [&str; 17] = [
    "usr",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "etc/localtime",
    "etc/ld.so.cache",
    "etc/os-release",
    "etc/protocols",
    "etc/services",
    "etc/mime.types",
    "etc/fonts",
    "etc/ssl/openssl.cnf",
    "etc/ssl/certs",
    "etc/alternatives",
];
/// Each with its major and minor number. The last is the terminal of whoever opens it, if it has one.
const DEVICES: [(&str, (u32, u32)); 6] = [
    ("dev/null", (1, 3)),
    ("dev/zero", (1, 5)),
    ("dev/full", (1, 7)),
    ("dev/random", (1, 8)),
    ("dev/urandom", (1, 9)),
    ("dev/tty", (5, 0)),
];
const LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "fd/0"),
    ("dev/stdout", "fd/1"),
    ("dev/stderr", "fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// All names, without leading slash, for sandboxes of the block whose first uid is `first`. `etc` is what the host's /etc
/// holds: of it `java-*` is shown besides. Each uid of a lease is the user `skill`.
pub(crate) fn entries(first: u32, etc: impl IntoIterator<Item = String>) -> Vec<(String, Entry)> {
    let mut passwd = String::from("root:x:0:0:root:/:/usr/sbin/nologin\n");
    let mut group = String::from("root:x:0:\n");
    for uid in block(first).skip(1) {
        passwd += &format!("skill:x:{uid}:{uid}:skill:/tmp:/bin/sh\n");
        group += &format!("skill:x:{uid}:\n");
    }
    let java = etc.into_iter().filter(|name| name.starts_with("java-"));
    let files = [
        ("etc/passwd", passwd),
        ("etc/group", group),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".to_owned()),
        ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n".to_owned()),
        ("etc/gitconfig", "[safe]\n\tdirectory = *\n".to_owned()),
    ];
    let mut all: Vec<_> = OWN.map(|name| (name.to_owned(), Entry::Directory)).into();
    all.extend(SYSTEM.map(|name| (name.to_owned(), Entry::Host)));
    all.extend(java.map(|name| (format!("etc/{name}"), Entry::Host)));
    all.extend(DEVICES.map(|(name, number)| (name.to_owned(), Entry::Device(number))));
    all.extend(LINKS.map(|(name, to)| (name.to_owned(), Entry::Link(to))));
    all.extend(files.map(|(name, text)| (name.to_owned(), Entry::File(text))));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_name_is_relative_single_and_in_a_directory_that_comes_before_it() {
        let all = entries(1000, ["java-17".into(), "shadow".into(), "passwd".into()]);
        let mut directories = BTreeSet::from([Path::new("")]);
        let mut seen = BTreeSet::new();
        for (name, entry) in &all {
            assert!(!name.starts_with('/') && seen.insert(name), "{name}");
            match entry {
                Entry::Directory => directories.extend(Path::new(name).ancestors()),
                _ => assert!(directories.contains(Path::new(name).parent().unwrap()), "{name}"),
            }
        }
        let host: Vec<_> =
            all.iter().filter(|(_, e)| *e == Entry::Host).map(|(name, _)| name.as_str()).collect();
        assert!(
            host.contains(&"etc/java-17") && !host.contains(&"etc/shadow") && !host.contains(&"etc/passwd")
        );
        for name in host {
            let above = Path::new("/").join(name);
            assert!(LOOKED_AT.iter().any(|l| above.parent() == Some(Path::new(l))), "{name} is looked at");
        }
    }

    #[test]
    fn each_lease_of_the_block_is_the_user_skill_and_its_first_uid_nobody() {
        let all = entries(1000, []);
        let text = |name: &str| match all.iter().find(|(n, _)| n == name) {
            Some((_, Entry::File(text))) => text.clone(),
            _ => String::new(),
        };
        for (name, uids) in [("etc/passwd", 2), ("etc/group", 2)] {
            let text = text(name);
            let found: Vec<u32> =
                text.lines().skip(1).map(|l| l.split(':').nth(uids).unwrap().parse().unwrap()).collect();
            assert_eq!(found, (1001..=1255).collect::<Vec<_>>(), "{name}");
        }
    }
}
