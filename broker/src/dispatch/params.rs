//! The parameters of `tool.call` (`[3.2]`), read into a [`Call`]. Only [`super::line`] reads them; whether the call may be
//! made is not asked here.

use crate::call::Call;
use serde_json::{Map, Value};

/// The parameters of `tool.call`, as far as they can be read, and what is wrong with them.
pub(super) fn read_call(params: Option<Value>) -> (Call, Option<String>) {
    let mut call = Call::unread();
    let Some(Value::Object(mut params)) = params else {
        return (call, Some("params must be an object {tool, args, traceparent?}".to_owned()));
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
    (call, wrong)
}

impl Call {
    /// What a refusal needs of a call whose permit has been used up.
    pub(super) fn without_args(&self) -> Self {
        Call {
            number: self.number,
            tool: self.tool.clone(),
            args: Map::new(),
            args_hash: self.args_hash.clone(),
            traceparent: self.traceparent.clone(),
        }
    }

    /// A call of which nothing is known yet.
    pub(super) fn unread() -> Self {
        Call { number: 0, tool: String::new(), args: Map::new(), args_hash: String::new(), traceparent: None }
    }
}
