//! Documents as lines of JSON, and as rows of CSV: what `stave export` writes and `stave import` reads (record 0117).
//!
//! # Format
//!
//! One object a line: `key` (or `key_base64`, if it is no UTF-8), `collection` as `scope.collection`, `flags` and `expiry`
//! (seconds since 1970) if they are not 0, `xattrs` if there are any, and the body as `value` if it is JSON, else as
//! `value_base64`. JSON keeps its bytes, but for ends of lines, which become spaces. A member of any other name is refused, so that a file of another kind is not taken for one of these.

mod columns;
mod key;
mod row;
mod send;
mod table;

use std::borrow::Cow;

use base::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub(crate) use columns::{MemberPath, row, whole_head};
pub(crate) use key::KeyTemplate;
pub(crate) use row::RowReader;
pub(crate) use send::{LineSender, Rejected};
pub(crate) use table::row_as_json;

/// Flags that SDKs give JSON (common flags, format 2).
pub(crate) const JSON_FLAGS: u32 = 2 << 24;

/// A document of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) key: Vec<u8>,
    /// `scope.collection`; if it is missing, the reader decides.
    pub(crate) collection: Option<String>,
    pub(crate) flags: u32,
    /// Seconds since 1970, or 0.
    pub(crate) expiry: u32,
    /// Names and JSON, in their order.
    pub(crate) xattrs: Vec<(String, String)>,
    pub(crate) body: Body,
}

/// What a document holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// JSON as it is written.
    Json(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Default for Body {
    fn default() -> Body {
        Body::Bytes(Vec::new())
    }
}

impl Body {
    /// The body as it is stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Body::Json(text) => text.as_bytes(),
            Body::Bytes(bytes) => bytes,
        }
    }
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collection: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    expiry: u32,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    xattrs: Option<Ordered<'a>>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Members of an object in their order, with their JSON as it is written.
struct Ordered<'a>(Vec<(String, &'a RawValue)>);

impl Serialize for Ordered<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Ordered<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Ordered<'a>, D::Error> {
        struct Members;
        impl<'de> serde::de::Visitor<'de> for Members {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Ordered)
    }
}

/// JSON without ends of lines, which stand between its tokens only.
fn on_one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ").into() } else { json.into() }
}

/// Why a line is none, with the flag that other files need.
fn refused(error: &serde_json::Error) -> String {
    let said = error.to_string();
    match said.starts_with("unknown field") {
        true => format!("{said}; if lines are documents themselves, say with --key how their keys are made"),
        false => said,
    }
}

/// Bytes of a field in base64.
fn decoded(name: &str, text: &str) -> Result<Vec<u8>, String> {
    BASE64.decode(text).map_err(|error| format!("{name} is not base64: {error}"))
}

/// A key, of whose two forms there must be one.
fn key_of(key: Option<&str>, key_base64: Option<&str>) -> Result<Vec<u8>, String> {
    match (key, key_base64) {
        (Some(key), None) => Ok(key.as_bytes().to_vec()),
        (None, Some(key)) => decoded("key_base64", key),
        _ => Err("it needs either key or key_base64".to_owned()),
    }
}

