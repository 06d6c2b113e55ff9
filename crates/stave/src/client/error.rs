//! Why a request of the client came to nothing.

use std::io;
use std::time::Duration;

use protocol::{FrameError, Status};
use thiserror::Error;

use crate::units::duration;

/// Why a request of the client came to nothing.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to {addr}: {source}; {}", after_no_connection(.source))]
    Connect {
        /// Where to.
        addr: String,
        /// Why.
        source: io::Error,
    },
    /// TLS cannot be spoken with the server.
    #[error("cannot speak TLS with {addr}: {source}")]
    Tls {
        /// Where it was tried.
        addr: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    #[error("{operation}: the connection to the server failed: {source}")]
    Io {
        /// What was under way.
        operation: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The server closed the connection.
    #[error("{operation}: the server closed the connection")]
    Closed {
        /// What was under way.
        operation: &'static str,
    },
    /// It took longer than the user wants to wait.
    #[error("{operation}: gave up after {}: {what}; --timeout gives it longer", duration(waited.as_nanos() as u64))]
    Waited {
        /// What was under way.
        operation: &'static str,
        /// For how long.
        waited: Duration,
        /// What was waited for.
        what: String,
    },
    /// The answer to a change was lost.
    #[error(
        "{operation}: {why}; it is not known whether the change was made: read the document before you repeat it"
    )]
    Unknown {
        /// What was wanted.
        operation: &'static str,
        /// Why there is no answer.
        why: String,
    },
    /// The server sent something that is no answer.
    #[error("{}", no_answer(.0))]
    Frame(FrameError),
    /// The server sent an answer that makes no sense.
    #[error("{operation}: the server's answer cannot be read: {what}")]
    Answer {
        /// What was under way.
        operation: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A node of the cluster map wants the password as it is.
    #[error(
        "{addr}, an address of the cluster map, offers no log-in that keeps the password secret, so it was not sent; \
         name this node with --addr if it is the right one, or let it offer SCRAM-SHA512 (--sasl-mechanisms)"
    )]
    InClear {
        /// The node.
        addr: String,
    },
    /// No log-in mechanism in common.
    #[error("{addr} offers the log-in mechanisms `{offered}`, and this client knows SCRAM-SHA512 and PLAIN")]
    Mechanism {
        /// The node.
        addr: String,
        /// What the server offers.
        offered: String,
    },
    /// Wrong user or password.
    #[error(
        "{addr} refused user `{username}` or the password; check --username, and --password or STAVE_PASSWORD"
    )]
    Login {
        /// The node: a user of one node's configuration file is not known to the others of its cluster.
        addr: String,
        /// Who tried.
        username: String,
    },
    /// The server did not prove that it knows the password.
    #[error("{addr} did not prove that it knows the password of `{username}`; it may be another's server")]
    Impostor {
        /// The node.
        addr: String,
        /// Who tried.
        username: String,
    },
    /// No such bucket, or no right to it.
    #[error("{addr} has no bucket `{bucket}`, or `{username}` may not use it; --bucket NAME names another")]
    Bucket {
        /// The node.
        addr: String,
        /// Its name.
        bucket: String,
        /// Who tried.
        username: String,
    },
    /// No such collection, or no such scope.
    #[error(
        "there is no collection `{name}` in the bucket; write SCOPE.COLLECTION as \
         /pools/default/buckets/BUCKET/scopes lists them, or the number like 0x8"
    )]
    Collection {
        /// Its name.
        name: String,
    },
    /// A part of the request is too long for the protocol.
    #[error(
        "{operation}: the request does not fit into a frame; a key has at most 250 bytes, a value 20 MiB"
    )]
    TooLong {
        /// What was wanted.
        operation: &'static str,
    },
    /// The server said no.
    #[error(
        "{operation}: the server answered {}{}{}",
        status_name(*.status_code),
        in_brackets(.context),
        maybe_forbidden(*.status_code)
    )]
    Refused {
        /// What was wanted.
        operation: &'static str,
        /// The status on the wire.
        status_code: u16,
        /// What the server added in words, maybe nothing.
        context: String,
    },
}

