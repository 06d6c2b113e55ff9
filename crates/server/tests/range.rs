//! Figures over time over HTTP: `/pools/default/stats/range`, and a bucket's stats of the last hour.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;

use protocol::Status;
use serde_json::{Value, json};
use server::Server;
use support::{Client, http, start};

const RANGE: &str = "/pools/default/stats/range";

fn get(server: &Server, path: &str) -> Value {
    let answer = http(server, "GET", path, "");
    assert_eq!(answer.0, 200, "{path}: {answer:?}");
    serde_json::from_str(&answer.1).expect("JSON")
}

fn post(server: &Server, body: &Value) -> (u16, Value) {
    let answer = http(server, "POST", RANGE, &body.to_string());
    (answer.0, serde_json::from_str(&answer.1).unwrap_or_default())
}

/// The newest value of each figure of an answer, by a label.
fn newest(told: &Value, label: &str) -> Vec<(String, String)> {
    let of = |one: &Value| {
        let last = one["values"].as_array().and_then(|values| values.last()).expect("a value");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&one["metric"][label]), text(&last[1]))
    };
    told["data"].as_array().expect("a list").iter().map(of).collect()
}

#[test]
fn figures_are_told_over_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default:64MiB\", \"other:64MiB\"]\n");
    let mut client = Client::connect(&server, "default", &[]);
    for key in [b"a", b"b", b"c"] {
        assert_eq!(client.set(key, b"1"), Some(Status::Success));
    }
    let told = get(&server, &format!("{RANGE}/kv_curr_items?start=-1&step=1"));
    assert_eq!(told["errors"], json!([]), "{told}");
    let hostname = format!("127.0.0.1:{}", server.http_addr().port());
    let default = told["data"].as_array().expect("a list").iter();
    let default: Vec<&Value> = default.filter(|one| one["metric"]["bucket"] == "default").collect();
    assert_eq!(
        default[0]["metric"],
        json!({ "name": "kv_curr_items", "bucket": "default", "nodes": [hostname] })
    );
    assert!(default[0]["values"][0][0].is_u64(), "{told}");
    let (start, end) = (&told["startTimestamp"], &told["endTimestamp"]);
    assert_eq!(end.as_u64().expect("seconds") - start.as_u64().expect("seconds"), 1);
    let sum = get(&server, &format!("{RANGE}/kv_curr_items/sum"));
    let told = get(&server, &format!("{RANGE}/kv_ops?bucket=default&op=set&nodes={hostname}"));
    let both = json!([
        { "metric": [{ "label": "name", "value": "kv_ops" }, { "label": "bucket", "value": "default" },
                     { "label": "op", "value": "s.t", "operator": "=~" }], "step": 1, "start": -1 },
        { "metric": [{ "label": "name", "value": "kv_uptime_seconds" }], "applyFunctions": ["max"],
          "nodesAggregation": "sum" },
    ]);
    let (code, list) = post(&server, &both);
    assert_eq!((code, list.as_array().map(Vec::len)), (200, Some(2)), "{list}");
    for (told, label, expected) in
        [(&told, "op", [("set", "3")]), (&list[0], "op", [("set", "3")]), (&sum, "bucket", [("", "3")])]
    {
        let newest = newest(told, label);
        let newest: Vec<(&str, &str)> = newest.iter().map(|(a, b)| (&a[..], &b[..])).collect();
        assert_eq!(newest, expected, "{told}");
    }
    assert_eq!(list[1]["data"].as_array().map(Vec::len), Some(1), "{list}");
    for name in ["sys_mem_total", "sys_mem_actual_used", "sys_cpu_cores_available"] {
        let told = newest(&get(&server, &format!("{RANGE}/{name}")), "name");
        let value: f64 = told[0].1.parse().expect("a number");
        assert!(told.len() == 1 && told[0].0 == name && value > 0.0, "{told:?}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn what_is_not_kept_is_an_error_of_each_node_and_what_is_wrong_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for path in ["n1ql_requests", "kv_curr_items/p90", "kv_curr_items/sum/rate"] {
        let told = get(&server, &format!("{RANGE}/{path}"));
        assert_eq!((&told["data"], told["errors"].as_array().map(Vec::len)), (&json!([]), Some(1)), "{told}");
        assert!(told["errors"][0]["error"].is_string() && told["errors"][0]["node"].is_string(), "{told}");
    }
    for (path, code) in [
        ("kv_ops/nothing", 404),
        ("kv_ops?bucket=none", 404),
        ("kv_ops?start=soon", 400),
        ("kv_ops?nodes=10.0.0.1", 400),
        ("kv_ops?nodesAggregation=special", 400),
    ] {
        let answer = http(&server, "GET", &format!("{RANGE}/{path}"), "");
        assert_eq!(answer.0, code, "{path}: {answer:?}");
        let told: Value = serde_json::from_str(&answer.1).expect("JSON");
        assert!(told["errors"]["_"].is_string(), "{path}: {told}");
    }
    for wrong in [json!({}), json!([{}]), json!([1]), Value::Array(vec![json!({}); 101])] {
        assert_eq!(post(&server, &wrong).0, 400, "{wrong}");
    }
    server.stop().expect("a clean stop");
}

