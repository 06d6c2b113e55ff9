//! Reads one segment of the log, frame by frame, up to the end of its last whole group.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::Sealer;
use base::env::{Disk, File, OpenMode};

use super::frame::{FrameFault, FrameHeader, FrameKind, FrameSeal, HEADER_BYTES};
use super::position::{GroupCommit, SegmentState};
use super::segment_path;
use crate::backup::BackupError;
use crate::backup::keys::no_keys;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// A segment whose groups were found.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) number: u32,
    pub(super) epoch: u64,
    pub(super) state: SegmentState,
    /// Bytes up to the end of its last whole group.
    pub(super) end: u64,
    /// Where its last whole group begins.
    pub(super) last_at: u64,
    /// Bytes of the file.
    pub(super) len: u64,
    /// Of the last whole group.
    pub(super) horizon: u64,
    /// When the last whole group was written.
    pub(super) moment: u64,
    /// Whether its frames are encrypted.
    pub(super) is_encrypted: bool,
}

/// An open segment.
pub(super) struct SegmentFile {
    pub(super) path: PathBuf,
    file: Arc<dyn File>,
    seal: FrameSeal,
    /// Whether its frames are encrypted, once that is known: all of them are, or none is.
    pub(super) is_encrypted: Option<bool>,
    pub(super) len: u64,
    buffer: Vec<u8>,
    /// Which bytes of the file the buffer has.
    from: u64,
}

impl SegmentFile {
    pub(super) fn open(
        disk: &dyn Disk,
        folder: &Path,
        number: u32,
        sealer: Option<&Sealer>,
    ) -> Result<SegmentFile, BackupError> {
        let path = segment_path(folder, number);
        let seal = FrameSeal { sealer: sealer.cloned(), segment: number };
        let opened = disk.open(&path, OpenMode::Read).and_then(|file| Ok((file.len()?, file)));
        let (len, file) =
            opened.map_err(|source| BackupError::Io { operation: "open", path: path.clone(), source })?;
        Ok(SegmentFile { path, file, seal, is_encrypted: None, len, buffer: Vec::new(), from: 0 })
    }

    /// Up to `count` bytes from `at` on; fewer at the end of the file.
    fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8], BackupError> {
        let has = self.from..self.from + self.buffer.len() as u64;
        let end = (at + count as u64).min(self.len).max(at);
        if !(has.start <= at && end <= has.end) {
            let read = (count.max(READ_BYTES) as u64).min(self.len.saturating_sub(at));
            self.buffer.resize(read as usize, 0);
            self.from = at;
            let done = self.file.read_at(&mut self.buffer, at);
            let path = &self.path;
            let failed = |source| BackupError::Io { operation: "read", path: path.clone(), source };
            self.buffer.truncate(done.map_err(failed)?);
        }
        let begin = ((at - self.from) as usize).min(self.buffer.len());
        let end = (begin + count).min(self.buffer.len());
        Ok(&self.buffer[begin..end])
    }

    /// The frame at a place, if all of it is there and its header is whole.
    ///
    /// # Errors
    ///
    /// Beside those of reading: its segment is encrypted and it is not, or the other way round. Without the key frames in
    /// clear can be written, and would else count.
    pub(super) fn header(&mut self, at: u64) -> Result<Option<FrameHeader>, BackupError> {
        let len = self.len;
        let header = FrameHeader::read(self.bytes(at, HEADER_BYTES)?);
        let header = header.filter(|header| at + header.len() <= len);
        let differs = |header: &FrameHeader| self.is_encrypted.is_some_and(|is| is != header.is_sealed());
        match header.filter(differs) {
            None => Ok(header),
            Some(header) => {
                let is = if header.is_sealed() { "encrypted" } else { "not encrypted" };
                let what = format!("the frame at byte {at} is {is}, unlike the first one of its segment");
                Err(BackupError::damaged(&self.path, what))
            }
        }
    }

    /// The body of a frame, inflated into `raw`; the inner error says what is wrong with it. One that is whole and cannot be
    /// decrypted is an error of its own.
    pub(super) fn body(
        &mut self,
        at: u64,
        header: &FrameHeader,
        raw: &mut Vec<u8>,
    ) -> Result<Result<(), String>, BackupError> {
        let seal = std::mem::take(&mut self.seal);
        let body = self.bytes(at + HEADER_BYTES as u64, header.stored as usize);
        let opened = body.map(|body| header.open(body, &seal, raw));
        self.seal = seal;
        match opened? {
            Ok(()) => Ok(Ok(())),
            Err(FrameFault::Broken(what)) => Ok(Err(what)),
            // Not what a crash leaves: it is never cut off.
            Err(FrameFault::NoKeys) => Err(no_keys(&self.path)),
            Err(FrameFault::Sealed(fault)) => {
                let what = format!("the frame at byte {at} cannot be decrypted: {fault}");
                Err(BackupError::damaged(&self.path, what))
            }
        }
    }

    /// The same, where anything that is wrong is damage.
    pub(super) fn sound_body(
        &mut self,
        at: u64,
        header: &FrameHeader,
        raw: &mut Vec<u8>,
    ) -> Result<(), BackupError> {
        let opened = self.body(at, header, raw)?;
        opened.map_err(|what| BackupError::damaged(&self.path, format!("{what}, at byte {at}")))
    }

    /// Whether a frame of a group behind `group` is anywhere behind `at`: then that group was durable.
    fn has_later_group(&mut self, at: u64, group: u64) -> Result<bool, BackupError> {
        let mut at = at;
        while at + HEADER_BYTES as u64 <= self.len {
            let bytes = self.bytes(at, READ_BYTES)?;
            let Some(last) = bytes.len().checked_sub(HEADER_BYTES) else { break };
            let is_later = |begin: &usize| {
                FrameHeader::read(&bytes[*begin..]).is_some_and(|header| header.group > group)
            };
            // Frames begin with a magic number: other places are passed over at once.
            if (0..=last).filter(|begin| bytes[*begin] == b'S').any(|begin| is_later(&begin)) {
                return Ok(true);
            }
            at += last as u64 + 1;
        }
        Ok(false)
    }
}

