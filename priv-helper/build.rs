//! Compiles `src/seccomp/*.json` into BPF programs that the helper includes as bytes.
//!
//! The files are seccompiler's JSON with two additions: a rule may name several `syscalls`, which is one rule for each;
//! and `arch` keeps a rule to one architecture.
//!
//! Filters are inherited, so the helper's own allow-list is the skills' (`allow.json`) and what it needs itself
//! (`helper.json`). What a sandbox loads is short: it takes the latter away again, and refuses or pretends what depends
//! on arguments. Since seccompiler has one action a filter, those are programs of their own, joined into one: where one
//! allows, the next decides.

use seccompiler::{BpfProgram, TargetArch};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const SOURCE: &str = "src/seccomp";
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// BPF_JMP | BPF_JA: `k` instructions are skipped.
const JUMP: u16 = 0x05;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    // All are compiled for all, so that a mistake for one architecture is seen on the other.
    for arch in ARCHITECTURES {
        let helper =
            Filter { rules: [rules("allow", arch)?, rules("helper", arch)?].concat(), ..read("helper")? };
        let helpers_own = Filter {
            allow_else: json!("allow"),
            action: json!({ "errno": 38 }),
            rules: rules("helper", arch)?,
        };
        let sandbox = |sockets: &str| -> Outcome<BpfProgram> {
            let mut parts = Vec::new();
            for name in ["pretend", "refuse", sockets] {
                parts.push(compile(Filter { rules: rules(name, arch)?, ..read(name)? }, arch)?);
            }
            parts.push(compile(helpers_own.clone(), arch)?);
            Ok(join(parts))
        };
        let init = Filter { rules: rules("init", arch)?, ..read("init")? };
        for (name, program) in [
            ("helper", compile(helper, arch)?),
            ("init", compile(init, arch)?),
            ("skill", sandbox("sockets_skill")?),
            ("bash", sandbox("sockets_bash")?),
        ] {
            if arch == target {
                fs::write(out.join(format!("{name}.bpf")), bytes(&program))?;
            }
        }
    }
    Ok(())
}
#[derive(Clone)]
struct Filter {
    /// What happens to calls that no rule matches.
    allow_else: Value,
    action: Value,
    rules: Vec<Value>,
}

fn file(name: &str) -> Outcome<Map<String, Value>> {
    let path = Path::new(SOURCE).join(format!("{name}.json"));
    Ok(serde_json::from_slice(&fs::read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?)
}

/// The actions of a file; its rules are left out.
fn read(name: &str) -> Outcome<Filter> {
    let file = file(name)?;
    let action = |key: &str| file.get(key).cloned().ok_or(format!("{name}.json: no {key}"));
    Ok(Filter { allow_else: action("mismatch_action")?, action: action("match_action")?, rules: Vec::new() })
}

fn rules(name: &str, arch: &str) -> Outcome<Vec<Value>> {
    let wrong = |what: &str| format!("{name}.json: {what}");
    let mut all = Vec::new();
    for rule in file(name)?.get("filter").and_then(Value::as_array).ok_or_else(|| wrong("no filter"))? {
        let mut rule = rule.as_object().ok_or_else(|| wrong("a rule is not an object"))?.clone();
        if rule.get("comment").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(wrong(&format!("a rule without comment: {rule:?}")).into());
        }
        if rule.remove("arch").is_some_and(|only| only != arch) {
            continue;
        }
        let names = rule.remove("syscalls").ok_or_else(|| wrong("a rule without syscalls"))?;
        for syscall in names.as_array().ok_or_else(|| wrong("syscalls is not a list"))? {
            let mut one = rule.clone();
            one.insert("syscall".into(), syscall.clone());
            all.push(Value::Object(one));
        }
    }
    Ok(all)
}

fn compile(filter: Filter, arch: &str) -> Outcome<BpfProgram> {
    let Filter { allow_else, action, rules } = filter;
    let text = json!({ "f": { "mismatch_action": allow_else, "match_action": action, "filter": rules } });
    let text = serde_json::to_vec(&text)?;
    let mut programs = seccompiler::compile_from_json(text.as_slice(), TargetArch::try_from(arch)?)?;
    Ok(programs.remove("f").ok_or("no program")?)
}

/// One program of several: where one would allow, it goes on with the next.
fn join(programs: Vec<BpfProgram>) -> BpfProgram {
    let last = programs.len() - 1;
    let mut joined = BpfProgram::new();
    for (i, mut program) in programs.into_iter().enumerate() {
        let length = program.len();
        for (at, instruction) in program.iter_mut().enumerate().filter(|_| i < last) {
            if (instruction.code, instruction.k) == (RETURN, ALLOW) {
                instruction.code = JUMP;
                instruction.k = u32::try_from(length - at - 1).unwrap_or(u32::MAX);
            }
        }
        joined.extend(program);
    }
    joined
}

/// The program as the kernel reads it.
fn bytes(program: &BpfProgram) -> Vec<u8> {
    program
        .iter()
        .flat_map(|i| {
            let [a, b] = i.code.to_ne_bytes();
            let [c, d, e, f] = i.k.to_ne_bytes();
            [a, b, i.jt, i.jf, c, d, e, f]
        })
        .collect()
}
