//! The cluster map as clients use it: which node is active for which vBucket.

use std::sync::{Arc, Mutex, PoisonError};

use harness::http;
use harness::stave::BUCKET;
use serde_json::Value;

/// A map, newer than those with smaller versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    version: (i64, i64),
    servers: Vec<String>,
    active: Vec<Option<usize>>,
}

impl Map {
    /// As nodes tell it, over HTTP and with refusals.
    pub(super) fn parse(json: &[u8]) -> Option<Map> {
        let json: Value = serde_json::from_slice(json).ok()?;
        let map = &json["vBucketServerMap"];
        let servers = map["serverList"].as_array()?.iter();
        let rows = map["vBucketMap"].as_array()?.iter();
        Some(Map {
            version: (json["revEpoch"].as_i64().unwrap_or(0), json["rev"].as_i64()?),
            servers: servers.map(|server| server.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            active: rows.map(|row| row[0].as_u64().and_then(|at| usize::try_from(at).ok())).collect(),
        })
    }

    /// The address of the node that is active for a vBucket.
    pub(super) fn active(&self, vb: u16) -> Option<&str> {
        let at = self.active.get(usize::from(vb)).copied().flatten()?;
        self.servers.get(at).map(String::as_str)
    }

    /// Whether somebody is active for every vBucket, and none of them is at `address`.
    pub(super) fn is_whole_without(&self, address: &str) -> bool {
        (0_u16..).zip(&self.active).all(|(vb, _)| self.active(vb).is_some_and(|active| active != address))
    }
}

/// The newest map that anybody has seen, and where newer ones are asked for.
#[derive(Clone, Default)]
pub(super) struct Maps {
    newest: Arc<Mutex<Arc<Map>>>,
    /// HTTP of the nodes.
    nodes: Arc<Mutex<Vec<String>>>,
}

impl Maps {
    /// The newest one.
    pub(super) fn newest(&self) -> Arc<Map> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one that came with a refusal, if it is newer.
    pub(super) fn offer(&self, json: &[u8]) {
        let Some(map) = Map::parse(json) else { return };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if map.version > newest.version {
            *newest = Arc::new(map);
        }
    }

    /// Says which nodes may be asked.
    pub(super) fn ask_at(&self, nodes: Vec<String>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Asks all nodes; those that do not answer are passed over.
    pub(super) fn ask(&self) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for node in nodes {
            if let Ok(json) = http::request(&node, "GET", &format!("/pools/default/b/{BUCKET}"), "") {
                self.offer(json.as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_map_counts() {
        let json = |rev: u64, active: &str| {
            format!(
                r#"{{"rev":{rev},"revEpoch":2,"vBucketServerMap":{{"serverList":["a:1","b:2"],"vBucketMap":[[{active},1]]}}}}"#
            )
        };
        let maps = Maps::default();
        maps.offer(json(2, "1").as_bytes());
        maps.offer(json(1, "0").as_bytes());
        maps.offer(b"{}");
        assert_eq!(maps.newest().active(0), Some("b:2"));
        assert!(maps.newest().is_whole_without("a:1") && !maps.newest().is_whole_without("b:2"));
        maps.offer(json(3, "-1").as_bytes());
        assert!(maps.newest().active(0).is_none() && !maps.newest().is_whole_without("a:1"));
    }
}
