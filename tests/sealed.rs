//! What runs is what was vouched for (`[0.1]`): a skill that is edited at any point between `skill run` and its exec
//! runs the sealed content or is refused, and the row's digest is that of what ran.

mod support;

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::up::{Skill, Up};

const PAD: usize = 64 * 1024;

/// An entry point of constant length that prints its own version, and by its length gives an editor time.
fn main_text(version: &str) -> String {
    let mut text = format!("#!/bin/sh\necho {version}\nexit 0\n#");
    text.push_str(&"x".repeat(PAD - text.len()));
    text
}

/// The digest of a skill, computed here from the definition in SPEC.md, by this test's own code.
fn digest(dir: &Path) -> String {
    fn walk(dir: &Path, prefix: &str, out: &mut BTreeMap<Vec<u8>, (u8, u64, [u8; 32])>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                out.insert(path.clone().into_bytes(), (b'd', 0, [0; 32]));
                walk(&entry.path(), &path, out);
            } else {
                let bytes = std::fs::read(entry.path()).unwrap();
                let kind = if meta.permissions().mode() & 0o111 == 0 { b'f' } else { b'x' };
                out.insert(path.into_bytes(), (kind, bytes.len() as u64, Sha256::digest(&bytes).into()));
            }
        }
    }
    let mut entries = BTreeMap::new();
    walk(dir, "", &mut entries);
    let mut hash = Sha256::new();
    hash.update(b"cyberos-tree-1\n");
    for (path, (kind, size, sum)) in entries {
        hash.update([kind]);
        hash.update(u32::try_from(path.len()).unwrap().to_be_bytes());
        hash.update(&path);
        hash.update(size.to_be_bytes());
        hash.update(sum);
    }
    format!("sha256:{:x}", Hex(hash.finalize().into()))
}

struct Hex([u8; 32]);

impl std::fmt::LowerHex for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

type Edit = Box<dyn Fn(&Path, &str) + Send + Sync>;

fn editors() -> Vec<(&'static str, Edit)> {
    vec![
        (
            "write",
            Box::new(|main, text| {
                let file = std::fs::File::options().write(true).open(main).unwrap();
                file.write_all_at(text.as_bytes(), 0).unwrap();
            }),
        ),
        (
            "rename",
            Box::new(|main, text| {
                let new = main.with_file_name("main.new");
                support::up::write_executable(&new, text);
                std::fs::rename(&new, main).unwrap();
            }),
        ),
        (
            "mmap",
            Box::new(|main, text| {
                // A store through a shared mapping, which inotify does not tell of.
                let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\nt=sys.stdin.buffer.read()\nm[:len(t)]=t\n";
                let mut child = std::process::Command::new("/usr/bin/python3")
                    .args(["-c", script])
                    .arg(main)
                    .stdin(std::process::Stdio::piped())
                    .spawn()
                    .unwrap();
                std::io::Write::write_all(child.stdin.as_mut().unwrap(), text.as_bytes()).unwrap();
                drop(child.stdin.take());
                assert!(child.wait().unwrap().success());
            }),
        ),
    ]
}

#[test]
fn an_edit_at_any_point_runs_the_sealed_content_or_is_refused() {
    for (how, edit) in editors() {
        let (a, b) = (main_text("version-a"), main_text("version-b"));
        let up = Up::new(|source| drop(Skill { id: "edited", main: &a, ..Skill::default() }.write(source)));
        let dir = up.skills.join("edited");
        let of_a = digest(&dir);
        edit(&dir.join("main"), &b);
        let of_b = digest(&dir);
        assert_ne!(of_a, of_b);
        let (stop, edits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let editor = {
            let (stop, edits, main) = (Arc::clone(&stop), Arc::clone(&edits), dir.join("main"));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for text in [&a, &b] {
                        edit(&main, text);
                        edits.fetch_add(1, Ordering::Relaxed);
                        // Long enough for some runs to find a decided skill, short enough to fall into others.
                        std::thread::sleep(std::time::Duration::from_millis(150));
                    }
                }
            })
        };
        let (mut ran, mut refused) = (0, 0);
        while ran + refused < 12 || edits.load(Ordering::Relaxed) < 12 {
            let result = up.run("edited", &[]);
            match result.exit {
                0 => {
                    ran += 1;
                    let row = up.rows("skill.invoked_started").last().unwrap()["extra"].clone();
                    let want = match result.stdout.as_str() {
                        "version-a\n" => &of_a,
                        "version-b\n" => &of_b,
                        other => panic!("{how}: neither version ran: {other:?}"),
                    };
                    assert_eq!(row["content_digest"], want.as_str(), "{how}: what ran is what the row names");
                }
                5 | 6 => refused += 1,
                // A copy caught between two halves of a write is neither version; it must not run as one of them.
                other => panic!("{how}: exit {other}: {result}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        editor.join().unwrap();
        assert!(ran > 0, "{how}: {ran} ran, {refused} refused");
        // And when it is quiet again, it runs.
        up.shown("edited", "current");
        assert_eq!(up.run("edited", &[]).exit, 0, "{how}");
    }
}

#[test]
fn an_edit_while_it_runs_changes_nothing_of_what_runs() {
    let main = "#!/bin/sh\nread line\ncat other.txt\ncat /opt/cyberos/skills/running/main | tail -n 1\n# the last line\n";
    let up = Up::new(|source| {
        let dir = Skill { id: "running", main, ..Skill::default() }.write(source);
        std::fs::write(dir.join("other.txt"), "before\n").unwrap();
    });
    let mut child = up
        .command(&["skill", "run", "running", "--stdin"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert!(support::up::eventually(std::time::Duration::from_secs(10), || !up
        .rows("skill.invoked_started")
        .is_empty()));
    std::fs::write(up.skills.join("running/other.txt"), "after\n").unwrap();
    std::fs::write(up.skills.join("running/main"), "#!/bin/sh\necho replaced\n").unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "before\n# the last line\n");
}

#[test]
fn a_copy_that_differs_from_the_providers_digest_does_not_run() {
    let provider = "#!/bin/sh\n[ \"$1\" = resolve ] || exit 0\nprintf '{\"schemaVersion\":1,\"skillName\":\"%s\",\"status\":\"pass\",\"decision\":\"current\",\"contentDigest\":\"sha256:%064d\"}\\n' \"${2##*/}\" 0\n";
    let options = support::up::Options { provider: Some(provider.into()), ..Default::default() };
    let up = Up::with(options, |source| drop(Skill::default().write(source)));
    let ran = up.run("demo", &[]);
    assert_eq!(ran.exit, 5, "{ran}");
    assert!(ran.stderr.contains("not what the provider vouched for"), "{ran}");
}

#[test]
fn what_can_not_be_part_of_a_skill_is_refused_with_its_path() {
    let up = Up::new(|source| {
        let out = Skill { id: "leaves", ..Skill::default() }.write(source);
        support::up::link("/etc/passwd", &out.join("way-out"));
        let inside = Skill { id: "stays", ..Skill::default() }.write(source);
        support::up::link("SKILL.md", &inside.join("alias"));
        Skill { id: "plain", ..Skill::default() }.write(source);
    });
    let ran = up.run("leaves", &[]);
    assert_eq!(ran.exit, 6, "{ran}");
    assert!(ran.stderr.contains("leaves/way-out"), "{ran}");
    assert_eq!(up.run("stays", &[]).exit, 0);
    assert_eq!(up.run("plain", &[]).exit, 0);
}
