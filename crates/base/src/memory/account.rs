//! What somebody holds in memory, by what it is held for.

use std::cell::Cell;
use std::sync::Arc;

use super::ledger::{Ledger, Ledgers, Sums};
use super::part::{Part, Parts};

#[cfg(test)]
mod tests;

static LEDGERS: Ledgers = Ledgers::new();

thread_local! {
    /// This thread's ledger. Needs no destructor, so that looking at it costs nothing.
    static LEDGER: Cell<Option<&'static Ledger>> = const { Cell::new(None) };
    /// Gives the ledger back when the thread ends.
    static TURN: Turn = const { Turn };
}

struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(ledger) = LEDGER.take() {
            LEDGERS.give_back(ledger);
        }
    }
}

/// This thread's ledger; nothing if the thread is about to end.
#[inline]
fn ledger() -> Option<&'static Ledger> {
    LEDGER.get().or_else(take_ledger)
}

#[cold]
fn take_ledger() -> Option<&'static Ledger> {
    // Destructors of thread locals that run after that of `TURN` find none, and go without.
    TURN.try_with(|_| ()).ok()?;
    LEDGER.set(Some(LEDGERS.take()));
    LEDGER.get()
}

/// A small number that no other running thread has; threads about to end share 0 with somebody.
#[inline]
pub(super) fn thread_number() -> usize {
    ledger().map_or(0, Ledger::number)
}

/// A memory account; a clone is the same account.
///
/// Each thread adds to an entry of its own with plain loads and stores, and tells the estimate when it has drifted by
/// a threshold.
/// The exact total is the sum of all entries; reading changes nothing, so any number of readers at the same time
/// neither lose nor double anything, which folding entries by exchanging them with zero would have to take care of.
#[derive(Clone)]
pub struct Account(Arc<Sums<'static>>);

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

impl Account {
    /// An empty account.
    pub fn new() -> Account {
        Account(Arc::new(Sums::new(&LEDGERS)))
    }

    /// Charges so many bytes.
    #[inline]
    pub fn charge(&self, part: Part, bytes: usize) {
        self.0.add(ledger(), part, bytes as i64);
    }

    /// Gives so many bytes back that were charged before.
    #[inline]
    pub fn release(&self, part: Part, bytes: usize) {
        self.0.add(ledger(), part, (bytes as i64).wrapping_neg());
    }

    /// About how many bytes are in use: off by at most [`Account::deviation_bytes`].
    #[inline]
    pub fn estimate(&self) -> u64 {
        self.0.estimate().max(0) as u64
    }

    /// How many bytes are in use, by part: exactly, but for what is charged at this very moment.
    pub fn exact(&self) -> Parts {
        self.0.exact()
    }

    /// The most by which the estimate can be off now.
    pub fn deviation_bytes(&self) -> u64 {
        self.0.deviation().max(0) as u64
    }

    /// Chooses thresholds so that the estimate is off by at most 0.5 % of the quota.
    pub fn scale_to(&self, quota_bytes: u64) {
        self.0.scale_to(quota_bytes);
    }
}
