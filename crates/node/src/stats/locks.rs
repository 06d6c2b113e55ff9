//! The group about locks of vBuckets: who held them, and for how long.

use engine::{FRONT_END_SAMPLE, LockTimes};

use super::{Inquiry, Refused, Sheet};

/// `locks [histogram]`: percentiles are ends of powers of two, so at most twice what is true.
pub fn locks(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.bucket.lock_times();
    match args.first() {
        None => {
            sheet.put("front_end_sample", FRONT_END_SAMPLE);
            times.iter().for_each(|times| put_summary(times, sheet));
        }
        Some(&b"histogram") => times.iter().for_each(|times| put_histogram(times, sheet)),
        Some(_) => return Err(Refused::Invalid("The only argument of this stat group is `histogram`")),
    }
    Ok(())
}

fn put_summary(times: &LockTimes, sheet: &mut Sheet) {
    let mut sheet = sheet.under(times.holder.name());
    sheet.put("count", times.holds);
    sheet.put("mean_ns", times.mean_ns());
    for (name, per_mille) in [("p50_ns", 500), ("p99_ns", 990), ("p99.9_ns", 999)] {
        sheet.put(name, times.percentile_ns(per_mille));
    }
    sheet.put("max_ns", times.longest_ns);
}

/// Buckets that are not empty, as `HOLDER_ns_FIRST,LAST`; the last bucket has no end.
fn put_histogram(times: &LockTimes, sheet: &mut Sheet) {
    let name = times.holder.name();
    for (at, holds) in times.histogram.iter().enumerate().filter(|(_, holds)| **holds > 0) {
        let first = if at == 0 { 0 } else { 1_u64 << (at - 1) };
        if at + 1 == times.histogram.len() {
            sheet.put(format_args!("{name}_ns_{first},"), holds);
        } else {
            sheet.put(format_args!("{name}_ns_{first},{}", (1_u64 << at) - 1), holds);
        }
    }
}
