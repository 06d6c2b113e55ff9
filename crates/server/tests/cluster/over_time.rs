//! Figures over time of several nodes: the node that is asked asks the others.

use super::*;

const RANGE: &str = "/pools/default/stats/range";
const STATS: &str = "/pools/default/buckets/default/stats";

/// The newest values, by the nodes that they are of.
fn newest(told: &Value) -> BTreeMap<String, String> {
    let of = |one: &Value| {
        let nodes: Vec<&str> =
            one["metric"]["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let last = one["values"].as_array().and_then(|values| values.last()).expect("a value");
        (nodes.join(" "), last[1].as_str().unwrap_or_default().to_owned())
    };
    told["data"].as_array().expect("a list").iter().map(of).collect()
}

/// Each node is asked for what it has alone. Returns the address of the figures of the second one.
fn check_each_alone(nodes: &Nodes, names: &[String; 2], counts: [usize; 2]) -> String {
    let get = |path: &str| {
        let (code, told) = nodes.http(0, "GET", path, "");
        assert_eq!(code, 200, "{path}: {told}");
        told
    };
    wait_for_replicas(nodes);
    let quota = get(STATS)["op"]["samples"]["ep_max_size"][0].as_u64();
    let listed = get("/pools/default/buckets/default/nodes")["servers"].clone();
    let own = |at: usize| {
        let mut listed = listed.as_array().expect("a list").iter();
        let server = listed.find(|server| server["hostname"] == names[at]).expect("it is listed");
        server["stats"]["uri"].as_str().expect("an address").to_owned()
    };
    for at in [0, 1] {
        let told = get(&own(at));
        assert_eq!(
            (&told["hostname"], &told["op"]["samples"]["curr_items"]),
            (&json!(names[at]), &json!([counts[at]]))
        );
        assert_eq!(
            told["op"]["samples"]["ep_max_size"][0].as_u64(),
            quota.map(|quota| quota / 2),
            "quotas are added"
        );
        assert_eq!(told["op"]["samples"]["curr_items_tot"], json!([40]), "with those of replicas");
        let streamers = told["op"]["samples"]["ep_dcp_replica_count"][0].as_u64();
        assert_eq!(streamers, Some(2), "one that follows the other node, and one that is followed");
        assert_eq!(told["op"]["samples"]["vb_replica_curr_items"], json!([counts[1 - at]]));
    }
    assert_eq!(get(STATS)["op"]["samples"]["ep_resident_items_rate"], json!([100]), "a ratio is not added");
    own(1)
}

/// A node that is asked for a compaction asks the other one for it, too.
fn check_compaction_of_both(nodes: &Nodes) {
    let compact = "/pools/default/buckets/default/controller/compactBucket";
    assert_eq!(nodes.http(0, "POST", compact, "").0, 200);
    let is_compacted = || {
        let other = nodes.members[1].server.node().bucket("default").expect("it is served");
        let tasks = engine::task_stats(&other);
        tasks.iter().any(|task| task.name == "compactor" && task.run.total() > 0)
            || nodes.members[0].cluster.wait_until(Duration::from_millis(50), |_, _| false)
    };
    assert!((0..1_200).any(|_| is_compacted()), "the other node was asked, too");
}

#[test]
fn one_node_tells_the_figures_of_another_and_of_both() {
    let mut nodes = Nodes::start(2, 1);
    let mut ledger = BTreeMap::new();
    (0..40).for_each(|at| nodes.write(&mut ledger, &format!("key-{at}"), "value"));
    let uuid = |at: usize| nodes.members[at].cluster.uuid();
    let count = |at: usize| {
        ledger
            .keys()
            .filter(|key| nodes.owner(key).is_some_and(|owner| owner.cluster.uuid() == uuid(at)))
            .count()
    };
    let counts = [count(0), count(1)];
    assert!(counts.iter().all(|count| *count > 0) && counts[0] + counts[1] == 40, "{counts:?}");
    let name = |at: usize| format!("127.0.0.1:{}", nodes.members[at].server.http_addr().port());
    let names = [name(0), name(1)];
    let get = |at: usize, path: &str| {
        let (code, told) = nodes.http(at, "GET", path, "");
        assert_eq!(code, 200, "{path}: {told}");
        told
    };
    // A figure is told for 30 seconds: one of this second or the next is told for a moment a little later.
    let now_s = get(0, &format!("{RANGE}/kv_uptime_seconds"))["endTimestamp"].as_u64().expect("seconds");
    let ask = |at: usize, more: &str| {
        let told = get(at, &format!("{RANGE}/kv_curr_items?start={now_s}&end={}&step=20{more}", now_s + 20));
        assert_eq!(told["errors"], json!([]), "{told}");
        newest(&told)
    };
    let of = |at: usize| (names[at].clone(), counts[at].to_string());
    assert_eq!(ask(0, &format!("&nodes={}", names[1])), [of(1)].into(), "the other one alone");
    assert_eq!(ask(1, &format!("&nodes={}", names[0])), [of(0)].into());
    assert_eq!(ask(0, ""), [of(0), of(1)].into());
    let both = ask(0, "&nodesAggregation=sum");
    assert_eq!(both.values().collect::<Vec<_>>(), ["40"], "{both:?}");
    assert!(both.keys().all(|nodes| names.iter().all(|name| nodes.contains(name))), "{both:?}");

    // Samples are taken every 5 seconds.
    let id = nodes.state().node_of(uuid(1)).expect("it is there").0.name();
    let until = |what: &str, path: &str, is_so: &dyn Fn(&Value) -> bool| {
        let done = (0..1_200).any(|_| {
            is_so(&get(0, path))
                || nodes.members[0].cluster.wait_until(Duration::from_millis(50), |_, _| false)
        });
        assert!(done, "{what}: {}", get(0, path));
    };
    until("the samples of the other node", &format!("/v1/buckets/default/samples?node={id}"), &|told| {
        let last = told["samples"].as_array().and_then(|samples| samples.last());
        last.is_some_and(|sample| sample["documents"] == counts[1])
    });
    assert_eq!(get(0, STATS)["op"]["samples"]["curr_items"], json!([40]));
    let of_dead = check_each_alone(&nodes, &names, counts);
    check_compaction_of_both(&nodes);
    until("both nodes in a sample before now", &format!("{STATS}?zoom=minute"), &|told| {
        let items = told.pointer("/op/samples/curr_items").and_then(Value::as_array).expect("a list");
        items.len() > 1 && items.iter().rev().take(2).all(|count| count == 40)
    });

    let dead = nodes.members.remove(1);
    dead.server.kill().expect("its threads end");
    assert_eq!(nodes.http(0, "GET", &of_dead, "").0, 502);
    let (code, told) = nodes.http(0, "GET", &format!("{RANGE}/kv_curr_items?start={now_s}"), "");
    let errors = told["errors"].as_array().expect("a list");
    assert_eq!((code, errors.len(), &errors[0]["node"]), (200, 1, &json!(names[1])), "{told}");
    assert!(newest(&told).contains_key(&names[0]), "{told}");
    assert!(dead.cluster.stop(), "its threads end as they should");
    nodes.stop();
}
