//! Where the entries of each vBucket are in an epoch, as far as they were not rolled back.

use std::collections::BTreeMap;
use std::ops::Range;

use base::env::Disk;

use super::entry::{LogEntry, LoggedChange, read_entry};
use super::frame::{FrameHeader, FrameKind};
use super::scan::{ChangeLog, Epoch};
use super::segment::SegmentFile;
use crate::backup::BackupError;

/// A frame with entries of a vBucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePlace {
    /// Its segment, among those of the log.
    pub(super) segment: u32,
    pub(super) at: u64,
    /// Entries behind this seqno were rolled back.
    pub(super) limit: u64,
    pub(super) seqnos: (u64, u64),
    pub(super) moments: (u64, u64),
    /// Bytes of its body, inflated.
    pub(super) raw: u32,
}

/// What an epoch has of one vBucket.
#[derive(Debug, Default)]
pub(super) struct VbucketIndex {
    /// Where the epoch begins.
    pub(super) origin: u64,
    pub(super) frames: Vec<FramePlace>,
    /// Its histories, each with the seqno from which on it was followed.
    histories: Vec<(u64, u64)>,
    /// Where it is at the end.
    pub(super) last: u64,
}

impl VbucketIndex {
    fn take(&mut self, header: &FrameHeader, segment: u32, at: u64) {
        match header.kind {
            FrameKind::Entries if header.count > 0 => {
                let (seqnos, moments) = (header.seqnos, header.moments);
                let raw = header.raw;
                self.frames.push(FramePlace { segment, at, limit: u64::MAX, seqnos, moments, raw });
                self.last = seqnos.1;
            }
            FrameKind::Rollback => self.roll_back(header.seqnos.0),
            FrameKind::History => self.histories.push(header.seqnos),
            _ => {}
        }
    }

    fn roll_back(&mut self, to: u64) {
        while self.frames.last().is_some_and(|frame| frame.seqnos.0 > to) {
            self.frames.pop();
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.limit = frame.limit.min(to);
        }
        // Segments in front may have been removed since.
        (self.last, self.origin) = (to, self.origin.min(to));
    }

    /// Whether a state that the vBucket had in a history is one that the epoch goes on from.
    pub(super) fn has(&self, uuid: u64, seqno: u64) -> bool {
        if seqno == 0 {
            return true;
        }
        let Some(at) = self.histories.iter().rposition(|(one, _)| *one == uuid) else { return false };
        self.histories.get(at + 1..).into_iter().flatten().all(|(_, begun)| seqno <= *begun)
    }
}

/// Reads entries of an epoch.
pub(super) struct EntryReader<'l> {
    log: &'l ChangeLog,
    disk: &'l dyn Disk,
    open: BTreeMap<u32, SegmentFile>,
    raw: Vec<u8>,
    begins: Vec<u32>,
}

/// A frame that was read, and where its entries begin.
pub(super) struct ReadFrame {
    raw: Vec<u8>,
    begins: Vec<u32>,
}

/// Files that are open at once.
const MOST_FILES: usize = 16;

impl<'l> EntryReader<'l> {
    pub(super) fn new(log: &'l ChangeLog, disk: &'l dyn Disk) -> EntryReader<'l> {
        EntryReader { log, disk, open: BTreeMap::new(), raw: Vec::new(), begins: Vec::new() }
    }

    fn file(&mut self, segment: u32) -> Result<&mut SegmentFile, BackupError> {
        if !self.open.contains_key(&segment) {
            if self.open.len() >= MOST_FILES {
                self.open.clear();
            }
            let file = self.log.open_segment(self.disk, &self.log.segments[segment as usize])?;
            self.open.insert(segment, file);
        }
        Ok(self.open.get_mut(&segment).expect("it was opened"))
    }

    /// Reads the entries of a frame, which must be one of this vBucket.
    pub(super) fn read(&mut self, segment: u32, at: u64) -> Result<FrameHeader, BackupError> {
        let mut raw = std::mem::take(&mut self.raw);
        let file = self.file(segment)?;
        let path = file.path.clone();
        let damaged = |what: String| BackupError::damaged(&path, format!("{what}, at byte {at}"));
        let header = file.header(at)?.ok_or_else(|| damaged("a frame is not whole".to_owned()))?;
        file.sound_body(at, &header, &mut raw)?;
        self.raw = raw;
        if header.kind == FrameKind::Entries {
            header.find_entries(&self.raw, &mut self.begins).map_err(damaged)?;
        } else {
            self.begins.clear();
        }
        Ok(header)
    }

    /// Takes the frame out that was read last.
    pub(super) fn take(&mut self) -> ReadFrame {
        let (raw, begins) = (std::mem::take(&mut self.raw), std::mem::take(&mut self.begins));
        ReadFrame { raw, begins }
    }

    /// Goes back to a frame that was taken out.
    pub(super) fn put(&mut self, frame: ReadFrame) {
        (self.raw, self.begins) = (frame.raw, frame.begins);
    }

    /// How many entries the frame has that was read last.
    pub(super) fn len(&self) -> usize {
        self.begins.len()
    }

    /// An entry that has a seqno: seqno, moment, and what it is.
    pub(super) fn get(&self, at: usize) -> Option<(u64, u64, LoggedChange<'_>)> {
        let begin = *self.begins.get(at)? as usize;
        match read_entry(self.raw.get(begin..)?)?.0 {
            LogEntry::Seqno { seqno, moment, what } => Some((seqno, moment, what)),
            LogEntry::Marker { .. } => None,
        }
    }
}

impl ChangeLog {
    /// What an epoch has of some vBuckets.
    pub(super) fn index(
        &self,
        disk: &dyn Disk,
        epoch: &Epoch,
        vbuckets: &Range<u16>,
    ) -> Result<Vec<VbucketIndex>, BackupError> {
        let origin = self.origin(epoch);
        let mut index: Vec<VbucketIndex> = origin
            .iter()
            .skip(vbuckets.start.into())
            .take(vbuckets.len())
            .map(|at| VbucketIndex {
                origin: at.position.seqno.0,
                frames: Vec::new(),
                histories: vec![(at.position.uuid.0, 0)],
                last: at.position.seqno.0,
            })
            .collect();
        self.each_frame(disk, epoch, &mut |segment, at, header| {
            let of_vb = header.vb.0.checked_sub(vbuckets.start).map(usize::from);
            if let Some(one) = of_vb.and_then(|at| index.get_mut(at)) {
                one.take(header, segment, at);
            }
        })?;
        Ok(index)
    }

    /// Reads every frame and each of its entries; how many frames and changes there are.
    pub(crate) fn verify(&self, disk: &dyn Disk) -> Result<(u64, u64), BackupError> {
        let mut reader = EntryReader::new(self, disk);
        let (mut frames, mut changes) = (0, 0);
        for (number, segment) in (0..).zip(&self.segments) {
            let mut at = 0;
            while at < segment.end {
                let header = reader.read(number, at)?;
                frames += 1;
                changes += u64::from(header.count);
                at += header.len();
            }
        }
        Ok((frames, changes))
    }
}
