//! What a vBucket knows about documents and tombstones that are on disk alone: how many, and a filter of their keys.

use base::{DocKey, Seqno, Version};

use crate::bucket_context::BucketContext;
use crate::filter::Filter;
use crate::ties::Ties;

/// A filter that holds more keys than this, of which most are in memory again, is made anew.
const LEAST_STALE_KEYS: u64 = 4096;
/// It is made anew when it holds so many times the keys that are out of memory.
const MOST_STALE: u64 = 4;
/// Of a replica it is counted anew when one of so many that are counted may not be out any more: that costs a look at
/// so many keys a change.
const COVERED_ONE_IN: u64 = 16;

/// How many are out of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Out {
    pub(crate) documents: u64,
    pub(crate) tombstones: u64,
}

impl Out {
    fn of(&mut self, version: &Version) -> &mut u64 {
        if version.is_deleted() { &mut self.tombstones } else { &mut self.documents }
    }

    pub(crate) fn enter(&mut self, version: &Version) {
        *self.of(version) += 1;
    }

    pub(crate) fn leave(&mut self, version: &Version) {
        let count = self.of(version);
        *count = count.checked_sub(1).expect("what comes back was out");
    }

    fn all(self) -> u64 {
        self.documents + self.tombstones
    }
}

/// A count of what is out of memory, under way: who counts reads all keys on disk, in order.
pub(crate) struct Recount {
    ticket: u64,
    /// Newer versions stay in memory until it is done: who counts does not come across them.
    newest: Seqno,
    /// Keys up to here were looked at.
    through: Box<[u8]>,
    filter: Option<Filter>,
    out: Out,
    /// As of [`Evicted`].
    covered: u64,
}

/// What is out of memory.
pub(crate) struct Evicted {
    context: BucketContext,
    out: Out,
    /// The keys of what is out, and of some that came back. Nothing: every key may be out, if any is.
    filter: Option<Filter>,
    pub(crate) ties: Ties,
    recount: Option<Box<Recount>>,
    tickets: u64,
    /// How often tombstones were purged.
    pub(crate) purges: u64,
    /// Versions that may have been among those that are out when others took their place, unread: so many more than
    /// there are may be counted.
    covered: u64,
    /// A compaction may have purged tombstones already that this vBucket counts.
    pub(crate) is_purging: bool,
}

/// Whether something is to be filtered, and how well.
fn new_filter(context: &BucketContext, keys: u64) -> Option<Filter> {
    let wrong_share = context.filters.wrong_share()?;
    Some(Filter::new(context.account(), wrong_share, keys))
}

impl Evicted {
    pub(crate) fn new(context: &BucketContext) -> Evicted {
        Evicted {
            context: context.clone(),
            out: Out::default(),
            filter: None,
            ties: Ties::new(context.account()),
            recount: None,
            tickets: 0,
            purges: 0,
            covered: 0,
            is_purging: false,
        }
    }

    pub(crate) fn out(&self) -> Out {
        self.out
    }

    /// Bytes of the filter.
    pub(crate) fn filter_bytes(&self) -> usize {
        self.filter.as_ref().map_or(0, Filter::bytes)
    }

    /// Whether a key that is not in the table may be on disk.
    #[inline]
    pub(crate) fn may_hold(&self, hash: u64, key: DocKey<'_>) -> bool {
        self.out != Out::default()
            && self.filter.as_ref().is_none_or(|filter| filter.may_hold(hash))
            && !self.ties.know(key)
    }

    /// Whether a tombstone of a key that is nowhere may have been purged just now.
    pub(crate) fn may_be_purged(&self) -> bool {
        self.is_purging && self.out.tombstones > 0
    }

    /// Whether a version must not leave now.
    pub(crate) fn keeps(&self, version: &Version) -> bool {
        self.ties.hold(version.key())
            || self.recount.as_ref().is_some_and(|recount| version.meta().by_seqno > recount.newest)
    }

    /// A version leaves the table, or is not put there; about so many more may follow.
    pub(crate) fn enter(&mut self, hash: u64, version: &Version, more: u64) {
        if self.out == Out::default() {
            self.filter = new_filter(&self.context, more);
        } else if self.context.filters.wrong_share().is_none() {
            // It would not be complete any more.
            self.filter = None;
        }
        self.out.enter(version);
        put(&mut self.filter, hash);
        if let Some(recount) = &mut self.recount {
            put(&mut recount.filter, hash);
            if version.stored_key() <= &*recount.through {
                recount.out.enter(version);
            }
        }
    }

    /// A version comes back into the table. What is returned is to be dropped outside the lock.
    pub(crate) fn leave(&mut self, version: &Version) -> Option<Filter> {
        self.out.leave(version);
        if let Some(recount) = &mut self.recount
            && version.stored_key() <= &*recount.through
        {
            recount.out.leave(version);
        }
        if self.out != Out::default() {
            return None;
        }
        self.covered = 0;
        self.filter.take()
    }

    /// A version comes into the table for a key that may be out, which nobody finds out: the count is too high by one,
    /// or right. It is put right by the next recount.
    pub(crate) fn covered(&mut self, stored_key: &[u8]) {
        self.covered += 1;
        if let Some(recount) = &mut self.recount
            && stored_key <= &*recount.through
        {
            recount.covered += 1;
        }
    }

    /// Whether the filter is worth to be made anew, or missing, or the count may be too far off.
    pub(crate) fn wants_recount(&self, must_be_exact: bool) -> bool {
        let out = self.out.all();
        if self.recount.is_some() || out == 0 {
            return false;
        }
        let most_covered = if must_be_exact { 0 } else { out / COVERED_ONE_IN };
        if self.covered > most_covered {
            return true;
        }
        match &self.filter {
            Some(filter) => filter.keys() > LEAST_STALE_KEYS + MOST_STALE * out,
            None => self.context.filters.wrong_share().is_some(),
        }
    }

    /// Begins to count anew; another count that is under way comes to nothing.
    pub(crate) fn begin_recount(&mut self) -> u64 {
        self.tickets += 1;
        self.recount = Some(Box::new(Recount {
            ticket: self.tickets,
            newest: Seqno(0),
            through: Box::default(),
            filter: new_filter(&self.context, self.out.all()),
            out: Out::default(),
            covered: 0,
        }));
        self.tickets
    }

    pub(crate) fn recount(&mut self, ticket: u64) -> Option<&mut Recount> {
        self.recount.as_deref_mut().filter(|recount| recount.ticket == ticket)
    }

    /// Ends a count; what was counted holds if it is `complete`. What is returned is to be dropped outside the lock.
    pub(crate) fn end_recount(&mut self, ticket: u64, complete: bool) -> Option<Filter> {
        self.recount(ticket)?;
        let recount = self.recount.take()?;
        if !complete {
            return recount.filter;
        }
        self.out = recount.out;
        self.covered = recount.covered;
        std::mem::replace(&mut self.filter, recount.filter)
    }
}

impl Recount {
    pub(crate) fn set_newest(&mut self, newest: Seqno) {
        self.newest = newest;
    }

    /// Moves on to a key.
    pub(crate) fn pass(&mut self, stored_key: &[u8]) {
        self.through = stored_key.into();
    }

    /// A version on disk whose key is not in the table.
    pub(crate) fn note(&mut self, hash: u64, version: &Version) {
        self.out.enter(version);
        put(&mut self.filter, hash);
    }
}

/// Puts a key into a filter, if there is one.
fn put(filter: &mut Option<Filter>, hash: u64) {
    if let Some(filter) = filter {
        filter.insert(hash);
    }
}
