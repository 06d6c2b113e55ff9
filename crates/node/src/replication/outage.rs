//! For how long a link has been without a connection that works.
//!
//! *Guarantee:* a link that is connected again and again, and loses each connection before a change came, counts as down all
//! the while. Why it is down is told in the words of the first look, so that what is reported does not change with each try.

use std::time::Duration;

/// A link that is down for this long is told: a node that is started again takes less.
pub const LONG: Duration = Duration::from_secs(10);
/// The most bytes of a reason that are told.
const MOST_WHY_BYTES: usize = 300;

/// A link that has been down for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDown {
    /// Of which bucket.
    pub bucket: String,
    /// The node that it follows, as `HOST:PORT`.
    pub node: String,
    /// What the last try came to.
    pub why: String,
}

/// What is known of a link's outage. Moments are of the monotonic clock.
#[derive(Default)]
pub(super) struct Outage {
    /// Since when there is none that works; `None` before the first one broke.
    since: Option<Duration>,
    /// When the present connection was made.
    connected: Option<Duration>,
    why: Option<String>,
}

impl Outage {
    /// There is a connection.
    pub(super) fn connected(&mut self, now: Duration) {
        self.connected = Some(now);
    }

    /// There is none any more, or none was made; whether changes came on it.
    pub(super) fn broke(&mut self, now: Duration, has_streamed: bool) {
        let has_lasted = self.connected.take().is_some_and(|at| now.saturating_sub(at) >= LONG);
        if has_streamed || has_lasted || self.since.is_none() {
            (self.since, self.why) = (Some(now), None);
        }
    }

    /// Why it is down, if it has been for long.
    pub(super) fn is_long(&mut self, now: Duration, last_error: Option<&str>) -> Option<&str> {
        let since = self.since.filter(|_| self.connected.is_none())?;
        if now.saturating_sub(since) < LONG {
            return None;
        }
        let why = || {
            let why = last_error.unwrap_or("it is not connected");
            why[..why.floor_char_boundary(MOST_WHY_BYTES)].to_owned()
        };
        Some(self.why.get_or_insert_with(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_link_that_is_down_for_long_is_told_with_its_first_reason() {
        let mut outage = Outage::default();
        assert_eq!(outage.is_long(at(100), None), None, "it was not tried yet");
        outage.broke(at(100), false);
        assert_eq!(outage.is_long(at(109), Some("refused")), None);
        outage.broke(at(109), false);
        assert_eq!(outage.is_long(at(110), Some("refused")), Some("refused"));
        outage.broke(at(111), false);
        assert_eq!(outage.is_long(at(112), Some("timed out")), Some("refused"));
        let long = "é".repeat(1_000);
        outage.broke(at(113), true);
        let told = outage.is_long(at(123), Some(&long)).expect("it is told");
        assert!(told.len() <= MOST_WHY_BYTES, "{}", told.len());
    }

    #[test]
    fn connections_that_do_not_last_change_nothing() {
        let mut outage = Outage::default();
        outage.broke(at(100), false);
        outage.connected(at(105));
        assert_eq!(outage.is_long(at(200), Some("x")), None, "it is connected");
        // Nothing came for a second.
        let mut flapping = Outage::default();
        flapping.broke(at(100), false);
        for s in 101..110 {
            flapping.connected(at(s));
            flapping.broke(at(s), false);
        }
        assert_eq!(flapping.is_long(at(110), Some("x")), Some("x"));
        // One that lasted, or on which changes came, ends the outage.
        outage.broke(at(200), false);
        assert_eq!(outage.is_long(at(209), Some("x")), None);
        flapping.connected(at(111));
        flapping.broke(at(112), true);
        assert_eq!(flapping.is_long(at(121), Some("x")), None);
    }
}
