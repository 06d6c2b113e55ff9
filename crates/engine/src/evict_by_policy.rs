//! Taking documents out of memory as the bucket's policy says: one of its ways is a deletion.

use std::sync::atomic::Ordering;

use base::{Cas, ItemKind, VbId, Version};
use vbucket::{Basis, Change, Existence};

use crate::config::EvictionPolicy;
use crate::documents::Documents;
use crate::evict::Evicted;

impl Documents {
    /// Evicts those of these versions that still stand in the table and may go, as the policy says.
    pub(crate) fn evict(&self, policy: EvictionPolicy, vb: VbId, versions: &[Version]) -> Evicted {
        let (evicted, counter) = match policy {
            EvictionPolicy::ValueOnly => {
                (self.eviction.evict_values(vb, versions), &self.eviction.counters.evicted_values)
            }
            EvictionPolicy::Full => {
                (self.eviction.evict_documents(vb, versions), &self.eviction.counters.evicted_documents)
            }
            EvictionPolicy::AutoDelete => {
                let out = |version: &Version| self.delete_cold(vb, self.core.hash(version.key()), version);
                (self.one_by_one(versions, out), &self.eviction.counters.deleted_documents)
            }
            EvictionPolicy::FailNewData => return Evicted::default(),
        };
        counter.fetch_add(evicted.documents, Ordering::Relaxed);
        self.eviction.counters.freed_bytes.fetch_add(evicted.freed_bytes, Ordering::Relaxed);
        evicted
    }

    fn one_by_one(&self, versions: &[Version], out: impl Fn(&Version) -> bool) -> Evicted {
        let mut evicted = Evicted::default();
        for version in versions.iter().filter(|version| out(version)) {
            evicted.documents += 1;
            evicted.freed_bytes += version.allocated_bytes() as u64;
        }
        evicted
    }

    /// Deletes exactly this version of a document of an active vBucket for good, because there is no room for it: a
    /// deletion like any other, with a seqno of its own.
    pub(crate) fn delete_cold(&self, vb: VbId, hash: u64, version: &Version) -> bool {
        let now = self.core.now();
        let writer = self.at_once();
        let tombstone = writer.tombstone_of(version, ItemKind::Deletion, now);
        let Ok(new) = tombstone else { return false };
        let change = Change {
            new,
            existence: Existence::Any,
            cas: Cas::ANY,
            basis: Basis::of(Some(version)),
            preserve_expiry: false,
        };
        writer.apply(vb, hash, change, now, |_| {}, |_| {}).is_ok()
    }
}
