//! `cyberos-call TOOL [JSON|-]`: one tool call from any shell (`[7.7]`). It runs inside the sandbox, under whatever
//! limits a skill has, so it is a plain program: no threads, no runtime, nothing but the standard library and a JSON
//! reader. It knows nothing of the broker but the socket's framing (`[3.1]`).
//!
//! Exit status: 0 the result is on stdout; 1 the call was refused or failed, the error object is on stderr; 2 usage;
//! 4 no broker, or it went away.

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cyberos-call TOOL [JSON|-]   call a tool; JSON is an object with its arguments, {} if absent;
                                    with - it is read from standard input
       cyberos-call --list          the tools that this skill may call

The result is written to standard output as JSON.
Exit status: 0 ok, 1 refused or failed (the error is on standard error), 2 usage, 4 no broker.";

/// The socket's path (`[2.3]`).
const SOCKET: &str = "CYBEROS_BROKER_SOCKET";
/// Longest response (`[3.1]`).
const MAX_RESPONSE: usize = 16 << 20;
/// Most bytes of arguments that are read at all; the broker takes 1 MiB and says so.
const MAX_ARGS: u64 = 16 << 20;

enum Failure {
    /// 1: the error object.
    Refused(Value),
    /// 2.
    Usage(String),
    /// 4.
    NoBroker(String),
    /// 1: stdout.
    Output(io::Error),
}

fn main() -> ExitCode {
    let (code, text) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Refused(error)) => (1, error.to_string()),
        Err(Failure::Output(e)) => (1, format!("cyberos-call: cannot write the result: {e}")),
        Err(Failure::Usage(why)) => (2, format!("cyberos-call: {why}\n{USAGE}")),
        Err(Failure::NoBroker(why)) => (4, format!("cyberos-call: {why}")),
    };
    // There is nowhere to say that stderr is closed.
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(code)
}

fn run() -> Result<(), Failure> {
    let mut args = Vec::new();
    for arg in std::env::args_os().skip(1) {
        match arg.into_string() {
            Ok(arg) => args.push(arg),
            Err(arg) => return Err(Failure::Usage(format!("{arg:?} is not UTF-8"))),
        }
    }
    let request = match &args[..] {
        [help] if help == "--help" || help == "-h" => return print(USAGE.as_bytes()),
        [list] if list == "--list" => r#"{"jsonrpc":"2.0","id":1,"method":"tool.list"}"#.to_owned(),
        [option, ..] if option.starts_with('-') => {
            return Err(Failure::Usage(format!("unknown option {option}")));
        }
        [tool] => call(tool, "{}")?,
        [tool, dash] if dash == "-" => call(tool, &stdin()?)?,
        [tool, json] => call(tool, json)?,
        [] => return Err(Failure::Usage("no tool given".to_owned())),
        _ => return Err(Failure::Usage("too many arguments".to_owned())),
    };
    let path = std::env::var_os(SOCKET).ok_or_else(|| {
        Failure::NoBroker(format!("{SOCKET} is not set; this is not a skill's environment"))
    })?;
    let stream = UnixStream::connect(&path)
        .map_err(|e| Failure::NoBroker(format!("cannot connect to the broker at {}: {e}", path.display())))?;
    let response = exchange(stream, request.as_bytes())
        .map_err(|e| Failure::NoBroker(format!("the broker went away before it answered: {e}")))?;
    let mut response: Value = serde_json::from_slice(&response)
        .map_err(|e| Failure::NoBroker(format!("the broker's answer is not JSON: {e}")))?;
    match response.get_mut("result").map(Value::take) {
        Some(result) => print(result.to_string().as_bytes()),
        None => Err(Failure::Refused(response.get_mut("error").map(Value::take).unwrap_or(response))),
    }
}

/// The request, with the arguments as they were given: what is wrong with them the broker sees too.
fn call(tool: &str, args: &str) -> Result<String, Failure> {
    if let Err(e) = serde_json::from_str::<IgnoredAny>(args) {
        return Err(Failure::Usage(format!("the arguments are not JSON: {e}")));
    }
    let tool = json!(tool);
    Ok(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tool.call","params":{{"tool":{tool},"args":{args}}}}}"#))
}

fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    io::stdin()
        .take(MAX_ARGS)
        .read_to_string(&mut text)
        .map_err(|e| Failure::Usage(format!("cannot read the arguments from stdin: {e}")))?;
    Ok(text)
}

fn exchange(mut stream: UnixStream, request: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    // One write, so that a small request is one system call.
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(request);
    stream.write_all(&frame)?;
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let length = usize::try_from(u32::from_be_bytes(header)).map_err(io::Error::other)?;
    if length > MAX_RESPONSE {
        return Err(io::Error::other("an answer over 16 MiB"));
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}
