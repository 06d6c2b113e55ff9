//! Slows down who guesses passwords: after some failures the next attempts of one address are refused for a while.
//!
//! An address and a user have an allowance of failures, and an address has one for all users together; both come back
//! with time. No other client is held up: a user who is guessed at from one address logs in from any other one.
//! The allowances are large, because one address may stand for many clients, some of them with an old password.
//! For the same reason a user who has logged in from an address keeps a lane there: guesses at other users do not count
//! against it, and when its own allowance is used up, passwords are still checked at a bounded rate.
//! The tables are bounded: what has come back counts as if it had never been.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::planted::{self, Bug};
use parking_lot::Mutex;

/// Failures of one address as one user before it has to wait, and how long one takes to be forgotten.
const USER_BURST: u32 = 1_000;
const USER_FORGOTTEN_MS: u64 = 2_000;
/// The same for all users together.
const ADDRESS_BURST: u32 = 5_000;
const ADDRESS_FORGOTTEN_MS: u64 = 200;
/// Checks beyond that of a user who has logged in from there, and how long one takes to come back: 432,000 a day.
const LANE_BURST: u32 = 10;
const LANE_MS: u64 = 200;
/// For how long it is known that a user has logged in from an address.
const KNOWN_MS: u64 = 24 * 3_600_000;
/// The most entries of each table; then those that are over first go.
const MOST_ENTRIES: usize = 10_000;
/// The part of an IPv6 address that names a network: a client that has one address of it has all.
const IPV6_NETWORK_BITS: u32 = 64;

/// From where, and as which user.
type Key = (IpAddr, Box<[u8]>);
/// The same, or, without a user, from where alone.
type FailedKey = (IpAddr, Option<Box<[u8]>>);

/// A user who has logged in from an address.
struct Known {
    until_ms: u64,
    /// When all checks of its lane will have come back.
    lane_ms: u64,
}

/// Failed logins that are not forgotten, and where users have logged in.
#[derive(Default)]
struct Tables {
    /// When all failures of a key will have been forgotten, in milliseconds; without a user: of an address.
    forgotten_ms: HashMap<FailedKey, u64>,
    known: HashMap<Key, Known>,
}

/// Decides whose password is checked.
#[derive(Default)]
pub struct LoginThrottle {
    tables: Mutex<Tables>,
}

impl LoginThrottle {
    /// Whether a password of `user` that comes from `address` may be checked; if not, for how long to wait.
    pub fn admit(&self, address: IpAddr, user: &[u8], now: Duration) -> Result<(), Duration> {
        let (address, now_ms) = (network(address), now.as_millis() as u64);
        let mut tables = self.tables.lock();
        let Tables { forgotten_ms, known } = &mut *tables;
        let wait = |key, burst, each_ms| {
            wait_ms(forgotten_ms.get(&key).copied().unwrap_or(0), burst, each_ms, now_ms)
        };
        let of_user = wait((address, Some(user.into())), USER_BURST, USER_FORGOTTEN_MS);
        let of_address = wait((address, None), ADDRESS_BURST, ADDRESS_FORGOTTEN_MS);
        let known = known.get_mut(&(address, user.into())).filter(|known| known.until_ms > now_ms);
        let wait_ms = match known {
            Some(known) if of_user > 0 => {
                let in_lane = wait_ms(known.lane_ms, LANE_BURST, LANE_MS, now_ms);
                if in_lane == 0 {
                    known.lane_ms = known.lane_ms.max(now_ms) + LANE_MS;
                }
                in_lane.min(of_user)
            }
            Some(_) => 0,
            None => of_user.max(of_address),
        };
        let wait_ms = if planted::is(Bug::GuessesAreFree) { 0 } else { wait_ms };
        if wait_ms == 0 { Ok(()) } else { Err(Duration::from_millis(wait_ms)) }
    }

