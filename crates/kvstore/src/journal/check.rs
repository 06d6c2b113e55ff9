//! Reading a journal without changing it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::env::Disk;
use base::{Heap, VbId};

use super::decode::Part;
use super::layout::{BLOCK, BadHead, SegmentHead};
use super::read::{OF_ANOTHER, OLDER_IS_MISSING, Segment, find, frames, proof_of};
use super::recover::{Assembly, following};
use super::salvage;
use super::{Filed, Frame, ToldSeqnos};
use crate::failure::Failure;
use crate::journaled::lost::lost_in;

/// What is in a folder of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalReport {
    /// Its segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Files that are kept for use.
    pub spares: u64,
    /// Of each vBucket the state of its file that the journal vouches for; nothing if the journal tells of no vBucket,
    /// so that each file is as its last header has it.
    pub files: Option<BTreeMap<VbId, Filed>>,
    /// How far it tells of each vBucket; `None` if it is damaged.
    pub told: Option<ToldSeqnos>,
    /// vBuckets that a start does not serve because of damage, and which frames are missing; if it is not known which
    /// those are, `None`: the bucket does not start.
    pub missing: Option<BTreeMap<VbId, String>>,
}

impl JournalReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.segments.iter().all(|segment| segment.damage.is_none())
    }
}

/// What is in a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its file.
    pub path: PathBuf,
    /// Number of its use.
    pub generation: u64,
    /// Number of its first frame; none if it has no header.
    pub first_frame: Option<u64>,
    /// Frames that count.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Versions in those.
    pub items: u64,
    /// Bytes up to the end of the last frame that counts.
    pub used_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Whether something that was not synced follows, as after a crash: no damage.
    pub has_unsynced_end: bool,
    /// What is wrong, and at which offset.
    pub damage: Option<(u64, String)>,
}

/// Reads a journal without changing it, to the end whatever is wrong with it.
pub fn check_journal(disk: &dyn Disk, dir: &Path) -> Result<JournalReport, Failure> {
    let found = find(disk, dir)?;
    let mut report = JournalReport {
        spares: found.spares.len() as u64,
        missing: Some(BTreeMap::new()),
        ..JournalReport::default()
    };
    let (mut next, mut needed, mut told) = (1, 1, ToldSeqnos::default());
    let (mut assembly, mut without_beginning) = (Assembly::default(), 0);
    for (i, segment) in found.segments.iter().enumerate() {
        let following = following(&found.segments[i + 1..]);
        let mut note = |frame: Frame, part: Part| {
            note(&part, &mut report.files, &mut told);
            if assembly.lacks_beginning(&part) {
                without_beginning = frame.0;
            }
            assembly.add(frame, part, &mut |_| Ok(()))
        };
        report.segments.push(check(disk, segment, following, &mut next, &mut needed, &mut note)?);
    }
    let oldest = report.segments.iter_mut().find(|segment| segment.first_frame.is_some());
    let lacks =
        |oldest: &&mut SegmentReport| oldest.first_frame > Some(needed) || without_beginning >= needed;
    if let Some(oldest) = oldest.filter(lacks) {
        oldest.damage.get_or_insert_with(|| (0, OLDER_IS_MISSING.to_owned()));
    }
    if report.is_clean() {
        report.told = Some(told);
    } else {
        report.missing = missing(disk, dir)?;
    }
    Ok(report)
}

/// The vBuckets that damage costs.
fn missing(disk: &dyn Disk, dir: &Path) -> Result<Option<BTreeMap<VbId, String>>, Failure> {
    let salvaged = match salvage(disk, Heap::shared(), dir, None, 0) {
        Err(failure) if failure.is_damage() => return Ok(None),
        salvaged => salvaged?,
    };
    if !salvaged.may_go_on() {
        return Ok(None);
    }
    let told = salvaged.told.iter().map(|(frame, told)| (*frame, told));
    let lost = lost_in(&salvaged.gaps, told);
    Ok(Some(lost.into_iter().map(|(vb, lost)| (vb, lost.what)).collect()))
}

fn check(
    disk: &dyn Disk,
    segment: &Segment,
    following: Option<SegmentHead>,
    next: &mut u64,
    needed: &mut u64,
    note: &mut dyn FnMut(Frame, Part) -> Result<(), Failure>,
) -> Result<SegmentReport, Failure> {
    let mut report = SegmentReport {
        path: segment.path.clone(),
        generation: segment.generation,
        file_bytes: segment.len,
        ..SegmentReport::default()
    };
    let damage = |offset, what: &str| Some((offset, what.to_owned()));
    let head = match segment.head {
        Ok(head) => head,
        Err(BadHead::Version) => {
            report.damage = damage(0, "the journal is of an unknown version");
            return Ok(report);
        }
        Err(BadHead::Foreign) => {
            report.damage = damage(0, OF_ANOTHER);
            return Ok(report);
        }
        Err(BadHead::Unreadable) => {
            if following.is_none()
                && let Some(at) = proof_of(disk, segment, None, BLOCK as u64, *next)?
            {
                report.damage = damage(at, "frames that were synced, in a segment without a header");
            }
            return Ok(report);
        }
    };
    report.first_frame = Some(head.first);
    let limit = following.map_or(u64::MAX, |following| following.first);
    let end = frames(Heap::shared(), disk, segment, head, limit, &mut |frame| {
        report.frames += 1;
        report.records += u64::from(frame.head.records);
        let items = |part: &Part| if let Part::Save(save) = part { save.items.len() as u64 } else { 0 };
        report.items += frame.parts.iter().map(items).sum::<u64>();
        *needed = frame.head.needed.max(*needed);
        let number = Frame(frame.head.number);
        frame.parts.into_iter().try_for_each(|part| note(number, part))
    })?;
    (report.used_bytes, *next) = (end.offset, end.next);
    report.damage = match end.bad {
        Some(bad) if bad.is_sound || following.is_some() => damage(bad.offset, bad.what),
        Some(bad) => {
            let proof = proof_of(disk, segment, Some(head.salt), end.offset, end.next)?;
            report.has_unsynced_end = proof.is_none() && bad.what != super::read::NO_FRAME;
            proof.and_then(|_| damage(bad.offset, bad.what))
        }
        None if end.next != limit => damage(end.offset, "the next segment does not go on here"),
        None => None,
    };
    Ok(report)
}

/// Keeps what a record says about files, and how far it tells.
fn note(part: &Part, files: &mut Option<BTreeMap<VbId, Filed>>, told: &mut ToldSeqnos) {
    match part {
        Part::Save(save) => told.saved(save.vb, &save.items),
        Part::Dropped(vb) => told.dropped(*vb),
        _ => {}
    }
    match part {
        Part::Filed(filed) | Part::RolledBack(filed) => {
            files.get_or_insert_default().insert(filed.vb, *filed);
        }
        Part::Dropped(vb) => {
            files.get_or_insert_default().remove(vb);
        }
        Part::Table(entries) if !entries.is_empty() => {
            files.get_or_insert_default().extend(entries.iter().map(|filed| (filed.vb, *filed)));
        }
        Part::Save(save) if save.is_last => {
            files.get_or_insert_default();
        }
        Part::Table(_) | Part::Save(_) | Part::Directory(_) | Part::Malformed { .. } => {}
    }
}
