//! What a vBucket begins with that was found on the disk.

use base::env::Env;
use base::planted::{self, Bug};
use base::{Cas, RevSeqno, Seqno, VbState, VbUuid};
use kvstore::{CheckpointType, StoredVb, VbStateDoc};
use vbucket::{FailoverEntry, FailoverTable, Origin, SnapshotBounds, SnapshotKind};

use crate::collections::collections_of;
use crate::shard::new_uuid;
use crate::topology::topology_from_json;

/// What a vBucket starts from as stored; a damaged failover table begins anew.
pub(crate) fn origin(env: &Env, stored: StoredVb) -> Origin {
    let entry = |e: &kvstore::FailoverEntry| FailoverEntry { uuid: VbUuid(e.id), seqno: Seqno(e.seq) };
    let entries = stored.state.failover_table.iter().map(entry).collect();
    // A replica may have been told that nothing was changed before its snapshot ended.
    let high_seqno = stored.high_seqno.max(Seqno(stored.state.snap_start));
    let collections = collections_of(&stored.manifest, &stored.collections);
    let is_whole = stored.state.state == VbState::Active || planted::is(Bug::SnapshotForgottenAtRestart);
    let is_cas_known = !planted::is(Bug::CasForgottenAtRestart);
    Origin {
        collections,
        state: stored.state.state,
        failover: FailoverTable::from_entries(entries).unwrap_or_else(|| FailoverTable::new(new_uuid(env))),
        high_seqno,
        history_from: Seqno(stored.state.history_from),
        purge_seqno: stored.purge_seqno.max(Seqno(stored.state.purge_seqno)),
        max_cas: if is_cas_known { Cas(stored.state.max_cas) } else { Cas(0) },
        max_deleted_rev: RevSeqno(stored.state.max_deleted_seqno),
        might_contain_xattrs: stored.state.might_contain_xattrs,
        snapshot: (!is_whole).then(|| snapshot_of(&stored.state)),
        topology: stored.state.replication_topology.and_then(|json| topology_from_json(&json).ok()),
        max_visible: Seqno(stored.state.max_visible_seqno).min(stored.high_seqno),
        last_prepared: Seqno(stored.state.prepared_seqno).min(stored.high_seqno),
        high_prepared: Seqno(stored.state.high_prepared_seqno).min(stored.high_seqno),
        high_completed: Seqno(stored.state.completed_seqno).min(stored.high_seqno),
    }
}

/// The snapshot that was being received when the state was saved.
fn snapshot_of(state: &VbStateDoc) -> SnapshotBounds {
    let kind = match state.checkpoint_type {
        CheckpointType::Memory => SnapshotKind::Memory,
        CheckpointType::Disk => SnapshotKind::Disk,
        CheckpointType::InitialDisk => SnapshotKind::InitialDisk,
    };
    SnapshotBounds { start: Seqno(state.snap_start), end: Seqno(state.snap_end), kind }
}
