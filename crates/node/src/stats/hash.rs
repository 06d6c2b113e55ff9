//! The group about hash tables: their sizes, and how long the chains in them are.

use base::{VbId, VbState};
use engine::Bucket;
use vbucket::VBucket;

use super::Sheet;
use super::inquiry::{Inquiry, Refused};
use super::vbucket::each;

/// Buckets of a vBucket's table that are looked at under one lock.
const BUCKETS_AT_ONCE: usize = 128;

/// What was counted in the buckets of a table, one after the other.
#[derive(Default)]
struct Depths {
    buckets: u64,
    versions: u64,
    bytes: u64,
    least: u64,
    most: u64,
}

impl Depths {
    /// Looks at the whole table, in slices: what changes meanwhile may be counted twice or not at all.
    fn of(bucket: &Bucket, vb: VbId) -> Depths {
        let mut depths = Depths { least: u64::MAX, ..Depths::default() };
        let mut at = Some(0);
        while let Some(cursor) = at {
            at = bucket.inspect(vb, |vb| depths.enter_slice(vb, cursor)).flatten();
        }
        depths.least = if depths.buckets == 0 { 0 } else { depths.least };
        depths
    }

    /// The next buckets of a table; where those behind them begin.
    fn enter_slice(&mut self, vb: &VBucket, cursor: u64) -> Option<u64> {
        let mut at = Some(cursor).filter(|_| !vb.table().is_empty());
        for _ in 0..BUCKETS_AT_ONCE {
            let (mut depth, mut bytes) = (0, 0);
            at = vb.table().visit(at?, 1, |version| {
                depth += 1;
                bytes += version.allocated_bytes() as u64;
            });
            self.buckets += 1;
            self.versions += depth;
            self.bytes += bytes;
            self.least = self.least.min(depth);
            self.most = self.most.max(depth);
        }
        at
    }
}

/// Smallest, largest and sum of a number of each vBucket.
struct Range {
    name: &'static str,
    count: u64,
    sum: u64,
    least: u64,
    most: u64,
}

impl Range {
    fn of(name: &'static str, rows: &[TableRow], number: impl Fn(&TableRow) -> u64) -> Range {
        let mut range = Range { name, count: 0, sum: 0, least: u64::MAX, most: 0 };
        for number in rows.iter().map(number) {
            range.count += 1;
            range.sum += number;
            range.least = range.least.min(number);
            range.most = range.most.max(number);
        }
        range
    }

    fn put(&self, sheet: &mut Sheet) {
        sheet.put(format_args!("avg_{}", self.name), self.sum / self.count.max(1));
        sheet.put(format_args!("max_{}", self.name), self.most);
        sheet.put(format_args!("min_{}", self.name), if self.count == 0 { 0 } else { self.least });
    }
}

/// What is told of one vBucket.
struct TableRow {
    id: VbId,
    state: VbState,
    size: u64,
    overflow: u64,
    depths: Depths,
    reported: u64,
    item_bytes: u64,
    table_bytes: u64,
}

/// `hash [detail]`: the sums, then each vBucket; the field's tools leave the latter out themselves.
pub fn hash(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    if args.first().is_some_and(|arg| *arg != b"detail") {
        return Err(Refused::Invalid("The only argument of this stat group is `detail`"));
    }
    let mut rows = Vec::new();
    each(inquiry, None, |vb| {
        let (size, overflow) =
            inquiry.bucket.inspect(vb.id, |vb| vb.table().bucket_counts()).unwrap_or_default();
        rows.push(TableRow {
            id: vb.id,
            state: vb.state,
            size: size as u64,
            overflow: overflow as u64,
            depths: Depths::of(inquiry.bucket, vb.id),
            reported: vb.table_items,
            item_bytes: vb.item_bytes,
            table_bytes: vb.table_bytes,
        });
        Ok(())
    })?;
    put_sums(&rows, sheet);
    rows.iter().for_each(|row| put_row(row, sheet));
    Ok(())
}

fn put_sums(rows: &[TableRow], sheet: &mut Sheet) {
    let sum = |of: fn(&TableRow) -> u64| rows.iter().map(of).sum::<u64>();
    let counts = Range::of("count", rows, |row| row.depths.versions);
    counts.put(sheet);
    sheet.put("total_counts", counts.sum);
    let sizes = Range::of("buckets", rows, |row| row.size);
    sizes.put(sheet);
    sheet.put("total_buckets", sizes.sum);
    sheet.put("overflow_lines", sum(|row| row.overflow));
    sheet.put("table_mem_size", sum(|row| row.table_bytes));
    sheet.put("mem_size", sum(|row| row.item_bytes));
    let buckets = sum(|row| row.depths.buckets);
    if buckets > 0 {
        sheet.put("avg_depth", format_args!("{:.2}", counts.sum as f64 / buckets as f64));
    }
    let longest = Range::of("max", rows, |row| row.depths.most);
    let shortest = Range::of("min", rows, |row| row.depths.least);
    sheet.put("avg_max", longest.sum / longest.count.max(1));
    sheet.put("avg_min", shortest.sum / shortest.count.max(1));
    sheet.put("largest_max", longest.most);
    sheet.put("largest_min", shortest.most);
}

fn put_row(row: &TableRow, sheet: &mut Sheet) {
    let mut sheet = sheet.under(format_args!("vb_{}", row.id));
    sheet.put("state", row.state.name());
    sheet.put("size", row.size);
    sheet.put("overflow_lines", row.overflow);
    // One for the vBucket, whatever its table's size.
    sheet.put("locks", 1);
    sheet.put("min_depth", row.depths.least);
    sheet.put("max_depth", row.depths.most);
    sheet.put("reported", row.reported);
    sheet.put("counted", row.depths.versions);
    sheet.put("mem_size", row.item_bytes);
    sheet.put("mem_size_counted", row.depths.bytes);
    sheet.put("table_mem_size", row.table_bytes);
}
