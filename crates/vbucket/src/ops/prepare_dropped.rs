//! Prepares of collections that are dropped: they end with their collection, on the active vBucket as on others.
//!
//! No abort is written for them: whoever takes over the event that drops the collection does the same.

use base::{Seqno, Version};

use crate::ops::prepare::Completed;
use crate::vbucket::{History, VBucket};

impl History {
    /// Whether a prepare's collection was dropped after it, perhaps to begin anew.
    pub(crate) fn is_of_dropped(&self, prepare: &Version) -> bool {
        self.collections.has_dropped(prepare)
    }
}

impl VBucket {
    /// Ends prepares in flight of dropped collections, looking at `most` from `from` on; nobody will see them. Answers
    /// where to go on, nothing if that was all. Those who wait for them are to be told, and what is in `out` to be
    /// dropped, outside the lock.
    pub fn end_dropped_prepares(
        &mut self,
        from: Seqno,
        most: usize,
        out: &mut Vec<Completed>,
    ) -> Option<Seqno> {
        if self.contents.history.collections.dropped().is_empty() {
            return None;
        }
        let prepares = self.sync_writes.prepares.as_ref()?;
        let (mut ended, mut next) = (Vec::new(), None);
        for (looked, prepare) in prepares.from(from).enumerate() {
            if looked >= most {
                next = Some(prepare.prepared);
                break;
            }
            if self.is_of_dropped(&prepare.version) {
                ended.push(prepare.prepared);
            }
        }
        for prepared in ended {
            let prepare = self.sync_writes.complete(prepared).expect("it was found in flight").version;
            let garbage = self.unlist(prepare);
            out.push(Completed { prepared, is_committed: false, garbage });
        }
        self.sync_writes.release_alone(self.contents.persisted_seqno);
        next
    }
}
