//! Forgets old tombstones of ephemeral buckets, and frees stale copies.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Forgets old tombstones of ephemeral buckets, and frees stale copies.
#[derive(Default)]
pub(crate) struct TombstonePurger;

impl Chore for TombstonePurger {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
