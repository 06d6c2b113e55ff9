//! From the disk to a reader: one step reads the values of one vBucket that somebody waits for.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{CollectionId, Datatype, DocKey, NewVersion, Seqno, VbId, Version, VersionMeta};
use kvstore::Values;
use vbucket::{Look, Placed};

use crate::bucket_core::Core;
use crate::completion::{Completion, StepTimes};
use crate::evict::Eviction;
use crate::failure_log::Failed;
use crate::fetch_queue::{FetchPin, FetchQueue, Fetched, Held, Work};
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::tasks::{StoreOp, TaskId};

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
    /// How often a value that was there turned out to be unreadable: see [`Refusal::Unreadable`].
    pub unreadable: u64,
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

/// What the disk is asked for.
struct Wanted {
    key: Arc<[u8]>,
    incarnation: u64,
    /// How often tombstones had been purged by then.
    purges: u64,
    /// About how long the value is.
    bytes: u64,
    /// Whether nothing of it is in memory, and the key is tied until it is told what the disk has.
    is_tied: bool,
}

/// From the disk to a reader: values that are not in memory, who waits for them and who reads.
pub struct Fetching {
    pub(crate) core: Arc<Core>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) queue: Arc<FetchQueue>,
}

impl Fetching {
    pub(crate) fn new(core: &Arc<Core>, eviction: &Arc<Eviction>) -> Fetching {
        Fetching { core: Arc::clone(core), eviction: Arc::clone(eviction), queue: Arc::default() }
    }

    /// Asks for a value that is not in memory, as an operation that was refused with [`Refusal::NotResident`] found
    /// out. Refused as busy if too many wait already.
    pub fn fetch(&self, vb: VbId, key: DocKey<'_>) -> Result<Completion<Fetched>, Refusal> {
        if vb.0 >= self.core.vbuckets() {
            return Err(Refusal::NotMyVbucket);
        }
        self.queue.wait(vb, key, self.core.env.clock.monotonic_ns()).ok_or(Refusal::Busy)
    }

    /// Reads what readers of the next vBucket wait for.
    pub fn fetch_step(&self) -> Progress {
        match self.queue.take() {
            Some(work) => self.fetch_work(work),
            None => Progress::Idle,
        }
    }

    /// Runs fetch steps until the bucket is closed; for threads of their own.
    pub fn run_fetcher(&self) {
        while let Some(work) = self.queue.wait_for_work() {
            self.core.keeper.rouse();
            self.fetch_work(work);
        }
    }

    /// Lets the fetcher threads end after their present steps; whoever still waits is told that nobody comes.
    pub fn stop_fetchers(&self) {
        self.queue.stop();
    }

    /// What fetchers did so far.
    pub fn fetch_stats(&self) -> FetchStats {
        FetchStats {
            fetched: self.queue.fetched.load(Ordering::Relaxed),
            failed: self.queue.failed.load(Ordering::Relaxed),
            batches: self.queue.batches.load(Ordering::Relaxed),
            waiting: self.queue.waiting() as u64,
            unreadable: self.queue.unreadable.load(Ordering::Relaxed),
        }
    }

    /// Counts that a stored value could not be read, and says so in the log, the rarer the more often that happens.
    pub fn note_unreadable(&self, vb: VbId) {
        self.queue.note_unreadable(self.core.name(), vb);
    }

    fn fetch_work(&self, work: Work) -> Progress {
        for (vb, held) in work.given_back {
            match held {
                Held::Version(version) if self.core.memory.is_above_high_watermark() => {
                    self.eviction.evict_version(vb, self.core.hash(version.key()), &version);
                }
                Held::Version(_) => {}
                Held::Absence(key, incarnation) => self.end_look(vb, &key, incarnation),
            }
        }
        let Some((vb, keys)) = work.batch else { return Progress::Worked };
        self.core.tasks.run(TaskId::Fetcher, || self.fetch_batch(vb, &keys))
    }

    /// Reads a batch in parts of limited size. What is not needed any more is not read.
    fn fetch_batch(&self, vb: VbId, keys: &[Arc<[u8]>]) -> Progress {
        let mut progress = Progress::Worked;
        let (mut part, mut part_bytes) = (Vec::new(), 0);
        for (at, key) in keys.iter().enumerate() {
            if parse(key).key.is_empty() {
                self.tell(vb, key, &self.fetch_any(vb, parse(key).collection), StepTimes::default());
                continue;
            }
            let wanted = match self.want(vb, key) {
                Ok(wanted) => wanted,
                Err(outcome) => {
                    self.tell(vb, key, &outcome, StepTimes::default());
                    continue;
                }
            };
            if !part.is_empty() && part_bytes + wanted.bytes > READ_BYTES {
                progress = worse(progress, self.fetch_part(vb, &std::mem::take(&mut part)));
                part_bytes = 0;
                if self.queue.is_lent_out() {
                    self.forgo(vb, &wanted);
                    self.queue.put_back(vb, &keys[at..]);
                    return progress;
                }
            }
            part_bytes += wanted.bytes;
            part.push(wanted);
        }
        if part.is_empty() {
            return progress;
        }
        worse(progress, self.fetch_part(vb, &part))
    }

