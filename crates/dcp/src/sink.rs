//! Where messages are written to.

use std::ops::Range;
use std::sync::Arc;

use engine::{Frames, Whole};

/// Where a connection's bytes go: small ones are appended, large values are sent from where they are.
pub trait Sink {
    /// Where to append bytes.
    fn bytes(&mut self) -> &mut Vec<u8>;

    /// Appends the value of `version` from byte `from` on.
    fn value(&mut self, version: &Whole, from: usize);

    /// Appends a part of what a backfill made: whole messages.
    fn frames(&mut self, frames: &Arc<Frames>, part: Range<usize>);
}

/// Copies everything.
impl Sink for Vec<u8> {
    fn bytes(&mut self) -> &mut Vec<u8> {
        self
    }

    fn value(&mut self, version: &Whole, from: usize) {
        self.extend_from_slice(&version.value()[from..]);
    }

    fn frames(&mut self, frames: &Arc<Frames>, part: Range<usize>) {
        self.extend_from_slice(&frames[part]);
    }
}
