//! What a strict consumer has of a vBucket, and what may come next.

use std::collections::BTreeMap;

use base::{CollectionId, Seqno, VbId, VbUuid};
use protocol::dcp::{Marker, StreamRequest};

use super::{Truth, Wanted};

/// Seqno and value by name across collections.
pub type Documents = BTreeMap<String, (u64, String)>;

/// A document's name across collections.
pub fn name_of(collection: CollectionId, key: &str) -> String {
    format!("{:x}/{key}", collection.0)
}

/// What a consumer has of a vBucket; it survives the connection.
#[derive(Default)]
pub(super) struct StrictCopy {
    pub(super) documents: Documents,
    /// The last change it has, and the snapshot that is in.
    pub(super) last: u64,
    pub(super) snapshot: (u64, u64),
    pub(super) log: Vec<(VbUuid, Seqno)>,
    /// Whole snapshots it had, by their ends: where it can go back to.
    pub(super) whole: BTreeMap<u64, Documents>,
    pub(super) is_open: bool,
    pub(super) is_out_of_order: bool,
    pub(super) highest_out_of_order: u64,
    /// Chosen where it has nothing yet.
    pub(super) wanted: Option<Wanted>,
}

impl StrictCopy {
    /// Forgets everything after `to`, and what was never whole.
    pub(super) fn roll_back(&mut self, to: u64) {
        self.whole.retain(|end, _| *end <= to);
        let (end, documents) = self
            .whole
            .last_key_value()
            .map_or((0, Documents::new()), |(end, documents)| (*end, documents.clone()));
        (self.last, self.snapshot, self.documents) = (end, (end, end), documents);
    }

    /// What it wanted is gone: it begins anew with something else.
    pub(super) fn begin_anew(&mut self) {
        *self = StrictCopy::default();
    }

    pub(super) fn is_of_everything(&self) -> bool {
        self.wanted == Some(Wanted::Everything)
    }

    /// The history that its last change belongs to.
    pub(super) fn uuid(&self) -> VbUuid {
        let entry = self.log.iter().find(|(_, seqno)| seqno.0 <= self.last);
        entry.map_or(VbUuid(0), |(uuid, _)| *uuid)
    }

    pub(super) fn request(&self) -> StreamRequest {
        let (start, end) = self.snapshot;
        StreamRequest {
            start: Seqno(self.last),
            end: Seqno(u64::MAX),
            uuid: self.uuid(),
            snapshot_start: Seqno(start.min(self.last)),
            snapshot_end: Seqno(end.max(self.last)),
            ..StreamRequest::default()
        }
    }

    /// Everything up to `end` is here.
    pub(super) fn is_whole(&mut self, vb: VbId, end: u64, truth: &impl Truth) {
        let wanted = truth.documents(vb, end, self.wanted.expect("it was asked for"));
        assert_eq!(seqnos(&self.documents), seqnos(&wanted), "{vb:?}: the snapshot up to {end}");
        assert!(self.documents == wanted, "{vb:?}: a value of the snapshot up to {end}");
        (self.last, self.snapshot) = (end, (end, end));
        self.whole.insert(end, self.documents.clone());
    }
}

/// Documents without their values, to be shown.
pub fn seqnos(documents: &Documents) -> Vec<(&str, u64)> {
    documents.iter().map(|(key, (seqno, _))| (key.as_str(), *seqno)).collect()
}

/// `passes_over`: whether something lies before the snapshot that is for no consumer.
pub(super) fn check_marker(copy: &StrictCopy, marker: &Marker, passes_over: bool) {
    assert!(marker.start <= marker.end && marker.end.0 > copy.last, "{marker:?} after {}", copy.last);
    assert!(!copy.is_out_of_order);
    let (start, end) = copy.snapshot;
    if copy.last == end && (passes_over || !copy.is_of_everything()) {
        // What is not wanted lies between.
        assert!(marker.start.0 >= end, "{marker:?} after the snapshot to {end}");
    } else if copy.last == end {
        assert!(marker.start.0 == end || marker.start.0 == end + 1, "{marker:?} after the snapshot to {end}");
    } else {
        // It goes on inside the snapshot with which it came.
        assert_eq!(marker.start.0, start, "{marker:?} inside {start} to {end}");
    }
}

pub(super) fn place(copy: &mut StrictCopy, seqno: u64) {
    if copy.is_out_of_order {
        copy.highest_out_of_order = copy.highest_out_of_order.max(seqno);
        return;
    }
    let (start, end) = copy.snapshot;
    assert!(
        seqno > copy.last && (start..=end).contains(&seqno),
        "{seqno} after {} in {start} to {end}",
        copy.last
    );
    copy.last = seqno;
}

pub(super) fn close_if_whole(copy: &mut StrictCopy, vb: VbId, truth: &impl Truth) {
    if !copy.is_out_of_order && copy.last == copy.snapshot.1 {
        copy.is_whole(vb, copy.last, truth);
    }
}
