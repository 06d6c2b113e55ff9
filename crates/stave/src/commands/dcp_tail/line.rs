//! One line for each thing that happens to a bucket.

use base::{CollectionId, Datatype, DocKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use protocol::dcp::{CollectionNames, Message, What, WireEvent};
use serde_json::{Value, json};

use crate::client::dcp::Event;

/// Values are cut here in text.
const MOST_TEXT_BYTES: usize = 200;

/// The line for an event; nothing for those that are not shown. `names` learns from events of collections.
pub(super) fn of(
    event: &Event<'_>,
    names: &mut CollectionNames,
    json: bool,
    keys_only: bool,
) -> Option<String> {
    if let Event::Message(message) = event
        && let Some(event) = WireEvent::read(&message.what, message.key, message.value)
    {
        names.learn(&event);
        return Some(system(message, &event, names, json));
    }
    match *event {
        Event::Message(message) if json => in_json(message, names, keys_only),
        Event::Message(message) => in_text(message, names, keys_only),
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
        Event::Began(..) | Event::Ended(..) => None,
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
fn key_of<'a>(message: &Message<'a>) -> (CollectionId, &'a [u8]) {
    match DocKey::parse(message.key) {
        Some(key) => (key.collection, key.key),
        None => (CollectionId::DEFAULT, message.key),
    }
}

/// Something happened to a collection or a scope.
fn system(message: &Message<'_>, event: &WireEvent<'_>, names: &CollectionNames, json: bool) -> String {
    let seqno = name_and_seqno(&message.what).map_or(0, |(_, seqno)| seqno);
    let (word, subject) = (event.word(), event.subject(names));
    if !json {
        let word = word.replace('_', " ");
        return format!("{:<10} {:>4} {seqno:>8}  {word} {subject}", "system", message.vb);
    }
    let mut fields = json!({
        "event": "system",
        "change": word,
        "name": subject,
        "vbucket": message.vb.0,
        "seqno": seqno,
        "manifest": format!("{:x}", event.manifest()),
        "cas": message.cas.0.to_string(),
    });
    if let Some(collection) = event.collection() {
        fields["collection"] = format!("{:x}", collection.0).into();
    }
    fields.to_string()
}

fn in_text(message: &Message<'_>, names: &CollectionNames, keys_only: bool) -> Option<String> {
    let (name, seqno) = name_and_seqno(&message.what)?;
    let (collection, key) = key_of(message);
    let prefix = match names.collection(collection) {
        _ if collection == CollectionId::DEFAULT => String::new(),
        Some(name) => format!("{name}:"),
        None => format!("0x{:x}:", collection.0),
    };
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

fn in_json(message: &Message<'_>, names: &CollectionNames, keys_only: bool) -> Option<String> {
    let (name, seqno) = name_and_seqno(&message.what)?;
    let (collection, key) = key_of(message);
    let mut fields = json!({
        "event": name,
        "vbucket": message.vb.0,
        "seqno": seqno,
        "collection": format!("{:x}", collection.0),
        "key": String::from_utf8_lossy(key),
        "cas": message.cas.0.to_string(),
    });
    if let Some(name) = names.collection(collection) {
        fields["collection_name"] = name.into();
    }
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
