//! Bash does not fill a disk (`[2.8]`).

use super::*;
use std::time::Duration;
use support::up::eventually;

struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, size: &str) -> Tmpfs {
        let none = nix::mount::MsFlags::empty();
        nix::mount::mount(
            Some("tmpfs"),
            at,
            Some("tmpfs"),
            none,
            Some(format!("size={size},mode=755").as_str()),
        )
        .unwrap();
        Tmpfs(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn assert_out_of_space(bash: &Bash, answer: &Value) {
    assert_eq!((&answer[0], &answer[1]["code"]), (&json!("quota_exceeded"), &json!(-32603)), "{answer}");
    let rows = bash.up.rows("skill.tool_denied");
    assert_eq!(answer[1]["reason"], "disk_low");
    assert_eq!(rows.last().unwrap()["extra"]["reason"], "disk_low");
}

#[test]
fn a_command_that_fills_a_granted_file_system_is_ended() {
    let bash = Bash::new();
    let small = bash.directory("small");
    let _mount = Tmpfs::mount(&small, "64m");
    bash.give(&small);
    let dir = small.display();
    let fill = format!(
        "for i in $(seq 60); do head -c 1048576 /dev/zero > {dir}/$i; done; sleep 0.2; head -c 3145728 /dev/zero > {dir}/last; sleep 60"
    );
    let answers = bash.calls("writer", &json!([{"cmd": fill, "timeout_ms": 40000}, {"cmd": "true"}]));
    assert_out_of_space(&bash, &answers[0]);
    assert_out_of_space(&bash, &answers[1]);
    // Who only reads cannot have filled it.
    assert_eq!(bash.prints("reader", &format!("ls {dir} | wc -l")), "61");
}

#[test]
fn bash_is_ended_while_the_states_file_system_is_nearly_full() {
    let mut mount = None;
    let up = Up::new(|source| {
        let state = source.parent().unwrap().join("state/broker");
        std::fs::create_dir_all(&state).unwrap();
        mount = Some(Tmpfs::mount(&state, "256m"));
        let main = python("print('ready', flush=True)\nprint(json.dumps(call('Bash', cmd='sleep 60')))");
        Skill { tools: &["Bash"], main: &main, ..Skill::default() }.write(source);
    });
    let mut up = up;
    let child = up.command(&["skill", "run", "demo"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let running = || up.rows("skill.tool_call_started").len() == 1;
    assert!(eventually(Duration::from_secs(20), running));
    let free = nix::sys::statvfs::statvfs(&up.state.join("broker")).unwrap();
    let fill = (free.blocks_available() * free.fragment_size()).saturating_sub(8 << 20);
    let filler = up.state.join("broker/filler");
    std::fs::write(&filler, vec![0u8; usize::try_from(fill).unwrap()]).unwrap();
    let out = support::up::Ran::from(child.wait_with_output().unwrap());
    let answer: Value = serde_json::from_str(out.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(answer[0], "quota_exceeded", "{answer}");
    std::fs::remove_file(&filler).unwrap();
    up.stop();
    drop(mount);
}

/// One call would take all that is left before anybody could look; writing takes its time, and `posix_fallocate` writes.
#[test]
fn no_call_of_a_command_takes_a_whole_disk_at_once() {
    let bash = Bash::new();
    let dir = bash.directory("work");
    bash.give(&dir);
    let at = dir.display();
    let said = bash.prints("writer", &format!("fallocate -l 1M {at}/f 2>&1; ls -s {at}/f"));
    assert!(said.contains("not supported") && said.contains("\n0 "), "{said}");
    let python = format!(
        "import os; f = os.open('{at}/g', os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1 << 20); print(os.fstat(f).st_size)"
    );
    assert_eq!(bash.prints("writer", &format!("python3 -c \"{python}\"")), "1048576");
}
