//! Versions whose value is in memory: the only ones whose value can be read.

use std::ops::Deref;

use base::Version;

use crate::refusal::Refusal;

/// A version whose value is in memory. Whatever sends or computes from a value asks for one of these, so that a value
/// that is only on disk can never be taken for an empty one.
#[derive(Clone, Debug)]
pub struct Whole(Version);

impl Whole {
    /// The version, if its value is in memory.
    #[inline]
    pub fn of(version: Version) -> Result<Whole, Refusal> {
        if version.is_resident() { Ok(Whole(version)) } else { Err(Refusal::NotResident) }
    }
}

impl Deref for Whole {
    type Target = Version;

    fn deref(&self) -> &Version {
        &self.0
    }
}
