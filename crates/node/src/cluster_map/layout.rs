//! Which nodes there are, and which of them serves what: the value that a cluster map is made from.

use std::net::{IpAddr, SocketAddr};

use ::cluster::state::Alternate;
use engine::BucketKind;
use kvstore::StorageBackend;
use protocol::extras::ConfigVersion;

use crate::config::MOST_REPLICAS;

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Name or address; nothing for "the one you connected to".
    pub host: Option<String>,
    /// Port for the binary protocol.
    pub kv_port: u16,
    /// Port for HTTP.
    pub http_port: u16,
    /// Ports for the same with TLS; nothing if there is none.
    pub tls: Option<TlsPorts>,
}

/// Ports for encrypted connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsPorts {
    /// For the binary protocol.
    pub kv: u16,
    /// For HTTP.
    pub http: u16,
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
            tls: None,
        }
    }

    /// The same node, which listens for encrypted connections, too.
    pub fn with_tls(self, kv: SocketAddr, http: SocketAddr) -> NodeAddress {
        NodeAddress { tls: Some(TlsPorts { kv: kv.port(), http: http.port() }), ..self }
    }

    /// Whether HOST:PORT is this node's port for the binary protocol, as far as that is known without asking for names.
    pub fn is_at(&self, place: &str) -> bool {
        let Some((host, port)) = place.rsplit_once(':') else { return false };
        let host = host.trim_matches(['[', ']']);
        let is_local = |host: &str| {
            host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        };
        let is_host = match &self.host {
            Some(own) if own.eq_ignore_ascii_case(host) => true,
            // Two loopback addresses may belong to two nodes; the name may be either.
            Some(own) => host.eq_ignore_ascii_case("localhost") && is_local(own),
            None => is_local(host),
        };
        let ports = [Some(self.kv_port), self.tls.map(|tls| tls.kv)];
        is_host && port.parse().is_ok_and(|port: u16| ports.contains(&Some(port)))
    }

    /// The host for fields that cannot be left out; clients put the name they connected to in the place of `$HOST`.
    pub fn host_or_placeholder(&self) -> String {
        match &self.host {
            None => "$HOST".to_owned(),
            Some(host) if host.contains(':') => format!("[{host}]"),
            Some(host) => host.clone(),
        }
    }

    /// The port for the binary protocol without TLS; `None` if there is none. A node without it is told of with its port for
    /// TLS in both places.
    pub fn plain_kv(&self) -> Option<u16> {
        Some(self.kv_port).filter(|port| self.tls.is_none_or(|tls| tls.kv != *port))
    }

    /// The same for HTTP.
    pub fn plain_http(&self) -> Option<u16> {
        Some(self.http_port).filter(|port| self.tls.is_none_or(|tls| tls.http != *port))
    }

    /// `HOST:PORT` for HTTP.
    pub fn http(&self) -> String {
        format!("{}:{}", self.host_or_placeholder(), self.http_port)
    }

    /// `HOST:PORT` for the binary protocol.
    pub fn kv(&self) -> String {
        self.kv_by(false)
    }

    /// The same for another node, which may want to connect with TLS: see [`cluster::Address::kv_by`].
    pub fn kv_by(&self, is_encrypted: bool) -> String {
        let encrypted = self.tls.filter(|_| is_encrypted).map(|ports| ports.kv);
        format!("{}:{}", self.host_or_placeholder(), encrypted.unwrap_or(self.kv_port))
    }
}

/// What a node is to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It serves, and clients are told of it.
    Active,
    /// It joined and serves nothing before the next rebalance.
    Added,
    /// Others took over what it served.
    FailedOver,
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// How the cluster calls it; part of what management tools call it.
    pub id: String,
    /// Where it is reached. All nodes but this one need a host, and no two have the same host and HTTP port.
    pub address: NodeAddress,
    /// Where clients of another network reach it; nothing if they do not.
    pub alternate: Option<Alternate>,
    /// What it is to the cluster.
    pub membership: Membership,
}

