//! Values that change their form in memory, compressed or not, while the document stays what it is.

use std::sync::atomic::Ordering;

use base::{Datatype, Moment, NewVersion, Version, VersionMeta};

use crate::vbucket::Contents;

impl Contents {
    /// Puts `recoded`, which is `old` with its value in another form, in its place: CAS, seqno and revision stay, and
    /// nothing is queued, because the document did not change and the disk keeps the form that it has.
    ///
    /// Returns what was there; or `recoded`, unused, if there is another version by now or the one that is there has
    /// to stay. Either is to be dropped outside the lock.
    pub fn recode_value(
        &mut self,
        hash: u64,
        old: &Version,
        recoded: NewVersion,
        now: Moment,
    ) -> Result<Version, NewVersion> {
        let but_for_form =
            |meta: VersionMeta| VersionMeta { datatype: meta.datatype.without(Datatype::SNAPPY), ..meta };
        assert_eq!(but_for_form(old.meta()), but_for_form(recoded.meta()), "the document stays what it is");
        assert!(recoded.is_resident(), "a value is what is brought");
        let there = match self.table.find(hash, old.key()) {
            Some(there) if there.meta() == old.meta() => there.clone(),
            _ => return Err(recoded),
        };
        // A version that is still to be written stays: the queue holds it, so nothing would be gained.
        if !self.is_evictable(&there, now) {
            return Err(recoded);
        }
        let recoded = recoded.publish();
        recoded.frequency().store(there.frequency().load(Ordering::Relaxed), Ordering::Relaxed);
        self.history.leave(&there);
        self.history.enter(&recoded);
        Ok(self.table.find_slot(hash, there.key()).replace(recoded))
    }
}
