//! Where the log is in each vBucket, and what the frames at the ends of groups and the beginnings of segments say.

use std::collections::VecDeque;

use base::{Seqno, VbUuid};
use serde::{Deserialize, Serialize};

use crate::client::dcp::Position;

/// Ends of snapshots that are remembered of a vBucket.
const MOST_MARKS: usize = 32;

/// Where a vBucket lately was at the end of a snapshot, and until which moment.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapshotMarks(VecDeque<(u64, u64)>);

impl SnapshotMarks {
    /// The vBucket was consistent at a seqno until a moment.
    pub(super) fn add(&mut self, seqno: u64, until: u64) {
        if self.0.len() == MOST_MARKS {
            self.0.pop_front();
        }
        self.0.push_back((seqno, until));
    }

    /// Until when the vBucket was consistent at a seqno, or at one before it; 0 if that is not remembered.
    pub(super) fn roll_back(&mut self, to: u64) -> u64 {
        self.0.retain(|(seqno, _)| *seqno <= to);
        self.0.back().map_or(0, |(_, until)| *until)
    }
}

/// Where the log is in a vBucket. Moments are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// What its stream goes on from.
    pub(crate) position: Position,
    /// Of the last entry.
    pub(super) moment: u64,
    /// Everything that comes was not there at this moment.
    pub(super) floor: u64,
    /// Since the entry at this seqno, and since this moment, something is missing.
    pub(super) gap: Option<(u64, u64)>,
    /// Since when its stream goes on; the highest number while it does not.
    pub(crate) streams_since: u64,
    /// When its stream went on after nothing had come for a while: what is in front of that may have been made long before
    /// it came. The highest number before the first time.
    pub(super) away_until: u64,
    /// Whether it is at the end of a snapshot.
    pub(super) is_consistent: bool,
}

impl LogPosition {
    /// At the end of a snapshot. What comes next was not there at `floor`.
    pub(crate) fn at(uuid: u64, seqno: u64, floor: u64) -> LogPosition {
        let mut position = Position::at(VbUuid(uuid), Seqno(seqno));
        position.uuid = VbUuid(uuid);
        LogPosition {
            position,
            moment: floor,
            floor,
            gap: None,
            streams_since: u64::MAX,
            away_until: u64::MAX,
            is_consistent: true,
        }
    }

    /// What its stream is asked for with.
    pub(crate) fn start(&self) -> Position {
        if self.position.seqno == Seqno(0) { Position::START } else { self.position }
    }

    fn numbers(&self) -> [u64; 8] {
        let Position { uuid, seqno, snapshot_start, snapshot_end } = self.position;
        let (gap_seqno, gap_moment) = self.gap.unwrap_or((0, 0));
        let has_gap = u64::from(self.gap.is_some());
        let (start, end) = (snapshot_start.0, snapshot_end.0);
        [uuid.0, seqno.0, start, end, self.moment, has_gap, gap_seqno, gap_moment]
    }

    fn of(numbers: [u64; 8], floor: u64) -> LogPosition {
        let [uuid, seqno, start, end, moment, has_gap, gap_seqno, gap_moment] = numbers;
        let position = Position {
            uuid: VbUuid(uuid),
            seqno: Seqno(seqno),
            snapshot_start: Seqno(start),
            snapshot_end: Seqno(end),
        };
        let gap = (has_gap != 0).then_some((gap_seqno, gap_moment));
        let is_consistent = seqno >= end;
        let (streams_since, away_until) = (u64::MAX, u64::MAX);
        LogPosition { position, moment, floor, gap, streams_since, away_until, is_consistent }
    }
}

/// What the first frame of a segment says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentState {
    pub(super) bucket: String,
    /// The number of the segment, as in its name.
    pub(super) segment: u32,
    /// The length of the segment before it.
    pub(super) previous_len: Option<u64>,
    /// When it was begun. What is in front of it was there at that moment.
    pub(super) moment: u64,
    /// Up to which moment the log has everything.
    pub(super) horizon: u64,
    /// Why its epoch was begun.
    pub(super) why: String,
    vbuckets: Vec<[u64; 8]>,
}

impl SegmentState {
    pub(super) fn new(
        bucket: &str,
        segment: u32,
        previous_len: Option<u64>,
        (moment, horizon): (u64, u64),
        why: &str,
        positions: &mut dyn Iterator<Item = &LogPosition>,
    ) -> SegmentState {
        SegmentState {
            bucket: bucket.to_owned(),
            segment,
            previous_len,
            moment,
            horizon,
            why: why.to_owned(),
            vbuckets: positions.map(LogPosition::numbers).collect(),
        }
    }

    /// Where the log is in each vBucket at the beginning of the segment.
    pub(super) fn positions(&self) -> Vec<LogPosition> {
        self.vbuckets.iter().map(|numbers| LogPosition::of(*numbers, self.horizon)).collect()
    }
}

/// What the frame at the end of a group says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupCommit {
    /// Up to which moment the log has everything.
    pub(super) horizon: u64,
    /// When it was written.
    pub(super) moment: u64,
    /// Gaps that began and ended, in this order: vBucket, 1 for a beginning and 0 for an end, the seqno and the moment at
    /// which the vBucket was consistent before it or is again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<[u64; 4]>,
}
