//! Compresses values that are cold.
//!
//! A round goes through all vBuckets, a few items under the lock at a time, and compresses outside the lock. A value
//! is tried once, when it has not changed since the round before; from time to time a round tries all of them again,
//! because what was read a lot may have become cold, and what comes back from disk comes back plain.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Datatype, DocKey, Moment, NewVersion, Seqno, VbId, Version, VersionMeta};

use crate::compression::Compression;
use crate::keeper::{Chore, Next, Slice};
use crate::refusal::Refusal;
use crate::settings::Key;
use crate::shard::Shard;
use crate::shard_guard::{Holder, ShardGuard};

/// Items that are looked at under a vBucket's lock at once: a cache miss each.
const CHUNK_ITEMS: usize = 128;
/// Shorter values are not worth the time that their readers would need to inflate them.
const LEAST_BYTES: u32 = 64;
/// Longer values would not fit into a time slice on a slow machine.
const MOST_BYTES: u32 = 4 << 20;
/// What is read more often than this between two decays of the frequencies is not cold.
const MOST_FREQUENCY: u8 = 16;
/// The part of a time slice that is used, so that the value begun last still fits into it.
const WORK_TIME: Duration = Duration::from_millis(10);
/// The least from the beginning of one round to that of the next: so long a value must not have changed.
const ROUND_TIME: Duration = Duration::from_secs(5);
/// From the beginning of one round that tries everything to that of the next.
const FULL_ROUND_TIME: Duration = Duration::from_secs(600);
/// While it is switched off; switching it on wakes it.
const OFF_PAUSE: Duration = Duration::from_secs(3600);
/// What is kept of the space that values are compressed in.
const KEEP_BYTES: usize = 64 << 10;

/// Compresses values that are cold.
#[derive(Default)]
pub(crate) struct Compressor {
    press: Press,
    /// What the last round came to, by vBucket.
    known: Vec<Known>,
    round: Option<Round>,
    /// When the last round began,
    began: Option<Duration>,
    /// and the last that tried everything.
    began_full: Option<Duration>,
    /// The ratio that values had to reach then.
    ratio: u64,
}

/// What the last round came to in a vBucket.
#[derive(Clone, Copy, Default)]
struct Known {
    incarnation: u64,
    /// What was on disk when it came by: what is not newer at the next round has not changed meanwhile.
    settled: Seqno,
    /// Values up to here were tried.
    tried: Seqno,
}

/// A round under way.
struct Round {
    is_full: bool,
    next_vb: u16,
    visit: Option<Visit>,
}

/// The vBucket that a round is in.
struct Visit {
    vb: VbId,
    incarnation: u64,
    /// Where to go on; nothing: only the keys are left.
    cursor: Option<u64>,
    /// Values changed after this,
    after: Seqno,
    /// but not after this, are tried.
    until: Seqno,
    /// Keys of values that the last slice did not come to.
    left: Vec<Box<[u8]>>,
}

impl Chore for Compressor {
    type Of = Compression;

