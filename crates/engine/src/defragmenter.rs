//! Moves aged versions together when the heap wastes much.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Moves aged versions together when the heap wastes much.
#[derive(Default)]
pub(crate) struct Defragmenter;

impl Chore for Defragmenter {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
