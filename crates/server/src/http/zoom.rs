//! `/pools/default/buckets/BUCKET/stats`: the main figures of a bucket on all nodes, now or over the last hour.

use ::node::Node;
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::acting::refused;
use super::basic_auth::Caller;
use super::node_figures::{Figures, OfBucket};
use super::query::Query;
use super::sample_requests;
use super::samples::{EVERY, Sample};
use super::settings::find;
use super::shared::Shared;

/// A node's sample stands for so many seconds after it was taken.
const STANDS_S: u64 = 3 * EVERY.as_secs();

/// How much time is meant.
#[derive(serde::Deserialize)]
pub(super) struct Zoomed {
    zoom: Option<String>,
}

/// `GET /pools/default/buckets/BUCKET/stats?zoom=hour`: figures one after the other, the last ones those of now; rates in
/// each second. Without `zoom`, those of now alone.
pub(super) async fn stats(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(zoomed): Query<Zoomed>,
) -> Response {
    if let Err(response) = find(&shared, &user, &name) {
        return *response;
    }
    let seconds = match zoomed.zoom.as_deref() {
        None => 0,
        Some("minute") => 60,
        // No more than the last hour is kept.
        Some("hour" | "day" | "week" | "month" | "year") => 3_600,
        Some(other) => {
            let why = format!("zoom: {other:?} is none: use minute, hour, day, week, month or year");
            return *refused(StatusCode::BAD_REQUEST, &why);
        }
    };
    let now = Figures::of_all(&shared).await.of(&name);
    let now_ms = unix_ms(&shared.node);
    let mut told = Vec::new();
    if seconds > 0 {
        let since_s = (now_ms / 1_000).saturating_sub(seconds + STANDS_S);
        told = at_times(&sample_requests::of_all(&shared, &name, since_s).await, now_ms / 1_000, seconds);
    }
    told.push((now_ms, now));
    Json(describe(&told)).into_response()
}

fn unix_ms(node: &Node) -> u64 {
    node.env().clock.unix_ns() / 1_000_000
}

/// The figures of all nodes together at each time before now at which one had some; in milliseconds.
fn at_times(nodes: &[Vec<Sample>], now_s: u64, seconds: u64) -> Vec<(u64, OfBucket)> {
    let every_s = EVERY.as_secs();
    let end_s = now_s - now_s % every_s;
    let times = (end_s.saturating_sub(seconds)..end_s).step_by(usize::try_from(every_s).unwrap_or(1));
    let at = |at_s: u64| {
        let mut sum: Option<OfBucket> = None;
        for samples in nodes {
            let before = samples.iter().rev().find(|sample| sample.at_s <= at_s);
            if let Some(sample) = before.filter(|sample| sample.at_s + STANDS_S > at_s) {
                sum.get_or_insert_default().add(&sample.figures());
            }
        }
        sum.map(|sum| (at_s * 1_000, sum))
    };
    times.filter_map(at).collect()
}

type Named = (&'static str, fn(&OfBucket) -> Value);

const NAMES: [Named; 15] = [
    ("curr_items", |of| json!(of.documents)),
    ("mem_used", |of| json!(of.used_bytes)),
    ("ep_max_size", |of| json!(of.quota_bytes)),
    ("ops", |of| json!(of.rates.ops())),
    ("cmd_get", |of| json!(of.rates.gets)),
    ("get_misses", |of| json!(of.rates.misses)),
    ("get_hits", |of| json!(of.rates.gets - of.rates.misses)),
    ("cmd_set", |of| json!(of.rates.stores)),
    ("delete_hits", |of| json!(of.rates.deletes)),
    ("ep_bg_fetched", |of| json!(of.rates.fetched)),
    ("disk_write_queue", |of| json!(of.disk_queue)),
    ("couch_docs_actual_disk_size", |of| json!(of.file_bytes)),
    ("couch_docs_data_size", |of| json!(of.data_bytes)),
    ("vb_active_num_non_resident", |of| json!(of.not_resident)),
    ("vb_active_resident_items_ratio", |of| json!(resident_percent(of))),
];

fn resident_percent(of: &OfBucket) -> f64 {
    let resident = of.documents.saturating_sub(of.not_resident);
    if of.documents == 0 { 100.0 } else { resident as f64 * 100.0 / of.documents as f64 }
}

fn describe(told: &[(u64, OfBucket)]) -> Value {
    let times: Vec<u64> = told.iter().map(|(at, _)| *at).collect();
    let mut samples = json!({ "timestamp": times });
    for (name, value) in NAMES {
        samples[name] = told.iter().map(|(_, of)| value(of)).collect();
    }
    let interval_ms = if told.len() > 1 { EVERY.as_millis() as u64 } else { 1_000 };
    let op = json!({
        "samples": samples,
        "samplesCount": told.len(),
        "lastTStamp": times.last(),
        "interval": interval_ms,
    });
    json!({ "op": op })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_added_at_each_time() {
        let samples = |of: &[(u64, u64)]| -> Vec<Sample> {
            let sample = |(at_s, documents): &(u64, u64)| {
                let told = json!({ "at_s": at_s, "documents": documents, "stores": 10, "over_ms": 5_000 });
                serde_json::from_value(told).expect("a sample")
            };
            of.iter().map(sample).collect()
        };
        let nodes = [samples(&[(80, 1), (87, 2), (92, 3)]), samples(&[(88, 10), (93, 20)])];
        let told = at_times(&nodes, 121, 40);
        let documents: Vec<(u64, u64)> = told.iter().map(|(at, of)| (at / 1_000, of.documents)).collect();
        let expected = [(80, 1), (85, 1), (90, 12), (95, 23), (100, 23), (105, 23)];
        assert_eq!(documents, expected, "what is older than 15 seconds is not told");
        assert_eq!(told[2].1.rates.stores, 4.0);
        let described = describe(&told);
        assert_eq!(described["op"]["samples"]["curr_items"], json!([1, 1, 12, 23, 23, 23]));
        assert_eq!(
            (&described["op"]["samplesCount"], &described["op"]["interval"]),
            (&json!(6), &json!(5_000))
        );
        assert_eq!(described["op"]["samples"]["vb_active_resident_items_ratio"][0], 100.0);
    }
}
