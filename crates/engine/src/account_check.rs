//! Compares the account with what the heap says.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};

/// Compares the account with what the heap says.
#[derive(Default)]
pub(crate) struct AccountCheck;

impl Chore for AccountCheck {
    fn step(&mut self, _bucket: &Bucket, _slice: &Slice<'_>) -> Next {
        Next::After(Duration::from_secs(1))
    }
}
