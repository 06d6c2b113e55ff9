//! The cluster map: which node serves which vBucket, as clients want it (JSON, once per bucket and once for the node).

pub mod capabilities;
mod json;
mod layout;
mod send;

use std::collections::HashMap;

use ::cluster::state::Alternate;
use engine::BucketKind;
use kvstore::StorageBackend;
use protocol::extras::ConfigVersion;
use serde_json::Value;
use vbucket::ManifestUid;

pub use json::alternates;
pub use layout::{BucketLayout, Layout, Membership, NodeAddress, NodeEntry, TlsPorts};

/// What a node that belongs to no cluster is called.
pub const LONE_NODE: &str = "n_0";

/// One map, ready to be sent.
pub struct Map {
    json: Vec<u8>,
    snappy: Vec<u8>,
}

impl Map {
    fn new(json: &Value) -> Map {
        let json = json.to_string().into_bytes();
        let snappy = snap::raw::Encoder::new().compress_vec(&json).unwrap_or_default();
        Map { json, snappy }
    }

    /// As JSON.
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// A bucket of a node that serves it alone.
pub struct BucketShape {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// What kind it is of.
    pub kind: BucketKind,
    /// What keeps its documents on disk.
    pub backend: StorageBackend,
    /// How many vBuckets it has.
    pub vbuckets: u16,
    /// Its manifest of collections.
    pub manifest_uid: ManifestUid,
    /// Copies beside the active one that it would have in a cluster.
    pub replicas: u8,
}

/// Why a layout does not become the cluster map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutRefusal {
    /// There is one that is as new.
    #[error("the present cluster map is not older: epoch {}, revision {}", .0.epoch, .0.revision)]
    Stale(ConfigVersion),
    /// It names nodes that there are not, or a node twice.
    #[error("the layout contradicts itself")]
    Unsound,
}

/// All maps of one revision.
pub struct ClusterMap {
    layout: Layout,
    is_lone: bool,
    global: Map,
    buckets: HashMap<String, Map>,
}

impl ClusterMap {
    /// The maps of a node that serves everything itself.
    pub fn single_node(
        version: ConfigVersion,
        (address, alternate): (&NodeAddress, Option<Alternate>),
        buckets: &[BucketShape],
    ) -> ClusterMap {
        let node = NodeEntry {
            id: LONE_NODE.to_owned(),
            address: address.clone(),
            alternate,
            membership: Membership::Active,
        };
        let bucket = |shape: &BucketShape| BucketLayout {
            name: shape.name.clone(),
            uuid: shape.uuid.clone(),
            kind: shape.kind,
            backend: shape.backend,
            replicas: shape.replicas,
            manifest_uid: shape.manifest_uid.0,
            rows: vec![vec![Some(0)]; usize::from(shape.vbuckets)],
        };
        let buckets = buckets.iter().map(bucket).collect();
        let layout = Layout { version, nodes: vec![node], this_node: Some(0), buckets };
        ClusterMap { is_lone: true, ..ClusterMap::drawn(layout) }
    }

    /// The maps of a layout that somebody else made.
    pub fn new(layout: Layout) -> Result<ClusterMap, LayoutRefusal> {
        if layout.is_sound() { Ok(ClusterMap::drawn(layout)) } else { Err(LayoutRefusal::Unsound) }
    }

    fn drawn(layout: Layout) -> ClusterMap {
        let maps = layout
            .buckets
            .iter()
            .map(|bucket| (bucket.name.clone(), Map::new(&json::of_bucket(&layout, bucket))));
        let buckets = maps.collect();
        ClusterMap { global: Map::new(&json::of_nodes(&layout)), buckets, is_lone: false, layout }
    }

    /// Which revision this is.
    pub fn version(&self) -> ConfigVersion {
        self.layout.version
    }

    /// What the maps were made from.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether the node made it for itself.
    pub fn is_lone(&self) -> bool {
        self.is_lone
    }

    /// The map of a bucket.
    pub fn bucket(&self, name: &str) -> Option<&Map> {
        self.buckets.get(name)
    }

