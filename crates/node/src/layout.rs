//! Checks whether a request has the layout that its row of the table asks for.

use base::{DocKey, limits};
use protocol::Request;
use protocol::feature::Feature;

use crate::command::Row;
use crate::command_rules::{CasRule, Extras, Key, ValueRule};
use crate::session::Session;

/// Checks a request in the order in which the original does, so that a request with several faults gets the answer
/// that clients know. Returns the document key, if the row asks for one, or what to tell the client.
pub fn check<'a>(row: &Row, session: &Session, request: &Request<'a>) -> Result<DocKey<'a>, String> {
    check_extras(row.extras, request.extras.len())?;
    let has_key = !request.key.is_empty();
    match row.key {
        Key::Forbidden if has_key => return Err("Request must not include key".to_owned()),
        Key::Required | Key::Document if !has_key => return Err("Request must include key".to_owned()),
        _ => {}
    }
    check_value(row.value, request.value.len(), has_key)?;
    if request.value.len() > row.most_value_bytes {
        return Err(format!("Request value must have at most {} bytes", row.most_value_bytes));
    }
    match row.cas {
        CasRule::Forbidden if request.cas.0 != 0 => return Err("Request CAS must not be set".to_owned()),
        CasRule::Required if request.cas.0 == 0 => return Err("Request CAS must be set".to_owned()),
        _ => {}
    }
    if request.datatype != 0 {
        check_datatype(row, session, request.datatype)?;
    }
    if row.is_vbucket_zero && request.vbucket.0 != 0 {
        return Err("Request vbucket id must be 0".to_owned());
    }
    match row.key {
        Key::Document => document_key(session, request.key),
        _ => {
            // Of a document with its collection, where that was agreed on when the connection was opened for changes.
            let is_prefixed = row.brings_changes
                && match &session.dcp {
                    Some(connection) => connection.has_collections,
                    None => session.has(Feature::Collections),
                };
            let most = if is_prefixed { limits::MAX_PREFIXED_KEY_BYTES } else { limits::MAX_KEY_BYTES };
            let is_too_long = request.key.len() > most;
            if is_too_long { Err(format!("Key length exceeds {most}")) } else { Ok(DocKey::new(&[])) }
        }
    }
}

fn check_extras(extras: Extras, len: usize) -> Result<(), String> {
    match extras {
        Extras::None if len != 0 => Err("Request must not include extras".to_owned()),
        Extras::Exactly(expected) if len != usize::from(expected) => {
            Err(format!("Request must include extras of length {expected}"))
        }
        Extras::OneOf(lens) if !lens.iter().any(|expected| usize::from(*expected) == len) => {
            let lens: Vec<String> = lens.iter().map(u8::to_string).collect();
            Err(format!("Request extras must be of length {}", lens.join(" or ")))
        }
        _ => Ok(()),
    }
}

fn check_value(rule: ValueRule, len: usize, has_key: bool) -> Result<(), String> {
    match rule {
        ValueRule::InsteadOfKey if len != 0 && has_key => Err("Cannot set both key and value".to_owned()),
        ValueRule::Forbidden if len != 0 => Err("Request must not include value".to_owned()),
        ValueRule::Required if len == 0 => Err("Request must include value".to_owned()),
        ValueRule::Exactly(expected) if len != usize::from(expected) => {
            Err(format!("Request value must be of length {expected}"))
        }
        _ => Ok(()),
    }
}

fn check_datatype(row: &Row, session: &Session, datatype: u8) -> Result<(), String> {
    if datatype & !row.datatype != 0 {
        return Err("Request datatype invalid".to_owned());
    }
    if row.brings_changes {
        return Ok(());
    }
    let bits = [(Feature::Json, "json"), (Feature::Snappy, "snappy"), (Feature::Xattr, "xattr")];
    let missing = bits
        .iter()
        .enumerate()
        .find(|(bit, (feature, _))| datatype & (1 << bit) != 0 && !session.has(*feature));
    match missing {
        Some((_, (_, name))) => Err(format!("Datatype ({name}) not enabled for the connection")),
        None => Ok(()),
    }
}

/// The key of a document: with a collection in front of it if that was agreed on, else of the default collection.
fn document_key<'a>(session: &Session, key: &'a [u8]) -> Result<DocKey<'a>, String> {
    if !session.has(Feature::Collections) {
        let key = DocKey::new(key);
        let too_long = || format!("Key length exceeds {}", limits::MAX_KEY_BYTES);
        return if key.is_valid_len() { Ok(key) } else { Err(too_long()) };
    }
    if key.len() < 2 {
        return Err("Key length must be >= 2".to_owned());
    }
    if key.len() > limits::MAX_PREFIXED_KEY_BYTES {
        return Err(format!("Key length exceeds {}", limits::MAX_PREFIXED_KEY_BYTES));
    }
    let Some(parsed) = DocKey::parse(key) else {
        let terminated = key.iter().take(5).any(|byte| byte & 0x80 == 0);
        let context = if terminated { "Key contains non-canonical leb128" } else { "No stop-byte found" };
        return Err(context.to_owned());
    };
    if (1..8).contains(&parsed.collection.0) {
        return Err(format!("Invalid collection-id:{}", parsed.collection));
    }
    if parsed.key.is_empty() {
        return Err("No logical key found".to_owned());
    }
    if !parsed.is_valid_len() {
        return Err(format!("Logical key exceeds {}", limits::MAX_COLLECTION_KEY_BYTES));
    }
    Ok(parsed)
}