    /// Notes that a login failed.
    pub fn failed(&self, address: IpAddr, user: &[u8], now: Duration) {
        let (address, now_ms) = (network(address), now.as_millis() as u64);
        let all = &mut self.tables.lock().forgotten_ms;
        let counted = [
            ((address, Some(user.into())), USER_BURST, USER_FORGOTTEN_MS),
            ((address, None), ADDRESS_BURST, ADDRESS_FORGOTTEN_MS),
        ];
        for (key, burst, each_ms) in counted {
            if all.len() >= MOST_ENTRIES && !all.contains_key(&key) {
                make_room(all, now_ms, |forgotten_ms| *forgotten_ms);
            }
            let forgotten_ms = all.entry(key).or_insert(0);
            // One whose password was changed goes on failing in its lane: that must not count for ever.
            let most_ms = now_ms + u64::from(burst + 1) * each_ms;
            *forgotten_ms = ((*forgotten_ms).max(now_ms) + each_ms).min(most_ms);
        }
    }

    /// Notes that a login succeeded.
    pub fn succeeded(&self, address: IpAddr, user: &[u8], now: Duration) {
        let (key, now_ms) = ((network(address), user.into()), now.as_millis() as u64);
        let known = &mut self.tables.lock().known;
        if known.len() >= MOST_ENTRIES && !known.contains_key(&key) {
            make_room(known, now_ms, |known| known.until_ms);
        }
        known.entry(key).or_insert(Known { until_ms: 0, lane_ms: 0 }).until_ms = now_ms + KNOWN_MS;
    }

    /// Entries at this moment of the larger table.
    pub fn len(&self) -> usize {
        let tables = self.tables.lock();
        tables.forgotten_ms.len().max(tables.known.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What counts as one address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - IPV6_NETWORK_BITS))))
        }
        address => address,
    }
}

/// How long it takes until there is room for one more, if all will have come back at `back_ms`.
fn wait_ms(back_ms: u64, burst: u32, each_ms: u64, now_ms: u64) -> u64 {
    (back_ms + each_ms).saturating_sub(now_ms + u64::from(burst) * each_ms)
}

