//! Starts in places that are not as a machine of one's own: odd propagation, an overlay as the root, a read-only /sys, a
//! kernel that lacks what is needed (cases 79, 80 and 84). Such a place is made here of namespaces.

use super::support::up::{Options, Skill, Up};
use super::{ANY, host_mounts};
use std::collections::BTreeSet;
use std::path::Path;

/// `cyberos up` in a mount namespace of its own, with this propagation.
fn propagation(kind: &str) -> Vec<String> {
    ["unshare", "--mount", "--propagation", kind].map(String::from).into()
}

/// The same, with a writable overlay of the host's root as the root and a read-only /sys: what a container's root looks
/// like. It is made the root by pivot_root, as containers do, or by chroot alone.
pub(super) fn overlay(by: &str) -> Vec<String> {
    let script = r#"set -e
by=$1; base=$2; shift 2
root=$base/container/root
mkdir -p $base/container
mount -t tmpfs none $base/container
mkdir -p $base/container/upper $base/container/work $root
mount -t overlay overlay -o lowerdir=/,upperdir=$base/container/upper,workdir=$base/container/work $root
for d in proc dev; do mount --rbind /$d $root/$d; done
mount --rbind /sys $root/sys; mount -o remount,bind,ro $root/sys
mkdir -p $root$base; mount --bind $base $root$base
# It sees the machine's processes, so it has to see whose uids they are.
mkdir -p -m 700 /run/cyberos-uid $root/run/cyberos-uid; mount --bind /run/cyberos-uid $root/run/cyberos-uid
target=$(dirname $1); mount --bind $target $root$target
cd $root
if [ $by = pivot ]; then pivot_root . .; umount -l .; fi
exec chroot . "$@""#;
    let words =
        ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh", by, "{dir}"];
    words.map(String::from).into()
}

pub(super) fn works_within(within: Vec<String>, what: &str) {
    let options = Options { within, ..Options::default() };
    let up = Up::try_with(options, |source| {
        drop(Skill { id: "any", main: ANY, ..Skill::default() }.write(source))
    })
    .unwrap_or_else(|why| panic!("{what}: {why}"));
    let ran = up.run(
        "any",
        &[
            "/bin/sh",
            "-c",
            "id -un; ls / | wc -w; touch /usr/x 2>&1 | grep -c 'Read-only'; echo x >/tmp/x && cat /tmp/x",
        ],
    );
    assert!(
        ran.exit == 0 && ran.stdout.starts_with("skill\n") && ran.stdout.ends_with("\n1\nx\n"),
        "{what}: {ran}"
    );
}

#[test]
fn case_079_a_start_works_whatever_the_propagation_and_the_root() {
    let before = host_mounts();
    for kind in ["private", "shared", "slave"] {
        works_within(propagation(kind), kind);
    }
    works_within(overlay("pivot"), "an overlay as the root, /sys read-only");
    // A namespace that is entered is entered at its root, which is not a chroot's: what is outside would be inside.
    let options = Options { within: overlay("chroot"), ..Options::default() };
    let said = Up::try_with(options, |_| {}).err().expect("a helper in a chroot does not start");
    assert!(said.contains("chroot") && said.contains("pivot_root"), "{said}");
    assert_eq!(host_mounts(), before, "nothing has come through to the host");
}

/// Makes system calls unknown to what is executed next, as an older kernel would: arguments are numbers, then the program.
const OLD_KERNEL: &str = r#"
import ctypes, os, struct, sys
at = sys.argv.index("--")
numbers = [int(n) for n in sys.argv[1:at]]
code = [(0x20, 0, 0, 0)]
for left, number in zip(range(len(numbers), 0, -1), numbers):
    code.append((0x15, left, 0, number))
code += [(6, 0, 0, 0x7fff0000), (6, 0, 0, 0x50000 | 38)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(22, 2, fprog, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[at + 1], sys.argv[at + 1:])
"#;

pub(super) fn without(numbers: &[&str]) -> Vec<String> {
    let mut words = vec!["/usr/bin/python3", "-I", "-c", OLD_KERNEL];
    words.extend(numbers);
    words.push("--");
    words.into_iter().map(str::to_owned).collect()
}

/// Paths of everything in these directories, with what they are.
fn inventory() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for dir in [
        "/",
        "/etc",
        "/usr",
        "/usr/local",
        "/opt",
        "/home",
        "/root",
        "/srv",
        "/mnt",
        "/media",
        "/var",
        "/dev",
    ] {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            // What every `cyberos up` makes for the default grant, and takes away; others run beside this one.
            if entry.path() != Path::new("/srv/cyberos") {
                all.insert(format!("{} {:?}", entry.path().display(), entry.file_type().ok()));
            }
        }
    }
    all
}

#[test]
fn case_080_a_start_creates_no_stubs_on_the_host() {
    let before = inventory();
    let repository = super::support::up::reachable_dir("cyberos-case-080-");
    let git = |words: &[&str]| {
        let out = std::process::Command::new("git").arg("-C").arg(&repository).args(words).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    git(&["init", "-q"]);
    std::fs::write(repository.join("f"), "x").unwrap();
    let status = git(&["status", "--porcelain", "--ignored"]);
    {
        // The source itself lies in somebody's repository.
        let up = Up::new(|source| drop(Skill { id: "any", main: ANY, ..Skill::default() }.write(source)));
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .arg(&up.skills)
            .arg(repository.join("skills"))
            .status()
            .unwrap();
        assert!(copied.success());
        let with_skills = git(&["status", "--porcelain", "--ignored", "-uall"]);
        let own = names_below(&up.skills);
        for _ in 0..3 {
            let ran =
                up.run("any", &["/bin/sh", "-c", "ls -d /opt/cyberos/bin /etc/gitconfig /dev/shm | wc -l"]);
            assert_eq!((ran.exit, ran.stdout.as_str()), (0, "3\n"), "{ran}");
        }
        assert_eq!(names_below(&up.skills), own, "the source is as it was");
        assert_eq!(git(&["status", "--porcelain", "--ignored", "-uall"]), with_skills);
    }
    std::fs::remove_dir_all(repository.join("skills")).unwrap();
    assert_eq!(git(&["status", "--porcelain", "--ignored"]), status);
    let after = inventory();
    assert_eq!(after.symmetric_difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
}

fn names_below(dir: &Path) -> BTreeSet<String> {
    let out =
        std::process::Command::new("find").arg(dir).args(["-printf", "%p %m %s %T@\n"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}
