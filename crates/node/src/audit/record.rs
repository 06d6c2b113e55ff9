//! One record of the audit log as a line of JSON: who did what, when, from where. Never a password, a value, or anything
//! else that a request carries and this module's callers did not name.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::events::AuditEvent;
use crate::calendar::timestamp;

/// Bytes of one text of a client that are recorded.
const MOST_TEXT_BYTES: usize = 256;
/// Where users are that the node knows, and those who claim to be one.
pub(crate) const LOCAL: &str = "local";

/// Both ends of a client's connection, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The node's.
    pub local: Option<SocketAddr>,
    /// The client's.
    pub remote: Option<SocketAddr>,
}

/// A record that is put together.
pub struct AuditRecord {
    event: AuditEvent,
    user: Option<String>,
    effective: Option<String>,
    fields: Map<String, Value>,
}

impl AuditRecord {
    /// A record of an event that the node itself brought about, unless [`AuditRecord::by`] names a user.
    pub fn new(event: AuditEvent) -> AuditRecord {
        AuditRecord { event, user: None, effective: None, fields: Map::new() }
    }

    /// What it is about.
    pub fn event(&self) -> AuditEvent {
        self.event
    }

    /// The user whose deed it is, if one is known: the one acted for, if there is one.
    pub fn user(&self) -> Option<&str> {
        self.effective.as_deref().or(self.user.as_deref())
    }

    /// The user, as the client called itself.
    #[must_use]
    pub fn by(self, user: &[u8]) -> AuditRecord {
        AuditRecord { user: Some(text(user)), ..self }
    }

    /// The user for whom the client acts, if it acts for one.
    #[must_use]
    pub(crate) fn acting_for(self, user: Option<&[u8]>) -> AuditRecord {
        let Some(user) = user.map(text) else { return self };
        let record = self.with("effective_userid", json!({ "domain": LOCAL, "user": user }));
        AuditRecord { effective: Some(user), ..record }
    }

    /// Where the request came from and to.
    #[must_use]
    pub fn between(mut self, ends: Ends) -> AuditRecord {
        for (name, end) in [("local", ends.local), ("remote", ends.remote)] {
            let (ip, port) =
                end.map_or((String::new(), 0), |end| (end.ip().to_canonical().to_string(), end.port()));
            self.fields.insert(name.to_owned(), json!({ "ip": ip, "port": port }));
        }
        self
    }

    /// Another field. Texts of clients go through [`text`] first.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> AuditRecord {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// The line, without its end. `unix_ns`: when it happened.
    pub(crate) fn line(self, unix_ns: u64) -> Vec<u8> {
        let (row, mut fields) = (self.event.row(), self.fields);
        let user = match &self.user {
            Some(user) => json!({ "domain": LOCAL, "user": user }),
            None => json!({ "domain": "internal", "user": "stave" }),
        };
        for (name, value) in [
            ("id", row.id.into()),
            ("name", row.name.into()),
            ("description", row.description.into()),
            ("timestamp", timestamp(unix_ns).into()),
            ("real_userid", user),
        ] {
            fields.insert(name.to_owned(), value);
        }
        Value::Object(fields).to_string().into_bytes()
    }
}

/// Why a client's certificate, which stands for this name, logs no user in.
pub fn why_uncertified(name: &str) -> &'static str {
    match name.is_empty() {
        true => "no rule finds the name of a user in the client's certificate",
        false => "the client's certificate names a user that does not exist",
    }
}

/// What a client sent, bounded, and with everything escaped that is not text.
pub fn text(bytes: &[u8]) -> String {
    let told = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    };
    if told.len() <= MOST_TEXT_BYTES {
        return told;
    }
    let mut end = MOST_TEXT_BYTES;
    while !told.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &told[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_clients_are_bounded_and_escaped() {
        assert_eq!(text("Käse".as_bytes()), "Käse");
        assert_eq!(text(b"\xff\n"), "\\xff\\n");
        let long = text("ä".repeat(300).as_bytes());
        assert_eq!((long.len(), long.ends_with("ä...")), (259, true));
        let line = AuditRecord::new(AuditEvent::LoginFailed).by(b"a\"\n{").line(0);
        let line = String::from_utf8(line).expect("JSON is text");
        assert!(line.contains("\"user\":\"a\\\"\\n{\"") && !line.contains('\n'), "{line}");
    }
}
