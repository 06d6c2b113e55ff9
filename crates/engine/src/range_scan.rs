//! Range scans: documents of one collection of a vBucket in the order of their keys, as they were stored at one moment
//! (docs/adr/0103-range-scans.md).

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::env::{Clock, Env};
use base::leb128::encode_leb128;
use base::{CollectionId, Moment, Seqno, VbId, VbUuid, Version};
use kvstore::{Failure, KvStore, Snapshot, Values};
use parking_lot::Mutex;

use crate::bucket_core::Core;
use crate::bucket_snapshot::BucketSnapshots;
use crate::config::{BucketConfig, BucketKind};
use crate::failure_log::{Failed, FailureLog};
use crate::file_snapshot::{FileSnapshotTable, FileSnapshots};
use crate::keeper::{Chore, Next, Slice};
use crate::open_files::OpenScan;
use crate::refusal::Refusal;
use crate::settings::{Key, Settings};
use crate::shard_guard::Holder;
use crate::unreadable::Unreadables;
use crate::vbuckets::VBuckets;

mod keys;
mod sampling;

pub use sampling::Sampling;

/// A scan looks at the clock whenever it has seen so many versions.
const LOOK_AT_CLOCK: u32 = 16;
/// So many documents of a sample are chosen before their values are read.
const CHOSEN_AT_ONCE: usize = 32;

/// Which scan: 16 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeScanId(pub [u8; 16]);

/// What a snapshot must have for a scan to be made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRequirement {
    /// The vBucket's present history.
    pub uuid: VbUuid,
    /// This change must be stored.
    pub seqno: Seqno,
    /// It must be the newest one of its document still.
    pub must_be_newest: bool,
}

/// What is to be scanned.
#[derive(Clone, Debug)]
pub struct RangeScanWanted {
    /// The collection.
    pub collection: CollectionId,
    /// The first key, without its collection.
    pub start: Bound<Vec<u8>>,
    /// The last key, without its collection.
    pub end: Bound<Vec<u8>>,
    /// Whether keys are enough.
    pub is_key_only: bool,
    /// Whether documents are wanted with their xattrs.
    pub with_xattrs: bool,
    /// Some of the documents, chosen by chance; all of them if not given.
    pub sampling: Option<Sampling>,
    /// What the snapshot must have.
    pub requirement: Option<SnapshotRequirement>,
    /// What the client calls it, for stats.
    pub name: String,
}

/// Why a scan was not made, or does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeScanRefusal {
    /// As for any other operation. When a scan was to go on, it has ended.
    Refused(Refusal),
    /// The change that must be stored is not yet.
    NotPersisted,
    /// The change that must be the newest of its document is not.
    IsReplaced,
    /// No document is in the range.
    Empty,
    /// There are as many scans as there may be.
    TooMany,
    /// There is no such scan.
    Unknown,
    /// Another request has the scan go on.
    IsContinuing,
    /// The scan was cancelled meanwhile.
    Cancelled,
    /// The disk failed. When a scan was to go on, it has ended.
    Failed,
}

impl From<Refusal> for RangeScanRefusal {
    fn from(refusal: Refusal) -> RangeScanRefusal {
        RangeScanRefusal::Refused(refusal)
    }
}

/// How far a scan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeScanProgress {
    /// There may be more.
    More,
    /// That was all; the scan has ended.
    Complete,
}

/// Where a scan goes on.
struct Cursor {
    snapshot: Box<dyn Snapshot>,
    /// The stored key that is read next.
    from: Vec<u8>,
}

struct Scan {
    vb: VbId,
    uuid: VbUuid,
    wanted: RangeScanWanted,
    range: StoredRange,
    sampling: Option<sampling::Chooser>,
    /// On the monotonic clock.
    created: Duration,
    is_cancelled: AtomicBool,
    keys: AtomicU64,
    continues: AtomicU64,
    /// `None` while a request has it go on.
    cursor: Mutex<Option<Cursor>>,
    _open: OpenScan,
}

/// What of the stored keys is in a range.
struct StoredRange {
    prefix: Vec<u8>,
    from: Vec<u8>,
    end: Bound<Vec<u8>>,
}

impl StoredRange {
    fn of(wanted: &RangeScanWanted) -> StoredRange {
        let (bytes, len) = encode_leb128(wanted.collection.0);
        let prefix = bytes[..len].to_vec();
        let mut from = prefix.clone();
        match &wanted.start {
            Bound::Unbounded => {}
            Bound::Included(key) => from.extend_from_slice(key),
            Bound::Excluded(key) => {
                from.extend_from_slice(key);
                from.push(0);
            }
        }
        StoredRange { prefix, from, end: wanted.end.clone() }
    }