/// Each step of a list costs little, and a list of them could cost much: the thread that answers HTTP has no part in it.
#[test]
fn an_answer_has_a_bound_and_is_made_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    // An answer is counted a moment behind it.
    let overviews = || {
        let lane = &server.node().lanes().overviews;
        while lane.under_way() > 0 {}
        lane.done()
    };
    let name = json!({ "label": "name", "value": "kv_ops" });
    let long = json!({ "metric": [name], "start": -10_999, "step": 1, "applyFunctions": ["avg_over_time"],
        "timeWindow": "9y" });
    let before = overviews();
    let (code, told) = post(&server, &Value::Array(vec![long; 100]));
    assert_eq!(code, 400, "{told}");
    assert!(told["errors"]["_"].as_str().is_some_and(|why| why.contains("values")), "{told}");
    assert_eq!(overviews(), before + 1);
    let pattern = |value: String| json!({ "label": "op", "value": value, "operator": "=~" });
    let with = |count: usize| {
        let labels = [vec![name.clone()], vec![pattern("g.t".to_owned()); count]].concat();
        json!({ "metric": labels })
    };
    assert_eq!(post(&server, &json!([with(16)])).0, 200);
    assert_eq!(post(&server, &json!([with(17)])).0, 400);
    assert_eq!(post(&server, &json!([with(9), with(8)])).0, 400);
    let large = json!({ "metric": [name, pattern("\\w{2}".repeat(60))] });
    assert_eq!(post(&server, &json!([large])).0, 400);
    server.stop().expect("a clean stop");
}

#[test]
fn a_bucket_tells_its_last_hour() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
    let stats =
        |query: &str| get(&server, &format!("/pools/default/buckets/default/stats{query}"))["op"].clone();
    assert_eq!(stats("")["samples"]["curr_items"], json!([1]));
    for zoom in ["minute", "hour", "day", "week", "month", "year"] {
        let told = stats(&format!("?zoom={zoom}"));
        let samples = told["samples"].as_object().expect("an object");
        let count = told["samplesCount"].as_u64().expect("a number");
        for (name, values) in samples {
            assert_eq!(values.as_array().map(|values| values.len() as u64), Some(count), "{name}: {told}");
        }
        let last = samples["curr_items"].as_array().and_then(|values| values.last());
        assert_eq!(last, Some(&json!(1)), "the last ones are those of now: {told}");
    }
    assert_eq!(http(&server, "GET", "/pools/default/buckets/default/stats?zoom=decade", "").0, 400);
    server.stop().expect("a clean stop");
}
