//! Logging in (RFC 4422): PLAIN and the SCRAM family.

pub mod client;
pub mod digest;
pub mod hash;
pub mod offer;
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

/// A way to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Name and password as they are (RFC 4616).
    Plain,
    /// Challenge and response (RFC 5802).
    Scram(Mechanism),
}
