//! Makes tombstones of documents whose expiry time has passed, also of those that nobody asks for.
//!
//! A pass goes through the active vBuckets, a few items under the lock at a time. A vBucket in which nothing can have
//! expired is passed over: each notes the earliest expiry that it has seen since the last pass.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{VbId, Version};

use crate::completion::Completion;
use crate::documents::Documents;
use crate::expiry::ExpiredBy;
use crate::fetch_queue::{FetchPin, Fetched};
use crate::fetcher::Fetching;
use crate::flush_queue::LARGE_BACKLOG;
use crate::keeper::{Chore, Next, Slice};
use crate::refusal::Refusal;
use crate::settings::Key;
use crate::shard::Shard;
use crate::shard_guard::Holder;

/// Items that are looked at under a vBucket's lock at once: a cache miss each.
const CHUNK_ITEMS: usize = 128;
/// Documents that wait at once for their system xattrs to be read.
const MAX_FETCHING: usize = 64;
/// How long to wait for the fetcher.
const FETCH_PAUSE: Duration = Duration::from_millis(10);
/// How long to wait while the flusher is far behind, or the disk full: each expiry is one more change to write.
const FLUSHER_PAUSE: Duration = Duration::from_millis(100);
/// While it is switched off; switching it on wakes it.
const OFF_PAUSE: Duration = Duration::from_secs(3600);

/// Makes tombstones of documents whose expiry time has passed.
#[derive(Default)]
pub(crate) struct ExpiryPager {
    /// When the last pass began, or else the bucket was opened.
    began: Option<Duration>,
    pass: Option<Pass>,
}

/// A pass under way.
#[derive(Default)]
struct Pass {
    /// The vBucket that comes next.
    next_vb: u16,
    visit: Option<Visit>,
    /// Expired documents whose xattrs are still to be asked for.
    hollow: VecDeque<(VbId, Version)>,
    fetching: Vec<Awaited>,
}

/// The vBucket that a pass is in.
struct Visit {
    vb: VbId,
    incarnation: u64,
    cursor: u64,
    /// Of the documents seen so far that stay, the earliest expiry; 0 for none.
    earliest: u32,
}

/// An expired document whose xattrs are being read.
struct Awaited {
    vb: VbId,
    version: Version,
    fetch: Completion<Fetched>,
}

/// What a chunk came to.
enum Chunk {
    /// There is more of it.
    More,
    /// The vBucket is done, or there is nothing to be done with it.
    Over,
    /// Not now.
    Wait,
}

impl Chore for ExpiryPager {
    type Of = Expiring;

    fn step(&mut self, expiring: &Expiring, slice: &Slice<'_>) -> Next {
        if !expiring.documents.core.settings.is_on(Key::ExpiryPagerEnabled) {
            if let Some(mut pass) = self.pass.take() {
                pass.leave_visit(expiring);
            }
            return Next::After(OFF_PAUSE);
        }
        let now = expiring.documents.core.env.clock.monotonic();
        let interval = Duration::from_secs(expiring.documents.core.settings.get(Key::ExpiryPagerInterval));
        let began = *self.began.get_or_insert(now);
        if self.pass.is_none() {
            match (began + interval).checked_sub(now) {
                Some(left) if !left.is_zero() => return Next::After(left),
                _ => {
                    self.began = Some(now);
                    self.pass = Some(Pass::default());
                }
            }
        }
        let Some(pass) = &mut self.pass else { return Next::After(interval) };
        if let Some(next) = pass.run(expiring, slice) {
            return next;
        }
        self.pass = None;
        expiring.documents.expiry.passes.fetch_add(1, Ordering::Relaxed);
        let spent = expiring.documents.core.env.clock.monotonic() - self.began.unwrap_or(now);
        Next::After(interval.saturating_sub(spent))
    }
}

impl Pass {
    /// Works until the slice or the pass is over; nothing: the pass is.
    fn run(&mut self, expiring: &Expiring, slice: &Slice<'_>) -> Option<Next> {
        self.take_fetched(expiring);
        loop {
            if slice.is_over() {
                return Some(Next::Again);
            }
            if !self.fetch_hollow(expiring) {
                return Some(Next::After(FETCH_PAUSE));
            }
            if self.visit.is_none() && !self.enter_next(expiring) {
                break;
            }
            match self.chunk(expiring) {
                Chunk::More => {}
                Chunk::Over => self.visit = None,
                Chunk::Wait => return Some(Next::After(FLUSHER_PAUSE)),
            }
        }
        (!self.fetching.is_empty()).then_some(Next::After(FETCH_PAUSE))
    }

