//! The cluster map: which node serves which vBucket, as clients want it (JSON, once per bucket and once for the node).

use std::collections::HashMap;
use std::net::SocketAddr;

use base::Datatype;
use engine::BucketKind;
use protocol::Status;
use protocol::extras::ConfigVersion;
use protocol::feature::Feature;
use serde_json::{Value, json};

use crate::naming;
use crate::reply::{Answer, Reply};
use crate::session::Session;

/// What clients may rely on; each name unlocks something in some client.
const CAPABILITIES: [&str; 18] = [
    "cbhello",
    "cccp",
    "collections",
    "couchapi",
    "dcp",
    "dcp.IgnorePurgedTombstones",
    "durableWrite",
    "nodesExt",
    "preserveExpiry",
    "snappy",
    "subdoc.AccessDeleted",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.ReplicaRead",
    "subdoc.ReviveDocument",
    "tombstonedUserXAttrs",
    "touch",
    "xattr",
    "xdcrCheckpointing",
];

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

    /// Sends it, compressed if the client agreed to that for any answer.
    pub fn send(&self, reply: &mut Reply<'_>, session: &Session, status: Status) {
        let compress = session.has(Feature::SnappyEverywhere) && session.has(Feature::Snappy);
        // With "not my vBucket" the map is marked as JSON even for those who did not ask for that mark.
        let json = if status == Status::NotMyVbucket {
            Datatype::JSON
        } else {
            session.visible_datatype(Datatype::JSON)
        };
        if !compress || self.snappy.is_empty() {
            return reply.send(&Answer { status, datatype: json, value: &self.json, ..Answer::default() });
        }
        let datatype = json.with(Datatype::SNAPPY);
        reply.send(&Answer { status, datatype, value: &self.snappy, ..Answer::default() });
    }
}

/// What needs files: only buckets on disk have it. Clients take a bucket without it for an ephemeral one.
const OF_FILES: &str = "couchapi";

/// What clients may rely on in a bucket of this kind.
pub fn capabilities(kind: BucketKind) -> Vec<&'static str> {
    let has = |name: &&str| kind == BucketKind::Persistent || *name != OF_FILES;
    CAPABILITIES.into_iter().filter(has).collect()
}

/// A bucket as the map shows it.
pub struct BucketShape {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// What kind it is of.
    pub kind: BucketKind,
    /// How many vBuckets it has.
    pub vbuckets: u16,
}

/// Where this node is reached.
#[derive(Clone, Debug)]
pub struct NodeAddress {
    /// Name or address; nothing for "the one you connected to".
    pub host: Option<String>,
    /// Port for the binary protocol.
    pub kv_port: u16,
    /// Port for HTTP.
    pub http_port: u16,
}

impl NodeAddress {
    /// What the node calls itself: HOST:PORT; one that listens everywhere and was not given a name is known by its port.
    pub fn name(&self) -> String {
        format!("{}:{}", self.host.as_deref().unwrap_or("0.0.0.0"), self.kv_port)
    }

    /// From what the node listens on: an address that stands for all of them says nothing about how it is reached.
    pub fn new(advertise: Option<&str>, kv: SocketAddr, http: SocketAddr) -> NodeAddress {
        let bound = (!kv.ip().is_unspecified()).then(|| kv.ip().to_string());
        NodeAddress {
            host: advertise.map(str::to_owned).or(bound),
            kv_port: kv.port(),
            http_port: http.port(),
        }
    }

    /// The host for fields that cannot be left out; clients put the name they connected to in the place of `$HOST`.
    pub fn host_or_placeholder(&self) -> String {
        match &self.host {
            None => "$HOST".to_owned(),
            Some(host) if host.contains(':') => format!("[{host}]"),
            Some(host) => host.clone(),
        }
    }

    /// `HOST:PORT` for HTTP.
    pub fn http(&self) -> String {
        format!("{}:{}", self.host_or_placeholder(), self.http_port)
    }
}

/// All maps of one revision.
pub struct ClusterMap {
    version: ConfigVersion,
    global: Map,
    buckets: HashMap<String, Map>,
}

