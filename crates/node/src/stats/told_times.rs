//! Times of commands as `/metrics` tells them: one turn of a connection in 64 is measured, and what is told stands for all
//! requests, so that rates of `_count` are rates of operations (record 0214).
//!
//! *Guarantee:* no number of a command ever goes down, as Prometheus wants it of counters. What came since the last page is
//! told in the proportions of what was measured since, or, if none was measured since, of all that was measured.
//!
//! It must not know how pages are asked for: several that ask see the same numbers go on.

use base::HistogramCounts;

/// Ends of the buckets of histograms, as powers of two microseconds: each power from 1 us to 16 ms, where requests end, and
/// each second one from there to 67 s.
pub(super) const END_POWERS: [u32; 21] =
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, 26];

/// A histogram as a page tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ToldHistogram {
    /// Times below each end.
    pub(super) below: [u64; END_POWERS.len()],
    /// All times.
    pub(super) total: u64,
    /// Their sum, in nanoseconds.
    pub(super) sum_ns: f64,
}

impl ToldHistogram {
    pub(super) fn of(counts: &HistogramCounts) -> ToldHistogram {
        let mut below = [0; END_POWERS.len()];
        let counted = counts.below_us_powers(END_POWERS.into_iter());
        below.iter_mut().zip(counted).for_each(|(below, count)| *below = count);
        ToldHistogram { below, total: counts.total(), sum_ns: counts.sum_ns() as f64 }
    }
}

/// What was told of a command.
#[derive(Clone, Debug, Default)]
pub(super) struct ToldTimes {
    /// What had been measured of what is told.
    measured: ToldHistogram,
    /// Requests that are told.
    requests: u64,
    /// Of them below each end, estimated.
    below: [f64; END_POWERS.len()],
    /// Their sum in nanoseconds, estimated.
    sum_ns: f64,
}

impl ToldTimes {
    /// Tells a command that had `requests`, of which `measured` were measured. Nothing is told before one was measured.
    pub(super) fn tell(&mut self, measured: &HistogramCounts, requests: u64) -> ToldHistogram {
        let now = ToldHistogram::of(measured);
        // A request is counted before it is measured, by another thread than this one.
        let requests = requests.max(now.total);
        let new = requests.saturating_sub(self.requests);
        if new > 0 && now.total > 0 {
            self.add(new, &now);
            self.requests = requests;
        }
        let whole = |below: &f64| ((below + 0.5) as u64).min(self.requests);
        ToldHistogram { below: self.below.each_ref().map(whole), total: self.requests, sum_ns: self.sum_ns }
    }

    /// Adds `new` requests, in the proportions of what was measured.
    fn add(&mut self, requests: u64, now: &ToldHistogram) {
        let before = if now.total > self.measured.total { self.measured } else { ToldHistogram::default() };
        let share = requests as f64 / (now.total - before.total) as f64;
        for (at, below) in self.below.iter_mut().enumerate() {
            *below += now.below[at].saturating_sub(before.below[at]) as f64 * share;
        }
        self.sum_ns += (now.sum_ns - before.sum_ns).max(0.0) * share;
        self.measured = *now;
    }
}

#[cfg(test)]
mod tests {
    use base::Histogram;

    use super::*;

    #[test]
    fn all_requests_are_told_in_the_proportions_of_what_was_measured() {
        let (measured, mut told) = (Histogram::default(), ToldTimes::default());
        assert_eq!(told.tell(&measured.counts(), 63), ToldHistogram::default(), "none was measured");
        [1_500, 1_500, 1_500, 100_000].into_iter().for_each(|ns| measured.record(ns));
        let first = told.tell(&measured.counts(), 256);
        assert_eq!((first.below[0], first.below[1], first.below[7], first.total), (0, 192, 256, 256));
        assert_eq!(first.sum_ns, 64.0 * 104_500.0);
        // None was measured since.
        let second = told.tell(&measured.counts(), 260);
        assert_eq!((second.below[1], second.below[6], second.total), (195, 195, 260));
        // Only fast ones were measured since: they do not change what was told of earlier ones.
        (0..4).for_each(|_| measured.record(500));
        let third = told.tell(&measured.counts(), 460);
        assert_eq!((third.below[0], third.below[1], third.total), (200, 395, 460));
        assert_eq!(told.tell(&measured.counts(), 460), third);
    }

    #[test]
    fn no_number_goes_down() {
        let (measured, mut told) = (Histogram::default(), ToldTimes::default());
        let (mut before, mut requests) = (ToldHistogram::default(), 0);
        for step in 0..2_000_u64 {
            requests += step * 7 % 13;
            if step % 3 == 0 {
                measured.record(step * step * 37 % 5_000_000);
            }
            let now = told.tell(&measured.counts(), requests);
            assert!(now.below.is_sorted() && now.below.iter().all(|below| *below <= now.total), "{now:?}");
            assert!(now.below.iter().zip(before.below).all(|(now, before)| *now >= before));
            assert!(now.total >= before.total && now.sum_ns >= before.sum_ns, "{now:?} {before:?}");
            before = now;
        }
        assert_eq!(before.total, requests);
    }
}
