//! Before a cluster says what a node serves, the node serves nothing.

use base::VbState;
use engine::Bucket;

/// Before a cluster says what a node serves, it serves nothing, and nobody may follow it: it may have less than those
/// who would. Returns what was refused.
#[must_use]
pub(crate) fn hold_all(bucket: &Bucket) -> Vec<(base::VbId, engine::Refusal)> {
    let served = |vb: &base::VbId| matches!(bucket.state_of(*vb), Some(VbState::Active | VbState::Pending));
    let held = (0..bucket.vbuckets())
        .map(base::VbId)
        .filter(served)
        .filter_map(|vb| Some((vb, bucket.roles().set_vbucket_state(vb, VbState::Replica, None).err()?)));
    held.collect()
}
