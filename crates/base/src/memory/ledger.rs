//! Ledgers, one a thread, and the accounts' entries in them: each entry has one writer, so that charging is a plain
//! load and store.
//!
//! A ledger outlives its thread: what the thread charged stays in it and counts, and the next thread to start goes on
//! with it.
//! Entries only ever count on while the account lives, no reader resets them, so readers cannot disturb each other or
//! a writer.
//! All orderings are relaxed but those that hand something over: a ledger from thread to thread, a number from
//! account to account.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::atomics::{ACCOUNTS, AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};
use super::part::{PARTS, Part, Parts};

/// Ledgers among which the allowed deviation is shared even if there are fewer.
const LEAST_LEDGERS: i64 = 32;
/// Bytes that an entry may be ahead of the estimate, before somebody says what the quota is, and at most.
const FIRST_DRIFT: u32 = 4 << 10;
const MOST_DRIFT: u32 = 64 << 10;

/// The middle of entries that nobody writes.
const NOBODYS: u32 = u32::MAX;

/// What one thread charged to one account: a cache line.
#[repr(C, align(64))]
struct Entry {
    parts: [AtomicI64; PARTS],
    /// What the estimate has not been told yet, and `middle` more.
    drift: AtomicI64,
    /// The most that `drift` may be; it may not be negative either, so one comparison without sign tells all that is
    /// special. Nothing where there is nothing to write.
    span: AtomicU32,
    middle: AtomicU32,
}

impl Entry {
    /// An entry that has to ask for its span first.
    fn fresh() -> Entry {
        let zero = [const { AtomicI64::new(0) }; PARTS];
        Entry { parts: zero, drift: AtomicI64::new(0), span: AtomicU32::new(0), middle: AtomicU32::new(0) }
    }

    /// An entry in which nothing is written: it drifted too far, whatever is added.
    const fn nobodys() -> Entry {
        let zero = [const { AtomicI64::new(0) }; PARTS];
        let drift = AtomicI64::new(i64::MAX / 2);
        Entry { parts: zero, drift, span: AtomicU32::new(0), middle: AtomicU32::new(NOBODYS) }
    }

    fn clear(&self) {
        self.parts.iter().chain([&self.drift]).for_each(|sum| sum.store(0, Relaxed));
        [&self.span, &self.middle].into_iter().for_each(|bound| bound.store(0, Relaxed));
    }
}

/// The entries of one thread at a time.
pub(super) struct Ledger {
    /// The last one is of all accounts that have no number; nobody writes it.
    entries: [Entry; ACCOUNTS + 1],
    is_taken: AtomicBool,
    number: usize,
    next: *const Ledger,
}

// SAFETY: `next` is written before the ledger is shared; all else is atomic.
unsafe impl Sync for Ledger {}
// SAFETY: as above.
unsafe impl Send for Ledger {}

impl Ledger {
    /// The ledger of threads that have none: in it, nothing is written.
    pub(super) const fn nobody() -> Ledger {
        Ledger {
            entries: [const { Entry::nobodys() }; ACCOUNTS + 1],
            is_taken: AtomicBool::new(true),
            number: 0,
            next: std::ptr::null(),
        }
    }

    fn new() -> Ledger {
        let mut ledger = Ledger::nobody();
        ledger.entries[..ACCOUNTS].iter_mut().for_each(|entry| *entry = Entry::fresh());
        ledger
    }

    /// Its number: small, and of no two threads at the same time.
    pub(super) fn number(&self) -> usize {
        self.number
    }
}

/// Adds to what only this thread writes.
#[inline]
fn add_to(sum: &AtomicI64, bytes: i64) {
    sum.store(sum.load(Relaxed).wrapping_add(bytes), Relaxed);
}

/// All ledgers, and the numbers of the accounts that have entries in them.
pub(super) struct Ledgers {
    /// The newest; ledgers are never removed from the list while it is used.
    newest: AtomicPtr<Ledger>,
    /// A bit for each number that is in use.
    numbers: AtomicU64,
}

