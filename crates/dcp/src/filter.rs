//! What of a vBucket a stream is about: the JSON value of a stream request.
//!
//! Source: `docs/dcp/documentation/commands/stream-request-value.md`, and the recorded answers.

use std::collections::HashSet;

use base::{CollectionId, ScopeId};
use protocol::Status;
use serde_json::{Map, Value};

/// The longest value that is read: several times as long as one that names all collections of a bucket.
pub const MOST_FILTER_BYTES: usize = 64 << 10;

/// What of a vBucket a stream is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only these collections; nothing for all.
    pub collections: Option<Vec<CollectionId>>,
    /// Only the collections of this scope.
    pub scope: Option<ScopeId>,
    /// Which of several streams of the vBucket it is.
    pub stream_id: Option<u16>,
    /// The purge seqno that the consumer knows.
    pub purge_seqno: Option<u64>,
    /// The snapshot of the bucket that is read, instead of what there is now.
    pub snapshot: Option<u128>,
}

/// Why a filter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterRefusal {
    /// The value is not what it should be.
    Invalid,
    /// The stream's id is not valid.
    StreamId,
}

impl From<FilterRefusal> for Status {
    fn from(refusal: FilterRefusal) -> Status {
        match refusal {
            FilterRefusal::Invalid => Status::Einval,
            FilterRefusal::StreamId => Status::DcpStreamIdInvalid,
        }
    }
}

/// A number in hexadecimal digits without a prefix.
fn hexadecimal(value: &Value) -> Option<u32> {
    let text = value.as_str()?;
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_plain { u32::from_str_radix(text, 16).ok() } else { None }
}

/// Collections 1 to 7 are for the server's own use.
fn collection(value: &Value) -> Option<CollectionId> {
    hexadecimal(value).filter(|id| !(2..8).contains(id)).map(CollectionId)
}

/// Scopes 1 to 7 are for the server's own use.
fn scope(value: &Value) -> Option<ScopeId> {
    hexadecimal(value).filter(|id| !(1..8).contains(id)).map(ScopeId)
}

impl Filter {
    /// Reads the value of a stream request; an empty one means everything.
    ///
    /// Whether the collections exist is for somebody else to say.
    pub fn parse(value: &[u8]) -> Result<Filter, FilterRefusal> {
        if value.is_empty() {
            return Ok(Filter::default());
        }
        if value.len() > MOST_FILTER_BYTES {
            return Err(FilterRefusal::Invalid);
        }
        let Ok(Value::Object(fields)) = serde_json::from_slice(value) else {
            return Err(FilterRefusal::Invalid);
        };
        let known = ["uid", "collections", "scope", "sid", "snapshot"];
        if !known.iter().any(|name| fields.contains_key(*name)) {
            return Err(FilterRefusal::Invalid);
        }
        let stream_id = fields.get("sid").map(stream_id).transpose()?;
        let invalid = || FilterRefusal::Invalid;
        let collections =
            fields.get("collections").map(|value| list(value).ok_or_else(invalid)).transpose()?;
        let scope = fields.get("scope").map(|value| scope(value).ok_or_else(invalid)).transpose()?;
        if collections.is_some() && scope.is_some() {
            return Err(FilterRefusal::Invalid);
        }
        let collections = collections.filter(|list| !list.is_empty());
        let snapshot = fields.get("snapshot").map(|value| snapshot(value).ok_or_else(invalid)).transpose()?;
        Ok(Filter { collections, scope, stream_id, purge_seqno: purge_seqno(&fields), snapshot })
    }

    /// Whether it is about everything.
    pub fn is_everything(&self) -> bool {
        self.collections.is_none() && self.scope.is_none()
    }
}

/// Each of them once, however often it is named.
fn list(value: &Value) -> Option<Vec<CollectionId>> {
    let mut all: Vec<CollectionId> = value.as_array()?.iter().map(collection).collect::<Option<_>>()?;
    let mut seen = HashSet::new();
    all.retain(|id| seen.insert(*id));
    all.shrink_to_fit();
    Some(all)
}

fn snapshot(value: &Value) -> Option<u128> {
    protocol::uuid::parse(value.as_str()?)
}

fn stream_id(value: &Value) -> Result<u16, FilterRefusal> {
    let id = value.as_u64().ok_or(FilterRefusal::Invalid)?;
    u16::try_from(id).ok().filter(|id| *id != 0).ok_or(FilterRefusal::StreamId)
}

/// One that cannot be read is as good as none.
fn purge_seqno(fields: &Map<String, Value>) -> Option<u64> {
    fields.get("purge_seqno")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_takes_no_more_than_its_collections() {
        let named = |times: usize| format!(r#"{{"collections":["8"{}]}}"#, r#","9""#.repeat(times));
        let filter = Filter::parse(named(10_000).as_bytes()).expect("a filter");
        assert_eq!(filter.collections, Some(vec![CollectionId(8), CollectionId(9)]));
        assert_eq!(Filter::parse(named(20_000).as_bytes()), Err(FilterRefusal::Invalid));
    }

    #[test]
    fn filters_are_those_that_the_recordings_accept() {
        let accepted = [
            "",
            r#"{"uid":"0"}"#,
            r#"{"uid":0}"#,
            r#"{"uid":"zz"}"#,
            r#"{"collections":["0"]}"#,
            r#"{"collections":[]}"#,
            r#"{"collections":["0","0"]}"#,
            r#"{"collections":["00000000"]}"#,
            r#"{"scope":"0"}"#,
            r#"{"other":1,"uid":"0"}"#,
            r#"{"uid":"0","purge_seqno":"0"}"#,
            r#"{"collections":["0"],"purge_seqno":7}"#,
            r#"{"uid":"0"} "#,
            r#"{"collections":["1"]}"#,
        ];
        for value in accepted {
            assert!(Filter::parse(value.as_bytes()).is_ok(), "{value}");
        }
        let refused = [
            "{}",
            "{",
            "[]",
            "null",
            "1",
            r#""x""#,
            r#"{"collections":[0]}"#,
            r#"{"collections":"0"}"#,
            r#"{"collections":["zz"]}"#,
            r#"{"collections":["0x0"]}"#,
            r#"{"collections":["123456789"]}"#,
            r#"{"collections":["7"]}"#,
            r#"{"scope":0}"#,
            r#"{"scope":"1"}"#,
            r#"{"scope":"0","collections":[]}"#,
            r#"{"purge_seqno":"0"}"#,
            r#"{"other":1}"#,
            r#"{"uid":"0"}x"#,
            r#"{"sid":"1"}"#,
            r#"{"sid":-1}"#,
            r#"{"sid":1.5}"#,
        ];
        for value in refused {
            assert_eq!(Filter::parse(value.as_bytes()), Err(FilterRefusal::Invalid), "{value}");
        }
        for value in [r#"{"sid":0}"#, r#"{"sid":65536}"#] {
            assert_eq!(Filter::parse(value.as_bytes()), Err(FilterRefusal::StreamId), "{value}");
        }
        let filter = Filter::parse(br#"{"collections":["0","1f"],"sid":5,"purge_seqno":"7"}"#);
        let collections = Some(vec![CollectionId(0), CollectionId(0x1f)]);
        let wanted =
            Filter { collections, scope: None, stream_id: Some(5), purge_seqno: Some(7), snapshot: None };
        assert_eq!(filter, Ok(wanted));
    }
}
