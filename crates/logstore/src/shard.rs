//! A shard: some of the vBuckets, which share segments, runs and a manifest.
//!
//! Locks, in this order: `work` (one merge or rewrite at a time), `writer` (one change at a time), `state`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::{File, OpenMode};
use base::{Account, Part};
use parking_lot::{Mutex, RwLock};

use crate::Config;
use crate::cache::BlockCache;
use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile, NewFile, Purpose};
use crate::manifest::{Manifest, manifest_name};
use crate::meta::{Edit, Point, RunMeta, ShardMeta};
use crate::run::Run;
use crate::segment::Segment;
use crate::sizes::Sizes;
use crate::view::{Commit, View};
use crate::work::Work;

/// Some of the vBuckets.
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) files: Arc<Files>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) account: Account,
    pub(crate) config: Config,
    pub(crate) state: RwLock<ShardState>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) work: Mutex<Work>,
    /// When the store was opened, in seconds since 1970.
    pub(crate) opened_s: u64,
    /// Bytes of the manifest.
    manifest_bytes: AtomicU64,
    next_file: AtomicU64,
}

/// What readers see.
pub(crate) struct ShardState {
    pub(crate) meta: ShardMeta,
    /// The newest first.
    pub(crate) runs: Arc<Vec<Arc<Run>>>,
    pub(crate) segments: Arc<BTreeMap<u64, Arc<Segment>>>,
    /// Why vBuckets are not served as long as the store is open.
    pub(crate) refused: BTreeMap<u16, Arc<str>>,
    /// Why none is, if it is not known which there are.
    pub(crate) all_refused: Option<Arc<str>>,
    /// Which commit of each vBucket is on record, as the caller has said.
    pub(crate) recorded: BTreeMap<u16, u64>,
    /// Bytes that are charged for what is known of each vBucket.
    charged: BTreeMap<u16, usize>,
    /// When vBuckets were committed last in this life of the store, in seconds since 1970.
    pub(crate) touched: BTreeMap<u16, u64>,
    pub(crate) sizes: Sizes,
}

/// What is changed by one at a time.
#[derive(Default)]
pub(crate) struct Writer {
    /// `None` if there is none, or if it is not known what the last record of it has become.
    manifest: Option<Manifest>,
    /// Files that the manifest may or may not name: they go once another one is in its place.
    pub(crate) strays: Vec<String>,
    /// Whether the manifest on disk may say something else than what is in memory.
    is_unsettled: bool,
    /// The caller's number that the manifest notes.
    beside: u64,
}

impl ShardState {
    /// Adds up the files, some of which were added or removed.
    fn sum_files(&mut self, manifest_bytes: u64) {
        let runs: u64 = self.meta.runs.iter().map(|run| run.bytes).sum();
        let segments: u64 = self.meta.segments.values().map(|segment| segment.len).sum();
        self.sizes.set_files(runs + segments, manifest_bytes);
    }
}

impl Shard {
    pub(crate) fn new(
        index: usize,
        shared: (Arc<Files>, Arc<BlockCache>, Account, Config),
        meta: ShardMeta,
        manifest: Option<Manifest>,
        is_unsettled: bool,
    ) -> Shard {
        let (files, cache, account, config) = shared;
        let next_file = AtomicU64::new(meta.next_file);
        let refused = meta.damaged.clone();
        let state = ShardState {
            meta: ShardMeta::new(),
            runs: Arc::default(),
            segments: Arc::default(),
            refused,
            all_refused: None,
            recorded: BTreeMap::new(),
            charged: BTreeMap::new(),
            touched: BTreeMap::new(),
            sizes: Sizes::default(),
        };
        let manifest_bytes = AtomicU64::new(manifest.as_ref().map_or(0, Manifest::len));
        let opened_s = u64::from(files.keeping.clock.unix_s());
        let writer = Writer { manifest, strays: Vec::new(), is_unsettled, beside: meta.beside };
        let shard = Shard {
            index,
            files,
            cache,
            account,
            config,
            state: RwLock::new(state),
            writer: Mutex::new(writer),
            work: Mutex::default(),
            opened_s,
            manifest_bytes,
            next_file,
        };
        {
            let mut state = shard.state.write();
            for edit in meta.as_edits() {
                shard.apply(&mut state, &edit);
            }
            let manifest_bytes = shard.manifest_bytes.load(Ordering::Relaxed);
            state.sum_files(manifest_bytes);
        }
        shard
    }

    /// A file that is to be written.
    pub(crate) fn new_file(&self, kind: FileKind) -> Result<NewFile, Failure> {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        NewFile::create(&self.files, (self.index, kind, number))
    }

    fn log_file(&self, kind: FileKind, (number, nonce): (u64, u64), len: u64) -> LogFile {
        LogFile::new(&self.files, (self.index, kind, number), nonce, len)
    }

