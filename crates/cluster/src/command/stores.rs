//! A bucket goes to another store: the settings say which one, and each node makes what it has as they say.

use serde_json::Value;

use super::Refused;
use crate::state::{Bucket, State, StoreMove};
use crate::view::View;

pub(super) fn begin(view: &View, name: &str, to: &str) -> Result<State, Refused> {
    let bucket = view.state.buckets.get(name).ok_or(Refused::NoSuchBucket)?;
    if let Some(present) = &bucket.store_move {
        return Err(Refused::StoreMoves { name: name.to_owned(), is_cancelled: present.is_cancelled });
    }
    let from = bucket.store().ok_or(Refused::NoSuchBucket)?;
    if from == to {
        return Err(Refused::StoreIsThat(name.to_owned()));
    }
    // One that is away learns it when it is back; with a version that does not know it, what it has stays as it is.
    let older = view
        .state
        .nodes
        .iter()
        .find(|(_, node)| view.members.get(&node.uuid).is_some_and(|member| !member.moves_stores));
    if let Some((id, node)) = older {
        return Err(Refused::MovesNoStores(*id, node.address.http()));
    }
    let mut state = view.state.next();
    let since = state.revision;
    let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
    let (from, to) = (from.to_owned(), to.to_owned());
    set_store(bucket, &to);
    bucket.store_move = Some(StoreMove { since, from, to, is_cancelled: false });
    Ok(state)
}

pub(super) fn cancel(state: &State, name: &str) -> Result<State, Refused> {
    let present = state.buckets.get(name).ok_or(Refused::NoSuchBucket)?.store_move.as_ref();
    let present = present.ok_or_else(|| Refused::StoreStays(name.to_owned()))?;
    if present.is_cancelled {
        return Ok(state.clone());
    }
    let mut state = state.next();
    let since = state.revision;
    let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
    if let Some(present) = bucket.store_move.as_mut() {
        (present.since, present.is_cancelled) = (since, true);
        let from = present.from.clone();
        set_store(bucket, &from);
    }
    Ok(state)
}

fn set_store(bucket: &mut Bucket, store: &str) {
    if let Some(settings) = bucket.settings.as_object_mut() {
        settings.insert("type".to_owned(), Value::from(store));
    }
}
