//! What nodes can hold, checked before the document asks it of them: a bucket that a node cannot make would be missing
//! there for as long as it is in the document.

use serde_json::Value;

use super::Refused;
use crate::state::{NodeId, State};
use crate::view::View;

/// The memory quota in a bucket's settings: the one field of them that the cluster reads itself. 0 if there is none.
pub(super) fn quota_of(settings: &Value) -> u64 {
    settings.get("quota_bytes").and_then(Value::as_u64).unwrap_or(0)
}

/// Whether these nodes can hold the buckets of a document. A node that never said what it can hold is not asked.
pub(super) fn check(
    view: &View,
    state: &State,
    nodes: impl IntoIterator<Item = NodeId>,
) -> Result<(), Refused> {
    let quotas = state.buckets.values().map(|bucket| quota_of(&bucket.settings));
    let needed = quotas.fold(0, u64::saturating_add);
    for node in nodes {
        let Some(limits) = view.limits(node) else { continue };
        if needed > limits.quota_bytes {
            return Err(Refused::Quota { node, needed, has: limits.quota_bytes });
        }
        let others = |wanted: &u16| *wanted != limits.vbuckets;
        let mut vbuckets = state.buckets.values().filter_map(|bucket| u16::try_from(bucket.map.len()).ok());
        if let Some(wanted) = vbuckets.find(others) {
            return Err(Refused::OtherVbuckets { node, wanted, has: limits.vbuckets });
        }
    }
    Ok(())
}
