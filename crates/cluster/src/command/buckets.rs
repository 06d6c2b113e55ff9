//! Buckets: made, changed, deleted, and brought to another store.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Command, Refused, limits, rebalance};
use crate::placement;
use crate::state::{Bucket, MAX_REPLICAS, NextIds, NodeId, State, Status, StoreMove};
use crate::view::View;

pub(super) fn apply(view: &View, command: &Command) -> Result<State, Refused> {
    let state = &view.state;
    match command {
        Command::CreateBucket { name, uuid, settings, replicas, vbuckets, manifest } => {
            if state.buckets.contains_key(name) {
                return Err(Refused::BucketExists);
            }
            if state.rebalance.is_some() {
                return Err(Refused::Rebalancing);
            }
            if !vbuckets.is_power_of_two() || *vbuckets > 1024 || usize::from(*replicas) > MAX_REPLICAS {
                return Err(Refused::WrongBucket);
            }
            let nodes: BTreeSet<NodeId> =
                state.nodes.keys().copied().filter(|id| state.is_active(*id)).collect();
            let bucket = Bucket {
                uuid: uuid.clone(),
                settings: settings.clone(),
                replicas: *replicas,
                manifest: manifest.clone().into(),
                map: placement::first(*vbuckets, &nodes, usize::from(*replicas)),
                target: Vec::new(),
                missing: BTreeMap::new(),
                forgot: BTreeMap::new(),
                links_down: BTreeMap::new(),
                steps: BTreeMap::new(),
                flushes: 0,
                flushing: None,
                next_ids: NextIds::default(),
                store_move: None,
            };
            let mut state = state.next();
            state.buckets.insert(name.clone(), bucket);
            limits::check(view, &state, holders(&state))?;
            Ok(state)
        }
        Command::ChangeBucket { name, settings, replicas } => {
            if replicas.is_some_and(|replicas| usize::from(replicas) > MAX_REPLICAS) {
                return Err(Refused::WrongBucket);
            }
            let mut state = state.next();
            let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
            bucket.replicas = replicas.unwrap_or(bucket.replicas);
            let old = std::mem::take(&mut bucket.settings);
            bucket.settings = settings.clone().unwrap_or_else(|| old.clone());
            // A smaller quota is always taken, so that one that is too large can be repaired.
            if limits::quota_of(&bucket.settings) > limits::quota_of(&old) {
                limits::check(view, &state, holders(&state))?;
            }
            Ok(state)
        }
        Command::ChangeManifest { name, manifest, next_ids } => {
            let present = state.buckets.get(name).ok_or(Refused::NoSuchBucket)?;
            if (&*present.manifest, &present.next_ids) == (manifest, next_ids) {
                return Ok(state.clone());
            }
            let mut state = state.next();
            let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
            bucket.manifest = manifest.clone().into();
            bucket.next_ids = *next_ids;
            Ok(state)
        }
        Command::FlushBucket { name } => flush(view, name),
        Command::DropBucket { name } => remove(state, name),
        _ => Ok(state.clone()),
    }
}

/// The nodes that make every bucket of the document.
fn holders(state: &State) -> impl Iterator<Item = NodeId> + use<'_> {
    state.nodes.iter().filter(|(_, node)| node.status != Status::New).map(|(id, _)| *id)
}

/// Who does not answer could be active for documents that the others have removed: all must be there.
fn flush(view: &View, name: &str) -> Result<State, Refused> {
    rebalance::moves_nothing(&view.state)?;
    // What another bucket waits for is no reason to refuse.
    if view.state.buckets.get(name).is_some_and(Bucket::is_choosing) {
        return Err(Refused::FailingOver);
    }
    let mut active = view.state.nodes.iter().filter(|(_, node)| node.status == Status::Active);
    if let Some((id, _)) = active.find(|(id, _)| view.alive(**id).is_none()) {
        return Err(Refused::NodeDown(*id));
    }
    let mut state = view.state.next();
    let since = state.revision;
    let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
    bucket.flushes += 1;
    bucket.flushing = Some(since);
    // There is nothing left of which a copy could have less than another one.
    bucket.steps.clear();
    Ok(state)
}

fn remove(state: &State, name: &str) -> Result<State, Refused> {
    let mut state = state.next();
    let bucket = state.buckets.remove(name).ok_or(Refused::NoSuchBucket)?;
    state.note_deleted(name, &bucket.uuid);
    Ok(state)
}

/// Has a bucket go to another store: the settings say which one, and each node makes what it has as they say.
pub(super) fn begin_move(view: &View, name: &str, to: &str) -> Result<State, Refused> {
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

/// Has it go back.
pub(super) fn cancel_move(state: &State, name: &str) -> Result<State, Refused> {
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
