//! Makes tombstones of documents whose expiry time has passed.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Makes tombstones of documents whose expiry time has passed.
#[derive(Default)]
pub(crate) struct ExpiryPager;

impl Chore for ExpiryPager {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