    fn step(&mut self, compression: &Compression, slice: &Slice<'_>) -> Next {
        if !compression.core.compresses() {
            *self = Compressor::default();
            return Next::After(OFF_PAUSE);
        }
        let now = compression.core.env.clock.monotonic();
        if self.round.is_none() && !self.begin_round(compression, now) {
            let left = (self.began.unwrap_or(now) + ROUND_TIME).saturating_sub(now);
            return Next::After(left);
        }
        let is_over = || slice.is_over() || compression.core.env.clock.monotonic() >= now + WORK_TIME;
        while !is_over() {
            if !self.work(compression, &is_over) {
                self.round = None;
                compression.counters.rounds.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        self.press.shrink();
        Next::After(Duration::from_millis(compression.core.settings.get(Key::CompressorInterval)))
    }
}

impl Compressor {
    /// Begins a round if it is time for one.
    fn begin_round(&mut self, compression: &Compression, now: Duration) -> bool {
        let is_due = |began: Option<Duration>, every| began.is_none_or(|began| now >= began + every);
        let ratio = compression.core.settings.get(Key::MinCompressionRatio);
        if ratio != self.ratio {
            (self.ratio, self.began_full) = (ratio, None);
        }
        if !is_due(self.began, ROUND_TIME) {
            return false;
        }
        let is_full = is_due(self.began_full, FULL_ROUND_TIME);
        self.began = Some(now);
        if is_full {
            self.began_full = Some(now);
        }
        self.known.resize(usize::from(compression.core.vbuckets()), Known::default());
        self.round = Some(Round { is_full, next_vb: 0, visit: None });
        true
    }

    /// Does a little of the round; false if it is over.
    fn work(&mut self, compression: &Compression, is_over: &dyn Fn() -> bool) -> bool {
        let Some(mut round) = self.round.take() else { return false };
        let is_more = match round.visit.take() {
            None => self.enter_next(compression, &mut round),
            Some(visit) => {
                round.visit = self.advance(compression, visit, is_over);
                true
            }
        };
        self.round = Some(round);
        is_more
    }

    /// Goes to the next vBucket in which there is something to try; false if there is none.
    fn enter_next(&mut self, compression: &Compression, round: &mut Round) -> bool {
        while round.next_vb < compression.core.vbuckets() {
            let vb = VbId(round.next_vb);
            round.next_vb += 1;
            let Ok(shard) = compression.core.vbuckets.loaded(vb, Holder::Compressor) else { continue };
            let (incarnation, persisted) = (shard.incarnation, shard.vb.persisted_seqno());
            drop(shard);
            let known = &mut self.known[usize::from(vb.0)];
            if known.incarnation != incarnation {
                *known = Known { incarnation, ..Known::default() };
            }
            let until = std::mem::replace(&mut known.settled, persisted);
            let tried = std::mem::replace(&mut known.tried, until);
            let after = if round.is_full { Seqno(0) } else { tried };
            if after < until {
                round.visit =
                    Some(Visit { vb, incarnation, cursor: Some(0), after, until, left: Vec::new() });
                return true;
            }
        }
        false
    }

    /// Tries what was left, or else the values of the next few items; nothing: the vBucket is done.
    fn advance(
        &mut self,
        compression: &Compression,
        mut visit: Visit,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Visit> {
        let found = match (visit.left.is_empty(), visit.cursor) {
            (false, _) => visit.find_left(compression)?,
            (true, Some(cursor)) => visit.find_next(compression, cursor)?,
            (true, None) => return None,
        };
        let mut found = found.into_iter();
        for version in found.by_ref() {
            self.compress(compression, &visit, &version);
            if is_over() {
                break;
            }
        }
        // Only their keys, so that no value is held up to the next slice.
        visit.left = found.map(|version| version.stored_key().into()).collect();
        Some(visit)
    }

    fn compress(&mut self, compression: &Compression, visit: &Visit, version: &Version) {
        let stats = &compression.counters;
        let Some(new) = self.press.compressed(compression, version) else {
            stats.gained_little.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let saved = (version.allocated_bytes(), new.allocated_bytes());
        let (hash, now) = (compression.core.hash(version.key()), compression.core.now());
        let swapped = {
            let Some(mut shard) = visit.shard(compression) else { return };
            shard.vb.recode_value(hash, version, new, now)
        };
        match swapped {
            Ok(old) => {
                drop(old);
                stats.count_compressed(saved.0, saved.1);
            }
            Err(unused) => {
                drop(unused);
                stats.overtaken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Where values are compressed.
#[derive(Default)]
struct Press {
    encoder: Option<Box<snap::raw::Encoder>>,
    space: Vec<u8>,
}

impl Press {
    /// The same version with its value compressed; nothing if that gains too little.
    fn compressed(&mut self, compression: &Compression, version: &Version) -> Option<NewVersion> {
        let plain = version.value();
        let most = snap::raw::max_compress_len(plain.len());
        if self.space.len() < most {
            self.space.resize(most, 0);
        }
        let encoder = self.encoder.get_or_insert_with(|| Box::new(snap::raw::Encoder::new()));
        let len = encoder.compress(plain, &mut self.space).ok()?;
        let ratio = compression.core.settings.get(Key::MinCompressionRatio);
        if (len as u64).saturating_mul(ratio) > plain.len() as u64 * 1000 {
            return None;
        }
        let meta = version.meta();
        let meta = VersionMeta { datatype: meta.datatype.with(Datatype::SNAPPY), ..meta };
        let new = NewVersion::new(&compression.core.context.heap, meta, version.key(), &[&self.space[..len]]);
        // The heap rounds sizes, so a few bytes may be no gain at all.
        (new.allocated_bytes() < version.allocated_bytes()).then_some(new)
    }

    /// Gives back what unusually large values took.
    fn shrink(&mut self) {
        self.space.truncate(KEEP_BYTES);
        self.space.shrink_to(KEEP_BYTES);
    }
}

impl Compression {
    /// Compresses the value of a key in memory, however hot and short it is. False if it has to stay as it is: it is
    /// not on disk yet, locked, not in memory, compressed already, or gains too little.
    pub fn compress_value(&self, vb: VbId, key: DocKey<'_>) -> Result<bool, Refusal> {
        let (hash, now) = (self.core.hash(key), self.core.now());
        let found = self
            .core
            .vbuckets
            .loaded(vb, Holder::FrontEnd)?
            .vb
            .find(hash, key)?
            .map(|version| version.clone());
        let version = found.filter(|version| version.is_live(now)).ok_or(Refusal::NotFound)?;
        if !version.is_resident() || version.meta().datatype.is_snappy() {
            return Ok(false);
        }
        let Some(new) = Press::default().compressed(self, &version) else { return Ok(false) };
        // What was there, or what was not used, goes when the lock is released.
        let swapped = {
            let mut shard = self.core.vbuckets.loaded(vb, Holder::FrontEnd)?;
            shard.vb.recode_value(hash, &version, new, now)
        };
        Ok(swapped.is_ok())
    }
}

impl Visit {
    /// The vBucket's lock, if it still is the same vBucket.
    fn shard<'b>(&self, compression: &'b Compression) -> Option<ShardGuard<'b>> {
        compression
            .core
            .vbuckets
            .loaded(self.vb, Holder::Compressor)
            .ok()
            .filter(|shard| shard.incarnation == self.incarnation)
    }

    /// Whether a version is one to try.
    fn wants(&self, shard: &Shard, version: &Version, now: Moment) -> bool {
        let meta = version.meta();
        meta.by_seqno > self.after
            && meta.by_seqno <= self.until
            && version.is_resident()
            && !meta.datatype.is_snappy()
            && (LEAST_BYTES..=MOST_BYTES).contains(&version.value_bytes())
            && version.frequency().load(Ordering::Relaxed) <= MOST_FREQUENCY
            && version.is_live(now)
            && shard.vb.is_evictable(version, now)
    }

    /// Those to try among the next few items; nothing if the vBucket is another one by now.
    fn find_next(&mut self, compression: &Compression, cursor: u64) -> Option<Vec<Version>> {
        let now = compression.core.now();
        let (mut found, mut visited) = (Vec::new(), 0);
        let shard = self.shard(compression)?;
        let next = shard.vb.table().visit(cursor, CHUNK_ITEMS, |version| {
            visited += 1;
            if self.wants(&shard, version, now) {
                found.push(version.clone());
            }
        });
        drop(shard);
        self.cursor = next;
        compression.counters.visited.fetch_add(visited, Ordering::Relaxed);
        Some(found)
    }

    /// Those to try among the keys that were left.
    fn find_left(&mut self, compression: &Compression) -> Option<Vec<Version>> {
        let now = compression.core.now();
        let left = std::mem::take(&mut self.left);
        let shard = self.shard(compression)?;
        let find = |stored: &[u8]| {
            let key = DocKey::parse(stored)?;
            let found = shard.vb.find(compression.core.hash(key), key).ok()??;
            self.wants(&shard, &found, now).then(|| found.clone())
        };
        Some(left.iter().filter_map(|stored| find(stored)).collect())
    }
}
