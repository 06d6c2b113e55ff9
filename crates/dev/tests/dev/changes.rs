//! One stream of changes over HTTP follows a whole cluster, while nodes fail, leave and come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dev::{DevCluster, DevConfig, DevTimes};
use serde_json::Value;

use crate::cluster::{Cluster, MAJORITY, NO_LEVEL, config, keys};
use crate::support::{Lines, http, world};

const PATH: &str = "/v1/buckets/default/changes";

/// What a reader makes of the events: all versions of each document that were not rolled back.
#[derive(Default)]
struct Model {
    /// Of each document the versions by seqno, with the vBucket.
    documents: BTreeMap<String, (u64, BTreeMap<u64, Option<Value>>)>,
    /// How far each vBucket is.
    seqnos: BTreeMap<u64, u64>,
    rollbacks: usize,
    token: Option<String>,
}

impl Model {
    fn take(&mut self, event: &Value) {
        let (vb, seqno) = (event["vbucket"].as_u64().unwrap_or(0), event["seqno"].as_u64().unwrap_or(0));
        match event["event"].as_str().expect("a name") {
            "mutation" | "deletion" | "expiration" => {
                let last = self.seqnos.insert(vb, seqno).unwrap_or(0);
                assert!(seqno > last, "vBucket {vb} goes back from {last} to {seqno}");
                let key = event["key"].as_str().expect("a key").to_owned();
                let versions = &mut self.documents.entry(key).or_insert_with(|| (vb, BTreeMap::new())).1;
                versions.insert(seqno, event.get("value").cloned());
            }
            "rollback" => {
                self.rollbacks += 1;
                self.seqnos.insert(vb, seqno);
                for (of, versions) in self.documents.values_mut() {
                    if *of == vb {
                        versions.split_off(&(seqno + 1));
                    }
                }
            }
            "position" => self.token = Some(event["token"].as_str().expect("a token").to_owned()),
            "system" => {}
            other => panic!("{other}: {event}"),
        }
    }

    fn latest(&self, key: &str) -> Option<&Value> {
        self.documents.get(key)?.1.last_key_value()?.1.as_ref()
    }

    fn keys(&self) -> Vec<&str> {
        self.documents.keys().map(String::as_str).collect()
    }
}

/// Everything up to now from a token on, as one node tells it.
fn all(cluster: &Cluster, node: u16, query: &str) -> Model {
    let (code, text) =
        http(&cluster.node(node), "GET", &format!("{PATH}?follow=false&include=values{query}"), "");
    assert_eq!(code, 200, "{text}");
    let mut model = Model::default();
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if line.is_object() {
            model.take(&line);
        }
    }
    model
}

#[test]
fn any_node_tells_the_changes_of_all() {
    let cluster = Cluster::start(3, 1);
    for key in keys(40) {
        cluster.write(&key, "1", MAJORITY);
    }
    let mut expected = keys(40);
    expected.sort_unstable();
    for node in 1..=3 {
        let model = all(&cluster, node, "");
        assert_eq!(model.keys(), expected, "node {node}");
        let token = model.token.expect("a position");
        assert!(token.len() <= 200, "{} bytes", token.len());
        assert!(all(&cluster, node, &format!("&since={token}")).keys().is_empty());
    }
    // One node's own, as before.
    let own: Vec<usize> = (1..=3).map(|node| all(&cluster, node, "&nodes=this").keys().len()).collect();
    assert!(own.iter().sum::<usize>() == 40 && own.iter().all(|count| *count < 40), "{own:?}");
    // From now on: nothing of before, everything of what comes.
    let mut following = Lines::of(&cluster.node(2), &format!("{PATH}?since=now&include=values"));
    assert_eq!(following.next_json().expect("an event")["event"], "position");
    let mut model = Model::default();
    for key in keys(40) {
        cluster.write(&key, "2", MAJORITY);
    }
    while model.keys().len() < 40 {
        model.take(&following.next_json().expect("it goes on"));
    }
    assert!(keys(40).iter().all(|key| model.latest(key) == Some(&Value::from(2))));
    let (code, text) = http(&cluster.node(1), "GET", &format!("{PATH}?nodes=some"), "");
    assert!(code == 400 && text.contains("nodes=some"), "{code} {text}");
    cluster.stop();
}

/// What nodes do while one client writes and another one reads.
const ORDERS: [&str; 6] = [
    "/v1/dev/nodes/2/failover",
    "/v1/dev/nodes/2/recover",
    "/v1/dev/nodes",
    "/v1/dev/nodes/3/failover?mode=graceful",
    "/v1/dev/nodes/3/recover?type=full",
    "/v1/dev/nodes/4/remove",
];

