//! Redaction: hashes replace the names and keys in an archive, the same hash for the same text within one archive.

use std::net::IpAddr;

use base::env::Env;
use sha2::{Digest, Sha256};

const OPEN: &str = "<ud>";
const CLOSE: &str = "</ud>";
/// Names of values that are users', in JSON and in stats.
const OF_USERS: [&str; 5] = ["user", "username", "real_userid", "effective_userid", "user_name"];
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
            let value = if self.salt.is_some() && OF_USERS.contains(&last) {
                self.hash(value)
            } else {
                self.text(value).trim_end().to_owned()
            };
            format!("{} {value}\n", self.marked(name))
        };
        stats.iter().map(line).collect()
    }

    fn json(&self, value: &mut serde_json::Value) {
        use serde_json::Value::{Array, Object, String as Text};
        match value {
            Array(values) => values.iter_mut().for_each(|value| self.json(value)),
            Object(values) => values.iter_mut().for_each(|(name, value)| match value {
                Text(text) if OF_USERS.contains(&name.as_str()) => *text = self.hash(text),
                value => self.json(value),
            }),
            Text(text) => *text = self.line(text),
            _ => {}
        }
    }

    /// A line: marked parts, and values of users in a log's line, which stand behind their name and `=`.
    fn line(&self, line: &str) -> String {
        if let Ok(mut value @ serde_json::Value::Object(_)) = serde_json::from_str(line) {
            self.json(&mut value);
            return value.to_string();
        }
        let marked = self.marked(line);
        let word = |word: &str| match word.split_once('=') {
            Some((name, value)) if OF_USERS.contains(&name) => {
                format!("{name}={}", self.hash(value.trim_matches('"')))
            }
            Some((name @ ("peer" | "client" | "remote"), value)) => format!("{name}={}", self.address(value)),
            _ => word.to_owned(),
        };
        marked.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }

    /// Clients' addresses go; this machine's say nothing about anybody.
    fn address(&self, text: &str) -> String {
        let bare = text.trim_matches('"');
        let host = bare.rsplit_once(':').map_or(bare, |(host, _)| host).trim_matches(['[', ']']);
        match host.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() || ip.is_unspecified() => text.to_owned(),
            _ => self.hash(host),
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
            redacted.extend([before, OPEN, &self.hash(data), CLOSE]);
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
        ];
        let told = redaction.stats(&stats);
        assert!(!told.contains("ann-secret") && told.contains("c:1:user "), "{told}");
    }

    #[test]
    fn what_names_nobody_stays() {
        let text = "# HELP stave_items Documents.\nstave_items{bucket=\"default\"} 5\n";
        assert_eq!(redaction().text(text), text);
        let line = "INFO started version=0.1.0 peer=127.0.0.1:4000\n";
        assert_eq!(redaction().text(line), line);
        assert_eq!(Redaction::none().text("<ud>ann</ud>"), "<ud>ann</ud>");
    }
}
