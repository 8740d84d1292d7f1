//! JSON text to a tree, once and in one way: two members of one name, or a nesting that no request needs, are flaws
//! and not values. Called by [`super::parse`] alone.

use super::MAX_DEPTH;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::Cell;
use std::fmt;

/// How serde_json tells its visitor of a number that no machine integer holds as written, with its digits (feature
/// `arbitrary_precision`).
const NUMBER: &str = "$serde_json::private::Number";

/// Why there is no tree.
pub(super) enum Unreadable {
    /// Not JSON.
    NotJson(String),
    /// JSON that could be read in more than one way, or that is too deep.
    Flaw(&'static str),
}

/// Reads exactly one value.
pub(super) fn read(text: &str) -> Result<Value, Unreadable> {
    let flaw = Cell::new(None);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Tree { depth: 0, flaw: &flaw }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|e| Unreadable::NotJson(format!("the body is not one JSON value: {e}")))?;
    match flaw.get() {
        None => Ok(value),
        Some(why) => Err(Unreadable::Flaw(why)),
    }
}

/// Builds one value. After a flaw it goes on reading, since broken JSON is the graver fault.
#[derive(Clone, Copy)]
struct Tree<'f> {
    depth: usize,
    flaw: &'f Cell<Option<&'static str>>,
}

impl Tree<'_> {
    /// For what lies one level deeper; None if that is too deep.
    fn deeper(self) -> Option<Self> {
        if self.depth >= MAX_DEPTH {
            self.flaw.set(Some("nested too deeply"));
            return None;
        }
        Some(Tree { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let Some(deeper) = self.deeper() else {
            // Ignoring needs no recursion, however deep it goes.
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Value::Null);
        };
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(deeper)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut first = members.next_key::<String>()?;
        if first.as_deref() == Some(NUMBER) {
            return match members.next_value_seed(Digits)? {
                Some(text) => text.parse().map(|n: Number| Value::Number(n)).map_err(A::Error::custom),
                None => {
                    // An object that dresses up as a number: the tree could not tell it from one.
                    self.flaw.set(Some("a reserved key"));
                    while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                    Ok(Value::Null)
                }
            };
        }
        let deeper = self.deeper();
        let mut out = Map::new();
        loop {
            let key = match first.take() {
                Some(key) => key,
                None => match members.next_key::<String>()? {
                    Some(key) => key,
                    None => return Ok(Value::Object(out)),
                },
            };
            match deeper {
                Some(deeper) => {
                    let value = members.next_value_seed(deeper)?;
                    if out.insert(key, value).is_some() {
                        self.flaw.set(Some("two members of one name"));
                    }
                }
                None => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
    }
}

/// The value beside the [`NUMBER`] key. serde_json hands over a number's digits as an owned string; the string of an
/// object that somebody wrote arrives as a borrowed or a copied one.
struct Digits;

impl<'de> DeserializeSeed<'de> for Digits {
    type Value = Option<String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Digits {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_string<E>(self, digits: String) -> Result<Self::Value, E> {
        Ok(Some(digits))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
