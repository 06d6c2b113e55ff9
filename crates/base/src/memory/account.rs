//! What somebody holds in memory, by what it is held for.

use std::cell::Cell;
use std::sync::Arc;

use super::ledger::{Ledger, Ledgers, Sums};
use super::part::{Part, Parts};

#[cfg(test)]
mod tests;

static LEDGERS: Ledgers = Ledgers::new();
static NOBODY: Ledger = Ledger::nobody();

thread_local! {
    /// This thread's ledger. Needs no destructor, so that looking at it costs nothing.
    static LEDGER: Cell<&'static Ledger> = const { Cell::new(&NOBODY) };
    /// Gives the ledger back when the thread ends.
    static TURN: Turn = const { Turn };
}

struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        let ledger = LEDGER.replace(&NOBODY);
        if !std::ptr::eq(ledger, &NOBODY) {
            LEDGERS.give_back(ledger);
        }
    }
}

/// Gets this thread a ledger if it has none. False if the thread is about to end: destructors of thread locals that
/// run after that of `TURN` go without.
#[cold]
fn take_ledger() -> bool {
    if TURN.try_with(|_| ()).is_err() {
        return false;
    }
    if std::ptr::eq(LEDGER.get(), &NOBODY) {
        LEDGER.set(LEDGERS.take());
    }
    true
}

/// A small number that few other running threads have.
#[inline]
pub(super) fn thread_number() -> usize {
    LEDGER.get().number()
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
        self.add(part, bytes as i64);
    }

    /// Gives so many bytes back that were charged before.
    #[inline]
    pub fn release(&self, part: Part, bytes: usize) {
        self.add(part, (bytes as i64).wrapping_neg());
    }

    #[inline]
    fn add(&self, part: Part, bytes: i64) {
        if !self.0.try_add(LEDGER.get(), part, bytes) {
            self.add_without_ledger(part, bytes);
        }
    }

    #[cold]
    fn add_without_ledger(&self, part: Part, bytes: i64) {
        if !take_ledger() || !self.0.try_add(LEDGER.get(), part, bytes) {
            self.0.add_shared(part, bytes);
        }
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

    /// Chooses thresholds so that the estimate is off by at most so many bytes.
    pub fn let_deviate(&self, bytes: u64) {
        self.0.let_deviate(bytes);
    }
}
