//! The group about hash tables: their sizes, and how long the chains in them are.

use base::VbId;
use engine::Bucket;

use super::vbucket::each;
use super::{Inquiry, Refused, Sheet};

/// Buckets of each vBucket's table that are looked at for the length of their chains, under one lock. Which they are
/// depends on hashes alone, so they stand for all.
const SAMPLED_BUCKETS: u64 = 128;

/// Versions in each of some buckets.
#[derive(Default)]
struct Depths {
    buckets: u64,
    versions: u64,
    least: u64,
    most: u64,
}

impl Depths {
    fn of(bucket: &Bucket, vb: VbId) -> Depths {
        let mut depths = Depths { least: u64::MAX, ..Depths::default() };
        bucket.inspect(vb, |vb| {
            let mut at = Some(0);
            while let Some(cursor) = at.filter(|_| depths.buckets < SAMPLED_BUCKETS && !vb.table().is_empty())
            {
                let mut depth = 0;
                at = vb.table().visit(cursor, 1, |_| depth += 1);
                depths.enter(depth);
            }
        });
        depths.least = if depths.buckets == 0 { 0 } else { depths.least };
        depths
    }

    fn enter(&mut self, depth: u64) {
        self.buckets += 1;
        self.versions += depth;
        self.least = self.least.min(depth);
        self.most = self.most.max(depth);
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
    fn new(name: &'static str) -> Range {
        Range { name, count: 0, sum: 0, least: u64::MAX, most: 0 }
    }

    fn enter(&mut self, number: u64) {
        self.count += 1;
        self.sum += number;
        self.least = self.least.min(number);
        self.most = self.most.max(number);
    }

    fn put(&self, sheet: &mut Sheet) {
        sheet.put(format_args!("avg_{}", self.name), self.sum / self.count.max(1));
        sheet.put(format_args!("max_{}", self.name), self.most);
        sheet.put(format_args!("min_{}", self.name), if self.count == 0 { 0 } else { self.least });
    }
}

/// `hash [detail]`
pub fn hash(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    match args.first() {
        None => summary(inquiry, sheet),
        Some(&b"detail") => detail(inquiry, sheet),
        Some(_) => Err(Refused::Invalid("The only argument of this stat group is `detail`")),
    }
}

fn summary(inquiry: &Inquiry<'_>, sheet: &mut Sheet) -> Result<(), Refused> {
    let (mut counts, mut sizes) = (Range::new("count"), Range::new("buckets"));
    let (mut longest, mut shortest) = (Range::new("max"), Range::new("min"));
    let (mut items, mut tables, mut overflow) = (0, 0, 0);
    let (mut buckets, mut versions) = (0, 0);
    each(inquiry, None, |vb| {
        counts.enter(vb.table_items);
        items += vb.item_bytes;
        tables += vb.table_bytes;
        if let Some((size, lines)) = inquiry.bucket.inspect(vb.id, |vb| vb.table().bucket_counts()) {
            sizes.enter(size as u64);
            overflow += lines;
        }
        let depths = Depths::of(inquiry.bucket, vb.id);
        longest.enter(depths.most);
        shortest.enter(depths.least);
        buckets += depths.buckets;
        versions += depths.versions;
        Ok(())
    })?;
    counts.put(sheet);
    sheet.put("total_counts", counts.sum);
    sizes.put(sheet);
    sheet.put("total_buckets", sizes.sum);
    sheet.put("overflow_lines", overflow);
    sheet.put("table_mem_size", tables);
    sheet.put("mem_size", items);
    sheet.put("depth_sampled_buckets", buckets);
    if buckets > 0 {
        sheet.put("avg_depth", format_args!("{:.2}", versions as f64 / buckets as f64));
        sheet.put("avg_max", longest.sum / longest.count.max(1));
        sheet.put("avg_min", shortest.sum / shortest.count.max(1));
        sheet.put("largest_max", longest.most);
        sheet.put("largest_min", shortest.most);
    }
    Ok(())
}

fn detail(inquiry: &Inquiry<'_>, sheet: &mut Sheet) -> Result<(), Refused> {
    each(inquiry, None, |vb| {
        let counts = inquiry.bucket.inspect(vb.id, |vb| vb.table().bucket_counts());
        let depths = Depths::of(inquiry.bucket, vb.id);
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("state", vb.state.name());
        if let Some((buckets, overflow)) = counts {
            sheet.put("size", buckets);
            sheet.put("overflow_lines", overflow);
        }
        if depths.buckets > 0 {
            sheet.put("min_depth", depths.least);
            sheet.put("max_depth", depths.most);
        }
        sheet.put("reported", vb.table_items);
        sheet.put("mem_size", vb.item_bytes);
        sheet.put("table_mem_size", vb.table_bytes);
        Ok(())
    })
}
