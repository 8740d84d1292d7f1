//! Read: a file of the host, or some of its lines (`[4.4]`, section 5). The file arrives pinned; its name is not looked at.

use super::{CallResources, InFlight, Work, args};
use crate::audit::{Started, canonical::hex};
use crate::blocking_pool::Stop;
use crate::call::{Access, Plan, ToolError, ToolResult};
use crate::catalogue::{Asking, Tool};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU64;

/// Most bytes of text in one answer: what a response holds, less its frame. More is cut and marked.
const MAX_TEXT: usize = (16 << 20) - 4096;
/// The same before base64, so that the answer needs no cut inside it.
const MAX_BASE64: usize = (MAX_TEXT / 4) * 3;
/// Bytes read at once.
const CHUNK: usize = 128 * 1024;
/// Files up to this size take no notable room.
const SMALL: u64 = 16 * 1024;

/// The tool.
#[derive(Debug)]
pub struct Read;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Absolute path of the file.
    path: String,
    /// Lines to skip; 0 if absent.
    offset: Option<u64>,
    /// Most lines to return; all if absent.
    limit: Option<NonZeroU64>,
    /// How `content` is written; utf-8 if absent.
    encoding: Option<Encoding>,
}

#[derive(Clone, Copy, Debug, Default, JsonSchema)]
enum Encoding {
    #[default]
    #[schemars(rename = "utf-8")]
    Utf8,
    #[schemars(rename = "base64")]
    Base64,
}

impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        args::word(deserializer, &[("utf-8", Encoding::Utf8), ("base64", Encoding::Base64)])
    }
}

impl Tool for Read {
    type Work = Box<dyn Work>;

    fn name(&self) -> &'static str {
        "Read"
    }

    fn description(&self) -> &'static str {
        "Reads a file, or some of its lines: {content, content_hash, size, truncated}. content_hash is the \
         SHA-256 and size the bytes of the whole file; truncated says that content was cut at 16 MiB."
    }

    fn input_schema(&self) -> Value {
        args::schema::<Args>()
    }

    fn plan(&self, _: Asking<'_>, args: Map<String, Value>) -> Result<Plan<Box<dyn Work>>, String> {
        let args: Args = args::read(&args)?;
        Ok(Plan::new(vec![Access::File(args.path.clone())], Box::new(Reading { args })))
    }
}

struct Reading {
    args: Args,
}

impl Work for Reading {
    fn run(self: Box<Self>, mut started: Started, resources: CallResources) -> InFlight {
        Box::pin(async move {
            let file = started.handles().file()?;
            let size = file.size();
            if size > SMALL {
                // The text, and the answer made of it.
                let most = usize::try_from(size).unwrap_or(usize::MAX).min(MAX_TEXT);
                resources.room_for(most.saturating_mul(2)).await;
            }
            resources.blocking(move |stop| read(file.open()?, &self.args, stop)).await
        })
    }
}

