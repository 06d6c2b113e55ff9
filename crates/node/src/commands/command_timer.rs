//! Get command timer: how long requests of one command took, in the form that the field's tools read.
//!
//! Times are measured for the whole node, by command: the name of a bucket says only who may look.

use base::Datatype;
use protocol::{Request, Status};
use serde_json::{Value, json};

use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;
use crate::stats::timings::Histogram;

/// Get command timer: of the command whose number the extras are. The key names a bucket; without one it is the selected
/// bucket.
pub fn get_command_timer(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let &[code] = request.extras else {
        return cx.invalid("Request must include extras of length 1");
    };
    if let Err(denied) = may_look(cx, request.key) {
        return denied;
    }
    let workers = cx.node.workers();
    let histogram = Histogram::of(workers.iter().map(|worker| &worker.timings), code);
    let text = as_json(&histogram).to_string();
    let datatype = cx.session.visible_datatype(Datatype::JSON);
    cx.reply.send(&Answer { datatype, value: text.as_bytes(), ..Answer::default() });
    Outcome::Done
}

fn may_look(cx: &mut Context<'_>, bucket: &[u8]) -> Result<(), Outcome> {
    match bucket {
        b"" | b"/all/" => Ok(()),
        b"@no bucket@" => cx.require(Privilege::Stats),
        name => {
            let name = std::str::from_utf8(name).unwrap_or_default();
            let may_select = cx.session.user.as_ref().is_some_and(|user| user.may_select(name));
            // Whether there is one is told to those alone who may select it.
            if may_select && cx.node.bucket(name).is_some() {
                Ok(())
            } else {
                Err(cx.status(Status::Eaccess))
            }
        }
    }
}

/// In microseconds: `data` has the end of each bucket, how many requests are in it, and the percentage up to there;
/// `bucketsLow` is where the first one begins.
fn as_json(histogram: &Histogram) -> Value {
    let total = histogram.total();
    let mut counted = 0;
    let mut data: Vec<(u64, u64, f64)> = Vec::new();
    for (_, last_ns, count) in &histogram.buckets {
        counted += count;
        let percentile = counted as f64 / total as f64 * 100.0;
        let end_us = last_ns.div_ceil(1_000);
        match data.last_mut().filter(|(end, _, _)| *end == end_us) {
            Some((_, before, up_to)) => (*before, *up_to) = (*before + count, percentile),
            None => data.push((end_us, *count, percentile)),
        }
    }
    let low = histogram.buckets.first().map_or(0, |(first_ns, _, _)| first_ns / 1_000);
    json!({ "total": total, "data": data, "bucketsLow": low })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_microseconds() {
        let buckets = vec![(800, 895, 2), (896, 959, 1), (40_960, 45_055, 1)];
        let told = as_json(&Histogram { buckets });
        assert_eq!(told, json!({ "total": 4, "data": [[1, 3, 75.0], [46, 1, 100.0]], "bucketsLow": 0 }));
        assert_eq!(as_json(&Histogram::default()), json!({ "total": 0, "data": [], "bucketsLow": 0 }));
    }
}
