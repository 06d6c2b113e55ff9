//! Bounds that protect an HTTP listener from its clients, as they are configured.

/// Bounds that protect an HTTP listener from its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at the same time.
    pub connections: usize,
    /// Of these, from one address; an IPv6 client is its network of 64 bits.
    pub per_address: usize,
    /// Without a request, in seconds.
    pub idle_timeout_s: u64,
    /// From the first byte of a request to the end of its head, in seconds.
    pub head_timeout_s: u64,
    /// From there to the end of its body, in seconds; large bodies get longer.
    pub body_timeout_s: u64,
    /// Without taking anything of what is sent, in seconds.
    pub write_timeout_s: u64,
    /// Bytes of a head.
    pub head_bytes: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections: 1_000,
            per_address: 500,
            idle_timeout_s: 60,
            head_timeout_s: 10,
            body_timeout_s: 30,
            write_timeout_s: 60,
            head_bytes: 16 << 10,
            body_bytes: 2 << 20,
        }
    }
}
