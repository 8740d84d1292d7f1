//! The parameters of `tool.call` (`[3.2]`), read into a [`Call`]. Only [`super::tool_call`] reads them; whether the call may be
//! made is not asked here.

use crate::call::{Call, Wrong};
use serde_json::Value;

/// The parameters of `tool.call`, as far as they can be read, and what is wrong with them.
pub(super) fn read_call(params: Option<Value>) -> Call {
    let mut call = Call::unread();
    let Some(Value::Object(mut params)) = params else {
        call.wrong = Some(Wrong::Params("params must be an object {tool, args, traceparent?}".to_owned()));
        return call;
    };
    let mut wrong = None;
    let mut first = |why: String| {
        wrong.get_or_insert(why);
    };
    match params.swap_remove("tool") {
        Some(Value::String(tool)) => call.tool = tool,
        _ => first("params.tool must be a string".to_owned()),
    }
    match params.swap_remove("args") {
        Some(Value::Object(args)) => call.args = args,
        _ => first("params.args must be an object".to_owned()),
    }
    call.traceparent = params.swap_remove("traceparent");
    if let Some(key) = params.keys().next() {
        first(format!("params.{key} is unknown; there are tool, args and traceparent"));
    }
    call.wrong = wrong.map(Wrong::Params);
    call
}
