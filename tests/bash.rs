//! The Bash tool (`[4.6]`): what a command line gets, what it sees of the host, and that nothing of it outlives its call.

#[path = "bash/asks.rs"]
mod asks;
#[path = "bash/calls.rs"]
mod calls;
#[path = "bash/grants.rs"]
mod grants;
#[path = "bash/leaks.rs"]
mod leaks;
#[path = "bash/space.rs"]
mod space;
mod support;

use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use support::up::{Folder, Options, Skill, Up, python, reachable_dir};

/// Makes each call of argv[1] (a JSON list of arguments for Bash) and prints the list of answers. In a `cmd`, `@N` stands
/// for N letters.
const CALLER: &str = r"import re
def full(args):
    return {k: re.sub(r'@(\d+)', lambda m: 'x' * int(m[1]), v) if k == 'cmd' else v for k, v in args.items()}
print(json.dumps([call('Bash', **full(args)) for args in json.loads(sys.argv[1])]))";

/// An `up` with two skills that call Bash: `reader`, and `writer`, which is granted Write too. Both ask for all of
/// DIR, a directory of the test's own that belongs to the broker and can be granted.
struct Bash {
    // Ended first: its sandboxes hold copies of what is mounted in the directory.
    up: Up,
    dir: Folder,
}

impl Bash {
    fn new() -> Bash {
        Bash::with("", &["DIR/**"])
    }

    /// `more` are lines of frontmatter; `wishes` is `x-allowed-files`, in which DIR stands for the directory.
    fn with(more: &str, wishes: &[&str]) -> Bash {
        let dir = reachable_dir("cyberos-grant-");
        let files: Vec<String> =
            wishes.iter().map(|w| format!("\"{}\"", w.replace("DIR", dir.to_str().unwrap()))).collect();
        let more = format!("x-allowed-files: [{}]\n{more}", files.join(", "));
        let options = Options { grant_requested: true, ..Options::default() };
        let up = Up::with(options, |source| {
            for (id, tools) in [("reader", &["Bash"][..]), ("writer", &["Bash", "Write"])] {
                let main = python(CALLER);
                Skill { id, tools, more: &more, main: &main, ..Skill::default() }.write(source);
            }
        });
        let bash = Bash { up, dir };
        bash.give(&bash.dir);
        bash
    }

    /// Uid and gid of the broker.
    fn broker(&self) -> (u32, u32) {
        let state = std::fs::metadata(self.up.state.join("broker")).unwrap();
        (state.uid(), state.gid())
    }

    /// Makes `path` the broker's.
    fn give(&self, path: &Path) {
        let (uid, gid) = self.broker();
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    }

    /// A directory below DIR that belongs to the broker.
    fn directory(&self, below: &str) -> PathBuf {
        let path = self.dir.join(below);
        std::fs::create_dir(&path).unwrap();
        self.give(&path);
        path
    }

    /// The answers to several calls in one run.
    fn calls(&self, skill: &str, calls: &Value) -> Vec<Value> {
        let ran = self.up.run(skill, &[&calls.to_string()]);
        assert_eq!(ran.exit, 0, "{ran}");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}"))
    }

    fn call(&self, skill: &str, args: Value) -> Value {
        self.calls(skill, &json!([args])).remove(0)
    }

    /// The result of one command line.
    fn run(&self, skill: &str, cmd: &str) -> Value {
        let answer = self.call(skill, json!({"cmd": cmd}));
        assert_eq!(answer[0], "ok", "{cmd}: {answer}");
        answer[1].clone()
    }

    /// What a command line that must succeed prints.
    fn prints(&self, skill: &str, cmd: &str) -> String {
        let result = self.run(skill, cmd);
        assert_eq!(result["exit_code"], 0, "{cmd}: {result}");
        result["stdout"].as_str().unwrap().trim_end().to_owned()
    }
}

/// Everything below `dir`, not followed.
fn below(dir: &Path) -> Vec<(PathBuf, std::fs::Metadata)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let meta = std::fs::symlink_metadata(entry.path()).unwrap();
        if meta.is_dir() {
            out.extend(below(&entry.path()));
        }
        out.push((entry.path(), meta));
    }
    out
}
