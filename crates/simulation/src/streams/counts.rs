//! How often what happened in a run of streams.

/// What may happen, and how often it did.
pub type Row = (&'static str, u64);

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Turns of the links of nodes.
    pub turns: u64,
    /// Requests of clients that change something.
    pub writes: u64,
    /// Documents that expired.
    pub expirations: u64,
    /// Looks at everything that a node has of a vBucket.
    pub looks: u64,
    /// Connections that broke.
    pub disconnects: u64,
    /// Times in which connections carry next to nothing.
    pub slow: u64,
    /// Processes that ended.
    pub kills: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Failovers.
    pub failovers: u64,
    /// Those in which the old active node went on.
    pub stale: u64,
    /// Handovers that began.
    pub takeovers: u64,
    /// Those that were done.
    pub taken_over: u64,
    /// Compactions that purge tombstones.
    pub purges: u64,
    /// Cursors that were dropped.
    pub dropped_cursors: u64,
    /// Times in which memory was short.
    pub short_of_memory: u64,
    /// Streams that were accepted.
    pub streams: u64,
    /// Those that began inside a snapshot.
    pub inside: u64,
    /// Rollbacks.
    pub rollbacks: u64,
    /// Snapshots of the third party.
    pub third_snapshots: u64,
    /// Its rollbacks.
    pub third_rollbacks: u64,
    /// Its streams that a role ended.
    pub third_broken_off: u64,
}

impl StreamCounts {
    /// Names and numbers.
    pub fn rows(&self) -> [Row; 21] {
        [
            ("turns of links", self.turns),
            ("writes", self.writes),
            ("expirations", self.expirations),
            ("looks at everything a node has", self.looks),
            ("disconnects, at any byte", self.disconnects),
            ("slow spells", self.slow),
            ("processes killed", self.kills),
            ("power losses", self.power_losses),
            ("failovers", self.failovers),
            ("  the old active node went on", self.stale),
            ("handovers begun", self.takeovers),
            ("  done", self.taken_over),
            ("compactions that purge", self.purges),
            ("cursors dropped", self.dropped_cursors),
            ("memory made short", self.short_of_memory),
            ("streams accepted", self.streams),
            ("  inside a snapshot", self.inside),
            ("rollbacks", self.rollbacks),
            ("snapshots of a third party", self.third_snapshots),
            ("  its rollbacks", self.third_rollbacks),
            ("  its streams ended by a role", self.third_broken_off),
        ]
    }
}