    fn tell(&self, vb: VbId, key: &[u8], outcome: &Fetched, times: StepTimes) {
        for waiter in self.queue.finish(vb, key) {
            waiter.complete_after(outcome.clone(), times);
        }
    }

    fn fetch_part(&self, vb: VbId, part: &[Wanted]) -> Progress {
        let since = part.iter().filter_map(|wanted| self.queue.asked_ns(vb, &wanted.key));
        since.for_each(|since_ns| self.core.tasks.waited_for_fetcher(since_ns));
        let keys: Vec<DocKey<'_>> = part.iter().map(|wanted| parse(&wanted.key)).collect();
        let get = || self.core.store.get_many(vb, &keys);
        let (answers, (work_from_ns, work_until_ns)) = self.core.tasks.store_op_timed(StoreOp::Fetch, get);
        let times = StepTimes { work_from_ns, work_until_ns, ..StepTimes::default() };
        assert_eq!(answers.len(), keys.len(), "a store answers for each key");
        let (mut fetched, mut failed, mut largest) = (0, 0, 0);
        for (wanted, answer) in std::iter::zip(part, answers) {
            largest = largest.max(answer.as_ref().map_or(0, value_bytes));
            let outcome = self.receive(vb, wanted, answer);
            *(if matches!(outcome, Fetched::Failed) { &mut failed } else { &mut fetched }) += 1;
            self.tell(vb, &wanted.key, &outcome, times);
        }
        self.queue.count(fetched, failed);
        self.queue.lately_bytes.store(largest, Ordering::Relaxed);
        if failed == 0 { Progress::Worked } else { Progress::Failed }
    }

    /// Fetches what there is for a key, for a background step.
    pub(crate) fn fetch_now(&self, vb: VbId, key: DocKey<'_>) -> Fetched {
        match self.want(vb, &key.to_stored().0.into()) {
            Ok(wanted) => self.receive(vb, &wanted, self.core.store.get(vb, key)),
            Err(outcome) => outcome,
        }
    }

    /// Finds out what the disk is to be asked for; what is to be told otherwise. Tell [`Fetching::receive`] the answer,
    /// or [`Fetching::forgo`] it.
    fn want(&self, vb: VbId, key: &Arc<[u8]>) -> Result<Wanted, Fetched> {
        let (doc_key, hash) = (parse(key), self.core.hash(parse(key)));
        let mut shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
        if shard.unloaded.is_some() {
            return Err(Fetched::Look(None));
        }
        let (incarnation, purges) = (shard.incarnation, shard.vb.purges());
        let look = shard.vb.begin_look(hash, doc_key);
        drop(shard);
        let (bytes, is_tied) = match look {
            Look::InMemory => return Err(Fetched::Look(None)),
            Look::Nowhere => return Err(self.absent(vb, key.clone(), incarnation)),
            Look::Value(bytes) => (u64::from(bytes), false),
            Look::OnDisk => (self.queue.lately_bytes.load(Ordering::Relaxed), true),
        };
        Ok(Wanted { key: key.clone(), incarnation, purges, bytes, is_tied })
    }

    /// Does not ask the disk after all.
    fn forgo(&self, vb: VbId, wanted: &Wanted) {
        if wanted.is_tied {
            self.end_look(vb, &wanted.key, wanted.incarnation);
        }
    }

    fn end_look(&self, vb: VbId, key: &[u8], incarnation: u64) {
        let mut shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
        if shard.incarnation == incarnation {
            shard.vb.end_look(parse(key));
        }
    }

    /// There is nothing for a key, and its tie lasts as long as the pin.
    fn absent(&self, vb: VbId, key: Arc<[u8]>, incarnation: u64) -> Fetched {
        Fetched::Look(Some(FetchPin::new(&self.queue, vb, Held::Absence(key, incarnation))))
    }

    /// Puts what the disk answered in place for those who wait for it.
    fn receive(
        &self,
        vb: VbId,
        wanted: &Wanted,
        answer: Result<Option<Version>, kvstore::Failure>,
    ) -> Fetched {
        let found = match answer {
            Ok(found) => found,
            Err(failure) => {
                self.core.failure_log.failed(self.core.name(), vb, Failed::Document, &failure);
                self.core.unreadable.note_served(self.core.name(), vb, &failure);
                self.forgo(vb, wanted);
                return Fetched::Failed;
            }
        };
        match found {
            found if wanted.is_tied => self.bring_back(vb, wanted, found),
            Some(version) => self.deliver(vb, wanted.incarnation, version),
            None if !self.is_hollow(vb, wanted) => Fetched::Look(None),
            None => {
                self.core.failure_log.found_wrong(self.core.name(), vb, Failed::ValueMissing);
                Fetched::Failed
            }
        }
    }

