//! One record of the audit log as a line of JSON: who did what, when, from where. Never a password, a value, or anything
//! else that a request carries and this module's callers did not name.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::events::AuditEvent;

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
    fields: Map<String, Value>,
}

impl AuditRecord {
    /// A record of an event that the node itself brought about, unless [`AuditRecord::by`] names a user.
    pub fn new(event: AuditEvent) -> AuditRecord {
        AuditRecord { event, user: None, fields: Map::new() }
    }

    /// What it is about.
    pub fn event(&self) -> AuditEvent {
        self.event
    }

    /// The user, if one is known.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The user, as the client called itself.
    #[must_use]
    pub fn by(self, user: &[u8]) -> AuditRecord {
        AuditRecord { user: Some(text(user)), ..self }
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

/// Seconds since 1970 as year, month, day and seconds of the day, by the calendar's rule for days from March on.
pub(crate) fn civil(unix_s: u64) -> (u64, u64, u64, u64) {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day, second)
}

/// The way back from [`civil`]: seconds since 1970 of the beginning of a day.
pub(crate) fn unix_s_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9_999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    days.checked_sub(719_468).map(|days| days * 86_400)
}

/// A moment as ISO 8601 in UTC, to the millisecond.
fn timestamp(unix_ns: u64) -> String {
    let (year, month, day, second) = civil(unix_ns / 1_000_000_000);
    let (hour, minute, rest) = (second / 3_600, second / 60 % 60, second % 60);
    let ms = unix_ns / 1_000_000 % 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{rest:02}.{ms:03}Z")
}

/// Seconds since 1970 of a text that begins like [`timestamp`]; the separators of the time may be others.
pub(crate) fn parse_moment(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    let day = unix_s_of(number(0..4)?, number(5..7)?, number(8..10)?)?;
    Some(day + number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_both_ways() {
        for (unix_s, told) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_612_172_764, "2021-02-01T09:46:04.007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(timestamp(unix_s * 1_000_000_000 + 7_000_000), told);
            assert_eq!(parse_moment(told), Some(unix_s));
        }
        for wrong in
            ["", "1970-01-01T00:00", "19x0-01-01T00:00:00", "1970-13-01T00:00:00", "0000-00-00T00:00:00"]
        {
            assert_eq!(parse_moment(wrong), None, "{wrong}");
        }
    }

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
