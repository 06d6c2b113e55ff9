//! How often one kind of event is logged: once, and then at most every few seconds, with how many were left out.
//!
//! A client can cause an event a thousand times a second; a log that fills the disk helps no reader.

use std::time::Duration;

use parking_lot::Mutex;

/// Between two lines about one kind of event.
const EVERY: Duration = Duration::from_secs(5);

/// One kind of event.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// When the next line may come; `None` before the first.
    next: Option<Duration>,
    left_out: u64,
}

impl RateLimit {
    /// An event that was not logged yet.
    pub const fn new() -> RateLimit {
        RateLimit(Mutex::new(Told { next: None, left_out: 0 }))
    }

    /// It happens at this moment of the monotonic clock. Whether it is to be logged: then how many were left out since
    /// the last line.
    pub fn admit(&self, now: Duration) -> Option<u64> {
        let mut told = self.0.lock();
        if told.next.is_some_and(|next| now < next) {
            told.left_out += 1;
            return None;
        }
        told.next = Some(now + EVERY);
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_at_once_and_then_seldom_with_what_was_left_out() {
        let limit = RateLimit::new();
        let at = Duration::from_millis;
        assert_eq!(limit.admit(at(7)), Some(0));
        for ms in 8..1_000 {
            assert_eq!(limit.admit(at(ms)), None);
        }
        assert_eq!(limit.admit(at(5_007)), Some(992));
        assert_eq!((limit.admit(at(5_008)), limit.admit(at(60_000))), (None, Some(1)));
    }
}
