//! Changes of a vBucket's collections: a manifest that an active vBucket takes over, events that another one received,
//! and the documents of what was dropped, which leave memory a slice at a time.

use base::{CollectionId, Moment, NewVersion, RevSeqno, Seqno, Version};

use crate::collections::event::EncodedEvent;
use crate::collections::{Collections, Held, Manifest, ManifestChange, OpenCollection, SystemEvent};
use crate::ops::change::Stored;
use crate::vbucket::{Contents, Garbage, History};

impl History {
    /// Its collections.
    pub fn collections(&self) -> &Collections {
        &self.collections
    }

    /// Its collections, to count what clients do with them.
    pub fn collections_mut(&mut self) -> &mut Collections {
        &mut self.collections
    }
}

impl Contents {
    /// All that the table holds, and what is on disk alone, of all collections together.
    pub fn held(&self) -> Held {
        let counts = self.counts();
        let in_memory = counts.documents - counts.evicted_documents;
        Held { in_memory, evicted: counts.evicted_documents, bytes: counts.bytes }
    }

    /// Documents that clients may see: those of dropped collections are not among them.
    pub fn documents(&self) -> u64 {
        self.counts().documents - self.history.collections.remains().documents()
    }

    /// What a collection holds.
    pub fn held_by(&self, id: CollectionId) -> Held {
        self.history.collections.held(id, self.held())
    }

    /// Tells of each collection what it holds; the default one comes last.
    pub fn each_held(&self, tell: impl FnMut(&OpenCollection, Held)) {
        self.history.collections.each_held(self.held(), tell);
    }

    /// Takes over a manifest, as an active vBucket does: each difference is an event with a seqno of its own. `None` if
    /// it has this one or a later one already.
    ///
    /// `change` leads from the bucket's last manifest to this one. A vBucket that stands at its beginning takes its
    /// events; any other works out its own, which costs a look-up for each collection.
    pub fn apply_manifest(
        &mut self,
        manifest: &Manifest,
        change: Option<&ManifestChange>,
        now: Moment,
    ) -> Option<Vec<Garbage>> {
        if manifest.uid() <= self.history.collections.uid() {
            return None;
        }
        let own: Vec<EncodedEvent>;
        let known = self.history.collections.taken_over();
        let events = match change.filter(|change| known == Some(change.from)) {
            Some(change) => &change.events,
            None => {
                let events = self.history.collections.difference(manifest);
                own = events.into_iter().map(EncodedEvent::from).collect();
                &own
            }
        };
        let mut left = Vec::with_capacity(events.len());
        for encoded in events {
            let event = &encoded.event;
            if event.collection().is_some() {
                // Streams get what is about a collection in a snapshot of its own (recorded; DCP documentation).
                self.history.checkpoints.close_apart();
            }
            let mut new = encoded.to_version(&self.evicted.context().heap);
            let mut meta = new.meta_mut();
            meta.cas = self.history.hlc.next(now.0);
            meta.by_seqno = self.history.high_seqno.next();
            meta.rev_seqno = RevSeqno(1);
            if meta.kind.is_deleted() {
                meta.expiry = now.unix_s();
            }
            drop(meta);
            left.push(self.take_event(event, new));
        }
        self.history.collections.set_taken_over(manifest.uid());
        Some(left)
    }

    /// Takes over an event that another node's vBucket had, complete and with a seqno that may come now.
    pub(super) fn receive_event(&mut self, new: NewVersion, now: Moment) -> Result<Stored, NewVersion> {
        let Some(event) = SystemEvent::of(&new) else { return Err(new) };
        let meta = new.meta();
        self.history.hlc.observe(meta.cas, now.0);
        let garbage = self.take_event(&event, new);
        Ok(Stored { cas: meta.cas, by_seqno: meta.by_seqno, rev_seqno: meta.rev_seqno, garbage })
    }

    fn take_event(&mut self, event: &SystemEvent, new: NewVersion) -> Garbage {
        let seqno = new.meta().by_seqno;
        let superfluous = self.history.collections.take(event, seqno, self.held());
        self.collections_charge.set(self.history.collections.allocated_bytes());
        let mut garbage = self.history.record_event(new.publish(), superfluous);
        if self.history.collections.wants_erasing() {
            // It would count what is dropped, in part.
            garbage.filter = self.evicted.give_up_recount();
        }
        garbage
    }

    /// Takes some documents and tombstones of dropped collections out of memory, to be dropped outside the lock, looking
    /// at about `most`. No tombstones stand for them. Says whether there may be more. The documents must be loaded.
    pub fn erase_dropped(&mut self, most: usize, out: &mut Vec<Version>) -> bool {
        let high_seqno = self.history.high_seqno;
        let Some(cursor) = self.history.collections.pass_at(high_seqno) else { return false };
        let mut found = Vec::new();
        let collections = &self.history.collections;
        let next = self.table.visit(cursor, most, |version| {
            if collections.hides(version) {
                found.push(version.clone());
            }
        });
        for version in found {
            let hash = self.table.hash(version.key());
            let gone = self.table.find_slot(hash, version.key()).remove();
            self.history.leave(&gone);
            self.locks.remove(gone.key());
            self.evicted.ties.changed(gone.key());
            if let Some(list) = &mut self.history.seq_list {
                out.extend(list.replaced(gone.meta().by_seqno));
            }
            out.extend([gone, version]);
        }
        let evicted = self.history.collections.end_slice(next, self.persistence.is_some());
        self.collections_charge.set(self.history.collections.allocated_bytes());
        self.evicted.forget_documents(evicted);
        self.history.collections.wants_erasing()
    }

    /// The disk has nothing any more of these collections, which were dropped at these seqnos.
    pub fn erased_from_disk(&mut self, erased: &[(CollectionId, Seqno)]) {
        self.history.collections.off_disk(erased);
        self.collections_charge.set(self.history.collections.allocated_bytes());
    }
}
