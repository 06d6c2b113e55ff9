//! The group about locks of vBuckets: who held them and waited for them, and for how long.

use base::{HistogramCounts, TimeRange};
use engine::{FRONT_END_SAMPLE, Holder};

use super::Sheet;
use super::inquiry::{Inquiry, Refused};

/// `locks [histogram]`: percentiles are ends of buckets, so at most an eighth more than what is true.
pub fn locks(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.bucket.lock_times();
    match args.first() {
        None => {
            sheet.put("front_end_sample", FRONT_END_SAMPLE);
            for (holder, times) in &times {
                put_summary(*holder, times, &inquiry.bucket.lock_waits_of(*holder), sheet);
            }
        }
        Some(&b"histogram") => times.iter().for_each(|(holder, times)| put_histogram(*holder, times, sheet)),
        Some(_) => return Err(Refused::Invalid("The only argument of this stat group is `histogram`")),
    }
    Ok(())
}

fn put_summary(holder: Holder, times: &HistogramCounts, waits: &HistogramCounts, sheet: &mut Sheet) {
    let mut sheet = sheet.under(holder.name());
    sheet.put("count", times.total());
    sheet.put("mean_ns", times.mean_ns());
    for (name, per_mille) in [("p50_ns", 500), ("p99_ns", 990), ("p99.9_ns", 999)] {
        sheet.put(name, times.percentile_ns(per_mille));
    }
    sheet.put("max_ns", times.longest_ns());
    sheet.put("waits", waits.total());
    sheet.put("wait_mean_ns", waits.mean_ns());
    sheet.put("wait_max_ns", waits.longest_ns());
}

/// Buckets that are not empty, as `HOLDER_ns_FIRST,LAST`.
fn put_histogram(holder: Holder, times: &HistogramCounts, sheet: &mut Sheet) {
    for TimeRange { from, to, count } in times.ranges_ns() {
        sheet.put(format_args!("{}_ns_{from},{}", holder.name(), to - 1), count);
    }
}
