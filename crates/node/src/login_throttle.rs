//! Slows down who guesses passwords: after some failures the next attempts of one address are refused for a while.
//!
//! *Guarantee:* an attempt counts as a failure from the moment on when it is let through, and is given back when the password
//! was right, or was not looked at. So however many attempts are under way, no more of them are checked than there are places.
//!
//! An address and a user have an allowance of failures, and an address has one for all users together; both come back
//! with time. No other client is held up: a user who is guessed at from one address logs in from any other one.
//! The allowances are large, because one address may stand for many clients, some of them with an old password.
//! For the same reason a user who has logged in from an address keeps a lane there: guesses at other users do not count
//! against it, and when its own allowance is used up, passwords are still checked at a bounded rate.
//! The tables are bounded: what has come back counts as if it had never been. They keep no name that a client sent, but a
//! hash of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::planted::{self, Bug};
use parking_lot::Mutex;

use crate::sasl::digest::Mechanism;

/// Failures of one address as one user before it has to wait, and how long one takes to be forgotten.
const USER_BURST: u32 = 1_000;
const USER_FORGOTTEN_MS: u64 = 2_000;
/// The same for all users together.
const ADDRESS_BURST: u32 = 5_000;
const ADDRESS_FORGOTTEN_MS: u64 = 200;
/// Checks beyond that of a user who has logged in from there, and how long one takes to come back: 432,000 a day.
const LANE_BURST: u32 = 10;
const LANE_MS: u64 = 200;
/// For how long an address counts as one of which a password was wrong lately.
const LATELY_MS: u64 = 60_000;
/// For how long it is known that a user has logged in from an address.
const KNOWN_MS: u64 = 24 * 3_600_000;
/// The most entries of each table; then those that are over first go.
const MOST_ENTRIES: usize = 10_000;
/// The part of an IPv6 address that names a network: a client that has one address of it has all.
const IPV6_NETWORK_BITS: u32 = 64;

/// A hash, with a key of this process, of an address and a user, or of an address alone: an entry of a table is small,
/// whatever a client calls itself, and no client can choose names that share one.
type Key = u64;

/// A user who has logged in from an address.
struct Known {
    until_ms: u64,
    /// When all checks of its lane will have come back.
    lane_ms: u64,
}

/// Failed logins that are not forgotten, and where users have logged in.
#[derive(Default)]
struct Tables {
    /// When all failures of a key will have been forgotten, in milliseconds.
    forgotten_ms: HashMap<Key, u64>,
    known: HashMap<Key, Known>,
    /// Until when an address counts as one of which a password was wrong lately.
    wrong_until_ms: HashMap<Key, u64>,
}

/// A login that was let through: it counts as a failure unless it is given back.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Of the user at the address, and of the address.
    keys: [Key; 2],
    /// What it added to the time until all failures of each are forgotten.
    charged_ms: [u64; 2],
    /// See [`Attempt::was_wrong_lately`].
    was_wrong_lately: bool,
}

impl Attempt {
    /// Whether a password of the address was wrong within a minute, and this user has not logged in from there: where many
    /// wait, those of other addresses come first.
    pub fn was_wrong_lately(&self) -> bool {
        self.was_wrong_lately
    }
}

/// Decides whose password is checked.
pub struct LoginThrottle {
    secret: [u8; 32],
    tables: Mutex<Tables>,
}

impl LoginThrottle {
    /// One without failures. `secret`: of this process, keys the hashes.
    pub(crate) fn new(secret: [u8; 32]) -> LoginThrottle {
        LoginThrottle { secret, tables: Mutex::default() }
    }

