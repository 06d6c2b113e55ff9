//! Appends to the log: entries are kept in memory until they are written as a group and made durable together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::Sealer;
use base::env::{Disk, File, OpenMode};
use base::{Seqno, VbId, VbUuid};
use protocol::dcp::Marker;

use super::entry::{LogEntry, LoggedChange, write_entry};
use super::frame::{FrameHeader, FrameKind, FrameSeal};
use super::gaps::GapSet;
use super::position::{GroupCommit, LogPosition, SegmentState, SnapshotMarks};
use super::segment_path;
use crate::backup::BackupError;
use crate::client::dcp::Position;

/// A segment that is longer gets no further group.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Neither does one that is older, in a folder and in an object store, where each group is an object until it ends.
pub(super) const SEGMENT_AGE_NS: u64 = 3_600_000_000_000;
pub(super) const SEGMENT_AGE_IN_STORE_NS: u64 = 300_000_000_000;
/// What has come up to so long after the vBucket had all that there was counts from when it came.
const LIVE_NS: u64 = 2_000_000_000;
/// More bytes than these are not kept in memory, but for the last entry.
pub(crate) const MOST_BUFFERED_BYTES: usize = 8 << 20;

/// Where a log goes on.
pub(super) struct LogPlace {
    pub(super) epoch: u64,
    pub(super) segment: u32,
    pub(super) previous_len: Option<u64>,
    /// Up to which moment the log has everything.
    pub(super) horizon: u64,
    pub(super) why: String,
    /// Encrypts what is written, if there is a key.
    pub(super) sealer: Option<Sealer>,
    /// A segment that is older gets no further group.
    pub(super) most_age_ns: u64,
}

impl LogPlace {
    fn seal(&self) -> FrameSeal {
        FrameSeal { sealer: self.sealer.clone(), segment: self.segment }
    }
}

/// A group that is to be written behind what its segment has.
pub(crate) struct LogGroup {
    file: Arc<dyn File>,
    path: PathBuf,
    at: u64,
    bytes: Vec<u8>,
    /// Since when its oldest change waits.
    pub(crate) since: Option<u64>,
    /// Up to which moment the log has everything with it.
    pub(crate) horizon: u64,
}

impl LogGroup {
    /// Writes it and makes it durable.
    pub(crate) fn write(&self) -> Result<(), BackupError> {
        self.file.write_at(&self.bytes, self.at).map_err(|error| failed("write", &self.path, error))?;
        self.file.sync_data().map_err(|error| failed("sync", &self.path, error))
    }
}

/// One vBucket's entries that are not written yet.
#[derive(Default)]
struct EntryBuffer {
    raw: Vec<u8>,
    count: u32,
    has_events: bool,
    seqnos: (u64, u64),
    moments: (u64, u64),
}

/// The log of a bucket while it is followed.
pub(crate) struct LogWriter {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    bucket: String,
    place: LogPlace,
    file: Arc<dyn File>,
    /// Bytes of the segment, with those of a group that was taken to be written.
    end: u64,
    group: u64,
    begun: u64,
    vbuckets: Vec<LogPosition>,
    marks: Vec<SnapshotMarks>,
    buffers: Vec<EntryBuffer>,
    dirty: BTreeSet<u16>,
    /// Frames that are to be written.
    frames: Vec<u8>,
    buffered: usize,
    commit: GroupCommit,
    encoder: snap::raw::Encoder,
    /// The latest moment that was given.
    now: u64,
    /// Since when changes wait to be written, and since when a horizon does.
    waiting_since: (Option<u64>, Option<u64>),
    pub(crate) versions: u64,
    /// Gaps that ended, of all vBuckets.
    gaps: GapSet,
    pub(crate) rollbacks: u64,
}

