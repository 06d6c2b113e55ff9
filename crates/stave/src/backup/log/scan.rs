//! Finds out what a log has: its segments, the epochs that they belong to, and where writing goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::Sealer;
use base::env::{Disk, Env, OpenMode};

use super::entry::{EntryRuns, LogEntry};
use super::frame::{FrameHeader, FrameKind};
use super::gaps::{Gap, GapTracker};
use super::position::{GroupCommit, LogPosition, SnapshotMarks};
use super::segment::{Segment, SegmentFile, read_segment};
use super::writer::{LogPlace, LogWriter, SEGMENT_AGE_IN_STORE_NS, SEGMENT_AGE_NS};
use super::{LOG, SEGMENT, segment_path};
use crate::backup::{BackupError, Repository};

/// Frames and gaps of a log that are kept in memory, about 90 and 40 MiB at the most: a longer log is read again for them.
const MOST_KEPT: usize = 1 << 20;
/// A clock that is behind the log by less than this is waited for; one that is further behind was set back.
const CLOCK_STEP_NS: u64 = 1_000_000_000;

/// By how much a clock that shows `clock_ns` was set back, if moments up to `given` were given.
pub(crate) fn clock_set_back(given: u64, clock_ns: u64) -> Option<u64> {
    given.checked_sub(clock_ns).filter(|behind| *behind > CLOCK_STEP_NS)
}

/// What was seen while the log was scanned; `None` if it is too much.
struct Seen {
    /// Frames that say something of a vBucket: the place of the segment, their own, their header.
    frames: Option<Vec<(u32, u64, FrameHeader)>>,
    gaps: Option<Vec<Gap>>,
    most: usize,
}

impl Seen {
    fn frames(&mut self, segment: usize, frames: &[(u64, FrameHeader)]) {
        let Some(kept) = &mut self.frames else { return };
        let is_of_vbucket = |header: &FrameHeader| {
            matches!(header.kind, FrameKind::Entries | FrameKind::Rollback | FrameKind::History)
        };
        let of_vbuckets = frames.iter().filter(|(_, header)| is_of_vbucket(header));
        kept.extend(of_vbuckets.map(|(at, header)| (segment as u32, *at, *header)));
        if kept.len() > self.most {
            self.frames = None;
        }
    }

    fn gap(&mut self, gap: &Gap, visit: &mut dyn FnMut(&Gap)) {
        visit(gap);
        let Some(kept) = &mut self.gaps else { return };
        kept.push(*gap);
        if kept.len() > self.most {
            self.gaps = None;
        }
    }
}

/// The log of a bucket, as it is on disk.
pub(crate) struct ChangeLog {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    bucket: String,
    pub(super) segments: Vec<Segment>,
    /// A file at the end that holds no group, and not even its own first frame.
    empty: Option<(u32, u64)>,
    seen: Seen,
    /// Decrypts what is encrypted, and encrypts what is written.
    sealer: Option<Sealer>,
    /// How old segments become that are written.
    most_age_ns: u64,
}

/// Segments that go on from each other.
#[derive(Clone, Debug)]
pub(crate) struct Epoch {
    /// Drawn at random when it was begun.
    pub(crate) number: u64,
    /// Its segments' places.
    pub(super) segments: std::ops::Range<usize>,
    /// The first moment that it has.
    pub(crate) from: u64,
    /// The last moment that it has.
    pub(crate) horizon: u64,
    /// Why it was begun.
    pub(crate) why: String,
    pub(crate) bytes: u64,
}

impl Epoch {
    /// How many segments it has.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }
}

impl ChangeLog {
    /// Reads the log of a bucket; without one it has no segments.
    pub(crate) fn open(repository: &Repository<'_>, bucket: &str) -> Result<ChangeLog, BackupError> {
        let folder = repository.folder(bucket).join(LOG);
        let sealer = repository.sealer(bucket)?;
        let log = ChangeLog::scan(repository.env, &folder, bucket, sealer.as_ref(), MOST_KEPT)?;
        let most_age_ns = if repository.is_store() { SEGMENT_AGE_IN_STORE_NS } else { log.most_age_ns };
        Ok(ChangeLog { most_age_ns, ..log })
    }