    /// A number for a new commit: above all others, and such that a copy of the folder that goes on by itself gives none
    /// of these.
    pub(crate) fn new_commit(&self, state: &ShardState) -> u64 {
        let next = state.meta.next_commit;
        if next >= MOST_RANDOM {
            return next;
        }
        // Not all ones, which a caller may have another use for.
        (next | RANDOM_BITS) + 1 + self.files.random.next_u64() % RANDOM_BITS
    }

    /// Charges what is known of a vBucket after a change.
    fn charge(&self, state: &mut ShardState, vb: u16) {
        let both = [state.meta.vbs.get(&vb), state.meta.prepared.get(&vb)];
        let now = both.into_iter().flatten().map(|meta| meta.memory()).sum();
        let before = if now == 0 { state.charged.remove(&vb) } else { state.charged.insert(vb, now) };
        self.account.charge(Part::Storage, now);
        self.account.release(Part::Storage, before.unwrap_or(0));
        let bytes = state.meta.vbs.get(&vb).map(|meta| meta.bytes());
        state.sizes.set(vb, bytes);
    }

    fn apply(&self, state: &mut ShardState, edit: &Edit) {
        state.meta.apply(edit);
        if let Some(vb) = edit.vb() {
            self.charge(state, vb);
        }
        match edit {
            Edit::AddRun(run) => {
                let RunMeta { number, nonce, bytes, low, high, vbs, .. } = run.clone();
                let file = self.log_file(FileKind::Run, (number, nonce), bytes);
                let run = Arc::new(Run::new(file, (low, high), vbs, self.account.clone()));
                let runs = Arc::make_mut(&mut state.runs);
                let at = runs.partition_point(|known| known.low > low);
                runs.insert(at, run);
            }
            Edit::AddSegment { number, segment } => {
                let file = self.log_file(FileKind::Segment, (*number, segment.nonce), segment.len);
                let segment = Arc::new(Segment::new(file, self.account.clone()));
                Arc::make_mut(&mut state.segments).insert(*number, segment);
            }
            Edit::RemoveFile { kind: FileKind::Run, number } => {
                let runs = Arc::make_mut(&mut state.runs);
                if let Some(at) = runs.iter().position(|run| run.file.number() == *number) {
                    runs.remove(at).file.make_obsolete();
                }
            }
            Edit::RemoveFile { kind: FileKind::Segment, number } => {
                if let Some(segment) = Arc::make_mut(&mut state.segments).remove(number) {
                    segment.file.make_obsolete();
                }
            }
            Edit::Commit(commit) => {
                state.touched.insert(commit.vb, u64::from(self.files.keeping.clock.unix_s()));
            }
            Edit::Drop { vb } => {
                state.refused.remove(vb);
                state.recorded.remove(vb);
                state.touched.remove(vb);
            }
            Edit::Damage { vb, what } => {
                state.refused.insert(*vb, what.clone());
            }
            _ => {}
        }
    }

    /// Why a vBucket is not served, if it is not.
    pub(crate) fn check(&self, state: &ShardState, vb: u16) -> Result<(), Failure> {
        let refused = state.refused.get(&vb).or(state.all_refused.as_ref());
        refused.map_or(Ok(()), |what| Err(Failure::Refused { vb, what: what.clone() }))
    }

    /// A vBucket as it is now; `None` if there is none.
    pub(crate) fn view(&self, vb: u16) -> Result<Option<View>, Failure> {
        let state = self.state.read();
        self.check(&state, vb)?;
        Ok(state.meta.vbs.get(&vb).map(|meta| View {
            vb,
            meta: meta.clone(),
            runs: state.runs.clone(),
            segments: state.segments.clone(),
            cache: self.cache.clone(),
        }))
    }

    /// Puts a new manifest in the place of one of which it is not known what it says, or that is large.
    fn renew(&self, writer: &mut Writer) -> Result<(), Failure> {
        let mut meta = self.state.read().meta.clone();
        meta.apply(&Edit::Beside { number: self.files.beside.load(Ordering::Relaxed) });
        writer.manifest = None;
        writer.is_unsettled = true;
        let manifest = Manifest::begin(&self.files, (self.index, self.config.shards), &meta)?;
        self.files.count(Purpose::Manifests, manifest.len());
        self.manifest_bytes.store(manifest.len(), Ordering::Relaxed);
        self.state.write().sum_files(manifest.len());
        writer.manifest = Some(manifest);
        writer.is_unsettled = false;
        writer.beside = meta.beside;
        for name in writer.strays.drain(..) {
            // What cannot be removed now is removed by the next start.
            self.files.disk.remove_file(&self.files.path(&name)).ok();
        }
        Ok(())
    }