impl LogWriter {
    /// Begins a segment, durably.
    pub(super) fn begin(
        disk: &Arc<dyn Disk>,
        folder: &Path,
        bucket: &str,
        place: LogPlace,
        (vbuckets, marks): (Vec<LogPosition>, Vec<SnapshotMarks>),
        now: u64,
    ) -> Result<LogWriter, BackupError> {
        disk.create_dir_all_synced(folder).map_err(|error| failed("make", folder, error))?;
        let now = vbuckets.iter().map(|vb| vb.moment).fold(now.max(place.horizon), u64::max);
        let buffers = vbuckets.iter().map(|_| EntryBuffer::default()).collect();
        let mut encoder = snap::raw::Encoder::new();
        let (file, end) = begin_segment(&**disk, folder, bucket, &place, &vbuckets, now, &mut encoder)?;
        Ok(LogWriter {
            disk: disk.clone(),
            folder: folder.to_owned(),
            bucket: bucket.to_owned(),
            commit: GroupCommit { horizon: place.horizon, ..GroupCommit::default() },
            place,
            file,
            end,
            group: 1,
            begun: now,
            vbuckets,
            marks,
            buffers,
            dirty: BTreeSet::new(),
            frames: Vec::new(),
            buffered: 0,
            encoder,
            now,
            waiting_since: (None, None),
            versions: 0,
            gaps: GapSet::default(),
            rollbacks: 0,
        })
    }

    /// Where the log is in each vBucket.
    pub(crate) fn positions(&self) -> &[LogPosition] {
        &self.vbuckets
    }

    /// Up to which moment the log has everything, as it was said last.
    pub(crate) fn horizon(&self) -> u64 {
        self.commit.horizon
    }

    /// Stretches of time that cannot be restored, as `stave backup list` counts them, and nanoseconds in them: those that
    /// ended or are open since this writer began.
    pub(crate) fn gaps(&self) -> (u64, u64) {
        let open = self.vbuckets.iter().filter_map(|at| at.gap).map(|(_, from)| from).min();
        self.gaps.up_to(self.horizon(), open)
    }

    /// When its segment was begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Since when changes wait to be written, and since when a horizon does.
    pub(crate) fn waiting_since(&self) -> (Option<u64>, Option<u64>) {
        self.waiting_since
    }

