//! Redaction: hashes replace the names and keys in an archive, the same hash for the same text within one archive.

use std::net::{IpAddr, SocketAddr};

use base::env::Env;
use node::user_data::{CLOSE, OPEN};
use sha2::{Digest, Sha256};

/// Names of values that are users', in JSON and in stats.
const OF_USERS: [&str; 5] = ["user", "username", "real_userid", "effective_userid", "user_name"];
/// Names of values that are clients' addresses, in JSON and in logs.
const OF_CLIENTS: [&str; 4] = ["peer", "client", "remote", "ip"];
/// Names of lists of users, in JSON.
const LISTS_OF_USERS: [&str; 2] = ["disabledUsers", "disabled_userids"];
/// Bytes of a hash that are shown.
const SHOWN: usize = 8;

/// How texts are made fit for other eyes.
pub(super) struct Redaction {
    /// The salt is not kept, so that no reader can try names against the hashes. `None` replaces no text.
    salt: Option<[u8; 16]>,
}

impl Redaction {
    /// A redaction with a new salt.
    pub(super) fn new(env: &Env) -> Redaction {
        let mut salt = [0; 16];
        env.random.fill(&mut salt);
        Redaction { salt: Some(salt) }
    }

    /// One that leaves everything as it is.
    pub(super) fn none() -> Redaction {
        Redaction { salt: None }
    }

    /// Text of any kind: logs, JSON, metrics.
    pub(super) fn text(&self, text: &str) -> String {
        if self.salt.is_none() {
            return text.to_owned();
        }
        if let Ok(mut value) = serde_json::from_str(text) {
            self.json(&mut value);
            return format!("{value:#}\n");
        }
        text.lines().map(|line| self.line(line) + "\n").collect()
    }

    /// Stats, a line each.
    pub(super) fn stats(&self, stats: &[(String, String)]) -> String {
        let line = |(name, value): &(String, String)| {
            let last = name.rsplit(':').next().unwrap_or_default();
            let value = match last {
                _ if self.salt.is_none() => value.clone(),
                // Keys of slow operations are not marked, so that tools can look for them, and neither is what a client
                // calls its connection.
                "key" | "connection_id" => self.hash(value),
                "cid" => self.cid(value),
                last if OF_USERS.contains(&last) => self.hash(value),
                last if OF_CLIENTS.contains(&last) => self.address(value),
                _ => self.text(value).trim_end().to_owned(),
            };
            // Connections are counted under the address of their client.
            let is_address = self.salt.is_some() && name.parse::<IpAddr>().is_ok();
            let name = if is_address { self.address(name) } else { self.marked(name) };
            format!("{name} {value}\n")
        };
        stats.iter().map(line).collect()
    }

    /// What a client calls its connection, and the opaque behind it.
    fn cid(&self, value: &str) -> String {
        match value.rsplit_once('/') {
            Some(("-", _)) => value.to_owned(),
            Some((connection, opaque)) => format!("{}/{opaque}", self.hash(connection)),
            None => self.hash(value),
        }
    }

    fn json(&self, value: &mut serde_json::Value) {
        use serde_json::Value::{Array, Object, String as Text};
        match value {
            Array(values) => values.iter_mut().for_each(|value| self.json(value)),
            Object(values) => values.iter_mut().for_each(|(name, value)| match (name.as_str(), value) {
                (name, Text(text)) if OF_USERS.contains(&name) => *text = self.user(text),
                (name, Text(text)) if OF_CLIENTS.contains(&name) => *text = self.address(text),
                (name, value) if LISTS_OF_USERS.contains(&name) => self.users(value),
                (_, value) => self.json(value),
            }),
            Text(text) => *text = self.line(text),
            _ => {}
        }
    }

    /// A list of users, each a name or an object with a name.
    fn users(&self, value: &mut serde_json::Value) {
        use serde_json::Value::{Array, Object, String as Text};
        match value {
            Array(values) => values.iter_mut().for_each(|value| self.users(value)),
            Object(values) => values.get_mut("name").into_iter().for_each(|name| self.users(name)),
            Text(text) => *text = self.user(text),
            _ => {}
        }
    }

    /// The name of a user, which may be marked.
    fn user(&self, text: &str) -> String {
        if text.starts_with(OPEN) { self.marked(text) } else { self.hash(text) }
    }

    /// A line: marked parts, and values of users in a log's line, which stand behind their name and `=`.
    fn line(&self, line: &str) -> String {
        if let Ok(mut value @ serde_json::Value::Object(_)) = serde_json::from_str(line) {
            self.json(&mut value);
            return value.to_string();
        }
        let marked = self.marked(line);
        let word = |word: &str| match word.split_once('=') {
            // What was marked is a hash already.
            Some((_, value)) if value.trim_start_matches('"').starts_with(OPEN) => word.to_owned(),
            Some((name, value)) if OF_USERS.contains(&name) => {
                format!("{name}={}", self.hash(value.trim_matches('"')))
            }
            Some((name, value)) if OF_CLIENTS.contains(&name) => format!("{name}={}", self.address(value)),
            _ => word.to_owned(),
        };
        marked.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }

    /// What stood between marks: of an address the same hash from every port.
    fn user_data(&self, data: &str) -> String {
        let is_address = data.parse::<SocketAddr>().is_ok() || data.parse::<IpAddr>().is_ok();
        if is_address { self.address(data) } else { self.hash(data) }
    }

