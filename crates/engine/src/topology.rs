//! A vBucket's replication chains as JSON: an array of one or two arrays of node names and nulls.

use std::sync::Arc;

use serde_json::Value;
use vbucket::{Chain, Topology, TopologyError};

/// Reads the value of `topology` in what comes with a vBucket's state.
pub fn topology_from_json(json: &Value) -> Result<Topology, TopologyError> {
    let chains = json.as_array().ok_or(TopologyError::NotChains)?;
    if chains.len() > 2 {
        return Err(TopologyError::NotChains);
    }
    Topology::of(chains.iter().map(chain).collect::<Result<_, _>>()?)
}

fn chain(json: &Value) -> Result<Chain, TopologyError> {
    let members = json.as_array().ok_or(TopologyError::NotMembers)?;
    Chain::new(members.iter().map(member).collect::<Result<_, _>>()?)
}

fn member(json: &Value) -> Result<Option<Box<str>>, TopologyError> {
    match json {
        Value::Null => Ok(None),
        Value::String(name) => Ok(Some(name.as_str().into())),
        _ => Err(TopologyError::NotAName),
    }
}

/// The value of `topology` for a state document.
fn topology_to_json(topology: &Topology) -> Value {
    let chain = |chain: &Chain| chain.members().map(|name| name.map_or(Value::Null, Value::from)).collect();
    topology.chains().map(chain).collect::<Vec<Value>>().into()
}

/// Values of `topology` for the state documents of many vBuckets, which mostly have few different ones.
#[derive(Default)]
pub(crate) struct TopologyValues(Vec<(Topology, Arc<Value>)>);

impl TopologyValues {
    /// More different ones than this are made anew.
    const MOST: usize = 8;

    /// The value of one.
    pub(crate) fn of(&mut self, topology: &Topology) -> Arc<Value> {
        if let Some((_, value)) = self.0.iter().find(|(known, _)| known == topology) {
            return Arc::clone(value);
        }
        let value = Arc::new(topology_to_json(topology));
        self.0.truncate(TopologyValues::MOST - 1);
        self.0.insert(0, (topology.clone(), Arc::clone(&value)));
        value
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_is_written_again() {
        for sent in [
            json!([["a"]]),
            json!([["a", "b", null]]),
            json!([["a\"\\\u{1}", "ü", "c", "d"], ["b", "a"]]),
            json!([["a", null, "b"], ["c"]]),
        ] {
            let topology = topology_from_json(&sent).expect("it is valid");
            assert_eq!(topology_to_json(&topology), sent);
            let text: Value = serde_json::from_str(&topology.to_string()).expect("it prints JSON");
            assert_eq!(text, sent);
        }
    }

    #[test]
    fn values_are_shared_and_never_mixed_up() {
        let topologies: Vec<Topology> = (0..20)
            .map(|n| topology_from_json(&json!([[format!("n_{n}"), null]])).expect("it is valid"))
            .collect();
        let mut values = TopologyValues::default();
        for topology in topologies.iter().chain(topologies.iter().rev()) {
            assert_eq!(*values.of(topology), topology_to_json(topology));
        }
        assert!(values.0.len() <= TopologyValues::MOST);
        assert!(Arc::ptr_eq(&values.of(&topologies[3]), &values.of(&topologies[3])));
    }

    #[test]
    fn what_is_no_topology_is_refused() {
        let long = "n".repeat(256);
        for (sent, error) in [
            (json!({}), TopologyError::NotChains),
            (json!([]), TopologyError::NotChains),
            (json!([["a"], ["b"], ["c"]]), TopologyError::NotChains),
            (json!(["a"]), TopologyError::NotMembers),
            (json!([[]]), TopologyError::NotMembers),
            (json!([["a", "b", "c", "d", "e"]]), TopologyError::NotMembers),
            (json!([["a", 1]]), TopologyError::NotAName),
            (json!([["a", ""]]), TopologyError::NotAName),
            (json!([["a", long]]), TopologyError::NotAName),
            (json!([[null, "a"]]), TopologyError::NoActive),
            (json!([["a", "b", null, "b"]]), TopologyError::Twice),
        ] {
            assert_eq!(topology_from_json(&sent), Err(error), "{sent}");
        }
    }
}
