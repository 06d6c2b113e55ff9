//! How much was tried, and what of it broke a promise.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Once;

/// The most violations that are kept as text.
const MOST_EXAMPLES: usize = 8;

/// Counts of what was tried.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Workloads that were run.
    pub runs: u64,
    /// Different disks that a power loss left and a store was opened on.
    pub states: u64,
    /// Disks that a second power loss left, during recovery or shortly after.
    pub second_crashes: u64,
    /// Runs in which one call, or all from one call on, failed.
    pub fault_points: u64,
    /// The same by kind of fault.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Bits that were turned over.
    pub bit_flips: u64,
    /// Schedules of threads that used one store at the same time.
    pub interleavings: u64,
    /// Restarts that broke a promise.
    pub violations: u64,
    /// What the first of them broke, and how to see it again.
    pub examples: Vec<String>,
}

impl Tally {
    /// Whether nothing was violated.
    pub fn holds(&self) -> bool {
        self.violations == 0
    }

    /// Counts another one in.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        self.states += other.states;
        self.second_crashes += other.second_crashes;
        self.fault_points += other.fault_points;
        other.by_kind.into_iter().for_each(|(kind, count)| *self.by_kind.entry(kind).or_default() += count);
        self.bit_flips += other.bit_flips;
        self.interleavings += other.interleavings;
        self.violations += other.violations;
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    /// Counts a violation if there is one.
    pub(super) fn judge(&mut self, wrong: &[String]) {
        if wrong.is_empty() {
            return;
        }
        self.violations += 1;
        if self.examples.len() < MOST_EXAMPLES {
            let some = &wrong[..wrong.len().min(4)];
            self.examples.push(format!("{}: {} wrong: {}", place(), wrong.len(), some.join("; ")));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "runs={} states={} second_crashes={} fault_points={} bit_flips={} interleavings={} violations={}",
            self.runs,
            self.states,
            self.second_crashes,
            self.fault_points,
            self.bit_flips,
            self.interleavings,
            self.violations
        )?;
        self.examples.iter().try_for_each(|example| write!(f, "\n  {example}"))
    }
}

thread_local! {
    /// What this thread is trying, outermost first.
    static PLACE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What this thread is trying just now: enough to try it again.
pub fn place() -> String {
    PLACE.with_borrow(|place| place.join(", "))
}

/// Names what is tried for as long as it lives, in violations and in panics.
pub(super) struct Trying;

impl Trying {
    pub(super) fn new(what: impl fmt::Display) -> Trying {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                let place = PLACE.try_with(|place| place.try_borrow().map(|place| place.join(", ")));
                if let Ok(Ok(place)) = place
                    && !place.is_empty()
                {
                    eprintln!("panic while trying {place}");
                }
                before(panic);
            }));
        });
        PLACE.with_borrow_mut(|place| place.push(what.to_string()));
        Trying
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        PLACE.with_borrow_mut(|place| place.pop());
    }
}
