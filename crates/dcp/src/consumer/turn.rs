//! How much a consumer does in one turn: the other connections of its thread wait for that.

/// Messages that a consumer takes, and changes that it applies, in one turn: some milliseconds of work.
pub const TURN_MESSAGES: usize = 1024;
/// Bytes of messages that it takes or applies in one turn; the message that exceeds them is the last one.
pub const TURN_BYTES: u64 = 1 << 20;

/// What was done in a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsumerTurn {
    messages: usize,
    bytes: u64,
}

impl ConsumerTurn {
    /// The next turn begins.
    pub(super) fn begin(&mut self) {
        *self = ConsumerTurn::default();
    }

    pub(super) fn count(&mut self, messages: usize, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
    }

    /// Whether what is left belongs to the next turn.
    pub(super) fn is_over(&self) -> bool {
        self.messages >= TURN_MESSAGES || self.bytes >= TURN_BYTES
    }
}