/// What was found while the groups of a segment were read.
struct GroupsFound {
    end: u64,
    is_sealed: bool,
    group: u64,
    commit: GroupCommit,
    /// The frames of the last group, with their places.
    frames: Vec<(u64, FrameHeader)>,
}

/// Is told what the end of each group says, and its frames with their places.
pub(super) type VisitGroup<'a> = dyn FnMut(&GroupCommit, &[(u64, FrameHeader)]) + 'a;

/// Reads a segment's groups and tells `visit` each of them. Of the last segment a group at the end that is not whole is
/// passed over; `None` if not even its first frame is whole.
pub(super) fn read_segment(
    disk: &dyn Disk,
    folder: &Path,
    number: u32,
    sealer: Option<&Sealer>,
    is_last: bool,
    visit: &mut VisitGroup<'_>,
) -> Result<Option<Segment>, BackupError> {
    let mut file = SegmentFile::open(disk, folder, number, sealer)?;
    let mut raw = Vec::new();
    let first = first_frame(&mut file, &mut raw)?;
    let Some((header, state)) = first else {
        if is_last && !file.has_later_group(0, 0)? {
            return Ok(None);
        }
        return Err(BackupError::damaged(&file.path, "its first frame is not whole"));
    };
    if state.segment != number {
        return Err(BackupError::damaged(&file.path, format!("it is segment {}", state.segment)));
    }
    file.is_encrypted = Some(header.is_sealed());
    let mut found = GroupsFound {
        end: header.len(),
        is_sealed: false,
        group: 0,
        commit: GroupCommit { horizon: state.horizon, moment: state.moment, ..GroupCommit::default() },
        frames: Vec::new(),
    };
    let mut last_at = 0;
    while let Some(group) = next_group(&mut file, header.epoch, &found, &mut raw)? {
        if !group.is_sealed {
            visit(&group.commit, &group.frames);
        }
        (last_at, found) = (found.end, group);
        if found.is_sealed {
            break;
        }
    }
    let is_torn = found.end < file.len;
    if is_torn && (!is_last || file.has_later_group(found.end, found.group + 1)?) {
        let what = format!("the frame at byte {} is not whole, or not of this log", found.end);
        return Err(BackupError::damaged(&file.path, what));
    }
    Ok(Some(Segment {
        number,
        epoch: header.epoch,
        state,
        end: found.end,
        last_at,
        len: file.len,
        horizon: found.commit.horizon,
        moment: found.commit.moment,
        is_encrypted: header.is_sealed(),
        path: file.path,
    }))
}

/// The first frame of a segment, if it is whole.
fn first_frame(
    file: &mut SegmentFile,
    raw: &mut Vec<u8>,
) -> Result<Option<(FrameHeader, SegmentState)>, BackupError> {
    let Some(header) = file.header(0)? else { return Ok(None) };
    if header.kind != FrameKind::State || file.body(0, &header, raw)?.is_err() {
        return Ok(None);
    }
    Ok(serde_json::from_slice(raw).ok().map(|state| (header, state)))
}

/// The group behind those that were found. The bodies of the very last one are looked at: it may be torn.
fn next_group(
    file: &mut SegmentFile,
    epoch: u64,
    found: &GroupsFound,
    raw: &mut Vec<u8>,
) -> Result<Option<GroupsFound>, BackupError> {
    let (mut at, group) = (found.end, found.group + 1);
    let mut frames = Vec::new();
    loop {
        let header = file.header(at)?;
        let Some(header) = header.filter(|header| (header.epoch, header.group) == (epoch, group)) else {
            return Ok(None);
        };
        let end = at + header.len();
        match header.kind {
            FrameKind::State => return Ok(None),
            FrameKind::Entries | FrameKind::Rollback | FrameKind::History => {
                // A group that another one follows is durable: whoever reads it looks at its bodies.
                frames.push((at, header));
                at = end;
            }
            FrameKind::Commit | FrameKind::Seal => {
                frames.push((at, header));
                let is_last = file.header(end)?.is_none();
                let is_sealed = header.kind == FrameKind::Seal;
                if is_last && !is_whole(file, &frames, raw)? {
                    return Ok(None);
                }
                if is_sealed {
                    let commit = found.commit.clone();
                    return Ok(Some(GroupsFound { end, is_sealed, group, commit, frames }));
                }
                for (at, header) in &frames {
                    // Their headers alone are read otherwise, and an encrypted body vouches for its header.
                    let is_bare = matches!(header.kind, FrameKind::Rollback | FrameKind::History);
                    if is_bare && header.is_sealed() {
                        file.sound_body(*at, header, raw)?;
                    }
                }
                file.sound_body(at, &header, raw)?;
                let commit = serde_json::from_slice(raw).map_err(|error| {
                    BackupError::damaged(&file.path, format!("the end of a group at byte {at}: {error}"))
                })?;
                return Ok(Some(GroupsFound { end, is_sealed, group, commit, frames }));
            }
        }
    }
}

fn is_whole(
    file: &mut SegmentFile,
    frames: &[(u64, FrameHeader)],
    raw: &mut Vec<u8>,
) -> Result<bool, BackupError> {
    for (at, header) in frames {
        if file.body(*at, header, raw)?.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}
