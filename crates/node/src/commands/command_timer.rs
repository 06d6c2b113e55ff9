//! Get command timer: how long requests of one command took, in the form that the field's tools read: in one bucket, in
//! all of them together, or in none.
//!
//! The tools print the total as the number of operations, so all are told: times are those of the requests that were
//! measured, each of which counts for its share of all requests (record 0194).

use std::sync::Arc;

use base::{Datatype, HistogramCounts, TimeRange};
use protocol::{Request, Status};
use serde_json::{Value, json};

use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;
use crate::stats::timings::BucketTimes;

/// Get command timer: of the command whose number the extras are. The key names a bucket; without one it is the selected
/// bucket.
pub fn get_command_timer(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let &[code] = request.extras else {
        return cx.invalid("Request must include extras of length 1");
    };
    let times = match times(cx, request.key) {
        Ok(times) => times,
        Err(denied) => return denied,
    };
    let (mut counts, mut requests) = (HistogramCounts::default(), 0);
    for times in &times {
        let since = times.baseline();
        counts.add(&since.command(times, code));
        requests += since.requests(times, code);
    }
    let text = as_json(&counts, requests).to_string();
    let datatype = cx.session.visible_datatype(Datatype::JSON);
    cx.reply.send(&Answer { datatype, value: text.as_bytes(), ..Answer::default() });
    Outcome::Done
}

/// Which times are asked for: those of buckets whose counters the user may see.
fn times(cx: &mut Context<'_>, bucket: &[u8]) -> Result<Vec<Arc<BucketTimes>>, Outcome> {
    match bucket {
        b"" => Ok(match &cx.session.bucket {
            Some(bucket) => vec![cx.node.times.of(bucket)],
            None => vec![Arc::clone(cx.node.times.none())],
        }),
        b"/all/" if cx.session.rights.node.has(Privilege::SimpleStats) => Ok(cx.node.times.all()),
        b"/all/" => {
            let all = cx.node.buckets();
            let seen = all.iter().filter(|(spec, _)| may_count(cx, &spec.name));
            Ok(seen.map(|(_, bucket)| cx.node.times.of(bucket)).collect())
        }
        b"@no bucket@"
            if cx.session.rights.node.has(Privilege::Stats) || cx.lets_through(Privilege::Stats) =>
        {
            Ok(vec![Arc::clone(cx.node.times.none())])
        }
        b"@no bucket@" => Err(cx.error(Status::Eaccess, &crate::context::denied(cx.row, Privilege::Stats))),
        name => {
            let name = std::str::from_utf8(name).unwrap_or_default();
            // Whether there is one is told to those alone who may see its counters.
            let may_see = || may_count(cx, name) || cx.lets_through(Privilege::SimpleStats);
            match cx.node.bucket(name).filter(|_| may_see()) {
                Some(bucket) => Ok(vec![cx.node.times.of(&bucket)]),
                None => Err(cx.status(Status::Eaccess)),
            }
        }
    }
}

/// Whether the user may see the counters of a bucket, selected or not. A client that acts for another user has the rights
/// of both in the selected one alone.
fn may_count(cx: &Context<'_>, name: &str) -> bool {
    let session = &cx.session;
    let is_selected = session.bucket.as_ref().is_some_and(|bucket| bucket.name() == name);
    let has_itself = || {
        let user = session.user.as_ref().filter(|_| cx.infos.impersonate.is_none());
        user.is_some_and(|user| user.privileges_in(name).has(Privilege::SimpleStats))
    };
    session.rights.node.has(Privilege::SimpleStats)
        || (is_selected && session.may(Privilege::SimpleStats))
        || has_itself()
}

/// In microseconds: `data` has the end of each bucket, how many requests are in it, and the percentage up to there;
/// `bucketsLow` is where the first one begins. What is between two buckets with requests is one without.
///
/// `requests` is how many there were with those that were not measured, if that is more: what was measured counts for
/// them in equal parts. `data` is empty if there were some, and none was measured.
pub(crate) fn as_json(counts: &HistogramCounts, requests: u64) -> Value {
    let (measured, ranges) = (counts.total(), counts.ranges_us());
    let total = requests.max(measured);
    // Of what is counted up to a bucket, so that all buckets come to the total.
    let of_all = |counted: u64| (u128::from(counted) * u128::from(total) / u128::from(measured)) as u64;
    let low = ranges.first().map_or(0, |range| range.from);
    let (mut counted, mut end) = (0, low);
    let mut data: Vec<(u64, u64, f64)> = Vec::new();
    for TimeRange { from, to, count } in ranges {
        let percent = |counted: u64| counted as f64 / measured as f64 * 100.0;
        if from > end {
            data.push((from, 0, percent(counted)));
        }
        let before = of_all(counted);
        counted += count;
        end = to;
        data.push((to, of_all(counted) - before, percent(counted)));
    }
    json!({ "total": total, "data": data, "bucketsLow": low })
}

#[cfg(test)]
mod tests {
    use base::Histogram;

    use super::*;

    #[test]
    fn times_are_told_in_microseconds() {
        let histogram = Histogram::default();
        [800, 850, 900, 41_000].into_iter().for_each(|ns| histogram.record(ns));
        let told = as_json(&histogram.counts(), 0);
        let data = json!([[1, 3, 75.0], [40, 0, 75.0], [44, 1, 100.0]]);
        assert_eq!(told, json!({ "total": 4, "data": data, "bucketsLow": 0 }));
        let none = as_json(&HistogramCounts::default(), 0);
        assert_eq!(none, json!({ "total": 0, "data": [], "bucketsLow": 0 }));
    }

    #[test]
    fn what_was_measured_stands_for_all() {
        let histogram = Histogram::default();
        [800, 1_850, 2_900].into_iter().for_each(|ns| histogram.record(ns));
        let told = as_json(&histogram.counts(), 200);
        let third = 100.0 / 3.0;
        assert_eq!((&told["total"], &told["bucketsLow"]), (&json!(200), &json!(0)));
        for (at, (end, count)) in [(1, 66), (2, 67), (3, 67)].into_iter().enumerate() {
            let bucket = &told["data"][at];
            assert_eq!((&bucket[0], &bucket[1]), (&json!(end), &json!(count)), "{told}");
            let percent = bucket[2].as_f64().expect("a number");
            assert!((percent - third * (at as f64 + 1.0)).abs() < 1e-9, "{told}");
        }
        let unmeasured = as_json(&HistogramCounts::default(), 5);
        assert_eq!(unmeasured, json!({ "total": 5, "data": [], "bucketsLow": 0 }));
    }
}
