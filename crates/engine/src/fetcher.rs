//! From the disk to a reader: one step reads the values of one vBucket that somebody waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Datatype, DocKey, NewVersion, VbId, Version, VersionMeta};
use vbucket::Placed;

use crate::bucket::Bucket;
use crate::completion::Completion;
use crate::fetch_queue::{Fetched, Loan, Work};
use crate::flusher::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;

/// Values of one batch that are read at once, in bytes as far as they are known; one value may be larger.
const READ_BYTES: u64 = 4 << 20;

/// What fetchers did so far, and what waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Values read because somebody waited for them.
    pub fetched: u64,
    /// Values that could not be read.
    pub failed: u64,
    /// Batches read.
    pub batches: u64,
    /// Readers that wait now.
    pub waiting: u64,
}

/// What putting a value in place did.
pub(crate) enum Brought {
    /// It is in memory now.
    Placed(Version),
    /// The document has changed, or has its value already.
    NotNeeded,
    /// What was read cannot be the document's value.
    Unfitting,
}

impl Bucket {
    /// Asks for a value that is not in memory, as an operation that was refused with [`Refusal::NotResident`] found
    /// out. Refused as busy if too many wait already.
    pub fn fetch(&self, vb: VbId, key: DocKey<'_>) -> Result<Completion<Fetched>, Refusal> {
        if vb.0 >= self.vbuckets() {
            return Err(Refusal::NotMyVbucket);
        }
        self.fetching.wait(vb, key).ok_or(Refusal::Busy)
    }

    /// Reads what readers of the next vBucket wait for.
    pub fn fetch_step(&self) -> Progress {
        match self.fetching.take() {
            Some(work) => self.fetch_work(work),
            None => Progress::Idle,
        }
    }

    /// Runs fetch steps until the bucket is closed; for threads of their own.
    pub fn run_fetcher(&self) {
        while let Some(work) = self.fetching.wait_for_work() {
            self.fetch_work(work);
        }
    }

    /// Lets the fetcher threads end after their present steps; whoever still waits is told that nobody comes.
    pub fn stop_fetchers(&self) {
        self.fetching.stop();
    }

    /// What fetchers did so far.
    pub fn fetch_stats(&self) -> FetchStats {
        FetchStats {
            fetched: self.fetching.fetched.load(Ordering::Relaxed),
            failed: self.fetching.failed.load(Ordering::Relaxed),
            batches: self.fetching.batches.load(Ordering::Relaxed),
            waiting: self.fetching.waiting() as u64,
        }
    }

    fn fetch_work(&self, work: Work) -> Progress {
        for (vb, version) in work.given_back {
            if self.memory.is_above_high_watermark() {
                self.evict_version(vb, self.hash(version.key()), &version);
            }
        }
        work.batch.map_or(Progress::Worked, |(vb, keys)| self.fetch_batch(vb, &keys))
    }

    /// Reads a batch in parts of limited size. What is not needed any more is not read.
    fn fetch_batch(&self, vb: VbId, keys: &[Arc<[u8]>]) -> Progress {
        let incarnation = self.hold(vb, Holder::Fetcher).incarnation;
        let mut progress = Progress::Worked;
        let (mut part, mut part_bytes) = (Vec::new(), 0);
        for (at, key) in keys.iter().enumerate() {
            let Some(value_bytes) = self.hollow_bytes(vb, incarnation, parse(key)) else {
                self.tell(vb, key, &Fetched::Look(None));
                continue;
            };
            if !part.is_empty() && part_bytes + value_bytes > READ_BYTES {
                progress = worse(progress, self.fetch_part(vb, incarnation, &std::mem::take(&mut part)));
                part_bytes = 0;
                if self.fetching.is_lent_out() {
                    self.fetching.put_back(vb, &keys[at..]);
                    return progress;
                }
            }
            part.push(key);
            part_bytes += value_bytes;
        }
        if part.is_empty() {
            return progress;
        }
        worse(progress, self.fetch_part(vb, incarnation, &part))
    }

    fn tell(&self, vb: VbId, key: &[u8], outcome: &Fetched) {
        for waiter in self.fetching.finish(vb, key) {
            waiter.complete(outcome.clone());
        }
    }

