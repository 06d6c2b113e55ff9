//! One line for each thing that happens to a bucket.

use base::{Datatype, DocKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use protocol::dcp::{Message, What};
use serde_json::{Value, json};

use crate::client::dcp::Event;

/// Values are cut here in text.
const MOST_TEXT_BYTES: usize = 200;

/// The line for an event; nothing for those that are not shown.
pub(super) fn of(event: &Event<'_>, json: bool, keys_only: bool) -> Option<String> {
    match *event {
        Event::Message(message) if json => in_json(message, keys_only),
        Event::Message(message) => in_text(message, keys_only),
        Event::RolledBack(vb, to) if json => {
            Some(json!({ "event": "rollback", "vbucket": vb.0, "seqno": to.0 }).to_string())
        }
        Event::RolledBack(vb, to) => {
            Some(format!("{:<10} {vb:>4} {to:>8}  forget what came later", "rollback"))
        }
        Event::Ended(vb, reason) if json => {
            let reason = format!("{reason:?}");
            Some(json!({ "event": "end", "vbucket": vb.0, "reason": reason }).to_string())
        }
        Event::Ended(..) => None,
    }
}

fn name_and_seqno(what: &What) -> Option<(&'static str, u64)> {
    Some(match what {
        What::Mutation(mutation) => ("mutation", mutation.by_seqno.0),
        What::Deletion(deletion) => ("deletion", deletion.by_seqno.0),
        What::Expiration(deletion) => ("expiration", deletion.by_seqno.0),
        What::SystemEvent(seqno, ..) => ("system", seqno.0),
        _ => return None,
    })
}

/// A key without its collection, and the collection. What the server sends of it is believed.
fn key_of<'a>(message: &Message<'a>) -> (u32, &'a [u8]) {
    match DocKey::parse(message.key) {
        Some(key) => (key.collection.0, key.key),
        None => (0, message.key),
    }
}

fn in_text(message: &Message<'_>, keys_only: bool) -> Option<String> {
    let (name, seqno) = name_and_seqno(&message.what)?;
    let (collection, key) = key_of(message);
    let prefix = if collection == 0 { String::new() } else { format!("0x{collection:x}:") };
    let mut line = format!("{name:<10} {:>4} {seqno:>8}  {prefix}{}", message.vb, key.escape_ascii());
    if matches!(message.what, What::Mutation(_)) && !keys_only {
        let text = str::from_utf8(message.value).ok().filter(|text| !text.contains(char::is_control));
        match text {
            Some(text) if text.len() <= MOST_TEXT_BYTES => line += &format!("  {text}"),
            Some(text) => {
                let cut = text.floor_char_boundary(MOST_TEXT_BYTES);
                line += &format!("  {}... ({} bytes)", &text[..cut], text.len());
            }
            None => line += &format!("  ({} bytes)", message.value.len()),
        }
    }
    Some(line)
}

fn in_json(message: &Message<'_>, keys_only: bool) -> Option<String> {
    let (name, seqno) = name_and_seqno(&message.what)?;
    let (collection, key) = key_of(message);
    let mut fields = json!({
        "event": name,
        "vbucket": message.vb.0,
        "seqno": seqno,
        "collection": format!("{collection:x}"),
        "key": String::from_utf8_lossy(key),
        "cas": message.cas.0.to_string(),
    });
    match message.what {
        What::Mutation(mutation) => {
            fields["rev"] = mutation.rev_seqno.0.into();
            fields["flags"] = mutation.flags.into();
            fields["expiry"] = mutation.expiry.into();
            if !keys_only {
                put_value(&mut fields, message);
            }
        }
        What::Deletion(deletion) | What::Expiration(deletion) => fields["rev"] = deletion.rev_seqno.0.into(),
        _ => {}
    }
    Some(fields.to_string())
}

/// JSON as it is, anything else in base64.
fn put_value(fields: &mut Value, message: &Message<'_>) {
    let is_json = Datatype(message.datatype).is_json();
    match serde_json::from_slice::<Value>(message.value).ok().filter(|_| is_json) {
        Some(value) => fields["value"] = value,
        None => fields["value_base64"] = BASE64.encode(message.value).into(),
    }
}
