//! What disks must say when a node starts again, and what they must hold no longer.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use base::{Seqno, VbId, VbState};
use engine::{Bucket, CompactRequest, Progress};
use kvstore::{KvStore, Values};

use crate::node::Node;
use crate::ops::FIRST_COLLECTION;

/// By vBucket that stood inside a snapshot: the snapshot's start and end.
pub type Inside = BTreeMap<u16, (u64, u64)>;

impl Node {
    /// The node is about to end: in which snapshots its replicas stand.
    pub fn snapshots(&self) -> Inside {
        let Some(bucket) = &self.bucket else { return Inside::new() };
        let look = |vb: &vbucket::VBucket| {
            let (snapshot, high) = (vb.snapshot(), vb.high_seqno());
            let is_inside = vb.state() == VbState::Replica && high < snapshot.end;
            is_inside.then_some((snapshot.start.0, snapshot.end.0))
        };
        let all = (0..bucket.vbuckets()).map(|vb| (vb, bucket.with_vbucket(VbId(vb), look).flatten()));
        all.filter_map(|(vb, inside)| Some((vb, inside?))).collect()
    }

    /// The node has started again: a replica of which the disk has a part of a snapshot knows that there is more of it.
    pub fn check_inside(&self, before: &Inside) -> Result<(), String> {
        let Some(bucket) = &self.bucket else { return Ok(()) };
        for (vb, (start, end)) in before {
            let look = |vb: &vbucket::VBucket| (vb.high_seqno().0, vb.snapshot().end.0);
            let Some((high, knows)) = bucket.with_vbucket(VbId(*vb), look) else { continue };
            if (start + 1..*end).contains(&high) && knows <= high {
                let at = self.at;
                return Err(format!(
                    "node {at} starts at {high} of vBucket {vb} as if it were whole: inside {start}..{end}"
                ));
            }
        }
        Ok(())
    }
}

/// Compaction leaves nothing of collections that are not there any more.
pub fn check_erased(bucket: &Bucket, store: &dyn KvStore, vbs: &[VbId]) -> Result<(), String> {
    while bucket.flushing().file_step() == Progress::Worked {}
    for vb in vbs {
        let request = CompactRequest { purge_before_s: None, purge_through: None };
        bucket
            .compaction()
            .compact(*vb, request)
            .map_err(|refusal| format!("{vb:?} is not compacted: {refusal:?}"))?;
        // What somebody asks for comes first.
        bucket.compaction().compact_step();
    }
    let manifest = bucket.collections().manifest();
    for vb in vbs {
        let failed = |failure: kvstore::Failure| format!("{vb:?} cannot be read: {failure}");
        let Some(snapshot) = store.snapshot(*vb).map_err(failed)? else { continue };
        let mut left = None;
        let mut visit = |version: base::Version| {
            let id = version.document_key().collection;
            let is_there = id.0 < FIRST_COLLECTION || manifest.collections().any(|one| one.id == id);
            if !is_there {
                left = Some((id, version.meta().by_seqno));
            }
            ControlFlow::Continue(())
        };
        snapshot.scan_all(Seqno(0), Values::Leave, &mut visit).map_err(failed)?;
        if let Some((id, seqno)) = left {
            return Err(format!("{vb:?} has seqno {seqno} of collection {id:?} on disk, which was dropped"));
        }
    }
    Ok(())
}
