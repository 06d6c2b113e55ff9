//! When a node must not serve: a moment of its own monotonic clock, moved on with each renewal of its lease.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::planted::{self, Bug};

/// How much of a lease is not used, as a divisor: clocks may differ by so much in rate, and a request that was let
/// through is handled in that time.
const MARGIN: u32 = 5;

/// Without a cluster nothing ends.
const OPEN: u64 = u64::MAX;
const CLOSED: u64 = 0;

/// Whether this node may serve vBuckets that it is active for. Checked before a request is handled and, as the machine
/// may be suspended in between, before it is answered.
#[derive(Debug)]
pub struct Fence {
    until_ns: AtomicU64,
    /// Counts how often it was closed.
    closings: AtomicU64,
}

/// A request was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    closings: u64,
}

impl Fence {
    /// One that lets everything through: a node that no cluster decides about.
    pub fn open() -> Fence {
        Fence { until_ns: AtomicU64::new(OPEN), closings: AtomicU64::new(0) }
    }

    /// One that lets nothing through until it is told to.
    pub fn closed() -> Fence {
        Fence { until_ns: AtomicU64::new(CLOSED), closings: AtomicU64::new(0) }
    }

    /// Whether no cluster decides about this node.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.until_ns.load(Ordering::Relaxed) == OPEN
    }

    /// Whether the node may serve at a moment of its monotonic clock, in nanoseconds.
    #[inline]
    pub fn may_serve(&self, monotonic_ns: u64) -> bool {
        monotonic_ns < self.until_ns.load(Ordering::Relaxed) || planted::is(Bug::FenceSkipped)
    }

    /// Lets a request through, or not. What is done for it may be answered if [`Fence::still_lets`] says so then.
    #[inline]
    pub fn pass(&self, monotonic_ns: u64) -> Option<Pass> {
        let closings = self.closings.load(Ordering::Acquire);
        self.may_serve(monotonic_ns).then_some(Pass { closings })
    }

    /// Whether nobody else can have served since a request was let through. If the fence ended meanwhile and was opened
    /// again for another life, somebody may have.
    #[inline]
    pub fn still_lets(&self, pass: Pass, monotonic_ns: u64) -> bool {
        self.may_serve(monotonic_ns) && self.closings.load(Ordering::Acquire) == pass.closings
    }

    /// Lets nothing through from now on.
    pub fn close(&self) {
        self.until_ns.store(CLOSED, Ordering::SeqCst);
        self.closings.fetch_add(1, Ordering::Release);
    }

    /// The lease was renewed by a request that was sent at `sent_ns`, and the newest document lets this life serve.
    /// The store counts from a later moment on, so that the lease lives at least until then.
    pub fn renewed(&self, sent_ns: u64, ttl: Duration) {
        self.open_until(Fence::end_ns(sent_ns, ttl), sent_ns);
    }

    /// Lets requests through until `end_ns`, as what was sent at `sent_ns` allows.
    pub fn open_until(&self, end_ns: u64, sent_ns: u64) {
        if planted::is(Bug::FenceStaysShut)
            && (CLOSED + 1..sent_ns).contains(&self.until_ns.load(Ordering::Relaxed))
        {
            return;
        }
        self.until_ns.store(end_ns.min(OPEN - 1), Ordering::SeqCst);
    }

    /// Until when a lease is surely alive, or a promise surely kept, that was renewed by a request sent at `sent_ns`.
    pub fn end_ns(sent_ns: u64, ttl: Duration) -> u64 {
        let used = if planted::is(Bug::NoLeaseMargin) { ttl } else { ttl - ttl / MARGIN };
        sent_ns.saturating_add(u64::try_from(used.as_nanos()).unwrap_or(u64::MAX)).min(OPEN - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_before_the_lease() {
        let fence = Fence::closed();
        assert!(!fence.may_serve(0));
        fence.renewed(1_000, Duration::from_nanos(100));
        assert!(fence.may_serve(1_079));
        assert!(!fence.may_serve(1_080));
        fence.close();
        assert!(!fence.may_serve(1_000));
    }

    #[test]
    fn what_was_let_through_is_not_answered_after_its_end() {
        let fence = Fence::closed();
        assert_eq!(fence.pass(0), None);
        fence.renewed(1_000, Duration::from_nanos(100));
        let pass = fence.pass(1_010).expect("it is open");
        assert!(fence.still_lets(pass, 1_079));
        assert!(!fence.still_lets(pass, 1_080), "the machine was suspended meanwhile");
        fence.renewed(1_075, Duration::from_nanos(100));
        assert!(fence.still_lets(pass, 1_080), "the lease was renewed in time");
        fence.close();
        fence.renewed(1_090, Duration::from_nanos(100));
        assert!(!fence.still_lets(pass, 1_091), "another life was admitted");
    }

    #[test]
    fn is_no_hindrance_without_a_cluster() {
        assert!(Fence::open().may_serve(u64::MAX - 1));
        assert!(Fence::open().is_open());
        let fence = Fence::open();
        fence.renewed(u64::MAX - 1, Duration::from_secs(1));
        assert!(!fence.is_open());
    }
}
