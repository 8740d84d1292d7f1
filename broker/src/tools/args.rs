//! Arguments as types: what a tool's struct says is both its schema and its check, so the two cannot differ.

use crate::words::shortened;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The arguments as a `T`. The error names the field and is the message of −32602.
pub(super) fn read<T: DeserializeOwned>(args: &Map<String, Value>) -> Result<T, String> {
    let args = serde::de::value::MapDeserializer::new(args.iter().map(|(k, v)| (k.as_str(), v)));
    serde_path_to_error::deserialize(args).map_err(|e: serde_path_to_error::Error<serde_json::Error>| {
        let path = e.path().to_string();
        let why = e.into_inner();
        if path == "." { format!("args: {why}") } else { format!("args.{path}: {why}") }
    })
}

/// One of a few words. An enum that serde derives would take `{"word": null}` too, which no schema allows.
pub(super) fn word<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    words: &[(&str, T)],
) -> Result<T, D::Error> {
    let given = String::deserialize(deserializer)?;
    words.iter().find(|(word, _)| *word == given).map(|(_, meant)| *meant).ok_or_else(|| {
        let known = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        D::Error::custom(format!("must be {known}, not {:?}", shortened(&given)))
    })
}

/// The JSON Schema of `T`.
pub(super) fn schema<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema: Value = SchemaGenerator::new(settings).into_root_schema_for::<T>().into();
    if let Value::Object(members) = &mut schema {
        members.shift_remove("title");
    }
    schema
}