/// Forgets what is over, or a tenth of what will be over first: looking through all is worth it only for many.
fn make_room<K: Hash + Eq, V>(all: &mut HashMap<K, V>, now_ms: u64, over_ms: impl Fn(&V) -> u64) {
    all.retain(|_, entry| over_ms(entry) > now_ms);
    if all.len() < MOST_ENTRIES {
        return;
    }
    let mut times: Vec<u64> = all.values().map(&over_ms).collect();
    let (_, limit, _) = times.select_nth_unstable(MOST_ENTRIES / 10);
    let limit = *limit;
    all.retain(|_, entry| over_ms(entry) > limit);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const START: Duration = Duration::from_secs(1_000);

    #[test]
    fn a_password_that_was_changed_does_not_count_for_ever() {
        let throttle = LoginThrottle::default();
        throttle.succeeded(A, b"ada", START);
        let mut now = START;
        while now < START + Duration::from_millis(KNOWN_MS + 10_000) {
            if throttle.admit(A, b"ada", now).is_ok() {
                throttle.failed(A, b"ada", now);
            }
            now += Duration::from_millis(LANE_MS);
        }
        let later = now + Duration::from_millis(USER_FORGOTTEN_MS.max(ADDRESS_FORGOTTEN_MS));
        assert_eq!(throttle.admit(A, b"ada", later), Ok(()));
        assert_eq!(throttle.admit(A, b"bob", later), Ok(()));
    }

    #[test]
    pub(crate) fn who_guesses_waits_and_others_do_not() {
        let throttle = LoginThrottle::default();
        for _ in 0..USER_BURST {
            assert_eq!(throttle.admit(A, b"ada", START), Ok(()));
            throttle.failed(A, b"ada", START);
        }
        assert_eq!(throttle.admit(A, b"ada", START), Err(Duration::from_millis(USER_FORGOTTEN_MS)));
        assert_eq!(throttle.admit(A, b"bob", START), Ok(()));
        assert_eq!(throttle.admit(B, b"ada", START), Ok(()));
        let later = START + Duration::from_millis(USER_FORGOTTEN_MS);
        assert_eq!(throttle.admit(A, b"ada", later), Ok(()));
        throttle.failed(A, b"ada", later);
        assert!(throttle.admit(A, b"ada", later).is_err(), "one comes back at a time");
        assert_eq!(throttle.admit(A, b"ada", START + Duration::from_secs(100)), Ok(()));
    }

    #[test]
    fn many_names_do_not_help() {
        let throttle = LoginThrottle::default();
        for n in 0..ADDRESS_BURST {
            throttle.failed(A, format!("user-{n}").as_bytes(), START);
        }
        assert_eq!(throttle.admit(A, b"new", START), Err(Duration::from_millis(ADDRESS_FORGOTTEN_MS)));
        assert_eq!(throttle.admit(B, b"new", START), Ok(()));
    }

    #[test]
    fn who_is_known_at_an_address_is_not_locked_out_by_guesses_at_others() {
        let throttle = LoginThrottle::default();
        throttle.succeeded(A, b"ada", START);
        for n in 0..ADDRESS_BURST {
            throttle.failed(A, format!("user-{n}").as_bytes(), START);
        }
        assert_eq!(throttle.admit(A, b"ada", START), Ok(()));
        assert!(throttle.admit(A, b"bob", START).is_err(), "this one was never seen here");
        // After a day it is not known any more.
        let later = START + Duration::from_millis(KNOWN_MS);
        (0..ADDRESS_BURST).for_each(|_| throttle.failed(A, b"x", later));
        assert!(throttle.admit(A, b"ada", later).is_err());
    }

    #[test]
    fn a_right_password_passes_at_a_bounded_rate_while_its_user_is_guessed_at() {
        let throttle = LoginThrottle::default();
        throttle.succeeded(A, b"ada", START);
        (0..USER_BURST).for_each(|_| throttle.failed(A, b"ada", START));
        let mut checked = 0;
        // Two guesses in each of a hundred steps of a second in all: what is checked is what the lane gives.
        for ms in (0..1_000).step_by(10) {
            let now = START + Duration::from_millis(ms);
            for _ in 0..2 {
                if throttle.admit(A, b"ada", now).is_ok() {
                    checked += 1;
                    throttle.failed(A, b"ada", now);
                }
            }
        }
        assert_eq!(checked, u64::from(LANE_BURST) + 1_000 / LANE_MS - 1);
        assert!(
            throttle.admit(A, b"ada", START + Duration::from_secs(1)).is_ok(),
            "one comes back at a time"
        );
        // Where this user has not logged in, there is no lane.
        (0..USER_BURST).for_each(|_| throttle.failed(B, b"ada", START));
        assert!(throttle.admit(B, b"ada", START).is_err());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let throttle = LoginThrottle::default();
        let of =
            |network: u16, host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, network, host, 0, 0, 1));
        (0..USER_BURST).for_each(|n| throttle.failed(of(1, n as u16), b"ada", START));
        assert!(throttle.admit(of(1, 50_000), b"ada", START).is_err());
        assert_eq!(throttle.admit(of(2, 0), b"ada", START), Ok(()));
        // An IPv4 address is one, whichever way it is written.
        (0..USER_BURST).for_each(|_| throttle.failed(A, b"ada", START));
        let IpAddr::V4(a) = A else { unreachable!("it is written with four numbers") };
        assert!(throttle.admit(IpAddr::V6(a.to_ipv6_mapped()), b"ada", START).is_err());
        assert_eq!(throttle.admit(B, b"ada", START), Ok(()));
    }

    #[test]
    fn the_table_is_bounded() {
        let throttle = LoginThrottle::default();
        for n in 0..3 * MOST_ENTRIES as u32 {
            throttle.failed(IpAddr::V4(n.into()), b"ada", START + Duration::from_millis(n.into()));
            throttle.succeeded(IpAddr::V4(n.into()), b"ada", START + Duration::from_millis(n.into()));
        }
        assert!(throttle.len() <= MOST_ENTRIES, "{}", throttle.len());
        throttle.failed(A, b"ada", START + Duration::from_secs(10_000));
        throttle.failed(A, b"bob", START + Duration::from_secs(10_000));
        assert!(!throttle.is_empty());
    }
}
