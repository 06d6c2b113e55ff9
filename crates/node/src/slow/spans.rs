//! Where the time of a request went that had to wait: its spans.
//!
//! While it waits only moments are kept that others note anyway ([`StepTimes`]); spans are made of them once the request
//! has turned out to be slow. The spans of a turn are the waits of its thread for locks of vBuckets.

use engine::{LockWait, MAX_REPLICAS, StepTimes};

/// A part of a request's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was spent with, as in the log: `queue`, `read`, ...
    pub name: &'static str,
    /// Which node did it, if it was another one.
    pub node: Option<Box<str>>,
    /// When it began, in nanoseconds after the request did.
    pub from_ns: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

/// What a request left its worker for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// A document from the disk.
    Fetch(StepTimes),
    /// A thread for long work.
    LongWork(StepTimes),
    /// Replicas and disks, which make a change safe.
    SyncWrite(StepTimes),
}

impl WaitStep {
    /// When its work had ended; 0 if that is not known.
    pub(crate) fn ended_ns(&self) -> u64 {
        match self {
            WaitStep::Fetch(times) | WaitStep::LongWork(times) | WaitStep::SyncWrite(times) => {
                times.work_until_ns
            }
        }
    }
}

/// Makes the spans of a request that began and ended then, from its steps in order.
/// `replica` names the replica in a place of the chain.
pub(crate) fn spans(
    steps: &[WaitStep],
    began_ns: u64,
    ended_ns: u64,
    replica: impl Fn(usize) -> Option<Box<str>>,
) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut at_ns = began_ns;
    let mut add = |name, node, from_ns: u64, until_ns: u64| {
        // A moment that another thread noted may be a little before ours.
        let within = |ns: u64| ns.min(ended_ns).max(began_ns);
        let (from_ns, until_ns) = (within(from_ns), within(until_ns));
        let ns = until_ns.saturating_sub(from_ns);
        spans.push(Span { name, node, from_ns: from_ns - began_ns, ns });
    };
    for step in steps {
        let (wait, work, times) = match step {
            WaitStep::Fetch(times) => ("fetch_queue", "fetch", times),
            WaitStep::LongWork(times) => ("work_queue", "work", times),
            WaitStep::SyncWrite(times) => ("flush_queue", "flush", times),
        };
        let begins_ns = at_ns;
        if times.work_until_ns > 0 {
            add(wait, None, begins_ns, times.work_from_ns.max(begins_ns));
            add(work, None, times.work_from_ns, times.work_until_ns);
            at_ns = at_ns.max(times.work_until_ns);
        }
        for place in 0..MAX_REPLICAS {
            let had_it_ns = times.replicas_ns[place];
            if had_it_ns > 0 {
                add("replica", replica(place), begins_ns, had_it_ns);
                at_ns = at_ns.max(had_it_ns);
            }
        }
    }
    // What comes behind the last step: the worker's turn for the answer.
    if !spans.is_empty() {
        let (from_ns, ns) = (at_ns.min(ended_ns) - began_ns, ended_ns.saturating_sub(at_ns));
        spans.push(Span { name: "answer", node: None, from_ns, ns });
    }
    spans
}

/// The same of a request that left its turn so long after it began: the turn is a part of its own.
pub(crate) fn spans_behind_turn(
    steps: &[WaitStep],
    began_ns: u64,
    in_turn_ns: u64,
    took_ns: u64,
    replica: impl Fn(usize) -> Option<Box<str>>,
) -> Vec<Span> {
    let mut behind = spans(steps, began_ns + in_turn_ns, began_ns + took_ns, replica);
    if in_turn_ns > 0 {
        behind.iter_mut().for_each(|span| span.from_ns += in_turn_ns);
        behind.insert(0, Span { name: "turn", node: None, from_ns: 0, ns: in_turn_ns });
    }
    behind
}

/// Makes the spans of a turn that began then, from the waits of its thread since.
pub(crate) fn lock_spans(waits: &[LockWait], began_ns: u64) -> Vec<Span> {
    let span = |wait: &LockWait| Span {
        name: "lock",
        node: None,
        from_ns: wait.from_ns.saturating_sub(began_ns),
        ns: wait.until_ns.saturating_sub(wait.from_ns),
    };
    waits.iter().map(span).collect()
}

/// The spans as they are in the log: `NAME=FROM:DURATION` in microseconds, with the node's name behind `@`.
pub(crate) fn trace(spans: &[Span]) -> String {
    let one = |span: &Span| {
        let node = span.node.as_ref().map(|node| format!("@{node}")).unwrap_or_default();
        format!("{}{node}={}:{}", span.name, span.from_ns / 1000, span.ns / 1000)
    };
    spans.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_name(_: usize) -> Option<Box<str>> {
        None
    }

    #[test]
    fn a_fetch_and_a_sync_write_follow_each_other() {
        let fetch = StepTimes { work_from_ns: 3_000, work_until_ns: 5_000, ..StepTimes::default() };
        let write = StepTimes { work_from_ns: 6_000, work_until_ns: 9_000, replicas_ns: [0, 12_000, 0] };
        let name = |place| Some(format!("n_{place}").into());
        let made = spans(&[WaitStep::Fetch(fetch), WaitStep::SyncWrite(write)], 1_000, 13_000, name);
        assert_eq!(
            trace(&made),
            "fetch_queue=0:2 fetch=2:2 flush_queue=4:1 flush=5:3 replica@n_1=4:7 answer=11:1"
        );
    }

    #[test]
    fn waits_for_locks_are_the_spans_of_a_turn() {
        let wait = |from_ns, until_ns| LockWait { from_ns, until_ns };
        let made = lock_spans(&[wait(12_000, 15_000), wait(40_000, 41_000)], 10_000);
        assert_eq!(trace(&made), "lock=2:3 lock=30:1");
    }

    #[test]
    fn moments_outside_of_the_request_do_no_harm() {
        let early = StepTimes { work_from_ns: 10, work_until_ns: 20, ..StepTimes::default() };
        let late = StepTimes { work_from_ns: 70_000, work_until_ns: 90_000, ..StepTimes::default() };
        for times in [early, late] {
            let made = spans(&[WaitStep::LongWork(times)], 1_000, 50_000, no_name);
            assert!(made.iter().all(|span| span.from_ns + span.ns <= 49_000), "{made:?}");
        }
        assert!(spans(&[WaitStep::SyncWrite(StepTimes::default())], 1, 2, no_name).is_empty());
    }
}
