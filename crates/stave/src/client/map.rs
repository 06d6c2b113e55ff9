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
    /// If `by_tls` is set, addresses are those where nodes speak TLS; a node that does not keeps its other one.
    pub fn read(config: &[u8], asked: &str, by_tls: bool) -> Option<Map> {
        let config: Value = serde_json::from_slice(config).ok()?;
        let map = &config["vBucketServerMap"];
        let rows = map["vBucketMap"].as_array()?;
        let number = |name: &str| config[name].as_i64().unwrap_or(0);
        let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let servers = map["serverList"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let place = |server: &str| if by_tls { encrypted(&config, server) } else { server.to_owned() };
        let nodes: Vec<String> = servers.map(|server| place(server).replace("$HOST", host)).collect();
        let active = |row: &Value| usize::try_from(row[0].as_u64()?).ok().filter(|at| *at < nodes.len());
        let active = rows.iter().map(active).collect();
        let version = (number("revEpoch"), number("rev"));
        Some(Map { version, nodes, http: http_of(&config, host, by_tls), active })
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
fn http_of(config: &Value, host: &str, by_tls: bool) -> Option<String> {
    let nodes = config["nodesExt"].as_array()?;
    let this = nodes.iter().find(|node| node["thisNode"] == true).or(nodes.first())?;
    let host = this["hostname"].as_str().unwrap_or(host);
    let is_bare = host.contains(':') && !host.starts_with('[');
    let host = if is_bare { format!("[{host}]") } else { host.to_owned() };
    let service = if by_tls { "mgmtSSL" } else { "mgmt" };
    Some(format!("{host}:{}", this["services"][service].as_u64()?))
}

/// Where a node of the list of servers speaks TLS: its host, and the port that `nodesExt` has for it.
fn encrypted(config: &Value, server: &str) -> String {
    let Some((host, port)) = server.rsplit_once(':') else { return server.to_owned() };
    let is_it = |node: &&Value| {
        let named = node["hostname"].as_str().unwrap_or("$HOST").trim_matches(['[', ']']);
        named == host.trim_matches(['[', ']'])
            && node["services"]["kv"].as_u64().is_some_and(|kv| kv.to_string() == port)
    };
    let node = config["nodesExt"].as_array().into_iter().flatten().find(is_it);
    match node.and_then(|node| node["services"]["kvSSL"].as_u64()) {
        Some(port) => format!("{host}:{port}"),
        None => server.to_owned(),
    }
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
        let map = Map::read(CONFIG.as_bytes(), "[::1]:11210", false).expect("a map");
        assert_eq!((map.version, map.vbuckets()), ((2, 7), Some(4)));
        let active = |vb| map.active(VbId(vb), "[::1]:11210");
        assert_eq!((active(0), active(1)), (Some("[::1]:1"), Some("10.0.0.2:2")));
        assert_eq!((active(2), active(3), active(4)), (None, None, None));
        assert_eq!(map.http.as_deref(), Some("[::1]:8092"));
    }

    #[test]
    fn a_node_that_is_alone_is_reached_as_it_was_named() {
        let alone = r#"{"vBucketServerMap": {"serverList": ["10.0.0.1:11210"], "vBucketMap": [[0]]}}"#;
        let map = Map::read(alone.as_bytes(), "localhost:7", false).expect("a map");
        assert_eq!(map.active(VbId(0), "localhost:7"), Some("localhost:7"));
        assert_eq!(map.reachable("localhost:7"), ["localhost:7"]);
        assert_eq!(Map::read(b"{}", "h:1", false), None);
        assert_eq!(Map::read(b"no JSON", "h:1", false), None);
    }
    #[test]
    fn who_speaks_tls_is_reached_at_its_other_ports() {
        let config = r#"{"nodesExt": [
            {"services": {"kv": 1, "kvSSL": 3, "mgmt": 8091, "mgmtSSL": 18091}, "thisNode": true},
            {"hostname": "10.0.0.2", "services": {"kv": 2, "kvSSL": 4}},
            {"hostname": "fd00::3", "services": {"kv": 2, "kvSSL": 5}},
            {"hostname": "10.0.0.4", "services": {"kv": 2}}],
            "vBucketServerMap": {"vBucketMap": [[0], [1], [2], [3]],
            "serverList": ["$HOST:1", "10.0.0.2:2", "[fd00::3]:2", "10.0.0.4:2"]}}"#;
        let map = Map::read(config.as_bytes(), "node.example:3", true).expect("a map");
        assert_eq!(map.nodes, ["node.example:3", "10.0.0.2:4", "[fd00::3]:5", "10.0.0.4:2"]);
        assert_eq!(map.http.as_deref(), Some("node.example:18091"));
        let map = Map::read(config.as_bytes(), "node.example:1", false).expect("a map");
        assert_eq!((map.nodes[2].as_str(), map.http.as_deref()), ("[fd00::3]:2", Some("node.example:8091")));
    }
}