    /// Goes to the next vBucket in which something may have expired; false if there is none.
    fn enter_next(&mut self, expiring: &Expiring) -> bool {
        while self.next_vb < expiring.documents.core.vbuckets() {
            let vb = VbId(self.next_vb);
            self.next_vb += 1;
            let Ok(mut shard) = expiring.documents.core.vbuckets.active(vb, Holder::ExpiryPager) else {
                continue;
            };
            if shard.vb.may_have_expired(expiring.documents.core.now()) {
                shard.vb.begin_expiry_pass();
                self.visit = Some(Visit { vb, incarnation: shard.incarnation, cursor: 0, earliest: 0 });
                expiring.documents.expiry.vbuckets_visited.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            expiring.documents.expiry.vbuckets_skipped.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Looks at a few items, and makes tombstones of those that have expired.
    fn chunk(&mut self, expiring: &Expiring) -> Chunk {
        let Some(visit) = &mut self.visit else { return Chunk::Over };
        let now = expiring.documents.core.now();
        let mut expired = Vec::new();
        let next = {
            let Ok(shard) = expiring.documents.core.vbuckets.active(visit.vb, Holder::ExpiryPager) else {
                // Another role, or gone.
                visit.leave(expiring);
                return Chunk::Over;
            };
            if shard.incarnation != visit.incarnation {
                return Chunk::Over;
            }
            if shard.unflushed() >= LARGE_BACKLOG || expiring.documents.core.disk.is_full() {
                return Chunk::Wait;
            }
            shard.vb.table().visit(visit.cursor, CHUNK_ITEMS, |version| {
                if version.is_expired(now) {
                    expired.push(version.clone());
                } else if version.is_live(now) {
                    visit.earliest = earlier(visit.earliest, version.meta().expiry);
                }
            })
        };
        for version in expired {
            let outcome = expiring.expire_by_pager(visit.vb, &version);
            if outcome != Ok(true) {
                // Whatever became of it, the next pass looks again.
                visit.earliest = earlier(visit.earliest, version.meta().expiry);
            }
            if outcome == Err(Refusal::NotResident) {
                self.hollow.push_back((visit.vb, version));
            }
        }
        let Some(cursor) = next else {
            visit.end(expiring);
            return Chunk::Over;
        };
        visit.cursor = cursor;
        Chunk::More
    }

    /// Asks for xattrs as far as there may be readers; false if some are left.
    fn fetch_hollow(&mut self, expiring: &Expiring) -> bool {
        while self.fetching.len() < MAX_FETCHING {
            let Some((vb, version)) = self.hollow.pop_front() else { return true };
            // If too many wait already, it is there at the next pass.
            if let Ok(fetch) = expiring.fetching.fetch(vb, version.key()) {
                self.fetching.push(Awaited { vb, version, fetch });
            }
        }
        self.hollow.is_empty()
    }

    /// Makes tombstones of the documents whose xattrs have come.
    fn take_fetched(&mut self, expiring: &Expiring) {
        self.fetching.retain(|Awaited { vb, version, fetch }| {
            match fetch.try_take() {
                Some(Fetched::Look(pin)) => {
                    expiring.documents.expiry.fetched.fetch_add(1, Ordering::Relaxed);
                    // If it left memory again, or was changed, that is for the next pass.
                    let _ = expiring.documents.expire_if_due(*vb, version.key(), ExpiredBy::Pager);
                    drop::<Option<FetchPin>>(pin);
                    false
                }
                Some(Fetched::Failed) => false,
                None => !fetch.is_abandoned(),
            }
        });
    }

    /// Gives up in the midst of a vBucket.
    fn leave_visit(&mut self, expiring: &Expiring) {
        if let Some(visit) = self.visit.take() {
            visit.leave(expiring);
        }
    }
}

impl Visit {
    /// It was seen whole.
    fn end(&self, expiring: &Expiring) {
        self.with_shard(expiring, |shard| shard.vb.end_expiry_pass(self.earliest));
    }

    /// It was not seen whole, so anything may have expired in it.
    fn leave(&self, expiring: &Expiring) {
        self.with_shard(expiring, |shard| shard.vb.end_expiry_pass(1));
    }

    fn with_shard(&self, expiring: &Expiring, change: impl FnOnce(&mut Shard)) {
        let mut shard = expiring.documents.core.vbuckets.hold(self.vb, Holder::ExpiryPager);
        if shard.incarnation == self.incarnation {
            change(&mut shard);
        }
    }
}

/// What the expiry pager works with.
pub(crate) struct Expiring {
    pub(crate) documents: Arc<Documents>,
    pub(crate) fetching: Arc<Fetching>,
}

impl Expiring {
    pub(crate) fn new(documents: &Arc<Documents>, fetching: &Arc<Fetching>) -> Expiring {
        Expiring { documents: Arc::clone(documents), fetching: Arc::clone(fetching) }
    }

    fn expire_by_pager(&self, vb: VbId, version: &Version) -> Result<bool, Refusal> {
        let (now, hash) = (self.documents.core.now(), self.documents.core.hash(version.key()));
        let outcome = self.documents.expire_as(vb, hash, version, version, ExpiredBy::Pager, now);
        if outcome == Err(Refusal::Unreadable) {
            self.fetching.note_unreadable(vb);
        }
        outcome
    }
}

/// The earlier of two expiry times, of which 0 is never.
fn earlier(one: u32, other: u32) -> u32 {
    match (one, other) {
        (0, only) | (only, 0) => only,
        both => both.0.min(both.1),
    }
}
