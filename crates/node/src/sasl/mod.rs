//! Logging in (RFC 4422): PLAIN and the SCRAM family.

pub mod client;
pub mod digest;
pub mod plain;
pub mod scram;

use digest::Mechanism;

/// Why a login failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// What the client sent cannot be read.
    Malformed,
    /// Name or password is wrong.
    Wrong,
}

/// What the server offers, best first.
pub const OFFERED: &str = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN";

/// A way to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Name and password as they are (RFC 4616).
    Plain,
    /// Challenge and response (RFC 5802).
    Scram(Mechanism),
}

impl Method {
    /// The method with this name, in upper or lower case.
    pub fn from_name(name: &[u8]) -> Option<Method> {
        let all = [
            ("PLAIN", Method::Plain),
            ("SCRAM-SHA1", Method::Scram(Mechanism::Sha1)),
            ("SCRAM-SHA256", Method::Scram(Mechanism::Sha256)),
            ("SCRAM-SHA512", Method::Scram(Mechanism::Sha512)),
        ];
        all.into_iter()
            .find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
            .map(|(_, method)| method)
    }
}