    /// The last moment that the log of a bucket has, if it has one. Reads the end of the log alone.
    pub(crate) fn last_moment(repository: &Repository<'_>, bucket: &str) -> Result<Option<u64>, BackupError> {
        let folder = repository.folder(bucket).join(LOG);
        let (disk, sealer) = (repository.disk(), repository.sealer(bucket)?);
        let mut is_last = true;
        for number in segment_numbers(disk, &folder)?.into_iter().rev() {
            let read = |_: &GroupCommit, _: &[(u64, FrameHeader)]| ();
            if let Some(segment) =
                read_segment(disk, &folder, number, sealer.as_ref(), is_last, &mut { read })?
            {
                return Ok(Some(segment.horizon));
            }
            is_last = false;
        }
        Ok(None)
    }

    /// Tells `visit` each gap.
    pub(crate) fn each_gap(&self, visit: &mut dyn FnMut(&Gap)) -> Result<(), BackupError> {
        if let Some(gaps) = &self.seen.gaps {
            gaps.iter().for_each(visit);
            return Ok(());
        }
        ChangeLog::read(&self.disk, &self.folder, &self.bucket, self.sealer.as_ref(), 0, visit).map(drop)
    }

    /// Tells `visit` each frame of an epoch that says something of a vBucket: the place of its segment in the log, its own
    /// place, its header.
    pub(super) fn each_frame(
        &self,
        disk: &dyn Disk,
        epoch: &Epoch,
        visit: &mut dyn FnMut(u32, u64, &FrameHeader),
    ) -> Result<(), BackupError> {
        if let Some(frames) = &self.seen.frames {
            let of_epoch = |segment: u32| epoch.segments.contains(&(segment as usize));
            let frames = frames.iter().filter(|(segment, ..)| of_epoch(*segment));
            frames.for_each(|(segment, at, header)| visit(*segment, *at, header));
            return Ok(());
        }
        for number in epoch.segments.clone() {
            let segment = &self.segments[number];
            let mut file = self.open_segment(disk, segment)?;
            let mut at = 0;
            while at < segment.end {
                let header = file.header(at)?;
                let header = header
                    .ok_or_else(|| BackupError::damaged(&segment.path, format!("the frame at byte {at}")))?;
                visit(number as u32, at, &header);
                at += header.len();
            }
        }
        Ok(())
    }

    /// One of its segments as a file.
    pub(super) fn open_segment(
        &self,
        disk: &dyn Disk,
        segment: &Segment,
    ) -> Result<SegmentFile, BackupError> {
        let mut file = SegmentFile::open(disk, &self.folder, segment.number, self.sealer.as_ref())?;
        file.is_encrypted = Some(segment.is_encrypted);
        Ok(file)
    }

    /// Reads the log, and keeps so many frames and gaps at the most.
    pub(super) fn scan(
        env: &Env,
        folder: &Path,
        bucket: &str,
        sealer: Option<&Sealer>,
        most: usize,
    ) -> Result<ChangeLog, BackupError> {
        ChangeLog::read(&env.disk, folder, bucket, sealer, most, &mut |_| {})
    }

