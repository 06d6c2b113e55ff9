//! A cluster as people look at it: its nodes, and for each bucket which node is active for which vBucket.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

/// vBuckets in a row of the picture.
const ROW: usize = 64;
/// What stands for nodes, in their order.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Draws the answer of `GET /v1/cluster`.
pub(super) fn draw(cluster: &Value) -> String {
    let state = &cluster["state"];
    let alive: Vec<u64> =
        cluster["alive"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let letters = letters(state);
    let mut text = String::new();
    let (epoch, revision) = (&state["epoch"], &state["revision"]);
    // Writing to a text does not fail.
    let _ = writeln!(text, "epoch {epoch}, revision {revision}\n");
    let _ = writeln!(
        text,
        "   {:<8}{:<24}{:<16}{:<6}{:>8}{:>10}",
        "node", "kv", "status", "", "active", "replicas"
    );
    for (id, node) in state["nodes"].as_object().into_iter().flatten() {
        let number: u64 = id.parse().unwrap_or(0);
        let (active, replicas) = count(state, number);
        let address = format!(
            "{}:{}",
            node["address"]["host"].as_str().unwrap_or("?"),
            node["address"]["kv"].as_u64().unwrap_or(0)
        );
        let letter = letters.get(&number).copied().unwrap_or('?');
        let status = node["status"].as_str().unwrap_or("?").replace('_', " ");
        let up = if alive.contains(&number) { "up" } else { "DOWN" };
        let name = format!("n_{id}");
        let _ =
            writeln!(text, " {letter} {name:<8}{address:<24}{status:<16}{up:<6}{active:>8}{replicas:>10}");
    }
    for (name, bucket) in state["buckets"].as_object().into_iter().flatten() {
        let _ = writeln!(text, "\nbucket {name}: the active node of each vBucket");
        let map = bucket["map"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (row, chains) in map.chunks(ROW).enumerate() {
            let cells = chains
                .iter()
                .enumerate()
                .map(|(at, chain)| cell(&letters, &bucket["steps"][(row * ROW + at).to_string()], chain));
            let _ = writeln!(text, "{:>6} {}", row * ROW, cells.collect::<String>());
        }
    }
    if !state["rebalance"].is_null() {
        let _ = writeln!(text, "\n{}", super::waiting::bar(cluster, std::time::Duration::ZERO));
    }
    for note in cluster["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(text, "\n! {note}");
    }
    if state["buckets"].as_object().is_some_and(|buckets| !buckets.is_empty()) {
        text.push_str("\na small letter: being moved; ?: being chosen; .: nobody\n");
    }
    text
}

fn letters(state: &Value) -> BTreeMap<u64, char> {
    let ids = state["nodes"].as_object().into_iter().flatten().filter_map(|(id, _)| id.parse().ok());
    let mut ids: Vec<u64> = ids.collect();
    ids.sort_unstable();
    ids.into_iter().enumerate().map(|(at, id)| (id, char::from(LETTERS[at % LETTERS.len()]))).collect()
}

/// One vBucket.
fn cell(letters: &BTreeMap<u64, char>, step: &Value, chain: &Value) -> char {
    let letter = chain[0].as_u64().and_then(|id| letters.get(&id)).copied();
    match letter {
        _ if step.get("choose").is_some() => '?',
        None => '.',
        Some(letter) if step.is_null() || step.get("settle").is_some() => letter,
        Some(letter) => letter.to_ascii_lowercase(),
    }
}

/// How many vBuckets a node is active for, and of how many it has replicas.
fn count(state: &Value, id: u64) -> (usize, usize) {
    let buckets = state["buckets"].as_object().into_iter().flatten();
    let chains = buckets.flat_map(|(_, bucket)| bucket["map"].as_array().into_iter().flatten());
    let (mut active, mut replicas) = (0, 0);
    for chain in chains.filter_map(Value::as_array) {
        active += usize::from(chain.first().and_then(Value::as_u64) == Some(id));
        replicas += chain.iter().skip(1).filter(|place| place.as_u64() == Some(id)).count();
    }
    (active, replicas)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn who_has_what_is_drawn() {
        let node = |kv: u16, status: &str| {
            json!({
                "uuid": "u", "address": { "host": "10.0.0.1", "kv": kv, "http": 8091 }, "status": status, "incarnation": 1,
            })
        };
        let cluster = json!({
            "this": 1, "alive": [1], "progress": 0.25,
            "state": {
                "epoch": 2, "revision": 17,
                "nodes": { "1": node(11210, "active"), "2": node(11220, "failed_over") },
                "buckets": { "b": {
                    "map": [[1, 2], [2, 1], [1, null], [null, null]],
                    "steps": { "0": "build", "1": { "choose": { "since": 1 } } },
                } },
                "rebalance": { "id": 1, "total": 4 },
            },
            "notes": ["n_2 was failed over"],
        });
        expect![[r#"
            epoch 2, revision 17

               node    kv                      status                  active  replicas
             A n_1     10.0.0.1:11210          active          up           2         1
             B n_2     10.0.0.1:11220          failed over     DOWN         1         1

            bucket b: the active node of each vBucket
                 0 a?A.

            [##########------------------------------]  25 %  1 of 4 vBuckets

            ! n_2 was failed over

            a small letter: being moved; ?: being chosen; .: nobody
        "#]]
        .assert_eq(&draw(&cluster));
    }
}