    /// Clients' addresses go; this machine's say nothing about anybody.
    fn address(&self, text: &str) -> String {
        if text.starts_with(OPEN) {
            return self.marked(text);
        }
        let bare = text.trim_matches('"');
        let host = bare.trim_matches(['[', ']']);
        let ip = bare.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| host.parse::<IpAddr>());
        match ip {
            Ok(ip) if ip.is_loopback() || ip.is_unspecified() => text.to_owned(),
            Ok(ip) => self.hash(&ip.to_string()),
            Err(_) => self.hash(bare),
        }
    }

    /// Replaces what is between the marks. A mark that is not closed counts to the end.
    fn marked(&self, text: &str) -> String {
        if self.salt.is_none() || !text.contains(OPEN) {
            return text.to_owned();
        }
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once(OPEN) {
            let (data, after) = behind.split_once(CLOSE).unwrap_or((behind, ""));
            redacted.extend([before, OPEN, &self.user_data(data), CLOSE]);
            rest = after;
        }
        redacted + rest
    }

    fn hash(&self, data: &str) -> String {
        let Some(salt) = self.salt else { return data.to_owned() };
        let hash = Sha256::new().chain_update(salt).chain_update(data).finalize();
        hash[..SHOWN].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction() -> Redaction {
        Redaction { salt: Some([7; 16]) }
    }

    #[test]
    fn the_same_text_has_the_same_hash_and_another_salt_another() {
        let one = redaction().hash("ann");
        assert_eq!(one, redaction().hash("ann"));
        assert_ne!(one, redaction().hash("bob"));
        assert_ne!(one, Redaction { salt: Some([8; 16]) }.hash("ann"));
        assert_eq!(one.len(), 2 * SHOWN);
    }

    #[test]
    fn no_secret_is_left_in_any_kind_of_text() {
        let redaction = redaction();
        for text in [
            "2026 WARN a login failed user=ann-secret peer=10.1.2.3:4000 tries=3",
            "2026 WARN a login failed user=\"ann-secret\" peer=10.1.2.3:4000",
            "slow key <ud>ann-secret</ud> from <ud>10.1.2.3:99</ud>",
            "cut off <ud>ann-secret 10.1.2.3",
            r#"{"message":"x","user":"ann-secret","at":"<ud>10.1.2.3</ud>"}"#,
            r#"{"a":[{"real_userid":"ann-secret"},{"user":{"user":"ann-secret"}}]}"#,
            "{\"message\":\"x\",\"user\":\"ann-secret\"}\n{\"message\":\"<ud>10.1.2.3</ud>\"}\n",
        ] {
            let told = redaction.text(text);
            assert!(!told.contains("ann-secret") && !told.contains("10.1.2.3"), "{told}");
        }
        let stats = [
            ("c:1:user".to_owned(), "ann-secret".to_owned()),
            ("k".to_owned(), "<ud>ann-secret</ud>".to_owned()),
            ("0:key".to_owned(), "ann-secret".to_owned()),
            ("0:peer".to_owned(), "10.1.2.3:4000".to_owned()),
            ("0:connection_id".to_owned(), "ann-secret".to_owned()),
            ("0:cid".to_owned(), "ann-secret/1f".to_owned()),
            ("1:cid".to_owned(), "-/2f".to_owned()),
            ("10.1.2.3".to_owned(), "{\"current\":1}".to_owned()),
            ("fd00::ab".to_owned(), "{\"current\":1}".to_owned()),
            ("127.0.0.1".to_owned(), "{\"current\":1}".to_owned()),
        ];
        let told = redaction.stats(&stats);
        assert!(!told.contains("ann-secret") && told.contains("c:1:user "), "{told}");
        assert!(!told.contains("10.1.2.3") && !told.contains("fd00::ab"), "{told}");
        assert!(told.contains("/1f\n1:cid -/2f\n"), "{told}");
        assert!(told.contains("0:key ") && told.contains("127.0.0.1 {"), "{told}");
        let plain: String = stats.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        assert_eq!(Redaction::none().stats(&stats), plain);
    }

    #[test]
    fn lists_of_users_are_redacted_and_a_marked_name_has_the_hash_of_the_name() {
        let redaction = redaction();
        let hash = redaction.hash("ann-secret");
        for text in [
            r#"{"disabledUsers":[{"name":"ann-secret","domain":"local"}],"disabled":[20480]}"#,
            r#"{"disabled_userids":["ann-secret"]}"#,
            r#"{"message":"a login failed","user":"<ud>ann-secret</ud>"}"#,
            "WARN a login failed user=<ud>ann-secret</ud> tries=3",
            "WARN a login failed user=\"ann-secret\" tries=3",
        ] {
            let told = redaction.text(text);
            assert!(!told.contains("ann-secret") && told.contains(&hash), "{told}");
        }
        let one = redaction.text("peer=10.1.2.3:4000");
        assert_eq!(one, redaction.text("peer=10.1.2.3:5000"), "an address is the same from every port");
        assert_eq!(redaction.text("peer=[::1]:5000"), "peer=[::1]:5000\n");
        let marked = redaction.text("peer=<ud>10.1.2.3:6000</ud>");
        assert_eq!(marked.replace(OPEN, "").replace(CLOSE, ""), one, "marked or not");
        assert_eq!(redaction.text("peer=<ud>[::1]:5000</ud>"), "peer=<ud>[::1]:5000</ud>\n");
    }

    #[test]
    fn what_names_no_user_stays() {
        let text = "# HELP stave_items Documents.\nstave_items{bucket=\"default\"} 5\n";
        assert_eq!(redaction().text(text), text);
        let line = "INFO started version=0.1.0 peer=127.0.0.1:4000\n";
        assert_eq!(redaction().text(line), line);
        assert_eq!(Redaction::none().text("<ud>ann</ud>"), "<ud>ann</ud>");
    }
}