impl ClientError {
    /// Why, for a message that says itself what was wanted and how long that was tried.
    pub fn reason(&self) -> String {
        match self {
            ClientError::Waited { what, .. } => what.clone(),
            error => error.to_string(),
        }
    }

    /// Whether the same may succeed later.
    pub fn may_pass(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Io { .. }
            | ClientError::Closed { .. }
            | ClientError::Waited { .. } => true,
            ClientError::Refused { status_code, .. } => {
                matches!(Status::from_code(*status_code), Some(Status::Etmpfail | Status::Ebusy))
            }
            _ => false,
        }
    }
}

/// What a server added in words to a refusal with this value; empty if it added nothing.
pub(super) fn context_of(value: &[u8]) -> String {
    let context = serde_json::from_slice::<serde_json::Value>(value).ok();
    let text = context.as_ref().and_then(|json| json.pointer("/error/context")?.as_str());
    text.unwrap_or_default().to_owned()
}

/// A status by its name in the error map and in words, or as a number.
pub fn status_name(code: u16) -> String {
    match Status::from_code(code) {
        Some(status) => format!("{} ({})", status.name(), status.text()),
        None => format!("status 0x{code:04x}"),
    }
}

/// What to do about bytes that are no answer: the first one says which protocol the port speaks.
fn no_answer(fault: &FrameError) -> String {
    // The content types alert and handshake of TLS: RFC 8446, section 5.1.
    const TLS: [u8; 2] = [0x15, 0x16];
    match *fault {
        FrameError::Magic(b'H') => {
            "the server speaks HTTP at this port: give the address of its KV port, HOST:11210, or with --tls-ca HOST:11207, \
             unless it was set otherwise"
                .to_owned()
        }
        FrameError::Magic(byte) if TLS.contains(&byte) => {
            "the server speaks TLS at this port: give --tls-ca, or the address of its KV port without TLS".to_owned()
        }
        fault => format!("the server's bytes are not the memcached binary protocol ({fault}); is this the KV port?"),
    }
}

/// What to try when there is no connection.
pub(super) fn after_no_connection(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "is the server running? `stave serve` starts one, --addr HOST:PORT names another"
        }
        io::ErrorKind::InvalidInput => "write --addr HOST:PORT, for example --addr 127.0.0.1:11210",
        _ => "is this the right address? --addr HOST:PORT names another",
    }
}

/// A collection in which a user has no right does not exist for that user.
fn maybe_forbidden(status_code: u16) -> &'static str {
    match Status::from_code(status_code) {
        Some(Status::UnknownCollection | Status::UnknownScope) => "; or the user has no right in it",
        _ => "",
    }
}

fn in_brackets(context: &str) -> String {
    if context.is_empty() { String::new() } else { format!(": {context}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_no_advice_of_its_own() {
        let what = "no answer from h:1".to_owned();
        let late = ClientError::Waited { operation: "get", waited: Duration::from_secs(1), what };
        assert!(late.to_string().ends_with("--timeout gives it longer"));
        assert_eq!(late.reason(), "no answer from h:1");
    }

    #[test]
    fn a_collection_that_is_not_there_may_be_forbidden() {
        let said = |status: Status| {
            let refused =
                ClientError::Refused { operation: "get", status_code: status.code(), context: String::new() };
            refused.to_string()
        };
        assert!(said(Status::UnknownCollection).ends_with("; or the user has no right in it"));
        assert!(!said(Status::KeyEnoent).contains("right"));
    }

    #[test]
    fn a_port_of_another_protocol_is_told_with_what_to_give() {
        for (first, told) in [
            (b'H', "its KV port, HOST:11210, or with --tls-ca HOST:11207"),
            (0x15, "--tls-ca"),
            (0x16, "--tls-ca"),
            (b'-', "0x2d is not a magic"),
        ] {
            let said = ClientError::Frame(FrameError::Magic(first)).to_string();
            assert!(said.contains(told), "{said}");
        }
    }
}
