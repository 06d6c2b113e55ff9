//! Buckets: made, changed, deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::{Command, Refused};
use crate::placement;
use crate::state::{Bucket, MAX_REPLICAS, NodeId, State};

pub(super) fn apply(state: &State, command: &Command) -> Result<State, Refused> {
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
                manifest: manifest.clone(),
                map: placement::first(*vbuckets, &nodes, usize::from(*replicas)),
                target: Vec::new(),
                missing: BTreeMap::new(),
                forgot: BTreeMap::new(),
                steps: BTreeMap::new(),
            };
            let mut state = state.next();
            state.buckets.insert(name.clone(), bucket);
            Ok(state)
        }
        Command::ChangeBucket { name, settings, replicas, manifest } => {
            if replicas.is_some_and(|replicas| usize::from(replicas) > MAX_REPLICAS) {
                return Err(Refused::WrongBucket);
            }
            let mut state = state.next();
            let bucket = state.buckets.get_mut(name).ok_or(Refused::NoSuchBucket)?;
            bucket.replicas = replicas.unwrap_or(bucket.replicas);
            if let Some(settings) = settings {
                bucket.settings = settings.clone();
            }
            if let Some(manifest) = manifest {
                bucket.manifest = manifest.clone();
            }
            Ok(state)
        }
        Command::DropBucket { name } => {
            let mut state = state.next();
            state.buckets.remove(name).ok_or(Refused::NoSuchBucket)?;
            Ok(state)
        }
        _ => Ok(state.clone()),
    }
}
