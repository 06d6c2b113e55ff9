//! Evicts what is cold above the high watermark, down to the low one.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Evicts what is cold above the high watermark, down to the low one.
#[derive(Default)]
pub(crate) struct Pager;

impl Chore for Pager {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