    /// Whether a stored key that is not in front of the range is in it.
    fn has(&self, stored_key: &[u8]) -> bool {
        let Some(key) = stored_key.strip_prefix(&self.prefix[..]) else { return false };
        match &self.end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= &end[..],
            Bound::Excluded(end) => key < &end[..],
        }
    }
}

/// The scans of a bucket.
#[derive(Default)]
pub(crate) struct RangeScanTable {
    by_id: Mutex<HashMap<RangeScanId, Arc<Scan>>>,
    open: Arc<AtomicUsize>,
}

/// What is told of a scan.
#[derive(Clone, Debug)]
pub struct RangeScanFigures {
    /// Which one.
    pub id: RangeScanId,
    /// Its vBucket.
    pub vb: VbId,
    /// The vBucket's history.
    pub uuid: VbUuid,
    /// How long ago it was made.
    pub age: Duration,
    /// Whether it tells of keys only.
    pub is_key_only: bool,
    /// Whether documents come with their xattrs.
    pub with_xattrs: bool,
    /// Whether a request has it go on at this moment.
    pub is_continuing: bool,
    /// Keys and documents that were told of.
    pub keys: u64,
    /// Requests that had it go on.
    pub continues: u64,
    /// What the client calls it.
    pub name: String,
}

/// What a continuation of a scan needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeScanForm {
    /// Its collection.
    pub collection: CollectionId,
    /// Whether it tells of keys only.
    pub is_key_only: bool,
    /// Whether documents come with their xattrs.
    pub with_xattrs: bool,
}

/// Scans of ranges of keys: the parts of a bucket that they need.
#[derive(Clone, Copy)]
pub struct RangeScans<'a> {
    env: &'a Env,
    config: &'a BucketConfig,
    settings: &'a Settings,
    store: &'a dyn KvStore,
    vbuckets: &'a VBuckets,
    unreadable: &'a Unreadables,
    failure_log: &'a FailureLog,
    table: &'a RangeScanTable,
}

/// Scans that are under way, and what they read; snapshots by file, which keep files open as scans do.
pub(crate) struct Scans {
    core: Arc<Core>,
    table: RangeScanTable,
    files: FileSnapshotTable,
}

impl Scans {
    pub(crate) fn new(core: &Arc<Core>) -> Scans {
        let (table, files) = (RangeScanTable::default(), FileSnapshotTable::default());
        Scans { core: Arc::clone(core), table, files }
    }

    pub(crate) fn file_snapshots(&self) -> FileSnapshots<'_> {
        let Core { env, config, store, vbuckets, unreadable, failure_log, .. } = &*self.core;
        let (table, open) = (&self.files, &self.table.open);
        FileSnapshots { env, config, store: &**store, vbuckets, unreadable, failure_log, table, open }
    }

    pub(crate) fn range_scans(&self) -> RangeScans<'_> {
        let Core { env, config, settings, store, vbuckets, unreadable, failure_log, .. } = &*self.core;
        let table = &self.table;
        RangeScans { env, config, settings, store: &**store, vbuckets, unreadable, failure_log, table }
    }
}

