//! Which node is active for which vBucket, as a cluster map says.

use base::VbId;
use serde_json::Value;

/// A cluster map, as far as this client follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Epoch and revision: of two maps the one with the higher version is the newer.
    pub version: (i64, i64),
    /// The nodes that have vBuckets, as `HOST:PORT`.
    pub nodes: Vec<String>,
    /// Where the node that sent the map listens for HTTP.
    pub http: Option<String>,
    /// The place of each vBucket's active node among them.
    active: Vec<Option<usize>>,
}

impl Map {
    /// Reads a bucket's configuration; `asked` is where the node that sent it was reached. `None` if it has no map.
    pub fn read(config: &[u8], asked: &str) -> Option<Map> {
        let config: Value = serde_json::from_slice(config).ok()?;
        let map = &config["vBucketServerMap"];
        let rows = map["vBucketMap"].as_array()?;
        let number = |name: &str| config[name].as_i64().unwrap_or(0);
        let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let servers = map["serverList"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let nodes: Vec<String> = servers.map(|server| server.replace("$HOST", host)).collect();
        let active = |row: &Value| usize::try_from(row[0].as_u64()?).ok().filter(|at| *at < nodes.len());
        let active = rows.iter().map(active).collect();
        let version = (number("revEpoch"), number("rev"));
        Some(Map { version, nodes, http: http_of(&config, host), active })
    }

    /// vBuckets of the bucket.
    pub fn vbuckets(&self) -> Option<u16> {
        u16::try_from(self.active.len()).ok().filter(|count| count.is_power_of_two())
    }

    /// The active node of a vBucket; `None` while there is none.
    /// A node that is alone is reached as it was named: behind a forwarded port the map's address may be of no use here.
    pub fn active<'a>(&'a self, vb: VbId, named: &'a str) -> Option<&'a str> {
        if self.nodes.len() < 2 {
            return Some(named);
        }
        let at = self.active.get(usize::from(vb.0)).copied().flatten()?;
        Some(&self.nodes[at])
    }

    /// All nodes, as they can be reached.
    pub fn reachable(&self, named: &str) -> Vec<String> {
        if self.nodes.len() < 2 { vec![named.to_owned()] } else { self.nodes.clone() }
    }
}

/// The HTTP address of the node that answers, whose host is the one that was asked unless the map says another.
fn http_of(config: &Value, host: &str) -> Option<String> {
    let nodes = config["nodesExt"].as_array()?;
    let this = nodes.iter().find(|node| node["thisNode"] == true).or(nodes.first())?;
    let host = this["hostname"].as_str().unwrap_or(host);
    let is_bare = host.contains(':') && !host.starts_with('[');
    let host = if is_bare { format!("[{host}]") } else { host.to_owned() };
    Some(format!("{host}:{}", this["services"]["mgmt"].as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"rev": 7, "revEpoch": 2,
        "nodesExt": [{"services": {"mgmt": 8091}}, {"services": {"mgmt": 8092}, "thisNode": true}],
        "vBucketServerMap": {
        "serverList": ["$HOST:1", "10.0.0.2:2"], "vBucketMap": [[0, 1], [1, 0], [-1, 1], [9, 1]]}}"#;

    #[test]
    fn tells_who_is_active() {
        let map = Map::read(CONFIG.as_bytes(), "[::1]:11210").expect("a map");
        assert_eq!((map.version, map.vbuckets()), ((2, 7), Some(4)));
        let active = |vb| map.active(VbId(vb), "[::1]:11210");
        assert_eq!((active(0), active(1)), (Some("[::1]:1"), Some("10.0.0.2:2")));
        assert_eq!((active(2), active(3), active(4)), (None, None, None));
        assert_eq!(map.http.as_deref(), Some("[::1]:8092"));
    }

    #[test]
    fn a_node_that_is_alone_is_reached_as_it_was_named() {
        let alone = r#"{"vBucketServerMap": {"serverList": ["10.0.0.1:11210"], "vBucketMap": [[0]]}}"#;
        let map = Map::read(alone.as_bytes(), "localhost:7").expect("a map");
        assert_eq!(map.active(VbId(0), "localhost:7"), Some("localhost:7"));
        assert_eq!(map.reachable("localhost:7"), ["localhost:7"]);
        assert_eq!(Map::read(b"{}", "h:1"), None);
        assert_eq!(Map::read(b"no JSON", "h:1"), None);
    }
}
