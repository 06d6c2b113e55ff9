//! Which ways to log in a node offers, on connections with TLS and without.

use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Deserialize;

use super::Method;
use super::digest::Mechanism;

/// All ways, best first, by the names that clients and the configuration use.
const METHODS: [(&str, Method); 4] = [
    ("SCRAM-SHA512", Method::Scram(Mechanism::Sha512)),
    ("SCRAM-SHA256", Method::Scram(Mechanism::Sha256)),
    ("SCRAM-SHA1", Method::Scram(Mechanism::Sha1)),
    ("PLAIN", Method::Plain),
];

impl Method {
    /// The method with this name, in upper or lower case.
    pub fn from_name(name: &[u8]) -> Option<Method> {
        let found = METHODS.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(_, method)| *method)
    }
}

/// Ways to log in, among them SCRAM-SHA512: a bit for each, by its place in the list of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct SaslMethods(u8);

impl SaslMethods {
    /// All that there are.
    pub const ALL: SaslMethods = SaslMethods((1 << METHODS.len()) - 1);

    /// Whether a way is among them.
    pub fn has(self, method: Method) -> bool {
        METHODS.iter().zip(0..).any(|((_, known), at)| *known == method && self.0 & (1 << at) != 0)
    }

    /// Their names, best first, with a space between two: what clients are told.
    pub fn names(self) -> String {
        let names = METHODS.iter().filter(|(_, method)| self.has(*method)).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(" ")
    }

    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Result<SaslMethods, String> {
        let mut bits = 0;
        for name in names.map(str::trim).filter(|name| !name.is_empty()) {
            let at = METHODS.iter().position(|(known, _)| known.eq_ignore_ascii_case(name));
            let all = SaslMethods::ALL.names();
            bits |= 1 << at.ok_or_else(|| format!("{name:?} is no way to log in; there are {all}"))?;
        }
        let methods = SaslMethods(bits);
        if !methods.has(Method::Scram(Mechanism::Sha512)) {
            return Err("SCRAM-SHA512 must be among them: other nodes and `stave` log in by it".to_owned());
        }
        Ok(methods)
    }
}

impl FromStr for SaslMethods {
    type Err = String;

    fn from_str(text: &str) -> Result<SaslMethods, String> {
        SaslMethods::of(text.split(','))
    }
}

impl TryFrom<Vec<String>> for SaslMethods {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<SaslMethods, String> {
        SaslMethods::of(names.iter().map(String::as_str))
    }
}

/// What is offered where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaslOffer {
    /// On connections without TLS.
    pub clear: SaslMethods,
    /// On connections with TLS.
    pub encrypted: SaslMethods,
}

impl SaslOffer {
    /// What is configured; all ways where nothing is.
    pub fn of(clear: Option<SaslMethods>, encrypted: Option<SaslMethods>) -> SaslOffer {
        let all = |methods: Option<SaslMethods>| methods.unwrap_or(SaslMethods::ALL);
        SaslOffer { clear: all(clear), encrypted: all(encrypted) }
    }
}

impl Default for SaslOffer {
    fn default() -> Self {
        SaslOffer::of(None, None)
    }
}

/// What a node offers at the moment.
#[derive(Debug)]
pub struct PresentOffer {
    clear: AtomicU8,
    encrypted: AtomicU8,
}

impl Default for PresentOffer {
    fn default() -> Self {
        let SaslOffer { clear, encrypted } = SaslOffer::default();
        PresentOffer { clear: AtomicU8::new(clear.0), encrypted: AtomicU8::new(encrypted.0) }
    }
}

impl PresentOffer {
    /// Offers this from now on.
    pub fn set(&self, offer: SaslOffer) {
        self.clear.store(offer.clear.0, Ordering::Relaxed);
        self.encrypted.store(offer.encrypted.0, Ordering::Relaxed);
    }

    /// What is offered on a connection with TLS, or without.
    pub fn on(&self, is_encrypted: bool) -> SaslMethods {
        let of = if is_encrypted { &self.encrypted } else { &self.clear };
        SaslMethods(of.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_named_best_first() {
        assert_eq!(SaslMethods::ALL.names(), "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN");
        let some: SaslMethods = "plain, SCRAM-SHA512".parse().expect("two ways");
        assert_eq!(some.names(), "SCRAM-SHA512 PLAIN");
        assert!(some.has(Method::Plain) && !some.has(Method::Scram(Mechanism::Sha256)));
    }

    #[test]
    fn what_is_no_way_to_log_in_is_refused() {
        let wrong = "PLAIN,LOGIN".parse::<SaslMethods>().expect_err("LOGIN is none");
        assert!(wrong.contains("\"LOGIN\" is no way to log in; there are SCRAM-SHA512"), "{wrong}");
        let few = "PLAIN,SCRAM-SHA1".parse::<SaslMethods>().expect_err("nodes could not log in");
        assert!(few.starts_with("SCRAM-SHA512 must be among them"), "{few}");
    }
}