    /// The user at the address, and the address.
    fn keys(&self, address: IpAddr, user: &[u8]) -> [Key; 2] {
        let address = match network(address) {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let key = |kind: &[u8], user: &[u8]| {
            let digest = Mechanism::Sha256.hmac(&self.secret, &[kind, &address.octets(), user]);
            Key::from_be_bytes(*digest.bytes().first_chunk().expect("a digest has 32 bytes"))
        };
        [key(b"user", user), key(b"address", b"")]
    }

    /// Whether a password of `user` that comes from `address` would be checked now; if not, for how long to wait. Takes no
    /// place: for what begins a login whose password comes later.
    pub fn look(&self, address: IpAddr, user: &[u8], now: Duration) -> Result<(), Duration> {
        self.tables.lock().wait(self.keys(address, user), now.as_millis() as u64, false)
    }

    /// Lets a password of `user` that comes from `address` be checked, or says for how long to wait.
    pub fn admit(&self, address: IpAddr, user: &[u8], now: Duration) -> Result<Attempt, Duration> {
        let (keys, now_ms) = (self.keys(address, user), now.as_millis() as u64);
        let mut tables = self.tables.lock();
        tables.wait(keys, now_ms, true)?;
        let was_wrong_lately = tables.was_wrong_lately(keys, now_ms);
        Ok(Attempt { keys, charged_ms: tables.charge(keys, now_ms), was_wrong_lately })
    }

    /// Takes note that the password of an attempt was right.
    pub fn succeeded(&self, attempt: Attempt, now: Duration) {
        let (key, now_ms) = (attempt.keys[0], now.as_millis() as u64);
        let mut tables = self.tables.lock();
        tables.give_back(&attempt, now_ms);
        let known = &mut tables.known;
        if known.len() >= MOST_ENTRIES && !known.contains_key(&key) {
            make_room(known, now_ms, |known| known.until_ms);
        }
        known.entry(key).or_insert(Known { until_ms: 0, lane_ms: 0 }).until_ms = now_ms + KNOWN_MS;
    }

    /// Takes note that a password that came from `address` is wrong, whether or not its client waited for that.
    pub(crate) fn was_wrong(&self, address: IpAddr, now: Duration) {
        let ([_, key], now_ms) = (self.keys(address, b""), now.as_millis() as u64);
        let wrong = &mut self.tables.lock().wrong_until_ms;
        if wrong.len() >= MOST_ENTRIES && !wrong.contains_key(&key) {
            make_room(wrong, now_ms, |until_ms| *until_ms);
        }
        wrong.insert(key, now_ms + LATELY_MS);
    }

    /// Takes note that the password of an attempt was not looked at, or that its user is not let in for another reason. What
    /// it took of a lane is not given back.
    pub fn unchecked(&self, attempt: Attempt, now: Duration) {
        self.tables.lock().give_back(&attempt, now.as_millis() as u64);
    }

    /// Entries at this moment of the larger table.
    pub fn len(&self) -> usize {
        let tables = self.tables.lock();
        tables.forgotten_ms.len().max(tables.known.len()).max(tables.wrong_until_ms.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tables {
    /// For how long an attempt has to wait, if it has to. `takes`: a place of the user's lane is used if it needs one.
    fn wait(&mut self, [user, address]: [Key; 2], now_ms: u64, takes: bool) -> Result<(), Duration> {
        let wait = |key, burst, each_ms| {
            wait_ms(self.forgotten_ms.get(key).copied().unwrap_or(0), burst, each_ms, now_ms)
        };
        let of_user = wait(&user, USER_BURST, USER_FORGOTTEN_MS);
        let of_address = wait(&address, ADDRESS_BURST, ADDRESS_FORGOTTEN_MS);
        let known = self.known.get_mut(&user).filter(|known| known.until_ms > now_ms);
        let wait_ms = match known {
            Some(known) if of_user > 0 => {
                let in_lane = wait_ms(known.lane_ms, LANE_BURST, LANE_MS, now_ms);
                if in_lane == 0 && takes {
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

    fn was_wrong_lately(&self, [user, address]: [Key; 2], now_ms: u64) -> bool {
        let is_known = self.known.get(&user).is_some_and(|known| known.until_ms > now_ms);
        !is_known && self.wrong_until_ms.get(&address).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// Counts a failure; returns what it adds.
    fn charge(&mut self, keys: [Key; 2], now_ms: u64) -> [u64; 2] {
        let allowances = [(USER_BURST, USER_FORGOTTEN_MS), (ADDRESS_BURST, ADDRESS_FORGOTTEN_MS)];
        let all = &mut self.forgotten_ms;
        let mut charged_ms = [0; 2];
        for ((key, (burst, each_ms)), charged_ms) in keys.into_iter().zip(allowances).zip(&mut charged_ms) {
            if all.len() >= MOST_ENTRIES && !all.contains_key(&key) {
                make_room(all, now_ms, |forgotten_ms| *forgotten_ms);
            }
            let forgotten_ms = all.entry(key).or_insert(0);
            // One whose password was changed goes on failing in its lane: that must not count for ever.
            let most_ms = now_ms + u64::from(burst + 1) * each_ms;
            let before_ms = (*forgotten_ms).max(now_ms);
            *forgotten_ms = (before_ms + each_ms).min(most_ms);
            *charged_ms = forgotten_ms.saturating_sub(before_ms);
        }
        charged_ms
    }

    fn give_back(&mut self, attempt: &Attempt, now_ms: u64) {
        for (key, charged_ms) in attempt.keys.into_iter().zip(attempt.charged_ms) {
            // It may have been forgotten meanwhile.
            let Entry::Occupied(mut entry) = self.forgotten_ms.entry(key) else { continue };
            *entry.get_mut() = entry.get().saturating_sub(charged_ms);
            if *entry.get() <= now_ms {
                entry.remove();
            }
        }
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
fn make_room<V>(all: &mut HashMap<Key, V>, now_ms: u64, over_ms: impl Fn(&V) -> u64) {
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

    fn throttle() -> LoginThrottle {
        LoginThrottle::new([7; 32])
    }

    /// A login with a wrong password; whether it was checked.
    fn fails(throttle: &LoginThrottle, address: IpAddr, user: &[u8], now: Duration) -> bool {
        throttle.admit(address, user, now).is_ok()
    }

    fn succeeds(throttle: &LoginThrottle, address: IpAddr, user: &[u8], now: Duration) {
        let attempt = throttle.admit(address, user, now).expect("it is checked");
        throttle.succeeded(attempt, now);
    }

    /// Logins at once, each with a name of its own, fail.
    fn many_fail(throttle: &LoginThrottle, address: IpAddr, count: u32, now: Duration) {
        for n in 0..count {
            assert!(fails(throttle, address, format!("user-{n}").as_bytes(), now), "{n}");
        }
    }

    #[test]
    fn a_password_that_was_changed_does_not_count_for_ever() {
        let throttle = throttle();
        succeeds(&throttle, A, b"ada", START);
        let mut now = START;
        while now < START + Duration::from_millis(KNOWN_MS + 10_000) {
            fails(&throttle, A, b"ada", now);
            now += Duration::from_millis(LANE_MS);
        }
        let later = now + Duration::from_millis(USER_FORGOTTEN_MS.max(ADDRESS_FORGOTTEN_MS));
        assert_eq!(throttle.look(A, b"ada", later), Ok(()));
        assert_eq!(throttle.look(A, b"bob", later), Ok(()));
    }

    #[test]
    pub(crate) fn who_guesses_waits_and_others_do_not() {
        let throttle = throttle();
        for _ in 0..USER_BURST {
            assert!(fails(&throttle, A, b"ada", START));
        }
        assert_eq!(throttle.admit(A, b"ada", START), Err(Duration::from_millis(USER_FORGOTTEN_MS)));
        assert_eq!(throttle.look(A, b"bob", START), Ok(()));
        assert_eq!(throttle.look(B, b"ada", START), Ok(()));
        let later = START + Duration::from_millis(USER_FORGOTTEN_MS);
        assert!(fails(&throttle, A, b"ada", later));
        assert!(!fails(&throttle, A, b"ada", later), "one comes back at a time");
        assert!(fails(&throttle, A, b"ada", START + Duration::from_secs(100)));
    }

    #[test]
    fn attempts_under_way_count() {
        let throttle = throttle();
        let begun = |address, user: &str, now| throttle.admit(address, user.as_bytes(), now);
        let mut attempts: Vec<Attempt> =
            (0..2 * USER_BURST).filter_map(|_| begun(A, "ada", START).ok()).collect();
        assert_eq!(attempts.len(), USER_BURST as usize, "none of them has ended");
        assert!(throttle.look(A, "ada".as_bytes(), START).is_err());
        // What was right, and what was not looked at, are given back, and no more than that.
        throttle.unchecked(attempts.pop().expect("there are some"), START);
        throttle.unchecked(attempts.pop().expect("there are some"), START);
        let again: Vec<bool> = (0..3).map(|_| fails(&throttle, A, b"ada", START)).collect();
        assert_eq!(again, [true, true, false]);
        throttle.succeeded(attempts.pop().expect("there are some"), START);
        assert!(fails(&throttle, A, b"ada", START));
        // The same of an address with many names.
        let begun = (0..2 * ADDRESS_BURST).filter(|n| begun(B, &format!("user-{n}"), START).is_ok());
        assert_eq!(begun.count(), ADDRESS_BURST as usize);
    }

    #[test]
    fn what_is_given_back_late_is_no_more_than_was_taken() {
        let throttle = throttle();
        let first = throttle.admit(A, b"ada", START).expect("the first one");
        let later = START + Duration::from_millis(USER_FORGOTTEN_MS * 2);
        (0..USER_BURST).for_each(|_| assert!(fails(&throttle, A, b"ada", later)));
        throttle.unchecked(first, later);
        assert_eq!([0; 2].map(|_| fails(&throttle, A, b"ada", later)), [true, false]);
        // One whose entry is gone gives nothing back.
        let other = throttle.admit(B, b"ada", START).expect("the first one");
        throttle.tables.lock().forgotten_ms.clear();
        throttle.unchecked(other, later);
        assert!(throttle.is_empty());
    }

    #[test]
    fn a_success_in_the_lane_gives_back_what_it_took_alone() {
        let throttle = throttle();
        succeeds(&throttle, A, b"ada", START);
        (0..USER_BURST).for_each(|_| assert!(fails(&throttle, A, b"ada", START)));
        (0..LANE_BURST / 2).for_each(|_| assert!(fails(&throttle, A, b"ada", START), "in the lane"));
        (0..LANE_BURST / 2).for_each(|_| succeeds(&throttle, A, b"ada", START));
        assert!(!fails(&throttle, A, b"ada", START), "neither lane nor allowance has a place");
    }

    #[test]
    fn many_names_do_not_help() {
        let throttle = throttle();
        many_fail(&throttle, A, ADDRESS_BURST, START);
        assert_eq!(throttle.admit(A, b"new", START), Err(Duration::from_millis(ADDRESS_FORGOTTEN_MS)));
        assert_eq!(throttle.look(B, b"new", START), Ok(()));
    }

    #[test]
    fn who_is_known_at_an_address_is_not_locked_out_by_guesses_at_others() {
        let throttle = throttle();
        succeeds(&throttle, A, b"ada", START);
        many_fail(&throttle, A, ADDRESS_BURST, START);
        assert_eq!(throttle.look(A, b"ada", START), Ok(()));
        assert!(throttle.look(A, b"bob", START).is_err(), "this one was never seen here");
        // After a day it is not known any more.
        let later = START + Duration::from_millis(KNOWN_MS);
        many_fail(&throttle, A, ADDRESS_BURST, later);
        assert!(throttle.look(A, b"ada", later).is_err());
    }

    #[test]
    fn a_right_password_passes_at_a_bounded_rate_while_its_user_is_guessed_at() {
        let throttle = throttle();
        succeeds(&throttle, A, b"ada", START);
        (0..USER_BURST).for_each(|_| assert!(fails(&throttle, A, b"ada", START)));
        let mut checked = 0;
        // Two guesses in each of a hundred steps of a second in all: what is checked is what the lane gives.
        for ms in (0..1_000).step_by(10) {
            let now = START + Duration::from_millis(ms);
            for _ in 0..2 {
                // A look takes none of it.
                let _ = throttle.look(A, b"ada", now);
                checked += u64::from(fails(&throttle, A, b"ada", now));
            }
        }
        assert_eq!(checked, u64::from(LANE_BURST) + 1_000 / LANE_MS - 1);
        assert!(
            throttle.admit(A, b"ada", START + Duration::from_secs(1)).is_ok(),
            "one comes back at a time"
        );
        // Where this user has not logged in, there is no lane.
        (0..USER_BURST).for_each(|_| assert!(fails(&throttle, B, b"ada", START)));
        assert!(throttle.look(B, b"ada", START).is_err());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let throttle = throttle();
        let of =
            |network: u16, host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, network, host, 0, 0, 1));
        (0..USER_BURST).for_each(|n| assert!(fails(&throttle, of(1, n as u16), b"ada", START)));
        assert!(throttle.look(of(1, 50_000), b"ada", START).is_err());
        assert_eq!(throttle.look(of(2, 0), b"ada", START), Ok(()));
        // An IPv4 address is one, whichever way it is written.
        (0..USER_BURST).for_each(|_| assert!(fails(&throttle, A, b"ada", START)));
        let IpAddr::V4(a) = A else { unreachable!("it is written with four numbers") };
        assert!(throttle.look(IpAddr::V6(a.to_ipv6_mapped()), b"ada", START).is_err());
        assert_eq!(throttle.look(B, b"ada", START), Ok(()));
    }

    #[test]
    fn the_tables_are_bounded_whatever_clients_call_themselves() {
        let throttle = throttle();
        let name = vec![b'x'; 1_000];
        for n in 0..3 * MOST_ENTRIES as u32 {
            let (address, now) = (IpAddr::V4(n.into()), START + Duration::from_millis(n.into()));
            fails(&throttle, address, &name, now);
            succeeds(&throttle, address, &name[..64], now);
            throttle.was_wrong(address, now);
        }
        assert!(throttle.len() <= MOST_ENTRIES, "{}", throttle.len());
        let tables = throttle.tables.lock();
        let bytes = (tables.forgotten_ms.capacity() + tables.wrong_until_ms.capacity())
            * (size_of::<(Key, u64)>() + 1)
            + tables.known.capacity() * (size_of::<(Key, Known)>() + 1);
        assert!(bytes <= 1 << 20, "{bytes} bytes, and entries own nothing else");
        drop(tables);
        fails(&throttle, A, b"ada", START + Duration::from_secs(10_000));
        assert!(!throttle.is_empty());
    }

    #[test]
    fn an_address_of_which_a_password_was_wrong_is_known_for_a_minute() {
        let throttle = throttle();
        let lately = |address, user: &[u8], now| {
            throttle.admit(address, user, now).expect("it is checked").was_wrong_lately()
        };
        assert!(!lately(A, b"ada", START) && !lately(A, b"bob", START), "nothing is known of them yet");
        throttle.was_wrong(A, START);
        assert!(lately(A, b"bob", START) && !lately(B, b"bob", START));
        succeeds(&throttle, A, b"ada", START);
        assert!(!lately(A, b"ada", START) && lately(A, b"eve", START), "who has logged in is no stranger");
        assert!(!lately(A, b"bob", START + Duration::from_millis(LATELY_MS)), "it is over");
        for n in 0..2 * MOST_ENTRIES as u32 {
            throttle.was_wrong(IpAddr::V4(n.into()), START + Duration::from_millis(u64::from(n)));
        }
        assert!(throttle.len() <= MOST_ENTRIES);
    }
}
