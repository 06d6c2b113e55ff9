//! Filters: no key that was put in is denied, few others are admitted, and what they take is charged.

use base::memory::Part;
use base::{Account, DocKey};
use proptest::prelude::*;

use super::*;
use crate::hash_seed::HashSeed;

fn hashes(from: u64, count: u64) -> impl Iterator<Item = u64> {
    let seed = HashSeed::new(17, 4);
    (from..from + count).map(move |n| seed.hash(DocKey::new(&n.to_le_bytes())))
}

/// How often a layer with one key in each place is wrong: blocks are full as chance has it.
fn expected(bits: f64, bits_per_key: u32) -> f64 {
    let mean = 512.0 / bits;
    let (mut share, mut wrong) = ((-mean).exp(), 0.0);
    for keys in 0..600_u32 {
        if keys > 0 {
            share *= mean / f64::from(keys);
        }
        let set = 1.0 - (1.0 - 1.0 / 512.0_f64).powi((keys * bits_per_key) as i32);
        wrong += share * set.powi(bits_per_key as i32);
    }
    wrong
}

#[test]
fn the_shape_of_a_layer_is_good_enough_for_what_it_may_be_wrong() {
    let mut wrong_share = 0.4;
    while wrong_share >= LEAST_WRONG {
        let (bits, bits_per_key) = shape(wrong_share);
        let wrong = expected(bits, bits_per_key);
        assert!(wrong <= wrong_share, "{wrong} instead of {wrong_share}");
        assert!(wrong * 2.0 >= wrong_share, "{wrong} instead of {wrong_share} wastes memory");
        wrong_share *= 0.9;
    }
}

#[test]
fn it_is_wrong_as_often_as_it_may_be_however_it_grew() {
    for (wrong_share, room) in [(0.1, 0), (0.01, 0), (0.01, 100_000), (0.001, 0)] {
        let account = Account::new();
        let mut filter = Filter::new(&account, wrong_share, room);
        hashes(0, 100_000).for_each(|hash| filter.insert(hash));
        assert!(hashes(0, 100_000).all(|hash| filter.may_hold(hash)));
        let wrong = hashes(1 << 40, 200_000).filter(|hash| filter.may_hold(*hash)).count();
        let measured = wrong as f64 / 200_000.0;
        assert!(measured <= wrong_share, "{measured} instead of {wrong_share}, room {room}");
        let bits = filter.bytes() as f64 * 8.0 / 100_000.0;
        assert!(bits < 40.0, "{bits} bits a key for {wrong_share}, room {room}");
        println!(
            "wrong {measured:.5} of {wrong_share}, {bits:.1} bits a key, {} layers",
            filter.layers.len()
        );
        assert_eq!(account.exact()[Part::Storage as usize], filter.bytes() as i64);
        drop(filter);
        assert_eq!(account.exact()[Part::Storage as usize], 0);
    }
}

#[test]
fn a_key_put_in_twice_takes_no_more_room() {
    let account = Account::new();
    let mut filter = Filter::new(&account, 0.01, 1000);
    (0..20).for_each(|_| hashes(0, 900).for_each(|hash| filter.insert(hash)));
    assert_eq!(filter.layers.len(), 1);
    assert!((880..=900).contains(&filter.keys()), "{}", filter.keys());
}

proptest! {
    #[test]
    fn what_was_put_in_is_never_denied(
        hashes in proptest::collection::vec(any::<u64>(), 1..3000), wrong in 1..999_u64, room in 0..2000_u64,
    ) {
        let settings = FilterSettings::default();
        settings.set(Some(wrong));
        let mut filter = Filter::new(&Account::new(), settings.wrong_share().expect("on"), room);
        for (at, hash) in hashes.iter().enumerate() {
            filter.insert(*hash);
            prop_assert!(filter.may_hold(hashes[at / 2]));
        }
        prop_assert!(hashes.iter().all(|hash| filter.may_hold(*hash)));
    }
}
