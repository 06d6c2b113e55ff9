//! `frequency-counters`: how often documents are used whose value could leave memory.

use std::sync::atomic::Ordering;

use base::{Seqno, VbId, VbState, Version};
use vbucket::VBucket;

use super::Sheet;
use super::eviction::put_mean_frequency;
use super::inquiry::{Inquiry, Refused};

/// Versions that are looked at under one lock.
const AT_ONCE: usize = 256;
/// Versions that are looked at for one request; each vBucket has an equal share of them.
const AT_MOST: usize = 1 << 20;
/// Frequencies of 0, of 1, and those between a power of two and the next.
const BINS: usize = 9;

#[derive(Default)]
struct Counts {
    bins: [u64; BINS],
    sum: u64,
}

impl Counts {
    /// `saved`: up to where changes are on disk, if there is one.
    fn enter(&mut self, version: &Version, saved: Option<Seqno>) {
        let is_saved = saved.is_none_or(|saved| version.meta().by_seqno <= saved);
        if is_saved && !version.is_deleted() && version.is_resident() {
            let frequency = version.frequency().load(Ordering::Relaxed);
            self.bins[(u8::BITS - frequency.leading_zeros()) as usize] += 1;
            self.sum += u64::from(frequency);
        }
    }

    /// The next versions of a vBucket; where those behind them begin.
    fn enter_slice(&mut self, vb: &VBucket, saved: Option<Seqno>, cursor: u64) -> Option<u64> {
        vb.table().visit(cursor, AT_ONCE, |version| self.enter(version, saved))
    }

    fn put(&self, name: &str, sheet: &mut Sheet) {
        for (bin, count) in self.bins.iter().enumerate().filter(|(_, count)| **count > 0) {
            let from = if bin == 0 { 0 } else { 1 << (bin - 1) };
            sheet.put(format_args!("{name}_{from},{}", 1 << bin), count);
        }
        put_mean_frequency(name, self.sum, self.bins.iter().sum(), sheet);
    }
}

/// `frequency-counters`
pub fn frequencies(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    let share = AT_MOST / usize::from(bucket.vbuckets().max(1));
    let states = [VbState::Active, VbState::Replica, VbState::Pending];
    let mut counts: [Counts; 3] = Default::default();
    for vb in (0..bucket.vbuckets()).map(VbId) {
        let Some(stats) = bucket.vbucket_stats(vb) else { continue };
        let Some(at) = states.iter().position(|state| *state == stats.state) else { continue };
        let saved = stats.seq_list.is_none().then_some(stats.persisted_seqno);
        let (mut cursor, mut seen) = (Some(0), 0);
        while let Some(from) = cursor.filter(|_| seen < share) {
            cursor = bucket.inspect(vb, |vb| counts[at].enter_slice(vb, saved, from)).flatten();
            seen += AT_ONCE;
        }
    }
    for (state, counts) in std::iter::zip(states, counts) {
        counts.put(&format!("vb_{}_evictable_mfu", state.name()), sheet);
    }
    Ok(())
}
