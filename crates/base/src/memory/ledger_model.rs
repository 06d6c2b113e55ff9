//! Ledgers under a scheduler that tries interleavings: the same source, compiled with the scheduler's atomics.

mod atomics {
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};

    /// So few that some accounts get no number.
    pub(super) const ACCOUNTS: usize = 2;
}
mod part {
    pub(super) use super::super::part::*;
}
#[path = "ledger.rs"]
#[allow(clippy::duplicate_mod, dead_code, reason = "the same source, with other atomics beside it")]
mod ledger;

use std::sync::Arc;

use ledger::{Ledgers, Sums};
use part::{Part, Parts};
use shuttle::thread;

/// Whatever a thread of the model borrows, it borrows from something that the test leaks.
fn ledgers() -> &'static Ledgers {
    Box::leak(Box::new(Ledgers::new()))
}

fn total(parts: Parts) -> i64 {
    parts.iter().sum()
}

/// Two generations of threads charge and release while two readers look.
fn threads_come_and_go() {
    let ledgers = ledgers();
    let sums = Arc::new(Sums::new(ledgers));
    sums.let_deviate(32 * 100);
    let worker = |bytes: i64| {
        let sums = sums.clone();
        thread::spawn(move || {
            let ledger = ledgers.take();
            assert!(sums.try_add(ledger, Part::Documents, bytes));
            assert!(sums.try_add(ledger, Part::Storage, 60));
            assert!(sums.try_add(ledger, Part::Documents, -50));
            ledgers.give_back(ledger);
            // After its end as the thread sees it.
            sums.add_shared(Part::Other, 1);
        })
    };
    let reader = || {
        let sums = sums.clone();
        thread::spawn(move || {
            let seen = total(sums.exact());
            assert!((-150..=3 * (90 + 60 + 1)).contains(&seen), "{seen}: lost or doubled");
            // Each thread is off by at most its threshold, and what it is just about to publish.
            let off = sums.estimate() - total(sums.exact());
            assert!(off.abs() <= 3 * (100 + 2 * 90 + 60 + 50 + 1), "{off}");
        })
    };
    let first = [worker(90), worker(80)];
    let readers = [reader(), reader()];
    first.into_iter().for_each(|thread| thread.join().unwrap());
    worker(70).join().unwrap();
    readers.into_iter().for_each(|thread| thread.join().unwrap());
    let exact = sums.exact();
    assert_eq!(exact[Part::Documents as usize], 90 + 80 + 70 - 150);
    assert_eq!((exact[Part::Storage as usize], exact[Part::Other as usize]), (180, 3));
    assert!((sums.estimate() - total(exact)).abs() <= sums.deviation());
}

/// An account ends in debt on one thread while another begins, maybe with its number.
fn a_number_moves_on() {
    let ledgers = ledgers();
    let threads: Vec<_> = (1..=3)
        .map(|n| {
            thread::spawn(move || {
                let ledger = ledgers.take();
                let sums = Sums::new(ledgers);
                assert_eq!((total(sums.exact()), sums.estimate()), (0, 0));
                if !sums.try_add(ledger, Part::Documents, n) {
                    sums.add_shared(Part::Documents, n);
                }
                assert_eq!(total(sums.exact()), n);
                drop(sums);
                ledgers.give_back(ledger);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn interleavings_neither_lose_nor_double() {
    shuttle::check_random(threads_come_and_go, 1000);
    shuttle::check_pct(threads_come_and_go, 1000, 3);
}

#[test]
fn interleavings_of_numbers_that_move_on() {
    shuttle::check_random(a_number_moves_on, 1000);
    shuttle::check_pct(a_number_moves_on, 1000, 3);
}
