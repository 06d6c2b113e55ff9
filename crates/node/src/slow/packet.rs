//! The request of a slow operation, in the field's names.

use base::{Cas, VbId};
use protocol::{Request, magic, opcode};
use serde_json::{Map, Value, json};

/// The head of a request. The key is kept beside it, the rest is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// As the client sent it.
    pub opaque: u32,
    /// The vBucket.
    pub vbucket: VbId,
    /// Bits that describe the value.
    pub datatype: u8,
    /// Whether the request had framing extras.
    pub is_framed: bool,
    /// Bytes of the extras.
    pub extras_len: u8,
    /// Bytes of the key.
    pub key_len: u16,
    /// Bytes of framing extras, extras, key and value.
    pub body_len: u32,
    /// The CAS that it asks for; 0 for any.
    pub cas: Cas,
}

impl Packet {
    pub(super) fn of(request: &Request<'_>) -> Packet {
        let parts = [request.frame_infos, request.extras, request.key, request.value];
        Packet {
            opaque: request.opaque,
            vbucket: request.vbucket,
            datatype: request.datatype,
            is_framed: request.magic == magic::ALT_REQUEST,
            // A frame has no room for longer ones.
            extras_len: request.extras.len() as u8,
            key_len: request.key.len() as u16,
            body_len: parts.iter().map(|part| part.len()).sum::<usize>() as u32,
            cas: request.cas,
        }
    }

    /// As an object with the field's names; with the key as it may be told, or without one.
    pub fn as_json(&self, opcode: u8, key: Option<&str>) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("magic", json!(if self.is_framed { "AltClientRequest" } else { "ClientRequest" }));
        put("opcode", json!(opcode::field_name(opcode).unwrap_or("unknown")));
        if let Some(key) = key {
            put("key", json!(key));
        }
        put("keylen", json!(self.key_len));
        put("extlen", json!(self.extras_len));
        put("datatype", datatype_names(self.datatype));
        put("vbucket", json!(self.vbucket.0));
        put("bodylen", json!(self.body_len));
        put("opaque", json!(self.opaque));
        put("cas", json!(self.cas.0));
        Value::Object(object)
    }
}

/// `raw`, or all that the bits say.
fn datatype_names(datatype: u8) -> Value {
    let names = ["json", "snappy", "xattr"].into_iter().enumerate();
    let set: Vec<&str> = names.filter(|(bit, _)| datatype & (1 << bit) != 0).map(|(_, name)| name).collect();
    if set.is_empty() { json!("raw") } else { json!(set) }
}

/// A time as the field writes it: in the smallest unit in which it has at most four digits.
pub fn duration_text(ns: u64) -> String {
    let mut value = ns;
    for unit in ["ns", "us", "ms"] {
        if value <= 9_999 {
            return format!("{value} {unit}");
        }
        value /= 1_000;
    }
    format!("{value} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_at_most_four_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (9_999, "9999 ns"),
            (10_000, "10 us"),
            (515_000_000, "515 ms"),
            (9_999_999_999, "9999 ms"),
            (61_000_000_000, "61 s"),
        ] {
            assert_eq!(duration_text(ns), text);
        }
    }

    #[test]
    fn a_packet_has_the_fields_names_and_a_key_only_if_it_is_given() {
        let request = Request {
            magic: magic::REQUEST,
            opcode: opcode::SET,
            datatype: 0b11,
            vbucket: VbId(7),
            opaque: 42,
            cas: Cas(9),
            frame_infos: b"",
            extras: &[0; 8],
            key: b"key",
            value: b"value",
        };
        let packet = Packet::of(&request);
        let expected = json!({ "magic": "ClientRequest", "opcode": "SET", "keylen": 3, "extlen": 8,
            "datatype": ["json", "snappy"], "vbucket": 7, "bodylen": 16, "opaque": 42, "cas": 9 });
        assert_eq!(packet.as_json(opcode::SET, None), expected);
        assert_eq!(packet.as_json(opcode::SET, Some("<ud>key</ud>"))["key"], "<ud>key</ud>");
        assert_eq!(Packet::default().as_json(opcode::GET, None)["datatype"], "raw");
    }
}