    /// Whether memory has as much as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.buffered >= MOST_BUFFERED_BYTES
    }

    /// A moment that is later than each one before it, whatever the clock does.
    pub(crate) fn now(&mut self, clock_ns: u64) -> u64 {
        self.now = clock_ns.max(self.now + 1);
        self.now
    }

    /// The latest moment that was given.
    pub(crate) fn latest(&self) -> u64 {
        self.now
    }

    /// A stream goes on in a history.
    pub(crate) fn history(&mut self, vb: VbId, uuid: VbUuid, clock_ns: u64) {
        let now = self.now(clock_ns);
        let Some(at) = self.vbuckets.get_mut(usize::from(vb.0)) else { return };
        at.streams_since = now;
        if at.position.uuid == uuid {
            return;
        }
        at.position.uuid = uuid;
        let seqnos = (uuid.0, at.position.seqno.0);
        self.frame(FrameKind::History, vb, seqnos);
    }

    /// The stream that has just gone on was away; one that only went back for a prepare was not.
    pub(crate) fn was_away(&mut self, vb: VbId) {
        if let Some(at) = self.vbuckets.get_mut(usize::from(vb.0)) {
            at.away_until = at.streams_since;
        }
    }

    /// A snapshot begins.
    pub(crate) fn marker(&mut self, vb: VbId, marker: &Marker) {
        let index = usize::from(vb.0);
        let Some(at) = self.vbuckets.get_mut(index) else { return };
        (at.position.snapshot_start, at.position.snapshot_end) = (marker.start, marker.end);
        let entry = LogEntry::Marker { start: marker.start.0, end: marker.end.0, flags: marker.flags };
        self.append(vb, &entry);
    }

    /// When something that came now was made that has no time of its own, as commits and aborts: when it came. If the log
    /// has lately not had all that there was, that may be hours later: then it counts from behind what is in front of it. So
    /// does what may have been made while the stream was away, if only for a moment.
    pub(crate) fn time_of_completion(&self, vb: VbId, clock_ns: u64) -> Option<u64> {
        // What comes behind something that was made since the stream went on was made since then, too.
        let is_live = |at: &LogPosition| {
            at.floor.max(at.moment) > at.away_until && clock_ns.saturating_sub(at.floor) <= LIVE_NS
        };
        if self.vbuckets.get(usize::from(vb.0)).is_some_and(is_live) { None } else { Some(0) }
    }

    /// Something came that has a place in its vBucket. `made` is the moment at which it was made, as the node says.
    pub(crate) fn change(
        &mut self,
        vb: VbId,
        seqno: Seqno,
        made: Option<u64>,
        clock_ns: u64,
        what: LoggedChange<'_>,
    ) {
        let now = self.now(clock_ns);
        let index = usize::from(vb.0);
        let Some(at) = self.vbuckets.get_mut(index) else { return };
        let made = if matches!(what, LoggedChange::Advanced) { 0 } else { made.unwrap_or(now) };
        let moment = made.min(now).max(at.floor + 1).max(at.moment + 1);
        // Who is told of no change behind what is missing misses prepares alone, which nobody reads. When an event was made
        // is not known.
        let next = at.position.seqno.0 + 1;
        let is_next = match what {
            LoggedChange::Version(_) => seqno.0 == next,
            // An abort may take the place of its prepare.
            LoggedChange::Hidden { prepared } => seqno.0 == next || (prepared == next && seqno.0 == next + 1),
            LoggedChange::Event { .. } => false,
            LoggedChange::Advanced => true,
        };
        let until = if is_next { moment - 1 } else { at.moment.max(at.floor) };
        if at.gap.is_none() && at.is_consistent {
            self.marks[index].add(at.position.seqno.0, until);
        }
        if !is_next && at.gap.is_none() {
            at.gap = Some((at.position.seqno.0, until));
            self.commit.gaps.push([vb.0.into(), 1, at.position.seqno.0, until]);
        }
        at.moment = moment;
        let snapshot = (at.position.snapshot_start, at.position.snapshot_end);
        at.position.advance(seqno, snapshot);
        at.is_consistent = seqno >= snapshot.1;
        if at.is_consistent
            && let Some((_, from)) = at.gap.take()
        {
            self.gaps.add(from, moment);
            self.commit.gaps.push([vb.0.into(), 0, seqno.0, moment]);
        }
        self.versions += u64::from(matches!(what, LoggedChange::Version(_)));
        let buffer = &mut self.buffers[index];
        if buffer.count == 0 {
            (buffer.seqnos.0, buffer.moments.0) = (seqno.0, moment);
        }
        (buffer.seqnos.1, buffer.moments.1) = (seqno.0, moment);
        buffer.count += 1;
        buffer.has_events |= matches!(what, LoggedChange::Event { .. });
        self.append(vb, &LogEntry::Seqno { seqno: seqno.0, moment, what });
    }

    fn append(&mut self, vb: VbId, entry: &LogEntry<'_>) {
        let raw = &mut self.buffers[usize::from(vb.0)].raw;
        let before = raw.len();
        write_entry(raw, entry);
        self.buffered += raw.len() - before;
        self.dirty.insert(vb.0);
        self.waiting_since.0.get_or_insert(self.now);
    }

    /// A vBucket went back: what came behind `to` is never restored. `false` if the log does not reach back so far.
    pub(crate) fn rollback(&mut self, vb: VbId, to: Seqno, origin: u64) -> bool {
        if to.0 < origin {
            return false;
        }
        let index = usize::from(vb.0);
        let Some(at) = self.vbuckets.get_mut(index) else { return false };
        at.position = at.position.rolled_back(to);
        (at.floor, at.streams_since) = (at.floor.max(at.moment), u64::MAX);
        // What is missing in front of `to` stays so.
        if let Some((since, moment)) = at.gap
            && since >= to.0
        {
            let end = at.moment.max(moment);
            self.gaps.add(moment, end);
            self.commit.gaps.push([vb.0.into(), 0, to.0, end]);
            at.gap = None;
        }
        // From the first change that went back on until the next snapshot is complete it is not known what was there.
        let since = self.marks[index].roll_back(to.0).min(at.moment);
        at.is_consistent = true;
        if at.gap.is_none() {
            at.gap = Some((to.0, since));
            self.commit.gaps.push([vb.0.into(), 1, to.0, since]);
        }
        self.rollbacks += 1;
        self.frame(FrameKind::Rollback, vb, (to.0, to.0));
        true
    }

    /// A frame without a body behind what the vBucket has.
    fn frame(&mut self, kind: FrameKind, vb: VbId, seqnos: (u64, u64)) {
        self.seal_buffer(vb.0);
        let mut header = FrameHeader::new(self.place.epoch, self.group, kind, vb);
        header.seqnos = seqnos;
        header.seal(&[], &self.place.seal(), &mut self.encoder, &mut self.frames);
        self.waiting_since.0.get_or_insert(self.now);
    }

    fn seal_buffer(&mut self, vb: u16) {
        self.dirty.remove(&vb);
        let buffer = &mut self.buffers[usize::from(vb)];
        if buffer.raw.is_empty() {
            return;
        }
        let mut header = FrameHeader::new(self.place.epoch, self.group, FrameKind::Entries, VbId(vb));
        (header.count, header.has_events) = (buffer.count, buffer.has_events);
        (header.seqnos, header.moments) = (buffer.seqnos, buffer.moments);
        header.seal(&buffer.raw, &self.place.seal(), &mut self.encoder, &mut self.frames);
        *buffer = EntryBuffer::default();
    }

    /// Everything up to a moment has come: the log says so from the next group on.
    pub(crate) fn complete_through(&mut self, horizon: u64) {
        if horizon > self.commit.horizon {
            self.commit.horizon = horizon;
            self.waiting_since.1.get_or_insert(self.now);
        }
    }

    /// A vBucket had nothing at a moment that is not here.
    pub(crate) fn nothing_before(&mut self, vb: VbId, moment: u64) {
        let Some(at) = self.vbuckets.get_mut(usize::from(vb.0)) else { return };
        // Since its stream goes on nothing is known that another node may have said.
        if moment <= at.streams_since {
            return;
        }
        at.floor = at.floor.max(moment);
        let Position { seqno, snapshot_end, .. } = at.position;
        if seqno >= snapshot_end
            && let Some((_, from)) = at.gap.take()
        {
            let end = moment.max(at.moment);
            self.gaps.add(from, end);
            self.commit.gaps.push([vb.0.into(), 0, seqno.0, end]);
            self.waiting_since.1.get_or_insert(self.now);
        }
    }

    /// Writes what waits as one group and makes it durable.
    pub(crate) fn flush(&mut self, clock_ns: u64) -> Result<(), BackupError> {
        let Some(group) = self.take_group(clock_ns) else { return Ok(()) };
        group.write()?;
        self.has_written(clock_ns)
    }

    /// Takes what waits as one group, which is to be written before another one is taken. If it cannot be, nothing more may
    /// be.
    pub(crate) fn take_group(&mut self, clock_ns: u64) -> Option<LogGroup> {
        if self.waiting_since == (None, None) {
            return None;
        }
        let now = self.now(clock_ns);
        while let Some(vb) = self.dirty.first().copied() {
            self.seal_buffer(vb);
        }
        self.commit.moment = now;
        let body = serde_json::to_vec(&self.commit).expect("plain data");
        let group = self.group_of(FrameKind::Commit, &body);
        self.commit.gaps = Vec::new();
        (self.buffered, self.waiting_since) = (0, (None, None));
        Some(group)
    }

    /// The group that was taken is durable: goes on in another segment if it is time for that.
    pub(crate) fn has_written(&mut self, clock_ns: u64) -> Result<(), BackupError> {
        let now = self.now(clock_ns);
        if self.end < SEGMENT_BYTES && now.saturating_sub(self.begun) < self.place.most_age_ns {
            return Ok(());
        }
        // What came meanwhile is of this segment.
        if let Some(group) = self.take_group(now) {
            group.write()?;
        }
        self.turn(now)
    }

    /// A group of the frames that wait and a last one.
    fn group_of(&mut self, kind: FrameKind, body: &[u8]) -> LogGroup {
        let header = FrameHeader::new(self.place.epoch, self.group, kind, VbId(0));
        header.seal(body, &self.place.seal(), &mut self.encoder, &mut self.frames);
        let group = LogGroup {
            file: self.file.clone(),
            path: segment_path(&self.folder, self.place.segment),
            at: self.end,
            bytes: std::mem::take(&mut self.frames),
            since: self.waiting_since.0,
            horizon: self.commit.horizon,
        };
        self.end += group.bytes.len() as u64;
        self.group += 1;
        group
    }

    /// Goes on in the next segment.
    fn turn(&mut self, now: u64) -> Result<(), BackupError> {
        self.group_of(FrameKind::Seal, &[]).write()?;
        self.place.previous_len = Some(self.end);
        self.place.segment += 1;
        self.place.horizon = self.commit.horizon;
        let latest = self.vbuckets.iter().map(|vb| vb.moment).fold(now, u64::max);
        self.begun = latest;
        (self.file, self.end) = begin_segment(
            &*self.disk,
            &self.folder,
            &self.bucket,
            &self.place,
            &self.vbuckets,
            latest,
            &mut self.encoder,
        )?;
        self.group = 1;
        Ok(())
    }

    /// Writes what waits, and that the segment gets no further frame.
    pub(crate) fn finish(mut self, clock_ns: u64) -> Result<(), BackupError> {
        self.flush(clock_ns)?;
        self.group_of(FrameKind::Seal, &[]).write()
    }

    /// The number of its segment.
    pub(crate) fn segment(&self) -> u32 {
        self.place.segment
    }
}