    fn read(
        disk: &Arc<dyn Disk>,
        folder: &Path,
        bucket: &str,
        sealer: Option<&Sealer>,
        most: usize,
        visit: &mut dyn FnMut(&Gap),
    ) -> Result<ChangeLog, BackupError> {
        let disk = disk.clone();
        let numbers = segment_numbers(&*disk, folder)?;
        let mut log = ChangeLog {
            disk,
            folder: folder.to_owned(),
            bucket: bucket.to_owned(),
            segments: Vec::new(),
            empty: None,
            seen: Seen { frames: Some(Vec::new()), gaps: Some(Vec::new()), most },
            sealer: sealer.cloned(),
            most_age_ns: SEGMENT_AGE_NS,
        };
        let mut gaps = GapTracker::default();
        for (at, number) in numbers.iter().enumerate() {
            let is_last = at + 1 == numbers.len();
            let mut commits = Vec::new();
            let (disk, place, seen) = (&*log.disk, log.segments.len(), &mut log.seen);
            let segment = read_segment(disk, folder, *number, sealer, is_last, &mut |commit, frames| {
                seen.frames(place, frames);
                commits.push(commit.clone());
            })?;
            let Some(segment) = segment else {
                log.empty = Some((*number, segment_len(disk, folder, *number)?));
                break;
            };
            log.check_order(&segment)?;
            if log.segments.last().is_none_or(|before| before.epoch != segment.epoch) {
                gaps.end(&mut |gap| log.seen.gap(gap, visit));
                gaps.begin(segment.epoch, &segment.state.positions());
            }
            commits.iter().for_each(|commit| gaps.commit(commit, &mut |gap| log.seen.gap(gap, visit)));
            log.segments.push(segment);
        }
        gaps.end(&mut |gap| log.seen.gap(gap, visit));
        Ok(log)
    }

    /// An error if a segment does not go on from the one before it.
    fn check_order(&self, segment: &Segment) -> Result<(), BackupError> {
        if segment.state.bucket != self.bucket {
            let what = format!("it belongs to bucket `{}`", segment.state.bucket);
            return Err(BackupError::damaged(&segment.path, what));
        }
        let Some(before) = self.segments.last() else { return Ok(()) };
        if before.is_encrypted && !segment.is_encrypted {
            let what = "it is not encrypted, and the segment before it is";
            return Err(BackupError::damaged(&segment.path, what));
        }
        if before.number + 1 != segment.number {
            let missing = segment_path(&self.folder, before.number + 1);
            return Err(BackupError::damaged(&missing, "it is missing"));
        }
        if segment.state.previous_len != Some(before.end) {
            let what = format!("it has {} bytes that count, not as many as the next one says", before.end);
            return Err(BackupError::damaged(&before.path, what));
        }
        Ok(())
    }

    /// How many of its segments are not encrypted.
    pub(crate) fn plain_segments(&self) -> usize {
        self.segments.iter().filter(|segment| !segment.is_encrypted).count()
    }

    /// The epochs, the oldest first.
    pub(crate) fn epochs(&self) -> Vec<Epoch> {
        let mut epochs: Vec<Epoch> = Vec::new();
        for (at, segment) in self.segments.iter().enumerate() {
            let goes_on = at > 0 && self.segments[at - 1].epoch == segment.epoch;
            match epochs.last_mut().filter(|_| goes_on) {
                Some(epoch) => {
                    epoch.segments.end = at + 1;
                    epoch.horizon = segment.horizon;
                    epoch.bytes += segment.end;
                }
                None => epochs.push(Epoch {
                    number: segment.epoch,
                    segments: at..at + 1,
                    from: segment.state.moment,
                    horizon: segment.horizon,
                    why: segment.state.why.clone(),
                    bytes: segment.end,
                }),
            }
        }
        epochs
    }

    /// Where an epoch begins in each vBucket.
    pub(crate) fn origin(&self, epoch: &Epoch) -> Vec<LogPosition> {
        self.segments[epoch.segments.start].state.positions()
    }

    /// By how much the clock was set back since the last group was written, if it was.
    pub(crate) fn clock_set_back(&self, clock_ns: u64) -> Option<u64> {
        clock_set_back(self.segments.last()?.moment, clock_ns)
    }

    /// Bytes behind the last whole group: what a crash left.
    pub(crate) fn torn_bytes(&self) -> u64 {
        let empty = self.empty.map_or(0, |(_, len)| len);
        empty + self.segments.last().map_or(0, |last| last.len - last.end)
    }

