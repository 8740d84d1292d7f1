//! Arguments as types: what a tool's struct says is both its schema and its check, so the two cannot differ.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::de::DeserializeOwned;
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
