//! Versions that move to another place in memory and stay what they are.

use std::sync::atomic::Ordering;

use base::{NewVersion, Version};

use crate::vbucket::Contents;

impl Contents {
    /// Puts a copy in the place of exactly this version; nothing if there is another one by now. Drop what is returned
    /// outside the lock: it is what was there, or the copy.
    pub fn move_version(&mut self, hash: u64, there: &Version, copy: NewVersion) -> Result<Version, Version> {
        let slot = self.table.find_slot(hash, there.key());
        let is_there = slot.get().is_some_and(|present| present.is_same(there));
        if !is_there || copy.meta() != there.meta() || copy.is_resident() != there.is_resident() {
            return Err(copy.publish());
        }
        copy.frequency().store(there.frequency().load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(slot.replace(copy.publish()))
    }
}