impl Ledgers {
    pub(super) const fn new() -> Ledgers {
        Ledgers { newest: AtomicPtr::new(std::ptr::null_mut()), numbers: AtomicU64::new(0) }
    }

    fn iter(&self) -> impl Iterator<Item = &Ledger> {
        let mut at = self.newest.load(Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: a ledger in the list is whole and lives as long as the list.
            let ledger = unsafe { at.as_ref() }?;
            at = ledger.next;
            Some(ledger)
        })
    }

    /// A ledger for the calling thread: one that another thread gave back, or a new one.
    pub(super) fn take(&self) -> &Ledger {
        // Acquire: goes on from what the former owner wrote last.
        let is_free =
            |ledger: &&Ledger| ledger.is_taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        if let Some(ledger) = self.iter().find(is_free) {
            return ledger;
        }
        let ledger = Box::into_raw(Box::new(Ledger::new()));
        let mut head = self.newest.load(Acquire);
        loop {
            // SAFETY: nobody else knows it before it is in the list; heads of the list are whole.
            unsafe {
                (*ledger).next = head;
                (*ledger).number = head.as_ref().map_or(0, |head| head.number + 1);
            }
            match self.newest.compare_exchange(head, ledger, AcqRel, Acquire) {
                // SAFETY: from now on it lives as long as the list.
                Ok(_) => return unsafe { &*ledger },
                Err(other) => head = other,
            }
        }
    }

    /// Leaves a ledger, with everything in it, to the next thread.
    pub(super) fn give_back(&self, ledger: &Ledger) {
        ledger.is_taken.store(false, Release);
    }

    fn claim_number(&self) -> Option<usize> {
        let mut numbers = self.numbers.load(Relaxed);
        while (numbers.trailing_ones() as usize) < ACCOUNTS {
            let number = numbers.trailing_ones() as usize;
            // Acquire: sees all that was charged to the last account with this number.
            match self.numbers.compare_exchange(numbers, numbers | 1 << number, Acquire, Relaxed) {
                Ok(_) => return Some(number),
                Err(other) => numbers = other,
            }
        }
        None
    }

    /// What all threads charged to the account of this number.
    fn sum(&self, number: usize) -> Parts {
        let mut parts = [0_i64; PARTS];
        for ledger in self.iter() {
            for (sum, part) in parts.iter_mut().zip(&ledger.entries[number].parts) {
                *sum = sum.wrapping_add(part.load(Relaxed));
            }
        }
        parts
    }

    /// Makes all entries of a number zero that nobody but the caller has.
    fn clear(&self, number: usize) {
        self.iter().for_each(|ledger| ledger.entries[number].clear());
    }

    fn count(&self) -> i64 {
        self.iter().next().map_or(0, |newest| newest.number as i64 + 1)
    }
}

impl Drop for Ledgers {
    fn drop(&mut self) {
        let mut at = self.newest.load(Acquire);
        while !at.is_null() {
            // SAFETY: each ledger of the list came from a box, and nobody borrows the list any more.
            let ledger = unsafe { Box::from_raw(at) };
            at = ledger.next.cast_mut();
        }
    }
}

/// What changes often, away from what is only read.
#[repr(align(128))]
struct Apart<T>(T);

/// The sums of one account.
pub(super) struct Sums<'a> {
    /// The account's place in each ledger; `ACCOUNTS` if all were in use.
    number: usize,
    ledgers: &'a Ledgers,
    /// What is not in ledgers: what threads without one charged.
    shared: [AtomicI64; PARTS],
    /// The sum of everything but the drifts.
    published: Apart<AtomicI64>,
    /// Bytes that an entry may be ahead of the estimate, either way.
    most_drift: AtomicU32,
}

