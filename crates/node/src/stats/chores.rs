//! The group about the housekeeper's chores.

use engine::{Bucket, ChoreStats, TIME_SLICE};

use super::Sheet;
use super::inquiry::{Inquiry, Refused};

/// `chores`: how often each background step ran, and for how long.
pub fn chores(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    sheet.put("time_slice_us", TIME_SLICE.as_micros());
    inquiry.bucket.maintenance().chore_stats().iter().for_each(|chore| put(chore, sheet));
    Ok(())
}

/// One chore, for the group of what it works for.
pub(super) fn put_chore(bucket: &Bucket, name: &str, sheet: &mut Sheet) {
    bucket
        .maintenance()
        .chore_stats()
        .iter()
        .filter(|chore| chore.name == name)
        .for_each(|chore| put(chore, sheet));
}

fn put(chore: &ChoreStats, sheet: &mut Sheet) {
    let mut sheet = sheet.under(chore.name);
    sheet.put("steps", chore.steps);
    sheet.put("total_us", chore.total_ns / 1000);
    sheet.put("longest_us", chore.longest_ns / 1000);
}
