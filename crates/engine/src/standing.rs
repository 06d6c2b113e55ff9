//! What a node tells others of its copy of a vBucket.

use base::{Seqno, VbId, VbState, VbUuid};

use crate::bucket::Bucket;
use crate::shard_guard::Holder;

/// How far a copy of a vBucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its role.
    pub role: VbState,
    /// Its last change.
    pub high_seqno: Seqno,
    /// Up to here nothing is missing: behind it is a part of a snapshot that has not come as a whole.
    pub whole: Seqno,
    /// The last change that is as safe as the bucket's disk makes it, as [`vbucket::Contents::persisted_whole`] says; if
    /// there is no disk the last one.
    pub saved: Seqno,
    /// The last prepare that is as safe as its level asks.
    pub high_prepared: Seqno,
    /// Its history.
    pub uuid: VbUuid,
}

impl Bucket {
    /// How far the copy of a vBucket is. Nothing if it is not there, or dead and without a change: such a one has never
    /// been needed here.
    pub fn standing(&self, vb: VbId) -> Option<Standing> {
        let has_disk = !self.is_ephemeral();
        let shard = self.vbuckets.find(vb, Holder::Stats).ok()?;
        let (vb, role, high_seqno) = (&shard.vb, shard.vb.state(), shard.vb.high_seqno());
        (role != VbState::Dead || high_seqno > Seqno(0)).then(|| Standing {
            role,
            high_seqno,
            whole: if role == VbState::Active { high_seqno } else { vb.snapshot().start },
            saved: if has_disk { vb.persisted_whole() } else { high_seqno },
            high_prepared: vb.sync_writes().high_prepared_seqno(),
            uuid: vb.uuid(),
        })
    }
}
