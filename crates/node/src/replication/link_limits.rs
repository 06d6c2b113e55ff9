//! How much a link takes upon itself.

/// How much a link takes upon itself.
#[derive(Clone, Copy, Debug)]
pub struct LinkLimits {
    /// Bytes that may be on their way to this node, on one link.
    pub buffer_bytes: u32,
    /// Seconds between two signs of life of the source; after twice as much it is taken for dead.
    pub noop_interval_s: u32,
    /// vBuckets that are taken over at once: each waits for the bytes of those before it while nobody can write to it.
    pub taken_over_at_once: usize,
}

impl Default for LinkLimits {
    fn default() -> LinkLimits {
        LinkLimits { buffer_bytes: 10 << 20, noop_interval_s: 2, taken_over_at_once: 16 }
    }
}
