//! The table of ordinary programs (`table.txt`): each row is run as a skill's own program and by the tool Bash, and both say
//! the same unless the row says why not.

use super::support::up::{Options, Skill, Up, python};
use std::path::Path;

/// Each row's text.
const TABLE: &str = include_str!("table.txt");

/// Runs a command line with the tool Bash, as if it were its own.
const BY_BASH: &str = "r = call('Bash', cmd=sys.argv[1])
if r[0] != 'ok': sys.exit(str(r))
sys.stdout.write(r[1]['stdout']); sys.stderr.write(r[1]['stderr']); sys.exit(r[1]['exit_code'])";

#[derive(Debug)]
struct Row<'t> {
    programs: Vec<&'t str>,
    skill: &'t str,
    command: &'t str,
    says: String,
    bash_says: String,
}

/// Reads one line of the table.
fn row(line: &str) -> Row<'_> {
    let columns: Vec<&str> = line.split(" ;; ").collect();
    let text = |said: &str| said.replace("\\\\", "\0").replace("\\n", "\n").replace('\0', "\\");
    let (programs, skill, command, says, bash) = match *columns.as_slice() {
        [programs, skill, command, says] => (programs, skill, command, says, says),
        [programs, skill, command, says, bash, why] => {
            assert!(bash != says && why.len() > 10, "{line}: what differs, and why?");
            (programs, skill, command, says, bash)
        }
        _ => panic!("{line}: {} columns", columns.len()),
    };
    assert!(["plain", "roomy"].contains(&skill), "{line}: no such skill");
    let programs = programs.split(' ').collect();
    Row { programs, skill, command, says: text(says), bash_says: text(bash) }
}

fn rows() -> Vec<Row<'static>> {
    TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(row).collect()
}

/// These cases, and whatever comes to be a row.
#[test]
fn cases_184_185_186_187_188_192_193_194_ordinary_programs_say_the_same_in_a_skill_and_in_bash() {
    let options = Options { grant_requested: true, ..Options::default() };
    let by_bash = python(BY_BASH);
    let up = Up::with(options, |source| {
        for (id, more) in [("plain", ""), ("roomy", "x-memory-mb: 2048\nx-max-processes: 64\n")] {
            Skill { id, main: super::ANY, more, ..Skill::default() }.write(source);
            let bash = Skill {
                id: &format!("{id}-bash"),
                tools: &["Bash"],
                main: &by_bash,
                more,
                ..Skill::default()
            };
            bash.write(source);
        }
    });
    let mut wrong = Vec::new();
    for row in rows() {
        let own = up.run(row.skill, &["/bin/bash", "-c", row.command]);
        let bash = up.run(&format!("{}-bash", row.skill), &[row.command]);
        for (who, ran, says) in [("the skill", own, row.says), ("Bash", bash, row.bash_says)] {
            if (ran.exit, ran.stdout.trim_end(), ran.stderr.as_str()) != (0, says.as_str(), "") {
                wrong.push(format!("{}\n--- in {who}; expected\n{says}\n--- found {ran}", row.command));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Nothing is left out because it is not there: the script that runs the tests installs it.
#[test]
fn every_program_of_the_table_is_on_this_machine_and_installed_by_the_script_that_runs_the_tests() {
    let script = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run")).unwrap();
    let used = script.split("USED=(").nth(1).unwrap().split("\n)").next().unwrap();
    let used: Vec<&str> = used.split_whitespace().filter_map(|pair| pair.split(':').next()).collect();
    let (mut absent, mut unlisted) = (Vec::new(), Vec::new());
    for program in rows().into_iter().flat_map(|row| row.programs) {
        if !["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(program).exists()) {
            absent.push(program);
        }
        if !used.contains(&program) {
            unlisted.push(program);
        }
    }
    assert!(absent.is_empty(), "not on this machine (`tests/run` installs them on Debian): {absent:?}");
    assert!(unlisted.is_empty(), "in the table, but not in USED of tests/run: {unlisted:?}");
    assert!(rows().len() >= 60, "{} rows", rows().len());
}
