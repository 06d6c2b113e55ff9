//! What holds for every expiry: the longest that documents may live, and who made tombstones of how many.

use std::sync::atomic::{AtomicU64, Ordering};

use base::{DocKey, ItemKind, Moment, VbId, VersionMeta};

use crate::documents::Documents;
use crate::refusal::Refusal;
use crate::settings::Key;

/// Who noticed that a document had expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiredBy {
    /// Somebody who asked for it.
    Access,
    /// The expiry pager.
    Pager,
    /// A compaction of its file.
    Compactor,
}

/// Expired documents that became tombstones, and what looking for them took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryStats {
    /// Noticed by somebody who asked for them.
    pub by_access: u64,
    /// Noticed by the expiry pager.
    pub by_pager: u64,
    /// Noticed by a compaction.
    pub by_compactor: u64,
    /// Passes of the expiry pager that were finished.
    pub passes: u64,
    /// vBuckets that it looked through.
    pub vbuckets_visited: u64,
    /// vBuckets that it passed over because nothing in them could have expired.
    pub vbuckets_skipped: u64,
    /// Documents that it had fetched for their system xattrs.
    pub fetched: u64,
}

/// The counts behind [`ExpiryStats`].
#[derive(Default)]
pub(crate) struct ExpiryCounters {
    expired: [AtomicU64; 3],
    pub(crate) passes: AtomicU64,
    pub(crate) vbuckets_visited: AtomicU64,
    pub(crate) vbuckets_skipped: AtomicU64,
    pub(crate) fetched: AtomicU64,
}

impl ExpiryCounters {
    pub(crate) fn count(&self, by: ExpiredBy) {
        self.expired[by as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Documents {
    /// What became of expired documents.
    pub fn expiry_stats(&self) -> ExpiryStats {
        let [by_access, by_pager, by_compactor] =
            self.expiry.expired.each_ref().map(|count| count.load(Ordering::Relaxed));
        ExpiryStats {
            by_access,
            by_pager,
            by_compactor,
            passes: self.expiry.passes.load(Ordering::Relaxed),
            vbuckets_visited: self.expiry.vbuckets_visited.load(Ordering::Relaxed),
            vbuckets_skipped: self.expiry.vbuckets_skipped.load(Ordering::Relaxed),
            fetched: self.expiry.fetched.load(Ordering::Relaxed),
        }
    }

    /// The expiry that a new version gets: no document lives longer than `max_ttl` from its last change, and one
    /// without an expiry time lives that long. Applies to whatever is created or changed, by replication between
    /// clusters, too (Couchbase Server's documentation, Expiration). Tombstones keep the time of their deletion. What
    /// the document's collection says comes before what the bucket says.
    #[inline]
    pub(crate) fn capped_expiry(&self, meta: &VersionMeta, ttl_s: Option<u32>, now: Moment) -> u32 {
        let max_ttl_s = ttl_s.map_or_else(|| self.core.settings.get(Key::MaxTtl), u64::from);
        if max_ttl_s == 0 || meta.kind != ItemKind::Mutation {
            return meta.expiry;
        }
        let latest = now.unix_s().saturating_add(u32::try_from(max_ttl_s).unwrap_or(u32::MAX));
        if meta.expiry == 0 { latest } else { meta.expiry.min(latest) }
    }

    /// Makes a tombstone of a document of an active vBucket if it has expired. Says whether it did. Refused if it has
    /// xattrs that are not in memory.
    pub(crate) fn expire_if_due(&self, vb: VbId, key: DocKey<'_>, by: ExpiredBy) -> Result<bool, Refusal> {
        let (now, hash) = (self.core.now(), self.core.hash(key));
        let found =
            self.core.active_with(vb, key.collection)?.vb.find(hash, key)?.map(|version| version.clone());
        match found.filter(|version| version.is_expired(now)) {
            Some(version) => self.expire_as(vb, hash, &version, &version, by, now),
            None => Ok(false),
        }
    }
}