    /// Goes on with the log in a new segment of its last epoch; `None` if there is none. What a crash left behind the last
    /// whole group is cut off.
    pub(crate) fn go_on(&self, clock_ns: u64) -> Result<Option<LogWriter>, BackupError> {
        let Some(last) = self.segments.last() else {
            self.cut()?;
            return Ok(None);
        };
        let from = self.last_positions(last)?;
        self.cut()?;
        let place = LogPlace {
            epoch: last.epoch,
            segment: last.number + 1,
            previous_len: Some(last.end),
            horizon: last.horizon,
            why: last.state.why.clone(),
            sealer: self.sealer.clone(),
            most_age_ns: self.most_age_ns,
        };
        let now = clock_ns.max(last.moment + 1);
        LogWriter::begin(&self.disk, &self.folder, &self.bucket, place, from, now).map(Some)
    }

    /// Begins an epoch: `positions` are those of a backup that was begun at the moment `floor`.
    pub(crate) fn begin_epoch(
        &self,
        number: u64,
        positions: Vec<LogPosition>,
        (floor, clock_ns): (u64, u64),
        why: &str,
    ) -> Result<LogWriter, BackupError> {
        self.cut()?;
        let last = self.segments.last();
        let place = LogPlace {
            epoch: number,
            segment: last.map_or(1, |last| last.number + 1),
            previous_len: last.map(|last| last.end),
            horizon: floor,
            why: why.to_owned(),
            sealer: self.sealer.clone(),
            most_age_ns: self.most_age_ns,
        };
        // Moments that are behind the clock are those of the newest epoch.
        let behind = last.filter(|last| clock_set_back(last.moment, clock_ns).is_none());
        let now = behind.map_or(clock_ns, |last| clock_ns.max(last.moment + 1));
        let marks = vec![SnapshotMarks::default(); positions.len()];
        LogWriter::begin(&self.disk, &self.folder, &self.bucket, place, (positions, marks), now)
    }

    /// Cuts off what a crash left, and makes durable what counts: who wrote the last group may have been killed before that
    /// was synced, or was told that it could not be. What follows names its length.
    fn cut(&self) -> Result<(), BackupError> {
        if let Some((number, _)) = self.empty {
            let path = segment_path(&self.folder, number);
            self.disk.remove_file(&path).map_err(|error| failed("remove", &path, error))?;
            self.disk.sync_dir(&self.folder).map_err(|error| failed("sync", &self.folder, error))?;
        }
        let Some(last) = self.segments.last() else { return Ok(()) };
        let cut = || {
            let file = self.disk.open(&last.path, OpenMode::ReadWrite)?;
            if last.end < file.len()? {
                file.set_len(last.end)?;
            }
            // Behind a sync that failed only what is written once more is sure to be synced.
            let mut tail = vec![0; (last.end - last.last_at) as usize];
            let read = file.read_at(&mut tail, last.last_at)?;
            file.write_at(&tail[..read], last.last_at)?;
            file.sync_data()
        };
        cut().map_err(|error| failed("cut", &last.path, error))
    }

    /// Where the log is in each vBucket at the end of a segment.
    fn last_positions(
        &self,
        segment: &Segment,
    ) -> Result<(Vec<LogPosition>, Vec<SnapshotMarks>), BackupError> {
        let mut positions = segment.state.positions();
        let mut marks = vec![SnapshotMarks::default(); positions.len()];
        let mut file = self.open_segment(&*self.disk, segment)?;
        let (mut at, mut raw) = (0, Vec::new());
        while at < segment.end {
            let header = file.header(at)?;
            let header = header.ok_or_else(|| BackupError::damaged(&segment.path, "a frame is gone"))?;
            let vb = usize::from(header.vb.0);
            match (header.kind, positions.get_mut(vb)) {
                (FrameKind::Entries, Some(position)) => {
                    file.sound_body(at, &header, &mut raw)?;
                    take_entries(&raw, position, &mut marks[vb])
                        .map_err(|what| BackupError::damaged(&segment.path, what))?;
                }
                (FrameKind::Rollback, Some(position)) => {
                    position.position = position.position.rolled_back(base::Seqno(header.seqnos.0));
                    position.is_consistent = true;
                    marks[vb].roll_back(header.seqnos.0);
                }
                (FrameKind::History, Some(position)) => {
                    position.position.uuid = base::VbUuid(header.seqnos.0);
                }
                (FrameKind::Commit, _) => {
                    file.sound_body(at, &header, &mut raw)?;
                    take_gaps(&raw, &mut positions);
                }
                _ => {}
            }
            at += header.len();
        }
        for position in &mut positions {
            position.floor = segment.horizon.max(position.moment);
        }
        Ok((positions, marks))
    }

