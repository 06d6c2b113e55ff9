//! Changes as JSON: a line each, or a server-sent event each (HTML Living Standard, Server-sent events).

use base::{Datatype, DocKey, Seqno, VbId};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use protocol::dcp::{CollectionNames, Message, What, WireEvent};
use serde::de::IgnoredAny;
use serde_json::json;

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line of JSON each.
    Ndjson,
    /// Server-sent events.
    Sse,
}

impl Format {
    /// What it is called in the answer's head.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Ndjson => "application/x-ndjson",
            Format::Sse => "text/event-stream",
        }
    }
}

/// Writes events.
pub struct Writer {
    /// The form.
    pub format: Format,
    /// Whether documents come with their values.
    pub values: bool,
    /// What collections are called; learns from the events that it writes.
    pub names: CollectionNames,
}

impl Writer {
    fn open(&self, name: &str, id: Option<&str>, out: &mut Vec<u8>) {
        if self.format == Format::Sse {
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(name.as_bytes());
            if let Some(id) = id {
                out.extend_from_slice(b"\nid: ");
                out.extend_from_slice(id.as_bytes());
            }
            out.extend_from_slice(b"\ndata: ");
        }
    }

    fn close(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.format == Format::Sse { b"\n\n" } else { b"\n" });
    }

    fn whole(&self, name: &str, id: Option<&str>, json: &serde_json::Value, out: &mut Vec<u8>) {
        self.open(name, id, out);
        out.extend_from_slice(json.to_string().as_bytes());
        self.close(out);
    }

    /// A change; nothing for messages that bring none. `uuid` names the history that its seqno counts in.
    pub fn change(&mut self, message: &Message<'_>, uuid: u64, out: &mut Vec<u8>) -> bool {
        let (name, seqno) = match message.what {
            What::Mutation(mutation) => ("mutation", mutation.by_seqno),
            What::Deletion(deletion) => ("deletion", deletion.by_seqno),
            What::Expiration(deletion) => ("expiration", deletion.by_seqno),
            What::SystemEvent(seqno, ..) => ("system", seqno),
            _ => return false,
        };
        let key = DocKey::parse(message.key).unwrap_or(DocKey::new(message.key));
        let mut fields = json!({
            "event": name,
            "vbucket": message.vb.0,
            "uuid": format!("{uuid:016x}"),
            "seqno": seqno.0,
            "cas": message.cas.0.to_string(),
        });
        if let Some(event) = WireEvent::read(&message.what, message.key, message.value) {
            self.names.learn(&event);
            fields["change"] = event.word().into();
            fields["manifest"] = format!("{:x}", event.manifest()).into();
            fields["name"] = event.subject(&self.names).into();
            if let Some(collection) = event.collection() {
                fields["collection"] = format!("{:x}", collection.0).into();
            }
        } else {
            fields["collection"] = format!("{:x}", key.collection.0).into();
            if let Some(name) = self.names.collection(key.collection) {
                fields["collection_name"] = name.into();
            }
            fields["key"] = String::from_utf8_lossy(key.key).into();
            if str::from_utf8(key.key).is_err() {
                fields["key_base64"] = BASE64.encode(key.key).into();
            }
        }
        match message.what {
            What::Mutation(mutation) => {
                fields["rev"] = mutation.rev_seqno.0.into();
                fields["flags"] = mutation.flags.into();
                fields["expiry"] = mutation.expiry.into();
            }
            What::Deletion(deletion) | What::Expiration(deletion) => {
                fields["rev"] = deletion.rev_seqno.0.into();
            }
            _ => {}
        }
        self.open(name, None, out);
        out.extend_from_slice(fields.to_string().as_bytes());
        if self.values && matches!(message.what, What::Mutation(_)) {
            out.pop();
            put_value(message, out);
            out.push(b'}');
        }
        self.close(out);
        true
    }

    /// Up to where the reader has everything.
    pub fn position(&self, token: &str, out: &mut Vec<u8>) {
        self.whole("position", Some(token), &json!({ "event": "position", "token": token }), out);
    }

    /// Histories part: what came of this vBucket after `to` is to be forgotten.
    pub fn rollback(&self, vb: VbId, to: Seqno, out: &mut Vec<u8>) {
        let fields = json!({ "event": "rollback", "vbucket": vb.0, "seqno": to.0 });
        self.whole("rollback", None, &fields, out);
    }

    /// Nothing more comes of this vBucket, although more was wanted.
    pub fn ended(&self, vb: VbId, reason: &str, message: Option<&str>, out: &mut Vec<u8>) {
        let mut fields = json!({ "event": "ended", "vbucket": vb.0, "reason": reason });
        if let Some(message) = message {
            fields["message"] = message.into();
        }
        self.whole("ended", None, &fields, out);
    }

    /// A sign of life.
    pub fn heartbeat(&self, told: Option<&str>, out: &mut Vec<u8>) {
        match (self.format, told) {
            (Format::Sse, _) => out.extend_from_slice(b": still here\n\n"),
            (Format::Ndjson, Some(token)) => self.position(token, out),
            (Format::Ndjson, None) => out.extend_from_slice(b"\n"),
        }
    }
}

