//! Buckets of a development cluster: whichever node is asked, all of them make, change, empty or delete one.

use std::sync::{Arc, Weak};

use vbucket::Manifest;

use super::cluster::{Shared, State};
use crate::config::BucketSpec;
use crate::node::Node;
use crate::node_buckets::{BucketChange, BucketError, Management};

/// Manages the buckets of all nodes.
pub(super) struct EveryNode(pub(super) Weak<Shared>);

impl EveryNode {
    fn with<T>(
        &self,
        work: impl FnOnce(&Shared, &mut State) -> Result<T, BucketError>,
    ) -> Result<T, BucketError> {
        let gone = || BucketError::Elsewhere("the cluster is being stopped".to_owned());
        let shared = self.0.upgrade().ok_or_else(gone)?;
        let mut state = shared.state.lock();
        work(&shared, &mut state)
    }
}

/// The nodes that run.
fn running(state: &State) -> Vec<Arc<Node>> {
    state.nodes.iter().filter_map(|node| node.node().cloned()).collect()
}

impl Management for EveryNode {
    fn create(&self, spec: BucketSpec) -> Result<(), BucketError> {
        self.with(|shared, state| {
            if state.specs.contains_key(&spec.name) {
                return Err(BucketError::Exists);
            }
            let mut made: Vec<Arc<Node>> = Vec::new();
            for node in running(state) {
                if let Err(error) = node.create_bucket(spec.clone()) {
                    for other in made {
                        other.delete_bucket(&spec.name)?;
                    }
                    return Err(error);
                }
                made.push(node);
            }
            state.specs.insert(spec.name.clone(), spec.clone());
            shared.place(state, &spec);
            shared.apply(state);
            Ok(())
        })
    }

    fn change(&self, name: &str, change: BucketChange) -> Result<(), BucketError> {
        self.with(|shared, state| {
            let mut spec = state.specs.get(name).cloned().ok_or(BucketError::Unknown)?;
            let nodes = running(state);
            nodes.iter().try_for_each(|node| node.change_bucket(name, change.clone()))?;
            spec.replicas = change.replicas.unwrap_or(spec.replicas);
            spec.flush_enabled = change.flush_enabled.unwrap_or(spec.flush_enabled);
            spec.durability_min = change.durability_min.unwrap_or(spec.durability_min);
            let pairs: Vec<(&str, &str)> = change.settings.iter().map(|(n, v)| (*n, v.as_str())).collect();
            spec.settings.set_all(spec.kind, &pairs).map_err(BucketError::Settings)?;
            spec.quota_bytes = spec.settings.get(engine::settings::Key::MaxSize);
            if let Some(placement) = state.plan.buckets.get_mut(name) {
                placement.replicas = spec.replicas;
                let most = 1 + usize::from(spec.replicas);
                // More of them than there are come with nodes that recover.
                placement.rows.iter_mut().for_each(|row| row.truncate(most));
            }
            state.specs.insert(name.to_owned(), spec);
            shared.apply(state);
            Ok(())
        })
    }

    fn flush(&self, name: &str) -> Result<(), BucketError> {
        self.with(|_, state| running(state).iter().try_for_each(|node| node.flush_bucket(name)))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.with(|shared, state| {
            state.specs.remove(name).ok_or(BucketError::Unknown)?;
            state.plan.buckets.remove(name);
            let done: Result<(), BucketError> =
                running(state).iter().try_for_each(|node| node.delete_bucket(name));
            shared.apply(state);
            done
        })
    }

    fn tell_manifest(&self, name: &str, manifest: &Manifest) -> Result<(), BucketError> {
        self.with(|_, state| {
            for node in running(state) {
                let Some(bucket) = node.bucket(name) else { continue };
                if bucket.manifest().uid() < manifest.uid() {
                    let failed =
                        |refusal: engine::ManifestRefusal| BucketError::Elsewhere(refusal.to_string());
                    bucket.set_manifest(manifest.clone()).map_err(failed)?;
                }
            }
            Ok(())
        })
    }
}
