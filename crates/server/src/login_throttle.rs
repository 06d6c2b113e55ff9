//! Slows down who guesses passwords: after some failures the next attempts of one address are refused for a while.
//!
//! An address and a user have an allowance of failures, and an address has one for all users together; both come back
//! with time. No other client is held up: a user who is guessed at from one address logs in from any other one.
//! The allowances are large, because one address may stand for many clients, some of them with an old password.
//! The table is bounded: what has come back counts as if it had never been.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

/// Failures of one address as one user before it has to wait, and how long one takes to be forgotten.
const USER_BURST: u32 = 1_000;
const USER_FORGOTTEN_MS: u64 = 2_000;
/// The same for all users together.
const ADDRESS_BURST: u32 = 5_000;
const ADDRESS_FORGOTTEN_MS: u64 = 200;
/// The most entries; then the one that is forgotten first goes.
const MOST_ENTRIES: usize = 10_000;

/// Who failed: from where, and as which user; nothing for all users.
type Key = (IpAddr, Option<Box<[u8]>>);

/// Failed logins that are not forgotten.
#[derive(Default)]
pub struct LoginThrottle {
    /// When all failures of a key will have been forgotten, in milliseconds.
    forgotten_ms: Mutex<HashMap<Key, u64>>,
}

impl LoginThrottle {
    /// For how long an address must not try to log in as a user; nothing if it may.
    pub fn must_wait(&self, address: IpAddr, user: &[u8], now: Duration) -> Option<Duration> {
        let now_ms = now.as_millis() as u64;
        let all = self.forgotten_ms.lock();
        let wait = |key: Key, burst: u32, each_ms: u64| {
            let forgotten_ms = all.get(&key).copied().unwrap_or(0);
            // There must be room for one more failure.
            (forgotten_ms + each_ms).saturating_sub(now_ms + u64::from(burst) * each_ms)
        };
        let of_user = wait((address, Some(user.into())), USER_BURST, USER_FORGOTTEN_MS);
        let of_address = wait((address, None), ADDRESS_BURST, ADDRESS_FORGOTTEN_MS);
        let wait_ms = of_user.max(of_address);
        (wait_ms > 0).then(|| Duration::from_millis(wait_ms))
    }

    /// Notes that a login failed.
    pub fn failed(&self, address: IpAddr, user: &[u8], now: Duration) {
        let now_ms = now.as_millis() as u64;
        let mut all = self.forgotten_ms.lock();
        for (key, each_ms) in
            [((address, Some(user.into())), USER_FORGOTTEN_MS), ((address, None), ADDRESS_FORGOTTEN_MS)]
        {
            if all.len() >= MOST_ENTRIES && !all.contains_key(&key) {
                make_room(&mut all, now_ms);
            }
            let forgotten_ms = all.entry(key).or_insert(0);
            *forgotten_ms = (*forgotten_ms).max(now_ms) + each_ms;
        }
    }

    /// Entries at this moment.
    pub fn len(&self) -> usize {
        self.forgotten_ms.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Forgets what is over, or a tenth of what will be over first: looking through all is worth it only for many.
fn make_room(all: &mut HashMap<Key, u64>, now_ms: u64) {
    all.retain(|_, forgotten_ms| *forgotten_ms > now_ms);
    if all.len() < MOST_ENTRIES {
        return;
    }
    let mut times: Vec<u64> = all.values().copied().collect();
    let (_, limit, _) = times.select_nth_unstable(MOST_ENTRIES / 10);
    let limit = *limit;
    all.retain(|_, forgotten_ms| *forgotten_ms > limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const START: Duration = Duration::from_secs(1_000);

    #[test]
    fn who_guesses_waits_and_others_do_not() {
        let throttle = LoginThrottle::default();
        for _ in 0..USER_BURST {
            assert_eq!(throttle.must_wait(A, b"ada", START), None);
            throttle.failed(A, b"ada", START);
        }
        assert_eq!(throttle.must_wait(A, b"ada", START), Some(Duration::from_millis(USER_FORGOTTEN_MS)));
        assert_eq!(throttle.must_wait(A, b"bob", START), None);
        assert_eq!(throttle.must_wait(B, b"ada", START), None);
        let later = START + Duration::from_millis(USER_FORGOTTEN_MS);
        assert_eq!(throttle.must_wait(A, b"ada", later), None);
        throttle.failed(A, b"ada", later);
        assert!(throttle.must_wait(A, b"ada", later).is_some(), "one comes back at a time");
        assert_eq!(throttle.must_wait(A, b"ada", START + Duration::from_secs(100)), None);
    }

    #[test]
    fn many_names_do_not_help() {
        let throttle = LoginThrottle::default();
        for n in 0..ADDRESS_BURST {
            throttle.failed(A, format!("user-{n}").as_bytes(), START);
        }
        assert_eq!(throttle.must_wait(A, b"new", START), Some(Duration::from_millis(ADDRESS_FORGOTTEN_MS)));
        assert_eq!(throttle.must_wait(B, b"new", START), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let throttle = LoginThrottle::default();
        for n in 0..3 * MOST_ENTRIES as u32 {
            throttle.failed(IpAddr::V4(n.into()), b"ada", START + Duration::from_millis(n.into()));
        }
        assert!(throttle.len() <= MOST_ENTRIES, "{}", throttle.len());
        throttle.failed(A, b"ada", START + Duration::from_secs(10_000));
        throttle.failed(A, b"bob", START + Duration::from_secs(10_000));
        assert!(!throttle.is_empty());
    }
}
