//! Whom to talk to, and as whom.

use std::sync::Mutex;
use std::time::Duration;

use node::sasl::client::SaltedPassword;

use super::{HttpTarget, Trust};

/// Which of the two dialects of the memcached binary protocol a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// With HELLO, log-in, buckets, vBuckets and collections.
    #[default]
    Couchbase,
    /// Plain memcached: none of these.
    Memcached,
}

impl Dialect {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Couchbase => "couchbase",
            Dialect::Memcached => "memcached",
        }
    }
}

/// A password: it does not show itself when something that holds it is printed for debugging.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// How long a node is waited for, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// Of commands whose users did not say.
    pub const DEFAULT: Patience = Patience(Duration::from_secs(10));
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::DEFAULT
    }
}

/// A server, and what is needed to be let in.
#[derive(Debug, Default)]
pub struct Target {
    /// HOST:PORT.
    pub addr: String,
    /// What it speaks.
    pub dialect: Dialect,
    /// Who we are. Not used with plain memcached, nor are the next two.
    pub username: String,
    /// The user's password.
    pub password: Secret,
    /// The bucket to select.
    pub bucket: String,
    /// How long a connection, an answer, or a vBucket that moves is waited for.
    pub patience: Patience,
    /// Filled by the first log-in: deriving a key takes milliseconds, and is done once for many connections.
    pub known: KnownKey,
    /// The CAs that are trusted; `None`: no TLS is spoken.
    pub tls: Option<Trust>,
    /// Whether the address comes from a cluster map, not from the user: who listens there is not sent the password as it is.
    pub is_of_map: bool,
}

impl Target {
    /// How the same user asks at a node's HTTP address, HOST:PORT.
    pub fn over_http(&self, addr: String) -> HttpTarget {
        let (username, password) = (self.username.clone(), self.password.clone());
        HttpTarget { addr, username, password, patience: self.patience.0, tls: self.tls.clone() }
    }

    /// Whether a certificate says who we are, and nothing else does.
    pub fn is_by_certificate(&self) -> bool {
        self.password.0.is_empty() && self.tls.as_ref().is_some_and(Trust::shows_certificate)
    }

    /// Another server of the cluster, to which the same lets us in.
    pub fn at(&self, addr: String) -> Target {
        Target {
            is_of_map: self.is_of_map || addr != self.addr,
            addr,
            dialect: self.dialect,
            username: self.username.clone(),
            password: Secret(self.password.0.clone()),
            bucket: self.bucket.clone(),
            patience: self.patience,
            known: KnownKey::default(),
            tls: self.tls.clone(),
        }
    }
}

/// An address with a port, if it has none. One of IPv6 has its port behind brackets.
pub(crate) fn with_port(addr: &str, port: u16) -> String {
    let behind =
        addr.strip_prefix('[').map_or(addr, |rest| rest.split_once(']').map_or(rest, |parts| parts.1));
    // HOST:PORT has one colon.
    if addr.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{addr}]:{port}");
    }
    if behind.contains(':') { addr.to_owned() } else { format!("{addr}:{port}") }
}

/// What was derived from the password for the last log-in.
#[derive(Debug, Default)]
pub struct KnownKey(pub(super) Mutex<Option<SaltedPassword>>);