    /// Whether the manifest is encrypted as a new one would be.
    pub(crate) fn has_current_manifest(&self) -> bool {
        self.writer.lock().manifest.as_ref().is_none_or(Manifest::is_current)
    }

    /// Writes the manifest again.
    pub(crate) fn renew_manifest(&self) -> Result<(), Failure> {
        self.renew(&mut self.writer.lock())
    }

    /// If it is not known what the manifest says, puts a new one in its place. Says whether that was so.
    pub(crate) fn settle(&self) -> Result<bool, Failure> {
        let mut writer = self.writer.lock();
        if !writer.is_unsettled {
            return Ok(false);
        }
        self.renew(&mut writer).map(|()| true)
    }

    /// Writes a record, which is durable once the file that is returned is synced: [`Shard::written`] or
    /// [`Shard::is_in_doubt`] is to be told then. `names` are new files that it names; if this fails they may be named.
    pub(crate) fn write(
        &self,
        writer: &mut Writer,
        edits: &[Edit],
        names: &[String],
    ) -> Result<Arc<dyn File>, Failure> {
        let limit = self.config.manifest_bytes;
        let is_large = |manifest: &Manifest| manifest.len() > limit.max(manifest.first_bytes * 4);
        if writer.manifest.as_ref().is_none_or(is_large)
            && let Err(failure) = self.renew(writer)
        {
            // Neither the old one nor the new one names them.
            for name in names {
                self.files.disk.remove_file(&self.files.path(name)).ok();
            }
            return Err(failure);
        }
        let manifest = writer.manifest.as_mut().expect("it was begun");
        let before = manifest.len();
        let beside = self.files.beside.load(Ordering::Relaxed);
        let written = if beside > writer.beside {
            manifest.write(&[&[Edit::Beside { number: beside }], edits].concat())
        } else {
            manifest.write(edits)
        };
        self.files.count(Purpose::Manifests, manifest.len() - before);
        self.manifest_bytes.store(manifest.len(), Ordering::Relaxed);
        // If it fails, or its sync does, another manifest is begun, which notes the number.
        writer.beside = writer.beside.max(beside);
        if written.is_err() {
            self.is_in_doubt(writer, names);
        }
        written
    }

    /// The record that was written last is durable: what it says is so now.
    pub(crate) fn written(&self, edits: &[Edit]) {
        let mut state = self.state.write();
        edits.iter().for_each(|edit| self.apply(&mut state, edit));
        state.sum_files(self.manifest_bytes.load(Ordering::Relaxed));
    }

    /// It is not known whether the record that was written last is durable.
    pub(crate) fn is_in_doubt(&self, writer: &mut Writer, names: &[String]) {
        writer.manifest = None;
        writer.is_unsettled = true;
        writer.strays.extend_from_slice(names);
    }

    /// Changes the shard, durably.
    pub(crate) fn log(&self, writer: &mut Writer, edits: &[Edit], names: &[String]) -> Result<(), Failure> {
        let file = self.write(writer, edits, names)?;
        if let Err(source) = file.sync_data() {
            let (path, end) =
                writer.manifest.as_ref().map(|one| (one.path().clone(), one.len())).expect("it is there");
            self.is_in_doubt(writer, names);
            return Err(Failure::io("sync", &path, end, source));
        }
        self.written(edits);
        Ok(())
    }

    /// Forgets a vBucket, durably.
    pub(crate) fn delete(&self, vb: u16) -> Result<(), Failure> {
        let mut writer = self.writer.lock();
        let is_known = {
            let state = self.state.read();
            let meta = &state.meta;
            meta.vbs.contains_key(&vb)
                || meta.prepared.contains_key(&vb)
                || meta.damaged.contains_key(&vb)
                || state.refused.contains_key(&vb)
        };
        if !is_known && !writer.is_unsettled {
            return Ok(());
        }
        self.log(&mut writer, &[Edit::Drop { vb }], &[])
    }

    /// Refuses a vBucket until the next start.
    pub(crate) fn refuse(&self, vb: u16, what: Arc<str>) {
        self.state.write().refused.entry(vb).or_insert(what);
    }

