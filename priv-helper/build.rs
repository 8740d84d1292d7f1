//! Compiles `src/seccomp/*.json` into BPF programs that the helper includes as bytes.
//!
//! The files are seccompiler's JSON with two additions: a rule may name several `syscalls`, which is one rule for each;
//! and `arch` keeps a rule to one architecture. `helper.json` adds the rules of `allow.json`: filters are inherited,
//! so the helper's own must allow what a skill may do.

use seccompiler::{BpfProgram, TargetArch};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FILTERS: [&str; 7] = ["helper", "init", "allow", "refuse", "pretend", "sockets_skill", "sockets_bash"];

const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

fn main() -> Result<(), Box<dyn Error>> {
    let source = Path::new("src/seccomp");
    println!("cargo::rerun-if-changed=src/seccomp");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    for name in FILTERS {
        // All are compiled for all, so that a mistake for one architecture is seen on the other.
        for arch in ARCHITECTURES {
            let program =
                compile(source, name, arch).map_err(|e| format!("src/seccomp/{name}.json, {arch}: {e}"))?;
            if arch == target {
                fs::write(out.join(format!("{name}.bpf")), bytes(&program))?;
            }
        }
    }
    Ok(())
}

fn compile(source: &Path, name: &str, arch: &str) -> Result<BpfProgram, Box<dyn Error>> {
    let mut filter = read(source, name)?;
    let mut rules = rules(&filter, arch)?;
    if name == "helper" {
        rules.extend(self::rules(&read(source, "allow")?, arch)?);
    }
    filter.insert("filter".into(), Value::Array(rules));
    let text = serde_json::to_vec(&json!({ name: filter }))?;
    let mut programs = seccompiler::compile_from_json(text.as_slice(), TargetArch::try_from(arch)?)?;
    Ok(programs.remove(name).ok_or("no filter")?)
}

fn read(source: &Path, name: &str) -> Result<Map<String, Value>, Box<dyn Error>> {
    let path = source.join(format!("{name}.json"));
    Ok(serde_json::from_slice(&fs::read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?)
}

fn rules(filter: &Map<String, Value>, arch: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut all = Vec::new();
    for rule in filter.get("filter").and_then(Value::as_array).ok_or("no filter")? {
        let mut rule = rule.as_object().ok_or("a rule is not an object")?.clone();
        if rule.get("comment").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(format!("a rule without comment: {rule:?}").into());
        }
        if rule.remove("arch").is_some_and(|only| only != arch) {
            continue;
        }
        for name in
            rule.remove("syscalls").as_ref().and_then(Value::as_array).ok_or("a rule without syscalls")?
        {
            let mut one = rule.clone();
            one.insert("syscall".into(), name.clone());
            all.push(Value::Object(one));
        }
    }
    Ok(all)
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