impl<'a> Sums<'a> {
    /// Empty sums.
    pub(super) fn new(ledgers: &'a Ledgers) -> Sums<'a> {
        let number = ledgers.claim_number();
        // Drift stays when an account ends, and so does what was charged and not released. Nobody else writes the
        // entries now, and whoever will gets to know the account from us.
        if let Some(number) = number {
            ledgers.clear(number);
        }
        Sums {
            ledgers,
            number: number.unwrap_or(ACCOUNTS),
            shared: std::array::from_fn(|_| AtomicI64::new(0)),
            published: Apart(AtomicI64::new(0)),
            most_drift: AtomicU32::new(FIRST_DRIFT),
        }
    }

    /// Adds to a part, from the thread that has `ledger`, which may be [`Ledger::nobody`]. False if that thread has none
    /// and this did nothing.
    #[inline]
    pub(super) fn try_add(&self, ledger: &Ledger, part: Part, bytes: i64) -> bool {
        // SAFETY: a number is at most `ACCOUNTS`, and never changes.
        let entry = unsafe { ledger.entries.get_unchecked(self.number) };
        let drift = entry.drift.load(Relaxed).wrapping_add(bytes);
        if drift as u64 > u64::from(entry.span.load(Relaxed)) {
            return self.try_publish(entry, part, bytes);
        }
        entry.drift.store(drift, Relaxed);
        add_to(&entry.parts[part as usize], bytes);
        true
    }

    #[cold]
    fn try_publish(&self, entry: &Entry, part: Part, bytes: i64) -> bool {
        let middle = entry.middle.load(Relaxed);
        if middle == NOBODYS {
            return false;
        }
        let drift = entry.drift.load(Relaxed).wrapping_sub(middle.into()).wrapping_add(bytes);
        let most = self.most_drift.load(Relaxed);
        entry.span.store(2 * most, Relaxed);
        entry.middle.store(most, Relaxed);
        entry.drift.store(most.into(), Relaxed);
        self.published.0.fetch_add(drift, Relaxed);
        add_to(&entry.parts[part as usize], bytes);
        true
    }

    /// Adds to a part, from a thread that has no ledger, or to an account that has no number.
    #[cold]
    pub(super) fn add_shared(&self, part: Part, bytes: i64) {
        self.shared[part as usize].fetch_add(bytes, Relaxed);
        self.published.0.fetch_add(bytes, Relaxed);
    }

    /// The sum of all parts, off by at most the drifts.
    #[inline]
    pub(super) fn estimate(&self) -> i64 {
        self.published.0.load(Relaxed)
    }

    /// The parts: exactly, if nobody charges meanwhile.
    pub(super) fn exact(&self) -> Parts {
        let in_ledgers = if self.number < ACCOUNTS { self.ledgers.sum(self.number) } else { [0; PARTS] };
        std::array::from_fn(|part| in_ledgers[part].wrapping_add(self.shared[part].load(Relaxed)))
    }

    /// The most by which the estimate can be off now.
    pub(super) fn deviation(&self) -> i64 {
        i64::from(self.most_drift.load(Relaxed)) * self.ledgers.count()
    }

    /// Lets the estimate be off by so many bytes.
    pub(super) fn let_deviate(&self, bytes: u64) {
        let allowed = i64::try_from(bytes).unwrap_or(i64::MAX);
        let each = allowed / self.ledgers.count().max(LEAST_LEDGERS);
        let each = u32::try_from(each).unwrap_or(MOST_DRIFT).min(MOST_DRIFT);
        if self.most_drift.swap(each, Relaxed) != each && self.number < ACCOUNTS {
            // Each asks for the new one when it is written next.
            self.ledgers.iter().for_each(|ledger| ledger.entries[self.number].span.store(0, Relaxed));
        }
    }
}

impl Drop for Sums<'_> {
    fn drop(&mut self) {
        if self.number < ACCOUNTS {
            // Release: whoever gets the number next sees all that was charged.
            self.ledgers.numbers.fetch_and(!(1 << self.number), Release);
        }
    }
}