impl RangeScans<'_> {
    /// Whether a scan that needs this could be made now, as far as can be told without the disk.
    pub fn check(&self, vb: VbId, wanted: &RangeScanWanted) -> Result<(), RangeScanRefusal> {
        self.look(vb, wanted).map(drop)
    }

    /// Makes a scan of what is stored of a vBucket now. Reads the disk.
    pub fn create(&self, vb: VbId, wanted: RangeScanWanted) -> Result<RangeScanId, RangeScanRefusal> {
        let before = self.look(vb, &wanted)?;
        self.end_stale();
        let most = self.config.most_range_scans;
        let open = OpenScan::take(&self.table.open, most).ok_or(RangeScanRefusal::TooMany)?;
        let snapshot = self.store.snapshot(vb).map_err(|failure| self.failed(vb, &failure))?;
        // A snapshot of another history, or of a collection's time after its end, is not what was asked for.
        let present = self.look(vb, &wanted)?;
        if present.uuid != before.uuid {
            return Err(RangeScanRefusal::Refused(Refusal::NotMyVbucket));
        }
        let snapshot = snapshot.ok_or(RangeScanRefusal::Empty)?;
        let range = StoredRange::of(&wanted);
        let found = self.examine(&*snapshot, &range, &wanted).map_err(|failure| self.failed(vb, &failure))?;
        found?;
        let sampling = wanted.sampling.and_then(|sampling| sampling.of_documents(present.documents));
        let from = range.from.clone();
        let scan = Scan {
            vb,
            uuid: present.uuid,
            wanted,
            range,
            sampling,
            created: self.env.clock.monotonic(),
            is_cancelled: AtomicBool::new(false),
            keys: AtomicU64::new(0),
            continues: AtomicU64::new(0),
            cursor: Mutex::new(Some(Cursor { snapshot, from })),
            _open: open,
        };
        let mut id = RangeScanId([0; 16]);
        self.env.random.fill(&mut id.0);
        self.table.by_id.lock().insert(id, Arc::new(scan));
        Ok(id)
    }

    /// What a scan tells of, so that a client's rights can be checked before it goes on.
    pub fn form(&self, vb: VbId, id: RangeScanId) -> Result<RangeScanForm, RangeScanRefusal> {
        let RangeScanWanted { collection, is_key_only, with_xattrs, .. } = self.find(vb, id)?.wanted;
        Ok(RangeScanForm { collection, is_key_only, with_xattrs })
    }

    /// Shows the next documents, tombstones and expired ones left out, to `visit` until it breaks off; what it broke off
    /// with was shown. Ends at `until` on the monotonic clock, too. Versions come without values if keys are enough. Reads
    /// the disk.
    pub fn go_on(
        &self,
        vb: VbId,
        id: RangeScanId,
        until: Duration,
        visit: &mut dyn FnMut(&Version) -> ControlFlow<()>,
    ) -> Result<RangeScanProgress, RangeScanRefusal> {
        let scan = self.find(vb, id)?;
        let Some(mut cursor) = scan.cursor.lock().take() else {
            return Err(RangeScanRefusal::IsContinuing);
        };
        scan.continues.fetch_add(1, Ordering::Relaxed);
        let went = self.check_scan(&scan).and_then(|()| self.read(&scan, &mut cursor, until, visit));
        match went {
            Ok(RangeScanProgress::More) if !scan.is_cancelled.load(Ordering::Relaxed) => {
                *scan.cursor.lock() = Some(cursor);
                // Who cancels it from now on finds it in the table, or was here in between.
                if scan.is_cancelled.load(Ordering::Relaxed) {
                    scan.cursor.lock().take();
                }
                Ok(RangeScanProgress::More)
            }
            Ok(RangeScanProgress::More) => Err(RangeScanRefusal::Cancelled),
            ended => {
                self.table.by_id.lock().remove(&id);
                ended
            }
        }
    }

    /// Ends a scan. A request that has it go on at this moment is answered that it was cancelled.
    pub fn cancel(&self, vb: VbId, id: RangeScanId) -> Result<(), RangeScanRefusal> {
        self.find(vb, id)?;
        self.end(&[id]);
        Ok(())
    }

    /// Tells of all scans, in the order of their vBuckets.
    pub fn figures(&self) -> Vec<RangeScanFigures> {
        let now = self.env.clock.monotonic();
        let scans: Vec<_> =
            self.table.by_id.lock().iter().map(|(id, scan)| (*id, Arc::clone(scan))).collect();
        let figures = scans.into_iter().map(|(id, scan)| RangeScanFigures {
            id,
            vb: scan.vb,
            uuid: scan.uuid,
            age: now.saturating_sub(scan.created),
            is_key_only: scan.wanted.is_key_only,
            with_xattrs: scan.wanted.with_xattrs,
            is_continuing: scan.cursor.lock().is_none(),
            keys: scan.keys.load(Ordering::Relaxed),
            continues: scan.continues.load(Ordering::Relaxed),
            name: scan.wanted.name.clone(),
        });
        let mut figures: Vec<_> = figures.collect();
        figures.sort_by_key(|one| (one.vb, one.id.0));
        figures
    }

    fn find(&self, vb: VbId, id: RangeScanId) -> Result<Arc<Scan>, RangeScanRefusal> {
        let scan = self.table.by_id.lock().get(&id).filter(|scan| scan.vb == vb).cloned();
        scan.ok_or(RangeScanRefusal::Unknown)
    }

    /// Files that they read from are closed outside of the table's lock.
    fn end(&self, ids: &[RangeScanId]) {
        let mut ended = Vec::with_capacity(ids.len());
        {
            let mut by_id = self.table.by_id.lock();
            ended.extend(ids.iter().filter_map(|id| by_id.remove(id)));
        }
        for scan in ended {
            scan.is_cancelled.store(true, Ordering::Relaxed);
            let cursor = scan.cursor.lock().take();
            drop(cursor);
        }
    }

    /// Ends scans whose time is over, and those whose vBucket is not served here any more in the same history.
    pub(crate) fn end_stale(&self) {
        let now = self.env.clock.monotonic();
        let longest = Duration::from_secs(self.settings.get(Key::RangeScanMaxLifetime));
        let scans: Vec<_> =
            self.table.by_id.lock().iter().map(|(id, scan)| (*id, Arc::clone(scan))).collect();
        let is_stale =
            |scan: &Scan| now.saturating_sub(scan.created) >= longest || self.check_scan(scan).is_err();
        let stale: Vec<_> = scans.into_iter().filter(|(_, scan)| is_stale(scan)).map(|(id, _)| id).collect();
        self.end(&stale);
    }

    fn look(&self, vb: VbId, wanted: &RangeScanWanted) -> Result<Present, RangeScanRefusal> {
        if self.config.kind == BucketKind::Ephemeral {
            return Err(RangeScanRefusal::Refused(Refusal::NoDisk));
        }
        let shard = self.vbuckets.active(vb, Holder::FrontEnd)?;
        if !shard.vb.collections().is_open(wanted.collection) {
            return Err(RangeScanRefusal::Refused(Refusal::UnknownCollection));
        }
        let uuid = shard.vb.uuid();
        if let Some(requirement) = wanted.requirement {
            if requirement.uuid != uuid {
                return Err(RangeScanRefusal::Refused(Refusal::OtherHistory));
            }
            if shard.vb.persisted_seqno() < requirement.seqno {
                return Err(RangeScanRefusal::NotPersisted);
            }
        }
        let documents = shard.vb.held_by(wanted.collection).documents();
        Ok(Present { uuid, documents })
    }

    /// Whether a scan's vBucket is what it was when the scan was made.
    fn check_scan(&self, scan: &Scan) -> Result<(), RangeScanRefusal> {
        let shard = self.vbuckets.active(scan.vb, Holder::FrontEnd)?;
        if shard.vb.uuid() != scan.uuid {
            return Err(RangeScanRefusal::Refused(Refusal::NotMyVbucket));
        }
        if !shard.vb.collections().is_open(scan.wanted.collection) {
            return Err(RangeScanRefusal::Refused(Refusal::UnknownCollection));
        }
        Ok(())
    }

    /// Whether a snapshot has what is wanted, and anything in the range.
    fn examine(
        &self,
        snapshot: &dyn Snapshot,
        range: &StoredRange,
        wanted: &RangeScanWanted,
    ) -> Result<Result<(), RangeScanRefusal>, Failure> {
        if let Some(SnapshotRequirement { seqno, must_be_newest: true, .. }) = wanted.requirement {
            let mut is_there = false;
            snapshot.scan_all(seqno, Values::Leave, &mut |version| {
                is_there = version.meta().by_seqno == seqno;
                ControlFlow::Break(())
            })?;
            if !is_there {
                return Ok(Err(RangeScanRefusal::IsReplaced));
            }
        }
        let now = Moment(self.env.clock.unix_ns());
        let mut is_empty = true;
        snapshot.scan_keys(&range.from, Values::Leave, &mut |version| {
            if !range.has(version.stored_key()) {
                return ControlFlow::Break(());
            }
            is_empty = !version.is_live(now);
            if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(if is_empty { Err(RangeScanRefusal::Empty) } else { Ok(()) })
    }

    fn read(
        &self,
        scan: &Scan,
        cursor: &mut Cursor,
        until: Duration,
        visit: &mut dyn FnMut(&Version) -> ControlFlow<()>,
    ) -> Result<RangeScanProgress, RangeScanRefusal> {
        let (clock, now) = (&self.env.clock, Moment(self.env.clock.unix_ns()));
        let mut turn = Turn { scan, clock: &**clock, now, until, seen: 0, keys: 0, end: None };
        let read = match &scan.sampling {
            Some(_) if !scan.wanted.is_key_only => turn.read_chosen(cursor, visit),
            _ => turn.read_all(cursor, visit),
        };
        scan.keys.fetch_add(turn.keys, Ordering::Relaxed);
        read.map_err(|failure| self.failed(scan.vb, &failure))?;
        match turn.end {
            Some(TurnEnd::Cancelled) => Err(RangeScanRefusal::Cancelled),
            Some(TurnEnd::Paused) => Ok(RangeScanProgress::More),
            None => Ok(RangeScanProgress::Complete),
        }
    }

    fn failed(&self, vb: VbId, failure: &Failure) -> RangeScanRefusal {
        self.failure_log.failed(&self.config.name, vb, Failed::RangeScan, failure);
        self.unreadable.note_served(&self.config.name, vb, failure);
        RangeScanRefusal::Failed
    }
}

/// Why a turn ends before its scan does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    Cancelled,
    Paused,
}