    fn fetch_part(&self, vb: VbId, incarnation: u64, keys: &[&Arc<[u8]>]) -> Progress {
        let doc_keys: Vec<DocKey<'_>> = keys.iter().map(|key| parse(key)).collect();
        let answers = self.store.get_many(vb, &doc_keys);
        assert_eq!(answers.len(), keys.len(), "a store answers for each key");
        let (mut fetched, mut failed) = (0, 0);
        for ((key, doc_key), answer) in std::iter::zip(keys, doc_keys).zip(answers) {
            let outcome = match answer {
                Ok(Some(version)) => self.deliver(vb, incarnation, version),
                Ok(None) if self.hollow_bytes(vb, incarnation, doc_key).is_none() => Fetched::Look(None),
                Ok(None) => {
                    tracing::error!(bucket = self.name(), %vb, "the value of a document is not on disk");
                    Fetched::Failed
                }
                Err(failure) => {
                    tracing::error!(bucket = self.name(), %failure, "cannot read a value");
                    Fetched::Failed
                }
            };
            *(if matches!(outcome, Fetched::Failed) { &mut failed } else { &mut fetched }) += 1;
            self.tell(vb, key, &outcome);
        }
        self.fetching.count(fetched, failed);
        if failed == 0 { Progress::Worked } else { Progress::Failed }
    }

    /// Puts a value in place for those who wait for it.
    fn deliver(&self, vb: VbId, incarnation: u64, read: Version) -> Fetched {
        match self.bring(vb, incarnation, read) {
            Brought::Placed(whole) => {
                let lent = self.memory.is_above_high_watermark();
                if lent {
                    self.eviction.is_room_wanted.store(true, Ordering::Relaxed);
                    self.wake_pager();
                }
                Fetched::Look(lent.then(|| Loan::new(&self.fetching, vb, whole)))
            }
            Brought::NotNeeded => Fetched::Look(None),
            Brought::Unfitting => {
                tracing::error!(bucket = self.name(), %vb, "what is on disk is not the value of its document");
                Fetched::Failed
            }
        }
    }

    /// Puts a version that was read from disk in the place of the same one without value.
    pub(crate) fn bring(&self, vb: VbId, incarnation: u64, read: Version) -> Brought {
        let hash = self.hash(read.key());
        let hollow = {
            let mut shard = self.hold(vb, Holder::Fetcher);
            if shard.incarnation != incarnation {
                return Brought::NotNeeded;
            }
            match shard.vb.put_value(hash, &read) {
                Placed::Placed(old) => {
                    drop(shard);
                    drop(old);
                    return Brought::Placed(read);
                }
                Placed::NotNeeded => return Brought::NotNeeded,
                Placed::Other => shard.vb.hollow(hash, read.key()),
            }
        };
        // A lock gave the document another CAS without changing it; everything else must be as it was written.
        let Some(hollow) = hollow.filter(|hollow| hollow.meta().by_seqno == read.meta().by_seqno) else {
            return Brought::NotNeeded;
        };
        let datatype = read.meta().datatype;
        // The disk may have the value in another form than memory had it.
        if hollow.meta().datatype.without(Datatype::SNAPPY) != datatype.without(Datatype::SNAPPY) {
            return Brought::Unfitting;
        }
        let meta = VersionMeta { datatype, ..hollow.meta() };
        let whole = NewVersion::new(&self.context.heap, meta, read.key(), &[read.value()]).publish();
        let mut shard = self.hold(vb, Holder::Fetcher);
        if shard.incarnation != incarnation {
            return Brought::NotNeeded;
        }
        let Placed::Placed(old) = shard.vb.put_value(hash, &whole) else { return Brought::NotNeeded };
        drop(shard);
        drop(old);
        Brought::Placed(whole)
    }

    /// How long the value of a key is, if it is not in memory.
    fn hollow_bytes(&self, vb: VbId, incarnation: u64, key: DocKey<'_>) -> Option<u64> {
        let hash = self.hash(key);
        let shard = self.hold(vb, Holder::Fetcher);
        let found = if shard.incarnation == incarnation { shard.vb.find(hash, key) } else { None };
        found.filter(|version| !version.is_resident()).map(|version| u64::from(version.value_bytes()))
    }
}

fn worse(one: Progress, other: Progress) -> Progress {
    if one == Progress::Failed { one } else { other }
}

fn parse(key: &[u8]) -> DocKey<'_> {
    DocKey::parse(key).expect("it was encoded when it was asked for")
}