    /// The map for clients without a bucket.
    pub fn global(&self) -> &Map {
        &self.global
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::capabilities::capabilities;
    use super::*;

    fn address(host: Option<&str>) -> NodeAddress {
        NodeAddress { host: host.map(str::to_owned), kv_port: 11210, http_port: 8091, tls: None }
    }

    #[test]
    fn has_what_clients_insist_on() {
        let bucket = |name: &str, kind| {
            let (name, uuid) = (name.to_owned(), "0".repeat(32));
            BucketShape {
                name,
                uuid,
                kind,
                backend: StorageBackend::default(),
                vbuckets: 4,
                manifest_uid: ManifestUid(31),
                replicas: 0,
            }
        };
        let buckets = [bucket("b", BucketKind::Persistent), bucket("e", BucketKind::Ephemeral)];
        let version = ConfigVersion { epoch: 1, revision: 7 };
        let maps = ClusterMap::single_node(version, (&address(Some("127.0.0.1")), None), &buckets);
        let map: Value =
            serde_json::from_slice(maps.bucket("b").expect("it was given").json()).expect("JSON");
        assert_eq!((&map["rev"], &map["revEpoch"]), (&json!(7), &json!(1)));
        assert_eq!(map["collectionsManifestUid"], "1f");
        assert_eq!(map["vBucketServerMap"]["vBucketMap"], json!([[0], [0], [0], [0]]));
        assert_eq!(map["nodesExt"][0]["services"], json!({ "kv": 11210, "mgmt": 8091 }));
        assert_eq!(map["nodes"][0]["hostname"], "127.0.0.1:8091");
        assert_eq!(map["bucketType"], "membase");
        assert_eq!(
            map["bucketCapabilities"],
            json!(capabilities(BucketKind::Persistent, StorageBackend::default()))
        );
        let map: Value =
            serde_json::from_slice(maps.bucket("e").expect("it was given").json()).expect("JSON");
        assert_eq!(map["bucketType"], "ephemeral");
        let global: Value = serde_json::from_slice(maps.global().json()).expect("JSON");
        assert!(global.get("uuid").is_none() && global.get("nodeLocator").is_none());
    }

    #[test]
    fn a_node_that_listens_everywhere_lets_clients_fill_in_the_host() {
        let any =
            NodeAddress::new(None, "0.0.0.0:1".parse().expect("valid"), "0.0.0.0:2".parse().expect("valid"));
        assert_eq!(any.http(), "$HOST:2");
        let version = ConfigVersion { epoch: 1, revision: 1 };
        let maps = ClusterMap::single_node(version, (&any, None), &[]);
        let global: Value = serde_json::from_slice(maps.global().json()).expect("JSON");
        assert!(global["nodesExt"][0].get("hostname").is_none());
        assert_eq!(address(Some("::1")).http(), "[::1]:8091");
    }

    /// A node without ports that are not encrypted has those for TLS in their places.
    #[test]
    fn ports_that_are_off_are_not_told() {
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let told = |kv: u16, http: u16| {
            let address = NodeAddress::new(None, at(kv), at(http)).with_tls(at(11207), at(18091));
            let maps =
                ClusterMap::single_node(ConfigVersion { epoch: 1, revision: 1 }, (&address, None), &[]);
            let map: Value = serde_json::from_slice(maps.global().json()).expect("JSON");
            map["nodesExt"][0]["services"].clone()
        };
        let tls = serde_json::json!({ "kvSSL": 11207, "mgmtSSL": 18091 });
        assert_eq!(told(11207, 18091), tls);
        let with = |services: &[(&str, u16)]| {
            let mut all = tls.clone();
            services.iter().for_each(|(service, port)| all[*service] = (*port).into());
            all
        };
        assert_eq!(told(11210, 18091), with(&[("kv", 11210)]));
        assert_eq!(told(11210, 8091), with(&[("kv", 11210), ("mgmt", 8091)]));
    }

    fn entry(id: &str, port: u16, membership: Membership) -> NodeEntry {
        let address =
            NodeAddress { host: Some("10.0.0.1".to_owned()), kv_port: port, http_port: port + 1, tls: None };
        NodeEntry { id: id.to_owned(), address, alternate: None, membership }
    }

    fn three_nodes() -> Layout {
        let nodes = vec![
            entry("a", 10, Membership::FailedOver),
            entry("b", 20, Membership::Active),
            entry("c", 30, Membership::Active),
        ];
        let bucket = BucketLayout {
            name: "x".to_owned(),
            uuid: "0".repeat(32),
            kind: BucketKind::Persistent,
            backend: StorageBackend::default(),
            replicas: 1,
            manifest_uid: 26,
            rows: vec![vec![Some(1), Some(2)], vec![Some(2)], vec![None, Some(1)], vec![]],
        };
        let version = ConfigVersion { epoch: 2, revision: 9 };
        Layout { version, nodes, this_node: Some(2), buckets: vec![bucket] }
    }

    #[test]
    fn several_nodes_are_numbered_as_clients_see_them() {
        let maps = ClusterMap::new(three_nodes()).expect("sound");
        let map: Value = serde_json::from_slice(maps.bucket("x").expect("given").json()).expect("JSON");
        let servers = &map["vBucketServerMap"];
        assert_eq!(servers["serverList"], json!(["10.0.0.1:20", "10.0.0.1:30"]));
        assert_eq!(servers["vBucketMap"], json!([[0, 1], [1, -1], [0, -1], [-1, -1]]));
        assert_eq!(servers["numReplicas"], 1);
        assert_eq!(map["collectionsManifestUid"], "1a");
        assert_eq!(map["nodes"].as_array().map(Vec::len), Some(2));
        let nodes = &map["nodesExt"];
        assert_eq!((nodes[0].get("thisNode"), &nodes[1]["thisNode"]), (None, &json!(true)));
        assert_eq!(nodes[0]["services"], json!({ "kv": 20, "mgmt": 21 }));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Spoil = fn(&mut Layout);
        let spoiled: [Spoil; 6] = [
            |layout| layout.this_node = Some(3),
            |layout| layout.buckets[0].rows[0] = vec![Some(1), Some(1)],
            |layout| layout.buckets[0].rows[0] = vec![Some(0)],
            |layout| layout.buckets[0].rows[0] = vec![Some(1), Some(2), None],
            |layout| layout.buckets[0].rows.truncate(3),
            |layout| layout.buckets[0].replicas = 4,
        ];
        for spoil in spoiled {
            let mut layout = three_nodes();
            spoil(&mut layout);
            assert_eq!(ClusterMap::new(layout).err(), Some(LayoutRefusal::Unsound));
        }
    }
}