impl Line {
    /// The line, without its end.
    pub(crate) fn encode(&self) -> Result<String, serde_json::Error> {
        let key = String::from_utf8(self.key.clone()).ok();
        let xattrs: Vec<(&String, Cow<'_, str>)> =
            self.xattrs.iter().map(|(name, json)| (name, on_one_line(json))).collect();
        let xattrs = xattrs.iter().map(|(name, json)| Ok(((*name).clone(), serde_json::from_str(json)?)));
        let xattrs: Vec<(String, &RawValue)> = xattrs.collect::<Result<_, serde_json::Error>>()?;
        let json = match &self.body {
            Body::Json(text) => Some(on_one_line(text)),
            Body::Bytes(_) => None,
        };
        let value: Option<&RawValue> = json.as_deref().map(serde_json::from_str).transpose()?;
        let base64 = |bytes: &[u8]| BASE64.encode(bytes);
        let written = WrittenLine {
            key_base64: key.is_none().then(|| base64(&self.key)),
            key,
            collection: self.collection.clone(),
            flags: self.flags,
            expiry: self.expiry,
            xattrs: (!xattrs.is_empty()).then_some(Ordered(xattrs)),
            value,
            value_base64: value.is_none().then(|| base64(self.body.bytes())),
        };
        serde_json::to_string(&written)
    }

    /// What is wrong with a document that no bucket takes.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.key.is_empty() || self.key.len() > MAX_KEY_BYTES {
            return Err(format!("its key has {} bytes: 1 to {MAX_KEY_BYTES} are allowed", self.key.len()));
        }
        if self.body.bytes().len() > MAX_VALUE_BYTES {
            let len = self.body.bytes().len();
            return Err(format!("its value has {len} bytes: {MAX_VALUE_BYTES} are the most"));
        }
        Ok(())
    }

    /// Reads a line; what is wrong with one that is none.
    pub(crate) fn decode(line: &str) -> Result<Line, String> {
        let written: WrittenLine<'_> = serde_json::from_str(line).map_err(|error| refused(&error))?;
        let key = key_of(written.key.as_deref(), written.key_base64.as_deref())?;
        let body = match (written.value, written.value_base64) {
            (Some(value), None) => Body::Json(value.get().to_owned()),
            (None, Some(value)) => Body::Bytes(decoded("value_base64", &value)?),
            _ => return Err("it needs either value or value_base64".to_owned()),
        };
        let xattrs = written.xattrs.map_or(Vec::new(), |members| members.0);
        let xattrs = xattrs.into_iter().map(|(name, json)| (name, json.get().to_owned())).collect();
        let (flags, expiry) = (written.flags, written.expiry);
        Ok(Line { key, collection: written.collection, flags, expiry, xattrs, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_readable() {
        let line = Line {
            key: b"user::1".to_vec(),
            collection: Some("app.users".to_owned()),
            flags: 0x0200_0000,
            expiry: 4_000_000_000,
            xattrs: vec![("_sync".to_owned(), "{\"rev\":  1}".to_owned())],
            body: Body::Json("{\"b\":1, \"a\":1.50}".to_owned()),
        };
        let text = line.encode().expect("JSON");
        assert_eq!(
            text,
            "{\"key\":\"user::1\",\"collection\":\"app.users\",\"flags\":33554432,\"expiry\":4000000000,\
             \"xattrs\":{\"_sync\":{\"rev\":  1}},\"value\":{\"b\":1, \"a\":1.50}}"
        );
        assert_eq!(Line::decode(&text), Ok(line));
    }

    #[test]
    fn a_document_with_ends_of_lines_is_one_line() {
        let body = Body::Json("{\n  \"a\": \"x\\n\"\r\n}".to_owned());
        let text = Line { key: b"k".to_vec(), body, ..Line::default() }.encode().expect("JSON");
        assert_eq!(text, "{\"key\":\"k\",\"value\":{   \"a\": \"x\\n\"  }}");
    }

    #[test]
    fn what_is_no_line_is_refused_in_words() {
        for (line, why) in [
            ("{\"key\":\"a\"}", "either value or value_base64"),
            ("{\"value\":1}", "either key or key_base64"),
            ("{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":1}", "either key or key_base64"),
            ("{\"key\":\"a\",\"value\":1,\"value_base64\":\"\"}", "either value or value_base64"),
            ("{\"key\":\"a\",\"value_base64\":\"?\"}", "not base64"),
            ("{\"id\":1,\"name\":\"a\"}", "unknown field `id`"),
            ("[1]", "invalid type"),
            ("{\"key\":\"a\",", "EOF"),
            ("", "EOF"),
        ] {
            let told = Line::decode(line).expect_err(line);
            assert!(told.contains(why), "{line}: {told}");
        }
    }

    proptest! {
        #[test]
        fn every_document_comes_back(
            key in prop::collection::vec(any::<u8>(), 1..40),
            body in prop::collection::vec(any::<u8>(), 0..60),
            is_json in any::<bool>(),
            flags in any::<u32>(),
            expiry in any::<u32>(),
        ) {
            let text = serde_json::to_string(&String::from_utf8_lossy(&body)).expect("text");
            let body = if is_json { Body::Json(text) } else { Body::Bytes(body) };
            let line = Line { key, flags, expiry, body, ..Line::default() };
            prop_assert_eq!(Line::decode(&line.encode().expect("JSON")), Ok(line));
        }
    }
}
