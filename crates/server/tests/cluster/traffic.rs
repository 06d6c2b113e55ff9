//! Traffic of one node that is disabled: its replicas and the other nodes go on.

use super::*;

/// Keys whose vBuckets a member is active for.
fn keys_of(nodes: &Nodes, at: usize) -> Vec<String> {
    let uuid = nodes.members[at].cluster.uuid().to_owned();
    let is_its = |key: &String| nodes.owner(key.as_bytes()).is_some_and(|owner| owner.cluster.uuid() == uuid);
    (0..40).map(|n| format!("key-{n}")).filter(is_its).collect()
}

#[test]
fn disabled_traffic_of_one_node_leaves_replicas_other_nodes_and_the_map_alone() {
    let nodes = Nodes::start(3, 1);
    let mut ledger = BTreeMap::new();
    (0..40).for_each(|at| nodes.write(&mut ledger, &format!("key-{at}"), "before"));
    wait_for_replicas(&nodes);
    let quiet = (0..3).find(|at| !keys_of(&nodes, *at).is_empty()).expect("one node has keys");
    let map = |at: usize| support::json(&nodes.members[at].server, "/pools/default/b/default");
    let (state, maps) = (nodes.state(), [0, 1, 2].map(map));
    let switch = |opcode| {
        let mut admin = Client::connect(&nodes.members[quiet].server, "default", &[]);
        admin.request(&RequestParts { opcode, ..RequestParts::default() }).status
    };
    assert_eq!(switch(opcode::DISABLE_TRAFFIC), protocol::Status::Success);

    let its = keys_of(&nodes, quiet);
    let mut client = Client::connect(&nodes.members[quiet].server, "default", &[]);
    for key in &its {
        assert_eq!(client.set(key.as_bytes(), b"refused"), Some(protocol::Status::Etmpfail), "{key}");
        let answer = client.get(key.as_bytes()).expect("an answer");
        assert_eq!(answer.status, protocol::Status::Etmpfail, "{key}");
    }
    // The others take and give; what they take comes to their replicas, those on the quiet node among them.
    for key in (0..40).map(|n| format!("key-{n}")).filter(|key| !its.contains(key)) {
        nodes.write(&mut ledger, &key, "meanwhile");
    }
    // The quiet node still feeds its replicas: a change that no client makes.
    let bucket = nodes.members[quiet].server.node().bucket("default").expect("it is served");
    let key = its.first().expect("it has some");
    let request = engine::StoreRequest::set(base::DocKey::new(key.as_bytes()), b"from inside");
    bucket.documents().store(vb(key.as_bytes()), &request, bucket.now()).expect("it is stored");
    ledger.insert(key.clone().into_bytes(), b"from inside".to_vec());
    wait_for_replicas(&nodes);
    assert_eq!([0, 1, 2].map(map), maps, "no node tells another map");
    let now = nodes.state();
    assert_eq!((now.revision, &now.buckets["default"].map), (state.revision, &state.buckets["default"].map));

    assert_eq!(switch(opcode::ENABLE_TRAFFIC), protocol::Status::Success);
    nodes.write(&mut ledger, key, "after");
    nodes.check(&ledger);
    nodes.stop();
}
