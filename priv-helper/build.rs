//! Compiles `src/seccomp/*.json` into BPF programs that the helper includes as bytes.
//!
//! The files are seccompiler's JSON with four additions: a rule may name several `syscalls`, which is one rule for
//! each; `arch` keeps a rule to one architecture; `any` in place of `args` is a list of [index, mask], each of which
//! must have a bit in common with the low 32 bits of that argument; and `none_of` in place of `args` is an argument's
//! `index` and `values` by their names, none of which may be the argument's low 32 bits: what is not on that list is
//! refused, what a later kernel adds included. `helper` in it has values that are the helper's alone. What seccompiler
//! has would take a rule for each bit, and for each value that there is.
//!
//! Filters are inherited, so the helper's own allow-list is the skills' (`allow.json`) and what it needs itself
//! (`helper.json`). What a sandbox loads is short: it takes the latter away again, and refuses or pretends what depends
//! on arguments. Since seccompiler has one action a filter, those are programs of their own, joined into one: where one
//! allows, the next decides. In place of an errno, `chmod.json` may have the kernel ask (`src/modes.rs`), which is what
//! programs run under where that can be done.

use seccompiler::{BpfProgram, TargetArch, sock_filter};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const SOURCE: &str = "src/seccomp";
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// What a sandbox's filter is made of, in this order: where several would refuse, the first says with which errno.
const EVERY_SANDBOX: [&str; 4] = ["pretend", "refuse", "ioctls", "values"];
const SKILL: [&str; 2] = ["sockets_skill", "xattrs_skill"];
const BASH: [&str; 3] = ["sockets_bash", "space_bash", "xattrs_bash"];
/// BPF_JMP | BPF_JA: `k` instructions are skipped.
const JUMP: u16 = 0x05;
/// BPF_JMP | BPF_JEQ | BPF_K, and the same with BPF_JGE.
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
/// BPF_JMP | BPF_JSET | BPF_K.
const ANY_BIT: u16 = 0x45;
/// BPF_LD | BPF_W | BPF_ABS, and where the low half of the first argument is on machines that store it first.
const LOAD: u16 = 0x20;
const ARGUMENTS: u32 = 16;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const ASK: u32 = 0x7fc0_0000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    // All are compiled for all, so that a mistake for one architecture is seen on the other.
    for arch in ARCHITECTURES {
        let one = |name: &str| -> Outcome<Filter> { Ok(Filter { rules: rules(name, arch)?, ..read(name)? }) };
        let own = |name: &str| one(name).map(with_the_helpers);
        let allowed =
            Filter { rules: [rules("allow", arch)?, rules("helper", arch)?].concat(), ..read("helper")? };
        let helpers_own = Filter {
            allow_else: json!("allow"),
            action: json!({ "errno": 38 }),
            rules: rules("helper", arch)?,
        };
        let sandbox = |profile: &[&str], more: &[&str], chmod: Value| -> Outcome<BpfProgram> {
            let names = EVERY_SANDBOX.iter().chain(profile).chain(more);
            let mut parts = names.map(|name| one(name)).collect::<Outcome<Vec<_>>>()?;
            parts.push(Filter { action: chmod, ..one("chmod")? });
            parts.push(helpers_own.clone());
            assemble(&parts, arch)
        };
        let mut programs = vec![
            ("helper".to_owned(), assemble(&[allowed, own("ioctls")?, own("values")?], arch)?),
            ("init".to_owned(), assemble(&[one("init")?], arch)?),
            ("modes".to_owned(), assemble(&[one("modes")?, one("chmod")?], arch)?),
        ];
        // Bounded: by a control group that counts all memory of the sandbox. Refusing: where nobody can be asked.
        let (unbounded, bounded): (&[&str], &[&str]) = (&["memory"], &[]);
        for (name, profile, more) in [
            ("skill", &SKILL[..], unbounded),
            ("skill_bounded", &SKILL, bounded),
            ("bash", &BASH, unbounded),
            ("bash_bounded", &BASH, bounded),
        ] {
            programs.push((name.to_owned(), sandbox(profile, more, json!("ask"))?));
            programs.push((format!("{name}_refusing"), sandbox(profile, more, json!({ "errno": 1 }))?));
        }
        for (name, program) in programs {
            // The tests run those of every architecture.
            fs::create_dir_all(out.join(arch))?;
            fs::write(out.join(arch).join(format!("{name}.bpf")), bytes(&program))?;
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

/// Where a list of values has some for the helper alone, those too.
fn with_the_helpers(mut filter: Filter) -> Filter {
    for list in filter.rules.iter_mut().filter_map(|rule| rule.get_mut("none_of")) {
        if let (Value::Object(own), Some(values)) = (list["helper"].take(), list["values"].as_object_mut()) {
            values.extend(own);
        }
    }
    filter
}

fn compile(filter: Filter, arch: &str) -> Outcome<BpfProgram> {
    let Filter { allow_else, action, rules } = filter;
    // seccompiler has no such action; only rules of our own kind have it, of which nothing but head and end is taken.
    let action = if action == "ask" { json!("log") } else { action };
    let text = json!({ "f": { "mismatch_action": allow_else, "match_action": action, "filter": rules } });
    let text = serde_json::to_vec(&text)?;
    let mut programs = seccompiler::compile_from_json(text.as_slice(), TargetArch::try_from(arch)?)?;
    Ok(programs.remove("f").ok_or("no program")?)
}

/// What decides about one system call, by its number.
type Bodies = BTreeMap<u32, BpfProgram>;

/// One program of several filters: where one allows a call, the next decides about it. The call's number is searched for
/// in halves instead of in a row: the kernel tries a new filter on every number there is, which is most of what loading
/// one costs.
fn assemble(filters: &[Filter], arch: &str) -> Outcome<BpfProgram> {
    let mut parts: Vec<Bodies> = Vec::new();
    let (mut head, mut others) = (BpfProgram::new(), None);
    for filter in filters {
        if filter.allow_else != "allow" && !parts.is_empty() {
            return Err("a list of what is allowed must come first".into());
        }
        let mut bodies = Bodies::new();
        let names: BTreeSet<_> = filter.rules.iter().filter_map(|r| r["syscall"].as_str()).collect();
        for name in names {
            let (any, rules): (Vec<_>, Vec<_>) = filter
                .rules
                .iter()
                .filter(|r| r["syscall"] == name)
                .cloned()
                .partition(|r| r.get("any").or(r.get("none_of")).is_some());
            // Without a rule of its own kind, seccompiler is asked for one, for its head and its end.
            let plain = if rules.is_empty() { vec![json!({ "syscall": name })] } else { rules.clone() };
            let program = compile(Filter { rules: plain, ..filter.clone() }, arch)?;
            // Four instructions look at the architecture and load the number; three compare it.
            let (first, rest) = program.split_at(4);
            let [compare, _, _, body @ ..] = rest else { return Err("no comparison".into()) };
            if (compare.code, compare.jt, compare.jf) != (EQUAL, 0, 1) {
                return Err(format!("seccompiler begins {name} in another way").into());
            }
            let end = &body[body.len() - 1..];
            head = first.to_vec();
            others.get_or_insert(end.to_vec());
            let mut all = BpfProgram::new();
            for rule in &any {
                all.extend(if rule.get("any").is_some() {
                    bits(rule, &filter.action)?
                } else {
                    list(rule, &filter.action)?
                });
            }
            all.extend_from_slice(if rules.is_empty() { end } else { body });
            bodies.insert(compare.k, all);
        }
        parts.push(bodies);
    }
    // Of what the first does not allow, no other is asked.
    let listed = filters.first().is_some_and(|first| first.allow_else != "allow");
    let deciding = if listed { &parts[..1] } else { &parts[..] };
    let numbers: BTreeSet<u32> = deciding.iter().flat_map(BTreeMap::keys).copied().collect();
    let mut all: Vec<Run> = Vec::new();
    for n in numbers {
        let body = join(parts.iter().filter_map(|part| part.get(&n).cloned()).collect());
        match all.last_mut() {
            Some(run) if run.last + 1 == n && run.body == body => run.last = n,
            _ => all.push(Run { first: n, last: n, body }),
        }
    }
    head.extend(search(&all, &others.ok_or("no rule")?)?);
    Ok(head)
}

/// A rule with `any`: the action, if every argument that it names has one of the bits.
fn bits(rule: &Value, action: &Value) -> Outcome<BpfProgram> {
    let conditions = rule["any"].as_array().ok_or("any: not a list")?;
    let mut program = BpfProgram::new();
    for (i, condition) in conditions.iter().enumerate() {
        // To what comes after the action, past the conditions that are left.
        let skip = u8::try_from(2 * (conditions.len() - i) - 1)?;
        let (index, mask) = (number(&condition[0])?, number(&condition[1])?);
        program.push(sock_filter { code: LOAD, jt: 0, jf: 0, k: ARGUMENTS + 8 * index });
        program.push(sock_filter { code: ANY_BIT, jt: 0, jf: skip, k: mask });
    }
    program.push(sock_filter { code: RETURN, jt: 0, jf: 0, k: returned(action)? });
    Ok(program)
}

/// A rule with `none_of`: the action, unless the argument is one of the values.
fn list(rule: &Value, action: &Value) -> Outcome<BpfProgram> {
    let list = &rule["none_of"];
    let values = list["values"].as_object().ok_or("none_of: no values")?;
    let values = values.values().map(number).collect::<Outcome<BTreeSet<u32>>>()?;
    let argument = ARGUMENTS + 8 * number(&list["index"])?;
    let mut program = vec![sock_filter { code: LOAD, jt: 0, jf: 0, k: argument }];
    for (i, value) in values.iter().enumerate() {
        // To what comes after the action, past the values that are left.
        let skip = u8::try_from(values.len() - i)?;
        program.push(sock_filter { code: EQUAL, jt: skip, jf: 0, k: *value });
    }
    program.push(sock_filter { code: RETURN, jt: 0, jf: 0, k: returned(action)? });
    Ok(program)
}

/// What a rule of our own kind answers: an errno, or that somebody else is asked (SECCOMP_RET_USER_NOTIF).
fn returned(action: &Value) -> Outcome<u32> {
    if action == "ask" { Ok(ASK) } else { Ok(ERRNO + number(&action["errno"])?) }
}

fn number(value: &Value) -> Outcome<u32> {
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    Ok(number.ok_or_else(|| format!("not a number of 32 bits: {value}"))?)
}

/// Calls of neighbouring numbers about which the same is decided.
struct Run {
    first: u32,
    last: u32,
    body: BpfProgram,
}

fn search(calls: &[Run], end: &[sock_filter]) -> Outcome<BpfProgram> {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let middle = calls.len() / 2;
    let mut program = BpfProgram::new();
    match calls {
        [] => program.extend_from_slice(end),
        [Run { first, last, body }] => {
            let past = u8::try_from(body.len())?;
            if first == last {
                program.push(instruction(EQUAL, 0, past, *first));
            } else {
                program.push(instruction(AT_LEAST, past + 1, 0, *last + 1));
                program.push(instruction(AT_LEAST, 0, past, *first));
            }
            program.extend_from_slice(body);
            program.extend_from_slice(end);
        }
        _ => {
            let lower = search(&calls[..middle], end)?;
            match u8::try_from(lower.len()) {
                Ok(length) => program.push(instruction(AT_LEAST, length, 0, calls[middle].first)),
                Err(_) => {
                    program.push(instruction(AT_LEAST, 0, 1, calls[middle].first));
                    program.push(instruction(JUMP, 0, 0, u32::try_from(lower.len())?));
                }
            }
            program.extend(lower);
            program.extend(search(&calls[middle..], end)?);
        }
    }
    Ok(program)
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