/// Appends the value as a further field: JSON on one line as it is, anything else in base64.
fn put_value(message: &Message<'_>, out: &mut Vec<u8>) {
    let value = message.value;
    let is_json = Datatype(message.datatype).is_json() && serde_json::from_slice::<IgnoredAny>(value).is_ok();
    if !is_json {
        out.extend_from_slice(b",\"value_base64\":\"");
        out.extend_from_slice(BASE64.encode(value).as_bytes());
        out.push(b'"');
        return;
    }
    out.extend_from_slice(b",\"value\":");
    // Between tokens of JSON a line break is white space, and within them there is none.
    out.extend(value.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
}

#[cfg(test)]
mod tests {
    use base::{Cas, CollectionId, RevSeqno, ScopeId};
    use protocol::dcp::{Deletion, Mutation};

    use super::*;

    fn text(format: Format, values: bool, message: &Message<'_>) -> String {
        let mut out = Vec::new();
        let mut writer = Writer { format, values, names: CollectionNames::new() };
        writer.names.add_collection(CollectionId(8), ScopeId(0), "orders");
        assert!(writer.change(message, 0xab, &mut out));
        String::from_utf8(out).expect("text")
    }

    fn message(value: &'static [u8], datatype: u8) -> Message<'static> {
        Message {
            vb: VbId(7),
            opaque: 7,
            stream_id: None,
            cas: Cas(u64::MAX),
            datatype,
            key: b"\x08key",
            value,
            what: What::Mutation(Mutation {
                by_seqno: Seqno(5),
                rev_seqno: RevSeqno(2),
                ..Mutation::default()
            }),
        }
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let line = text(Format::Ndjson, true, &message(b"{\"a\":\r\n1}", 1));
        let json: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((line.lines().count(), &json["value"]["a"], &json["key"]), (1, &1.into(), &"key".into()));
        assert_eq!((&json["collection"], &json["uuid"]), (&"8".into(), &"00000000000000ab".into()));
        assert_eq!(json["collection_name"], "_default.orders");
        assert_eq!(json["cas"], "18446744073709551615");
        assert!(text(Format::Ndjson, true, &message(b"\xff", 0)).contains(r#""value_base64":"/w=="}"#));
        // What only claims to be JSON does not break the line.
        assert!(text(Format::Ndjson, true, &message(b"{\n", 1)).contains("value_base64"));
        assert!(!text(Format::Ndjson, false, &message(b"{}", 1)).contains("value"));
    }

    #[test]
    fn events_of_collections_say_what_happened() {
        let orders = WireEvent::CollectionBegin {
            manifest: 0x1f,
            scope: ScopeId(0),
            collection: CollectionId(0x1a),
            max_ttl_s: None,
            name: b"orders",
        };
        let ((number, version), value) = (orders.number_and_version(), orders.value());
        let what = What::SystemEvent(Seqno(9), number, version);
        let message = Message { key: orders.key(), value: value.as_bytes(), what, ..message(b"", 0) };
        let json: serde_json::Value =
            serde_json::from_str(&text(Format::Ndjson, true, &message)).expect("JSON");
        let fields = ["event", "change", "name", "collection", "manifest"].map(|field| json[field].clone());
        assert_eq!(fields, ["system", "collection_created", "_default.orders", "1a", "1f"]);
        assert_eq!(json["seqno"], 9);
    }

    #[test]
    fn server_sent_events_have_names_and_ids() {
        let deletion = Deletion { by_seqno: Seqno(6), ..Deletion::default() };
        let event = text(Format::Sse, true, &Message { what: What::Deletion(deletion), ..message(b"", 0) });
        assert!(event.starts_with("event: deletion\ndata: {") && event.ends_with("}\n\n"), "{event}");
        let mut out = Vec::new();
        let writer = Writer { format: Format::Sse, values: false, names: CollectionNames::new() };
        writer.position("abc", &mut out);
        let position = "event: position\nid: abc\ndata: {\"event\":\"position\",\"token\":\"abc\"}\n\n";
        assert_eq!(String::from_utf8(out).expect("text"), position);
    }
}