    /// How many of the oldest segments no restore needs, if none goes on from a backup before the one with these seqnos, and
    /// no moment before `cutoff` is wanted.
    pub(crate) fn unneeded(&self, bases: &[u64], cutoff: u64) -> usize {
        let epochs = self.epochs();
        let mut count = 0;
        for (at, epoch) in epochs.iter().enumerate() {
            // A later epoch hides the moments that it has as well: it began behind a clock that was set back.
            let hidden_from = epochs[at + 1..].iter().map(|later| later.from).min();
            if hidden_from.is_some_and(|from| epoch.horizon.min(from) < cutoff) {
                count = epoch.segments.end;
                continue;
            }
            // A segment is not needed if the backup has all that the next one begins behind.
            for next in epoch.segments.clone().skip(1) {
                let positions = self.segments[next].state.positions();
                let mut pairs = positions.iter().zip(bases);
                let is_behind =
                    positions.len() == bases.len() && pairs.all(|(at, base)| at.position.seqno.0 <= *base);
                if !is_behind || self.segments[next].state.moment > cutoff {
                    break;
                }
                count = next;
            }
            break;
        }
        count
    }

    /// Removes the segments in front of one; the oldest goes first, so that what is left has no hole.
    pub(crate) fn remove_before(&self, count: usize) -> Result<(), BackupError> {
        for segment in self.segments.iter().take(count) {
            self.disk.remove_file(&segment.path).map_err(|error| failed("remove", &segment.path, error))?;
            self.disk.sync_dir(&self.folder).map_err(|error| failed("sync", &self.folder, error))?;
        }
        Ok(())
    }
}

fn take_entries(raw: &[u8], position: &mut LogPosition, marks: &mut SnapshotMarks) -> Result<(), String> {
    let mut entries = EntryRuns(raw, 0);
    while let Some((_, entry)) = entries.next_entry()? {
        let at = &mut position.position;
        match entry {
            LogEntry::Seqno { seqno, moment, .. } => {
                // A gap that is open here is known only at the end of the group: the mark before it is as good.
                if position.is_consistent && at.seqno.0 + 1 == seqno {
                    marks.add(at.seqno.0, moment - 1);
                }
                let snapshot = (at.snapshot_start, at.snapshot_end);
                at.advance(base::Seqno(seqno), snapshot);
                (position.moment, position.is_consistent) = (moment, base::Seqno(seqno) >= snapshot.1);
            }
            LogEntry::Marker { start, end, .. } => {
                (at.snapshot_start, at.snapshot_end) = (base::Seqno(start), base::Seqno(end));
            }
        }
    }
    Ok(())
}

fn take_gaps(raw: &[u8], positions: &mut [LogPosition]) {
    let Ok(commit) = serde_json::from_slice::<super::position::GroupCommit>(raw) else { return };
    for [vb, begins, seqno, moment] in commit.gaps {
        if let Some(position) = positions.get_mut(vb as usize) {
            position.gap = (begins != 0).then_some((seqno, moment));
        }
    }
}

fn segment_len(disk: &dyn Disk, folder: &Path, number: u32) -> Result<u64, BackupError> {
    Ok(SegmentFile::open(disk, folder, number, None)?.len)
}

/// The numbers of the segments that are there, in order.
fn segment_numbers(disk: &dyn Disk, folder: &Path) -> Result<Vec<u32>, BackupError> {
    let names = match disk.read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(BackupError::Io { operation: "read", path: folder.to_owned(), source });
        }
    };
    let number = |name: &String| name.strip_prefix(SEGMENT)?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn failed(operation: &'static str, path: &Path, source: std::io::Error) -> BackupError {
    BackupError::Io { operation, path: path.to_owned(), source }
}