    /// Goes back to the newest commit that is kept and has no seqno above `to`. `before` is called with that commit when it is
    /// durable, before it is in force, or with `None` before the vBucket is forgotten.
    pub(crate) fn rollback<E: From<Failure>>(
        &self,
        vb: u16,
        to: u64,
        before: Option<&dyn Fn(Option<Commit>) -> Result<(), E>>,
    ) -> Result<Option<Commit>, E> {
        let mut writer = self.writer.lock();
        let (meta, epoch, commit) = {
            let state = self.state.read();
            self.check(&state, vb)?;
            let Some(meta) = state.meta.vbs.get(&vb).cloned() else { return Ok(None) };
            if state.meta.prepared.contains_key(&vb) {
                return Err(
                    Failure::Ended { vb, why: "an earlier rollback is not decided; try again" }.into()
                );
            }
            (meta, state.meta.next_epoch, self.new_commit(&state))
        };
        let now = Commit { epoch: meta.epoch(), number: meta.last().commit };
        if meta.high() <= to {
            return Ok(Some(now));
        }
        let can_be_gone_back_to = |point: &Point| point.high <= to && point.commit >= meta.barrier;
        let Some(at) = meta.points.iter().rposition(can_be_gone_back_to) else {
            before.map_or(Ok(()), |before| before(None))?;
            self.log(&mut writer, &[Edit::Drop { vb }], &[])?;
            return Ok(None);
        };
        let back = meta.rolled_back(at, epoch, commit);
        let number = back.last().commit;
        let Some(before) = before else {
            self.log(&mut writer, &[Edit::Set { vb, meta: back }], &[])?;
            return Ok(Some(Commit { epoch, number }));
        };
        self.log(&mut writer, &[Edit::Prepare { vb, meta: back }], &[])?;
        before(Some(Commit { epoch, number }))?;
        self.adopt(&mut writer, vb);
        Ok(Some(Commit { epoch, number }))
    }

    /// A rollback is on record with the caller: it is in force, whether or not the manifest can say so now.
    pub(crate) fn adopt(&self, writer: &mut Writer, vb: u16) {
        let edits = [Edit::Adopt { vb }];
        if self.log(writer, &edits, &[]).is_err() {
            self.written(&edits);
            // The next record is behind a manifest that says so.
            self.is_in_doubt(writer, &[]);
        }
    }

    /// A rollback that was prepared will not come into force.
    pub(crate) fn forget_rollback(&self, vb: u16) -> Result<(), Failure> {
        let mut writer = self.writer.lock();
        if !self.state.read().meta.prepared.contains_key(&vb) {
            return Ok(());
        }
        self.log(&mut writer, &[Edit::Forget { vb }], &[])
    }

    /// See [`crate::LogStore::copy_files`].
    pub(crate) fn copy_files(&self, vb: u16, to: &Path) -> Result<usize, Failure> {
        // Nothing is removed while these are held.
        let _writer = self.writer.lock();
        let (runs, segments) = {
            let state = self.state.read();
            let runs: Vec<Arc<Run>> = state.runs.iter().filter(|run| run.has_vb(vb)).cloned().collect();
            let extents = state.meta.vbs.get(&vb).map(|meta| meta.extents.clone()).unwrap_or_default();
            let of = |number: &u64| state.segments.get(number).cloned();
            let numbers: BTreeSet<u64> = extents.iter().map(|extent| extent.segment).collect();
            (runs, numbers.iter().filter_map(of).collect::<Vec<_>>())
        };
        let files = runs.iter().map(|run| &run.file).chain(segments.iter().map(|segment| &segment.file));
        let mut names: Vec<String> = files.filter_map(LogFile::name).collect();
        names.push(manifest_name(self.index));
        let path: Arc<Path> = to.into();
        let failed = |operation| {
            let path = path.clone();
            move |source| Failure::io(operation, &path, 0, source)
        };
        let disk = &*self.files.disk;
        disk.create_dir_all_synced(to).map_err(failed("make folder"))?;
        let mut copied = 0;
        for name in names {
            let source = match disk.open(&self.files.path(&name), OpenMode::Read) {
                // What is damaged is copied as far as it is there.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed("copy a file to"))?,
            };
            copy(
                &*source,
                &*disk.open(&to.join(&name), OpenMode::Create).map_err(failed("create a file in"))?,
            )
            .map_err(failed("copy a file to"))?;
            copied += 1;
        }
        disk.sync_dir(to).map_err(failed("sync"))?;
        Ok(copied)
    }

    /// Refuses every vBucket until the next start.
    pub(crate) fn refuse_all(&self, what: Arc<str>) {
        self.state.write().all_refused = Some(what);
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let charged = self.state.get_mut().charged.values().sum();
        self.account.release(Part::Storage, charged);
    }
}

/// Of the number of a commit, those that are random.
const RANDOM_BITS: u64 = (1 << 24) - 1;
/// From this number on commits are counted, so that they never reach the bits that a caller may have another use for.
const MOST_RANDOM: u64 = 1 << 60;

/// So much is copied at once.
const COPY_BYTES: usize = 1 << 20;

fn copy(from: &dyn File, to: &dyn File) -> std::io::Result<()> {
    to.set_len(0)?;
    let (mut buffer, mut at) = (vec![0; COPY_BYTES], 0);
    loop {
        let read = from.read_at(&mut buffer, at)?;
        if read == 0 {
            return to.sync_data();
        }
        to.write_at(&buffer[..read], at)?;
        at += read as u64;
    }
}
