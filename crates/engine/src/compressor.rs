//! Compresses values that are cold.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Compresses values that are cold.
#[derive(Default)]
pub(crate) struct Compressor;

impl Chore for Compressor {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