/// One continuation of a scan.
struct Turn<'t> {
    scan: &'t Scan,
    clock: &'t dyn Clock,
    now: Moment,
    until: Duration,
    /// Versions that were read.
    seen: u32,
    /// Documents that were shown.
    keys: u64,
    /// `None`: nothing is left, as far as was seen.
    end: Option<TurnEnd>,
}

impl Turn<'_> {
    /// Shows every document that is wanted while reading on.
    fn read_all(
        &mut self,
        Cursor { snapshot, from }: &mut Cursor,
        visit: &mut dyn FnMut(&Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let scan = self.scan;
        let values = if scan.wanted.is_key_only { Values::Leave } else { Values::Read };
        let start = std::mem::take(from);
        snapshot.scan_keys(&start, values, &mut |version| {
            if !self.goes_on(&version) {
                return ControlFlow::Break(());
            }
            let mut flow = ControlFlow::Continue(());
            if self.is_wanted(&version) {
                self.keys += 1;
                flow = visit(&version);
            }
            if flow.is_break() || self.is_late() {
                self.end = Some(TurnEnd::Paused);
                set_behind(from, &version);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
    }

    /// Finds some documents that are wanted by their keys, then reads the values of those alone, and so on.
    fn read_chosen(
        &mut self,
        cursor: &mut Cursor,
        visit: &mut dyn FnMut(&Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        loop {
            let (chosen, is_full) = self.choose(cursor)?;
            if self.end == Some(TurnEnd::Cancelled) {
                return Ok(());
            }
            for version in chosen {
                let Some(version) = cursor.snapshot.get(version.key())? else { continue };
                self.keys += 1;
                if visit(&version).is_break() || self.clock.monotonic() >= self.until {
                    self.end = Some(TurnEnd::Paused);
                    set_behind(&mut cursor.from, &version);
                    return Ok(());
                }
            }
            if !is_full {
                return Ok(());
            }
        }
    }

    /// The next documents that are wanted, without values, and whether there may be more of them to show in this turn.
    fn choose(&mut self, Cursor { snapshot, from }: &mut Cursor) -> Result<(Vec<Version>, bool), Failure> {
        let (mut chosen, mut is_full) = (Vec::new(), false);
        let start = std::mem::take(from);
        snapshot.scan_keys(&start, Values::Leave, &mut |version| {
            if !self.goes_on(&version) {
                return ControlFlow::Break(());
            }
            let is_wanted = self.is_wanted(&version);
            is_full = is_wanted && chosen.len() + 1 == CHOSEN_AT_ONCE;
            if self.is_late() && !is_full {
                self.end = Some(TurnEnd::Paused);
            }
            let is_over = is_full || self.end.is_some();
            if is_over {
                set_behind(from, &version);
            }
            if is_wanted {
                chosen.push(version);
            }
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((chosen, is_full))
    }

    /// Whether a version is in the range, and the scan not cancelled.
    fn goes_on(&mut self, version: &Version) -> bool {
        if self.scan.is_cancelled.load(Ordering::Relaxed) {
            self.end = Some(TurnEnd::Cancelled);
        }
        self.seen += 1;
        self.end.is_none() && self.scan.range.has(version.stored_key())
    }

    fn is_wanted(&self, version: &Version) -> bool {
        let is_chosen = || self.scan.sampling.as_ref().is_none_or(|it| it.chooses(version.key().key));
        version.is_live(self.now) && is_chosen()
    }

    fn is_late(&self) -> bool {
        self.seen.is_multiple_of(LOOK_AT_CLOCK) && self.clock.monotonic() >= self.until
    }
}

/// Sets a stored key to the smallest one behind a version's.
fn set_behind(from: &mut Vec<u8>, version: &Version) {
    from.clear();
    from.extend_from_slice(version.stored_key());
    from.push(0);
}

/// What a vBucket is when a scan is made.
struct Present {
    uuid: VbUuid,
    documents: u64,
}

/// The chore that ends scans and snapshots whose time is over or whose vBucket is gone: they keep files open and old
/// versions alive.
pub(crate) struct StaleRangeScans;

impl Chore for StaleRangeScans {
    type Of = Scans;

    fn step(&mut self, scans: &Scans, _: &Slice<'_>) -> Next {
        scans.range_scans().end_stale();
        scans.file_snapshots().end_stale();
        BucketSnapshots::of(&scans.core).end_stale();
        Next::After(scans.core.keeper.look_again_after())
    }
}
