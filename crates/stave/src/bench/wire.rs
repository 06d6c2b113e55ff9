//! What the server under load speaks.

use crate::client::Dialect;

/// What the server under load speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// The memcached binary protocol with Couchbase's extensions.
    #[default]
    Couchbase,
    /// The plain memcached binary protocol.
    Memcached,
    /// Redis: SET and GET, in its own protocol.
    Redis,
}

impl Protocol {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Couchbase => "couchbase",
            Protocol::Memcached => "memcached",
            Protocol::Redis => "redis",
        }
    }

    /// How its connections are opened. With plain memcached nothing is said at the start, nor with Redis.
    pub fn dialect(self) -> Dialect {
        match self {
            Protocol::Couchbase => Dialect::Couchbase,
            Protocol::Memcached | Protocol::Redis => Dialect::Memcached,
        }
    }
}