impl ClusterMap {
    /// The maps of a node that serves everything itself.
    pub fn single_node(version: ConfigVersion, address: &NodeAddress, buckets: &[BucketShape]) -> ClusterMap {
        let maps = buckets
            .iter()
            .map(|bucket| (bucket.name.clone(), Map::new(&bucket_json(version, address, bucket))));
        ClusterMap { version, global: Map::new(&global_json(version, address)), buckets: maps.collect() }
    }

    /// Which revision this is.
    pub fn version(&self) -> ConfigVersion {
        self.version
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

fn nodes_ext(address: &NodeAddress) -> Value {
    // Clients refuse a map without a management port, whether they use it or not.
    let mut node = json!({
        "thisNode": true,
        "services": { "kv": address.kv_port, "mgmt": address.http_port },
    });
    if let Some(host) = &address.host {
        node["hostname"] = json!(host);
    }
    json!([node])
}

fn global_json(version: ConfigVersion, address: &NodeAddress) -> Value {
    json!({
        "rev": version.revision,
        "revEpoch": version.epoch,
        "nodesExt": nodes_ext(address),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    })
}

fn bucket_json(version: ConfigVersion, address: &NodeAddress, bucket: &BucketShape) -> Value {
    let host = address.host_or_placeholder();
    let (kv_port, name) = (address.kv_port, &bucket.name);
    let map: Vec<[i32; 1]> = vec![[0]; usize::from(bucket.vbuckets)];
    let mut node = json!({ "hostname": address.http(), "ports": { "direct": kv_port } });
    if bucket.kind == BucketKind::Persistent {
        node["couchApiBase"] = json!(format!("http://{host}:8092/{name}"));
    }
    json!({
        "rev": version.revision,
        "revEpoch": version.epoch,
        "name": name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "bucketType": naming::bucket_type(bucket.kind),
        "storageBackend": naming::storage_backend(bucket.kind),
        "collectionsManifestUid": "0",
        "nodes": [node],
        "nodesExt": nodes_ext(address),
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": [format!("{host}:{kv_port}")],
            "vBucketMap": map,
        },
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(bucket.kind),
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: Option<&str>) -> NodeAddress {
        NodeAddress { host: host.map(str::to_owned), kv_port: 11210, http_port: 8091 }
    }

    #[test]
    fn has_what_clients_insist_on() {
        let bucket = |name: &str, kind| {
            let (name, uuid) = (name.to_owned(), "0".repeat(32));
            BucketShape { name, uuid, kind, vbuckets: 4 }
        };
        let buckets = [bucket("b", BucketKind::Persistent), bucket("e", BucketKind::Ephemeral)];
        let version = ConfigVersion { epoch: 1, revision: 7 };
        let maps = ClusterMap::single_node(version, &address(Some("127.0.0.1")), &buckets);
        let map: Value =
            serde_json::from_slice(maps.bucket("b").expect("it was given").json()).expect("JSON");
        assert_eq!((&map["rev"], &map["revEpoch"]), (&json!(7), &json!(1)));
        assert_eq!(map["vBucketServerMap"]["vBucketMap"], json!([[0], [0], [0], [0]]));
        assert_eq!(map["nodesExt"][0]["services"], json!({ "kv": 11210, "mgmt": 8091 }));
        assert_eq!(map["nodes"][0]["hostname"], "127.0.0.1:8091");
        let has_files =
            |map: &Value| map["bucketCapabilities"].as_array().expect("a list").contains(&json!("couchapi"));
        assert_eq!((&map["bucketType"], has_files(&map)), (&json!("membase"), true));
        let map: Value =
            serde_json::from_slice(maps.bucket("e").expect("it was given").json()).expect("JSON");
        assert_eq!((&map["bucketType"], has_files(&map)), (&json!("ephemeral"), false));
        assert!(map["nodes"][0].get("couchApiBase").is_none());
        let global: Value = serde_json::from_slice(maps.global().json()).expect("JSON");
        assert!(global.get("uuid").is_none() && global.get("nodeLocator").is_none());
    }

    #[test]
    fn a_node_that_listens_everywhere_lets_clients_fill_in_the_host() {
        let any =
            NodeAddress::new(None, "0.0.0.0:1".parse().expect("valid"), "0.0.0.0:2".parse().expect("valid"));
        assert_eq!(any.http(), "$HOST:2");
        assert!(nodes_ext(&any)[0].get("hostname").is_none());
        assert_eq!(address(Some("::1")).http(), "[::1]:8091");
    }
}
