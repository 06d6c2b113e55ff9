//! Accounts under threads that come and go.

use std::cell::RefCell;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::memory::PARTS;

fn total(account: &Account) -> i64 {
    account.exact().iter().sum()
}

#[test]
fn what_ended_threads_charged_stays_charged() {
    let account = Account::new();
    for round in 1..=20 {
        thread::scope(|scope| {
            for part in Part::ALL {
                let account = account.clone();
                scope.spawn(move || account.charge(part, 1000 + part as usize));
            }
        });
        let exact = account.exact();
        for part in Part::ALL {
            assert_eq!(exact[part as usize], round * (1000 + part as i64));
        }
    }
}

#[test]
fn a_thread_that_is_ending_still_charges() {
    struct AtTheEnd(Account);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            self.0.charge(Part::Other, 7);
        }
    }
    thread_local! {
        static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    let account = Account::new();
    for charges_before in [true, false] {
        let account = account.clone();
        let ending = move || {
            // Destructors run in an order that is not ours to choose: try both orders of first use.
            if charges_before {
                account.charge(Part::Other, 1);
            }
            LAST.set(Some(AtTheEnd(account.clone())));
            account.charge(Part::Other, 1);
        };
        thread::scope(|scope| _ = scope.spawn(ending).join());
    }
    assert_eq!(account.exact()[Part::Other as usize], 2 * 7 + 3);
}

#[test]
fn a_number_that_is_used_again_begins_at_zero() {
    // More than there are numbers, some of them dropped in debt.
    for round in 0..300_usize {
        let account = Account::new();
        assert_eq!((total(&account), account.estimate()), (0, 0));
        account.charge(Part::Documents, 10_000 + round);
        thread::scope(|scope| _ = scope.spawn(|| account.charge(Part::Storage, 3)));
        assert_eq!(total(&account), 10_003 + round as i64);
    }
}

#[test]
fn accounts_beyond_the_numbers_count_as_well() {
    let accounts: Vec<Account> = (0..200).map(|_| Account::new()).collect();
    for (at, account) in accounts.iter().enumerate() {
        account.charge(Part::Streams, at);
        account.charge(Part::Other, 5);
        account.release(Part::Other, 4);
    }
    for (at, account) in accounts.iter().enumerate() {
        assert_eq!(total(account), at as i64 + 1);
        assert!(account.estimate().abs_diff(at as u64 + 1) <= account.deviation_bytes());
    }
}

#[test]
fn the_deviation_follows_the_quota() {
    let account = Account::new();
    account.charge(Part::Other, 1);
    for quota in [1 << 20, 100 << 20, 1 << 40] {
        account.let_deviate(quota / 200);
        assert!(account.deviation_bytes() <= quota / 200, "{quota}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_threads_sum_to_what_they_charged(
        threads in proptest::collection::vec(
            proptest::collection::vec((0..PARTS, -70_000_i64..70_000), 0..200), 1..8),
        quota in 1_u64 << 20..1 << 32,
    ) {
        let account = Account::new();
        account.let_deviate(quota / 200);
        thread::scope(|scope| {
            for charges in &threads {
                let account = account.clone();
                scope.spawn(move || {
                    for (part, bytes) in charges {
                        if *bytes < 0 {
                            account.release(Part::ALL[*part], bytes.unsigned_abs() as usize);
                        } else {
                            account.charge(Part::ALL[*part], *bytes as usize);
                        }
                    }
                });
            }
        });
        let mut model = [0; PARTS];
        threads.iter().flatten().for_each(|(part, bytes)| model[*part] += bytes);
        prop_assert_eq!(account.exact(), model);
        let total = model.iter().sum::<i64>().max(0) as u64;
        prop_assert!(account.estimate().abs_diff(total) <= account.deviation_bytes());
    }
}
