//! What an administrator may do about damaged copies that nothing replaces: give up what they held.

use super::{Refused, failover};
use crate::state::{NodeId, State, Step};
use crate::view::View;

/// The document in which a bucket's vBuckets do not wait for damaged copies any more, whatever those held.
pub(super) fn give_up(view: &View, name: &str) -> Result<State, Refused> {
    let mut state = view.state.next();
    // Where nothing is left there is nothing to move.
    failover::interrupt(&mut state);
    let since = state.revision;
    let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
    let is_damaged = |id: &NodeId, vb: u16| view.is_damaged(*id, name, vb);
    let mut given_up = false;
    for vb in bucket.vbuckets() {
        let members = bucket.chain(vb).iter().flatten();
        match (bucket.steps.get(&vb), bucket.active(vb)) {
            (Some(Step::Choose { .. }), _) if members.into_iter().any(|id| is_damaged(id, vb)) => {
                if let Some(Step::Choose { forced, .. }) = bucket.steps.get_mut(&vb) {
                    given_up |= !*forced;
                    *forced = true;
                }
            }
            (_, Some(active)) if is_damaged(&active, vb) => {
                given_up = true;
                let step = Step::Choose { since, taker: None, needs: None, forced: true };
                bucket.steps.insert(vb, step);
            }
            _ => {}
        }
    }
    if !given_up {
        return Err(Refused::NothingToGiveUp(name.to_owned()));
    }
    state.epoch += 1;
    Ok(state)
}
