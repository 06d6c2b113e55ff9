//! The cluster map that a node tells its clients: its own while it is alone, then its cluster's.
//!
//! *Guarantee:* the map's version never goes back, and connections hear of each new one.

use std::sync::Arc;

use ::cluster::state::Alternate;
use parking_lot::RwLock;
use protocol::extras::ConfigVersion;

use crate::cluster_map::{ClusterMap, Layout, LayoutRefusal, NodeAddress};
use crate::management::BucketError;
use crate::news::Announcer;
use crate::served::ServedBuckets;

/// The map as it is now, and what the node's own one is made of.
pub struct NodeMap {
    present: RwLock<Arc<ClusterMap>>,
    address: NodeAddress,
    /// Where clients of another network reach the node.
    alternate: RwLock<Option<Alternate>>,
    served: Arc<ServedBuckets>,
    announcer: Arc<Announcer>,
}

impl NodeMap {
    /// The map of a node alone.
    pub(crate) fn new(
        version: ConfigVersion,
        address: NodeAddress,
        served: &Arc<ServedBuckets>,
        announcer: &Arc<Announcer>,
    ) -> NodeMap {
        let map = ClusterMap::single_node(version, (&address, None), &served.shapes());
        NodeMap {
            present: RwLock::new(Arc::new(map)),
            address,
            alternate: RwLock::default(),
            served: Arc::clone(served),
            announcer: Arc::clone(announcer),
        }
    }

    /// The map as it is now.
    pub(crate) fn now(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.present.read())
    }

    /// Where the node is reached.
    pub(crate) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Where clients of another network reach the node; `None` if they do not.
    pub fn alternate(&self) -> Option<Alternate> {
        self.alternate.read().clone()
    }

    /// Clients of another network reach the node here: the node's own map says so from now on.
    pub(crate) fn set_alternate(&self, alternate: Option<Alternate>) {
        *self.alternate.write() = alternate;
        let mut map = self.present.write();
        if map.is_lone() {
            *map = self.lone(map.version());
        }
    }

    /// Shows clients the manifests of the buckets as they are now, in a map of the next revision.
    pub fn show_manifests(&self) {
        {
            let mut map = self.present.write();
            if !map.is_lone() {
                // The cluster's own map tells of manifests.
                return;
            }
            let version = map.version();
            *map = self.lone(ConfigVersion { revision: version.revision + 1, ..version });
        }
        self.announcer.tell();
    }

    /// Replaces the map, and tells the connections that want to know. It must be newer than the present one; the map that
    /// a node made for itself gives way to any. From now on the node makes none itself.
    pub fn set(&self, layout: Layout) -> Result<(), LayoutRefusal> {
        let new = Arc::new(ClusterMap::new(layout)?);
        {
            let mut present = self.present.write();
            if !present.is_lone() && new.version() <= present.version() {
                return Err(LayoutRefusal::Stale(present.version()));
            }
            *present = new;
        }
        self.announcer.tell();
        Ok(())
    }

    /// Makes a new map of a node alone, of the revision that `next` makes of the present one; a map that came from
    /// elsewhere stays.
    pub(crate) fn redraw(
        &self,
        next: impl FnOnce(i64) -> Result<i64, BucketError>,
    ) -> Result<(), BucketError> {
        let before = self.now();
        if !before.is_lone() {
            return Ok(());
        }
        let version = before.version();
        let new = self.lone(ConfigVersion { revision: next(version.revision)?, ..version });
        {
            let mut present = self.present.write();
            if present.is_lone() {
                *present = new;
            }
        }
        self.announcer.tell();
        Ok(())
    }

    /// The map of a node that serves all of its buckets itself.
    fn lone(&self, version: ConfigVersion) -> Arc<ClusterMap> {
        let shapes = self.served.shapes();
        Arc::new(ClusterMap::single_node(version, (&self.address, self.alternate()), &shapes))
    }
}
