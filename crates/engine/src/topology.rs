//! A vBucket's replication chains as JSON: an array of one or two arrays of node names and nulls.

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
pub(crate) fn topology_to_json(topology: &Topology) -> Value {
    let chain = |chain: &Chain| chain.members().map(|name| name.map_or(Value::Null, Value::from)).collect();
    topology.chains().map(chain).collect::<Vec<Value>>().into()
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
