//! How long it takes to find out whether a value is JSON, and to inflate a value.
//!
//! One in [`VALUE_SAMPLE`] of each on a thread is timed, so that the clock costs the others one addition.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use base::env::Clock;
use base::{Datatype, Histogram, HistogramCounts};

use crate::refusal::Refusal;
use crate::value;
use crate::whole::Whole;

/// One in this number is timed, on each thread.
pub const VALUE_SAMPLE: u8 = 64;

thread_local! {
    static DETECTED: Cell<u8> = const { Cell::new(0) };
    static INFLATED: Cell<u8> = const { Cell::new(0) };
}

/// How long a bucket's requests took to look into values.
pub struct ValueTimes {
    clock: Arc<dyn Clock>,
    detected: Histogram,
    inflated: Histogram,
}

impl ValueTimes {
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> ValueTimes {
        ValueTimes {
            clock: Arc::clone(clock),
            detected: Histogram::default(),
            inflated: Histogram::default(),
        }
    }

    /// How long it took to find out whether values are JSON.
    pub fn detected(&self) -> HistogramCounts {
        self.detected.counts()
    }

    /// How long it took to inflate values, those that could not be inflated among them.
    pub fn inflated(&self) -> HistogramCounts {
        self.inflated.counts()
    }

    /// [`value::detect`], timed.
    #[inline]
    pub(crate) fn detect(&self, body: &[u8]) -> Datatype {
        if is_sampled(DETECTED.get(), |next| DETECTED.set(next)) {
            return self.time(&self.detected, || value::detect(body));
        }
        value::detect(body)
    }

    /// [`value::inflate`], timed.
    pub(crate) fn inflate(&self, block: &[u8], limit_bytes: usize) -> Result<Vec<u8>, Refusal> {
        if is_sampled(INFLATED.get(), |next| INFLATED.set(next)) {
            return self.time(&self.inflated, || value::inflate(block, limit_bytes));
        }
        value::inflate(block, limit_bytes)
    }

    /// [`value::plain_of`], timed if there is something to inflate.
    pub fn plain_of<'a>(&self, stored: &'a [u8], datatype: Datatype) -> Result<Cow<'a, [u8]>, Refusal> {
        if datatype.is_snappy() && is_sampled(INFLATED.get(), |next| INFLATED.set(next)) {
            return self.time(&self.inflated, || value::plain_of(stored, datatype));
        }
        value::plain_of(stored, datatype)
    }

    /// [`value::plain`], timed if there is something to inflate.
    pub fn plain<'a>(&self, version: &'a Whole) -> Result<Cow<'a, [u8]>, Refusal> {
        self.plain_of(version.value(), version.meta().datatype)
    }

    #[cold]
    fn time<T>(&self, times: &Histogram, work: impl FnOnce() -> T) -> T {
        let from_ns = self.clock.monotonic_ns();
        let done = work();
        times.record(self.clock.monotonic_ns().saturating_sub(from_ns));
        done
    }
}

/// Whether the next one is timed, which comes after `before` others.
#[inline]
fn is_sampled(before: u8, count: impl FnOnce(u8)) -> bool {
    count(before.wrapping_add(1));
    before.is_multiple_of(VALUE_SAMPLE)
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn one_in_64_is_timed_of_each_kind() {
        let (env, _handles) = Env::sim(7);
        let times = ValueTimes::new(&env.clock);
        let block = snap::raw::Encoder::new().compress_vec(&[b'x'; 100]).expect("it is short");
        for _ in 0..3 * u16::from(VALUE_SAMPLE) {
            assert_eq!(times.detect(b"{}"), Datatype::JSON);
            assert_eq!(times.inflate(&block, 100), Ok(vec![b'x'; 100]));
            assert!(times.plain_of(b"as it is", Datatype::RAW).is_ok_and(|plain| *plain == *b"as it is"));
        }
        assert_eq!((times.detected().total(), times.inflated().total()), (3, 3));
        for _ in 0..VALUE_SAMPLE {
            let plain = times.plain_of(&block, Datatype::RAW.with(Datatype::SNAPPY));
            assert!(plain.is_ok_and(|plain| *plain == [b'x'; 100]));
        }
        assert_eq!((times.detected().total(), times.inflated().total()), (3, 4));
    }
}