fn read(file: File, args: &Args, stop: &Stop) -> ToolResult {
    let encoding = args.encoding.unwrap_or_default();
    let failed = |e: std::io::Error| ToolError { reason: "io_error", message: format!("{}: {e}", args.path) };
    let size = file.metadata().map_err(failed)?.len();
    let cap = match encoding {
        Encoding::Utf8 => MAX_TEXT,
        Encoding::Base64 => MAX_BASE64,
    };
    let mut window = Window::new(args.offset.unwrap_or(0), args.limit.map(NonZeroU64::get), cap);
    let mut hash = Sha256::new();
    let mut read = 0u64;
    let mut chunk = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK)).max(1)];
    // What is appended meanwhile is left for the next call: a file that grows for ever is read once.
    let mut file = file.take(size);
    loop {
        if stop.wanted_no_more() {
            return Err(ToolError { reason: "cut", message: "nobody waits for the answer".to_owned() });
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => {
                read += n as u64;
                hash.update(&chunk[..n]);
                window.take(&chunk[..n]);
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let content = match encoding {
        Encoding::Base64 => STANDARD.encode(&window.kept),
        Encoding::Utf8 => text(window.kept, window.cut).map_err(|at| ToolError {
            reason: "not_utf8",
            message: format!(
                "{} is not UTF-8 text (byte {at} of what was asked for); ask for it with \"encoding\": \"base64\"",
                args.path
            ),
        })?,
    };
    let mut out = Map::new();
    out.insert("content".to_owned(), content.into());
    out.insert("content_hash".to_owned(), hex(&hash.finalize()).into());
    out.insert("size".to_owned(), read.into());
    out.insert("truncated".to_owned(), window.cut.into());
    Ok(out)
}

/// Bytes as text; where they were cut, a character that was cut in two is left out.
fn text(bytes: Vec<u8>, cut: bool) -> Result<String, usize> {
    String::from_utf8(bytes).or_else(|e| {
        let fault = e.utf8_error();
        if !(cut && fault.error_len().is_none()) {
            return Err(fault.valid_up_to());
        }
        let mut bytes = e.into_bytes();
        bytes.truncate(fault.valid_up_to());
        String::from_utf8(bytes).map_err(|_| fault.valid_up_to())
    })
}

/// The lines that were asked for, of a file that goes by in chunks.
struct Window {
    skip: u64,
    left: Option<u64>,
    cap: usize,
    kept: Vec<u8>,
    /// Whether something that was asked for did not fit.
    cut: bool,
}

impl Window {
    fn new(skip: u64, lines: Option<u64>, cap: usize) -> Self {
        Window { skip, left: lines, cap, kept: Vec::new(), cut: false }
    }

    fn take(&mut self, mut chunk: &[u8]) {
        while self.skip > 0 && !chunk.is_empty() {
            let Some(end) = chunk.iter().position(|b| *b == b'\n') else { return };
            chunk = &chunk[end + 1..];
            self.skip -= 1;
        }
        if let Some(left) = &mut self.left {
            let mut end = 0;
            while *left > 0 && end < chunk.len() {
                match chunk[end..].iter().position(|b| *b == b'\n') {
                    Some(at) => {
                        end += at + 1;
                        *left -= 1;
                    }
                    None => end = chunk.len(),
                }
            }
            chunk = &chunk[..end];
        }
        let room = self.cap - self.kept.len();
        if chunk.len() > room {
            self.cut = true;
            chunk = &chunk[..room];
        }
        self.kept.extend_from_slice(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn of(content: &[u8], args: Value) -> ToolResult {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let args: Args = serde_json::from_value(args).unwrap();
        read(file.reopen().unwrap(), &args, &Stop::default())
    }

    #[test]
    fn lines_are_counted_from_the_first_and_keep_their_ends() {
        let file = b"one\ntwo\r\nthree";
        for (args, want) in [
            (serde_json::json!({"path": "/x"}), "one\ntwo\r\nthree"),
            (serde_json::json!({"path": "/x", "offset": 1}), "two\r\nthree"),
            (serde_json::json!({"path": "/x", "limit": 2}), "one\ntwo\r\n"),
            (serde_json::json!({"path": "/x", "offset": 2, "limit": 9}), "three"),
            (serde_json::json!({"path": "/x", "offset": 7}), ""),
        ] {
            let got = of(file, args.clone()).unwrap();
            assert_eq!(got["content"], want, "{args}");
            assert_eq!(got["size"], 14);
            assert_eq!(got["truncated"], false);
            assert_eq!(got["content_hash"], hex(&Sha256::digest(file)));
        }
    }

    #[test]
    fn windows_are_the_same_however_the_file_is_chunked() {
        let file: Vec<u8> = (0..500u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        for size in [1, 2, 3, 7, 64, 5000] {
            let mut window = Window::new(10, Some(3), 1000);
            file.chunks(size).for_each(|c| window.take(c));
            assert_eq!(window.kept, b"10\n11\n12\n", "{size}");
            assert!(!window.cut);
        }
    }

    #[test]
    fn case_093_bytes_that_are_not_text_are_told_apart_and_read_as_base64() {
        let file = b"ok\n\xff\xfe";
        let e = of(file, serde_json::json!({"path": "/x"})).unwrap_err();
        assert_eq!(e.reason, "not_utf8");
        assert!(e.message.contains("base64") && e.message.contains("byte 3"), "{}", e.message);
        assert_eq!(of(file, serde_json::json!({"path": "/x", "limit": 1})).unwrap()["content"], "ok\n");
        let got = of(file, serde_json::json!({"path": "/x", "encoding": "base64"})).unwrap();
        assert_eq!(got["content"], "b2sK//4=");
    }

    #[test]
    fn more_than_an_answer_holds_is_cut_between_characters() {
        let file = "é".repeat(9 << 20);
        let got = of(file.as_bytes(), serde_json::json!({"path": "/x"})).unwrap();
        assert_eq!(got["truncated"], true);
        assert_eq!(got["size"], 18 << 20);
        assert_eq!(got["content_hash"], hex(&Sha256::digest(&file)));
        assert!(file.starts_with(got["content"].as_str().unwrap()));
        let got = of(file.as_bytes(), serde_json::json!({"path": "/x", "encoding": "base64"})).unwrap();
        assert_eq!(got["truncated"], true);
        assert!(got["content"].as_str().unwrap().len() <= MAX_TEXT);
        assert!(STANDARD.decode(got["content"].as_str().unwrap()).is_ok());
    }

    #[test]
    fn the_schema_and_the_check_are_one() {
        let schema = Read.input_schema();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["required"], serde_json::json!(["path"]));
        assert_eq!(schema["additionalProperties"], false);
        let validator = jsonschema::validator_for(&schema).unwrap();
        for (args, good, names) in [
            (serde_json::json!({"path": "/x"}), true, ""),
            (serde_json::json!({"path": "/x", "offset": 3, "limit": 1, "encoding": "base64"}), true, ""),
            (serde_json::json!({}), false, "path"),
            (serde_json::json!({"path": 7}), false, "path"),
            (serde_json::json!({"path": "/x", "offset": -1}), false, "offset"),
            (serde_json::json!({"path": "/x", "limit": 0}), false, "limit"),
            (serde_json::json!({"path": "/x", "limit": "3"}), false, "limit"),
            (serde_json::json!({"path": "/x", "encoding": "latin1"}), false, "encoding"),
            (serde_json::json!({"path": "/x", "encoding": {"utf-8": null}}), false, "encoding"),
            (serde_json::json!({"path": "/x", "Path": "/y"}), false, "Path"),
        ] {
            let Value::Object(members) = args.clone() else { panic!() };
            let read = args::read::<Args>(&members);
            assert_eq!(read.is_ok(), good, "{args}");
            assert_eq!(validator.is_valid(&args), good, "{args}");
            if let Err(why) = read {
                assert!(why.contains(names), "{args}: {why}");
            }
        }
    }
}
