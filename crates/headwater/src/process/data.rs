//! The data of a process: a JSON object, kept as text.
//!
//! As text, because the databases and their drivers do not agree on what else JSON means: `jsonb` refuses U+0000, sorts
//! keys and rounds numbers, and a map in memory does the last two. Text comes back as it was written.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{PROCESS_DATA_BYTES_MAX, PROCESS_DATA_DEPTH_MAX};

/// A JSON object as text: key order, large numbers and any characters are kept as they were given.
///
/// ```
/// use headwater::process::ProcessData;
///
/// #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// struct Order { id: u64, note: String }
///
/// let order = Order { id: 17, note: "gift".into() };
/// let data = ProcessData::new(&order)?;
/// assert_eq!(data.as_str(), r#"{"id":17,"note":"gift"}"#);
/// assert_eq!(data.decode::<Order>()?, order);
/// assert_eq!(data.get::<u64>("id")?, Some(17));
///
/// let exact = ProcessData::from_json(r#"{"z": 123456789012345678901234567890, "a": "\u0000"}"#)?;
/// assert_eq!(exact.as_str(), r#"{"z": 123456789012345678901234567890, "a": "\u0000"}"#);
/// assert!(ProcessData::from_json("[1, 2]").is_err(), "not an object");
/// # Ok::<(), headwater::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessData(Arc<str>);

impl ProcessData {
    /// Serializes a value, which must become a JSON object: a struct or a map.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::invalid("data", format!("not serializable as JSON: {error}")))?;
        Self::from_json(text)
    }

    /// Takes a JSON object as it is written, without surrounding white space. Anything else is `InvalidInput`, and so is one of more than 16 MiB or nested
    /// more than 128 levels deep.
    pub fn from_json(text: impl Into<String>) -> Result<Self> {
        let text: String = text.into();
        // Inside of other JSON what surrounds it would be lost.
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        if text.len() > PROCESS_DATA_BYTES_MAX {
            let rule = format!("{} bytes, at most {PROCESS_DATA_BYTES_MAX} are allowed", text.len());
            return Err(Error::invalid("data", format!("{rule}; store the rest elsewhere")));
        }
        let levels = depth(text);
        if levels > PROCESS_DATA_DEPTH_MAX {
            let rule = format!("nested {levels} levels deep, at most {PROCESS_DATA_DEPTH_MAX} are allowed");
            return Err(Error::invalid("data", rule));
        }
        members(text).map_err(|error| Error::invalid("data", format!("not a JSON object: {error}")))?;
        Ok(ProcessData(text.into()))
    }

    /// What a store holds: checked when it was written.
    pub(crate) fn stored(text: String) -> Self {
        ProcessData(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The whole of it as a type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.0).map_err(|error| undecodable(None, error))
    }

    /// One member of it as a type; `None` if there is no such member. Of several with the same name the last.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let members = members(&self.0).map_err(|error| undecodable(None, error))?.0;
        let Some((_, value)) = members.iter().rfind(|(key, _)| key == name) else { return Ok(None) };
        serde_json::from_str(value.get()).map(Some).map_err(|error| undecodable(Some(name), error))
    }

    /// This object with the members of another: those that it has are replaced where they stand, the others follow.
    pub fn merged(&self, other: &ProcessData) -> Result<Self> {
        let mut merged = members(&self.0).map_err(|error| undecodable(None, error))?;
        for (name, value) in members(&other.0).map_err(|error| undecodable(None, error))?.0 {
            match merged.0.iter_mut().find(|(key, _)| *key == name) {
                Some((_, old)) => *old = value,
                None => merged.0.push((name, value)),
            }
        }
        Self::new(&merged)
    }

    /// As raw JSON, to be put into other JSON.
    pub(crate) fn raw(&self) -> Box<RawValue> {
        RawValue::from_string(self.as_str().to_owned()).expect("checked when it was made")
    }
}

impl fmt::Debug for ProcessData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ProcessData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn undecodable(member: Option<&str>, error: serde_json::Error) -> Error {
    let of = member.map(|name| format!(" member {name}")).unwrap_or_default();
    Error::with_source(ErrorKind::InvalidInput, format!("invalid data{of}: {error}"), error)
}

/// The members of an object in their order, with values as they are written.
struct Members<'t>(Vec<(String, &'t RawValue)>);

fn members(text: &str) -> serde_json::Result<Members<'_>> {
    serde_json::from_str(text)
}

impl Serialize for Members<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &'de RawValue>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// How many levels of arrays and objects are open at once at most. Both databases and serde have limits of their own, which
/// differ: this one is below all of them.
fn depth(text: &str) -> usize {
    let (mut open, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                open += 1;
                deepest = deepest.max(open);
            }
            b'}' | b']' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_within_the_limits_are_taken() {
        let deep = |levels: usize| format!("{}{}", "{\"a\":".repeat(levels), "1") + &"}".repeat(levels);
        for good in ["{}", " { \"a\" : [ 1 , 2 ] } ", "{\"a\":\"}}[[\\\"{\"}", &deep(PROCESS_DATA_DEPTH_MAX)]
        {
            assert_eq!(ProcessData::from_json(good).unwrap().as_str(), good.trim());
        }
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(PROCESS_DATA_BYTES_MAX));
        let too_deep = deep(PROCESS_DATA_DEPTH_MAX + 1);
        for bad in [
            "",
            "1",
            "null",
            "[]",
            "{",
            "{}x",
            "{\"a\":01}",
            "{'a':1}",
            "{\"a\":\"\u{0}\"}",
            &large,
            &too_deep,
        ] {
            let error = ProcessData::from_json(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().starts_with("invalid data: "), "{error}");
        }
        assert!(ProcessData::new(&7).is_err() && ProcessData::new("text").is_err());
    }

    #[test]
    fn merging_keeps_the_order_and_every_digit() {
        let data = ProcessData::from_json(r#"{"z":1,"a":18446744073709551616,"m":{"x":[1.0,2e2]}}"#).unwrap();
        let more = ProcessData::from_json(r#"{"a":-0.10,"n":"\u0000","z":null}"#).unwrap();
        let merged = data.merged(&more).unwrap();
        assert_eq!(merged.as_str(), r#"{"z":null,"a":-0.10,"m":{"x":[1.0,2e2]},"n":"\u0000"}"#);
        assert_eq!(merged.get::<String>("n").unwrap().as_deref(), Some("\0"));
        assert_eq!(merged.get::<u8>("missing").unwrap(), None);
        assert!(merged.get::<u8>("m").unwrap_err().to_string().starts_with("invalid data member m: "));
    }
}