/// A bucket in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLayout {
    /// Its name.
    pub name: String,
    /// Its identity: 32 hexadecimal digits, the same on all nodes.
    pub uuid: String,
    /// What kind it is of.
    pub kind: BucketKind,
    /// What keeps its documents on disk.
    pub backend: StorageBackend,
    /// Copies beside the active one that it shall have.
    pub replicas: u8,
    /// Which of its manifests of collections is meant.
    pub manifest_uid: u64,
    /// For each vBucket the nodes that hold it, the active one first, as places in [`Layout::nodes`]; nothing where
    /// nobody does. Shorter rows than one and `replicas` are fine.
    pub rows: Vec<Vec<Option<u16>>>,
}

/// Which nodes there are, and which of them serves what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Which layout this is: a later one has a larger version. Nodes alone begin with epoch 1, so that clusters should
    /// begin with 2.
    pub version: ConfigVersion,
    /// All nodes.
    pub nodes: Vec<NodeEntry>,
    /// Which of them is this one; nothing if it is none of them.
    pub this_node: Option<u16>,
    /// All buckets that clients may find.
    pub buckets: Vec<BucketLayout>,
}

impl Layout {
    /// Whether all places are there, each vBucket stands on a node once, and the numbers are within their bounds.
    pub fn is_sound(&self) -> bool {
        let is_place = |place: u16| usize::from(place) < self.nodes.len();
        let is_active = |place: u16| {
            self.nodes.get(usize::from(place)).is_some_and(|node| node.membership == Membership::Active)
        };
        let row_is_sound = |row: &Vec<Option<u16>>| {
            let nodes: Vec<u16> = row.iter().flatten().copied().collect();
            let twice = nodes.iter().enumerate().any(|(at, node)| nodes[..at].contains(node));
            !twice && nodes.iter().all(|node| is_active(*node))
        };
        self.this_node.is_none_or(is_place)
            && self.buckets.iter().all(|bucket| {
                let most = 1 + usize::from(bucket.replicas);
                bucket.replicas <= MOST_REPLICAS
                    && bucket.rows.len().is_power_of_two()
                    && bucket.rows.len() <= 1024
                    && bucket.rows.iter().all(|row| row.len() <= most && row_is_sound(row))
            })
    }

    /// Whether another one says the same of nodes and buckets.
    pub fn is_same_but_for_version(&self, other: &Layout) -> bool {
        let Layout { version: _, nodes, this_node, buckets } = self;
        (nodes, this_node, buckets) == (&other.nodes, &other.this_node, &other.buckets)
    }

    /// Whether clients are told of this node.
    pub fn tells_of_this_node(&self) -> bool {
        let this = self.this_node.and_then(|place| self.nodes.get(usize::from(place)));
        this.is_some_and(|node| node.membership == Membership::Active)
    }

    /// The nodes that clients are told of.
    pub fn active(&self) -> impl Iterator<Item = (usize, &NodeEntry)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.membership == Membership::Active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_its_own_address() {
        let at = |host: Option<&str>| NodeAddress {
            host: host.map(str::to_owned),
            kv_port: 11210,
            http_port: 8091,
            tls: Some(TlsPorts { kv: 11207, http: 18091 }),
        };
        for (host, place, is_own) in [
            (Some("127.0.0.1"), "127.0.0.1:11210", true),
            (Some("127.0.0.1"), "127.0.0.1:11207", true),
            (Some("127.0.0.1"), "localhost:11210", true),
            (Some("127.0.0.1"), "127.0.0.2:11210", false),
            (Some("127.0.0.1"), "127.0.0.1:11220", false),
            (Some("a.example"), "A.example:11210", true),
            (Some("a.example"), "b.example:11210", false),
            (Some("a.example"), "127.0.0.1:11210", false),
            (Some("::1"), "[::1]:11210", true),
            (None, "127.0.0.1:11210", true),
            (None, "localhost:11210", true),
            (None, "10.0.0.1:11210", false),
        ] {
            assert_eq!(at(host).is_at(place), is_own, "{host:?} {place}");
        }
    }
}