    /// Puts what the disk has of a key of which nothing was in memory in the table.
    fn bring_back(&self, vb: VbId, wanted: &Wanted, found: Option<Version>) -> Fetched {
        let key = parse(&wanted.key);
        let mut shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
        if shard.incarnation != wanted.incarnation {
            return Fetched::Look(None);
        }
        // What is dropped is nothing, even if there is a new collection under the same number.
        let Some(version) = found.filter(|version| !shard.vb.collections().hides(version)) else {
            shard.vb.found_nothing(key);
            drop(shard);
            return self.absent(vb, wanted.key.clone(), wanted.incarnation);
        };
        let (is_there, filter) = shard.vb.bring_back(self.core.hash(key), &version, wanted.purges);
        shard.vb.end_look(key);
        drop(shard);
        drop(filter);
        Fetched::Look(if is_there { self.lend(vb, version) } else { None })
    }

    /// Sees to it that a version that was brought goes again if there is no room for it.
    fn lend(&self, vb: VbId, version: Version) -> Option<FetchPin> {
        let is_lent = self.core.memory.is_above_high_watermark();
        if is_lent {
            self.eviction.counters.is_room_wanted.store(true, Ordering::Relaxed);
            self.eviction.wake_pager();
        }
        is_lent.then(|| FetchPin::new(&self.queue, vb, Held::Version(version)))
    }

    /// Puts a value in place for those who wait for it.
    fn deliver(&self, vb: VbId, incarnation: u64, read: Version) -> Fetched {
        match self.bring(vb, incarnation, read) {
            Brought::Placed(whole) => Fetched::Look(self.lend(vb, whole)),
            Brought::NotNeeded => Fetched::Look(None),
            Brought::Unfitting => {
                self.core.failure_log.found_wrong(self.core.name(), vb, Failed::ValueUnfitting);
                Fetched::Failed
            }
        }
    }

    /// Puts a version that was read from disk in the place of the same one without value.
    pub(crate) fn bring(&self, vb: VbId, incarnation: u64, read: Version) -> Brought {
        let hash = self.core.hash(read.key());
        let hollow = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
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
        let whole = NewVersion::like(&self.core.context.heap, meta, read.key(), &read).publish();
        let mut shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
        if shard.incarnation != incarnation {
            return Brought::NotNeeded;
        }
        let Placed::Placed(old) = shard.vb.put_value(hash, &whole) else { return Brought::NotNeeded };
        drop(shard);
        drop(old);
        Brought::Placed(whole)
    }

    /// Whether the version of a key is in memory without its value.
    fn is_hollow(&self, vb: VbId, wanted: &Wanted) -> bool {
        let key = parse(&wanted.key);
        let shard = self.core.vbuckets.hold(vb, Holder::Fetcher);
        shard.incarnation == wanted.incarnation && shard.vb.hollow(self.core.hash(key), key).is_some()
    }
}

fn value_bytes(found: &Option<Version>) -> u64 {
    found.as_ref().map_or(0, |version| u64::from(version.value_bytes()))
}

/// What the disk has of a document, read by the thread that asks, whatever memory has.
pub fn read_from_disk(bucket: &Core, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, kvstore::Failure> {
    bucket.store.get(vb, key)
}

fn worse(one: Progress, other: Progress) -> Progress {
    if one == Progress::Failed { one } else { other }
}

fn parse(key: &[u8]) -> DocKey<'_> {
    DocKey::parse(key).expect("it was encoded when it was asked for")
}

impl Fetching {
    /// Brings some living document of a collection into memory: the first one of a vBucket that was changed after a change
    /// chosen by chance.
    pub(crate) fn fetch_any(&self, vb: VbId, collection: CollectionId) -> Fetched {
        let now = self.core.now();
        let (high, collections) = {
            let shard = self.core.vbuckets.hold(vb, Holder::Compactor);
            (shard.vb.high_seqno(), shard.vb.collections().clone())
        };
        let from = Seqno(self.core.env.random.next_u64() % high.0.max(1) + 1);
        let mut chosen = None;
        for from in [from, Seqno(0)] {
            let scanned = self.core.store.scan(vb, from, Values::Leave, &mut |version| {
                let is_of_it = version.key().collection == collection && !collections.hides(&version);
                if !version.is_live(now) || !is_of_it {
                    return ControlFlow::Continue(());
                }
                chosen = Some(version);
                ControlFlow::Break(())
            });
            if let Err(failure) = scanned {
                self.core.failure_log.failed(self.core.name(), vb, Failed::Document, &failure);
                return Fetched::Failed;
            }
            if chosen.is_some() {
                break;
            }
        }
        chosen.map_or(Fetched::Look(None), |version| self.fetch_now(vb, version.key()))
    }
}