#[test]
fn a_stream_goes_on_through_failovers_and_rebalances() {
    let cluster = Cluster::start(3, 1);
    let names = keys(60);
    let mut written: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut following = Lines::of(&cluster.node(1), &format!("{PATH}?include=values"));
    let last = 1_000_000;
    let reader = std::thread::spawn(move || {
        let mut model = Model::default();
        let is_last = |model: &Model, key: &String| model.latest(key) == Some(&Value::from(last));
        while !keys(60).iter().all(|key| is_last(&model, key)) {
            model.take(&following.next_json().expect("it goes on"));
        }
        model
    });
    let mut count = 0;
    let mut write = |level| {
        let key = &names[count % names.len()];
        count += 1;
        cluster.write(key, &count.to_string(), level);
        written.entry(key.clone()).or_default().push(count as u64);
    };
    for _ in 0..names.len() {
        write(MAJORITY);
    }
    for order in ORDERS {
        let (is_done, control) = (AtomicBool::new(false), cluster.dev.control_addr());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (code, told) = http(&(control, control), "POST", order, "");
                assert_eq!(code, 200, "{order}: {told}");
                is_done.store(true, Ordering::SeqCst);
            });
            while !is_done.load(Ordering::SeqCst) {
                // With one replica a majority cannot be had after a failover.
                write(NO_LEVEL);
            }
        });
        cluster.wait_for_replicas();
    }
    // A node is away when the others take over: its streams break off before the map says where they go on.
    cluster.must("/v1/dev/nodes/2/stop");
    cluster.must("/v1/dev/nodes/2/failover");
    for key in &names {
        cluster.write(key, &last.to_string(), NO_LEVEL);
    }
    let model = reader.join().expect("the reader has everything");
    // In full: each version that was acknowledged came, in the order of the writes, unless the hard failover took it. The
    // one before the last may have been replaced by it while the streams of node 2 were broken off.
    for (key, values) in &written {
        let came: Vec<u64> = model.documents[key].1.values().flatten().filter_map(Value::as_u64).collect();
        let mut sorted = came.clone();
        sorted.sort_unstable();
        assert_eq!(came, sorted, "{key} is out of order");
        if model.rollbacks == 0 {
            let (_, before) = values.split_last().expect("each key was written");
            assert!(before.iter().all(|value| came.contains(value)), "{key}: {values:?} are not in {came:?}");
        }
        assert_eq!(cluster.read(key).as_deref(), Some(last.to_string().as_bytes()), "{key}");
    }
    // The position of the stream that went through all this is one to go on from.
    let token = model.token.clone().expect("a position");
    assert!(token.len() <= 200, "{} bytes", token.len());
    cluster.write("another", "1", NO_LEVEL);
    let rest = all(&cluster, 1, &format!("&since={token}"));
    assert!(rest.keys().contains(&"another") && rest.rollbacks == 0, "{:?}", rest.keys());
    cluster.stop();
}

#[test]
fn a_vbucket_that_no_node_serves_ends_the_stream_with_a_reason_and_a_position() {
    let folder = tempfile::tempdir().expect("a folder");
    let (env, clock) = world();
    let times = DevTimes { lease: Duration::from_secs(100_000), auto_failover: None };
    let config = DevConfig { times, ..config(folder.path(), 2, 0) };
    let cluster = Cluster::of(DevCluster::start(config, env).expect("it starts"));
    for key in keys(30) {
        cluster.write(&key, "1", NO_LEVEL);
    }
    let mut following = Lines::of(&cluster.node(1), &format!("{PATH}?include=values"));
    let mut model = Model::default();
    while model.keys().len() < 30 {
        model.take(&following.next_json().expect("it goes on"));
    }
    cluster.must("/v1/dev/nodes/2/stop");
    let key = (0..)
        .map(|at| format!("while away {at}"))
        .find(|key| cluster.owner(key.as_bytes()) == Some(1))
        .expect("one");
    cluster.write(&key, "1", NO_LEVEL);
    while !model.keys().contains(&key.as_str()) {
        model.take(&following.next_json().expect("it goes on"));
    }
    clock.advance(61);
    let mut ended = None;
    while let Some(event) = following.next_json() {
        if event["event"] == "ended" {
            ended = Some(event);
        } else {
            model.take(&event);
        }
    }
    let ended = ended.expect("it is told");
    let message = ended["message"].as_str().unwrap_or_default();
    assert!(ended["reason"] == "NotServed" && message.contains("60 s"), "{ended}");
    cluster.must("/v1/dev/nodes/2/start");
    let token = model.token.expect("a position");
    for key in keys(30) {
        cluster.write(&key, "2", NO_LEVEL);
    }
    let rest = all(&cluster, 1, &format!("&since={token}"));
    assert!(keys(30).iter().all(|key| rest.latest(key) == Some(&Value::from(2))), "{:?}", rest.keys());
    cluster.stop();
}