/// Makes the file of a segment with its first frame, durably; it and its length.
fn begin_segment(
    disk: &dyn Disk,
    folder: &Path,
    bucket: &str,
    place: &LogPlace,
    vbuckets: &[LogPosition],
    now: u64,
    encoder: &mut snap::raw::Encoder,
) -> Result<(Arc<dyn File>, u64), BackupError> {
    let path = segment_path(folder, place.segment);
    let (previous_len, moments) = (place.previous_len, (now, place.horizon));
    let positions = &mut vbuckets.iter();
    let state = SegmentState::new(bucket, place.segment, previous_len, moments, &place.why, positions);
    let body = serde_json::to_vec(&state).expect("plain data");
    let mut frame = Vec::new();
    let header = FrameHeader::new(place.epoch, 0, FrameKind::State, VbId(0));
    header.seal(&body, &place.seal(), encoder, &mut frame);
    let file = disk.open(&path, OpenMode::CreateNew).map_err(|error| failed("make", &path, error))?;
    file.write_at(&frame, 0).map_err(|error| failed("write", &path, error))?;
    file.sync_data().map_err(|error| failed("sync", &path, error))?;
    disk.sync_dir(folder).map_err(|error| failed("sync", folder, error))?;
    Ok((file, frame.len() as u64))
}

fn failed(operation: &'static str, path: &Path, source: std::io::Error) -> BackupError {
    BackupError::Io { operation, path: path.to_owned(), source }
}
