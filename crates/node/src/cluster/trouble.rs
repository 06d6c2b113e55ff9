//! Something that fails again and again: it is said when it begins, now and then, and when it is over.

use std::collections::BTreeMap;
use std::time::Duration;

use base::RateLimit;

/// After so long it is tried less often.
const LONG: Duration = Duration::from_secs(5);
/// How often it is said that it still fails.
const REMIND_EVERY: Duration = Duration::from_secs(30);

/// What fails, and since when.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    since: Option<Duration>,
    /// When it was said last that it fails. Stays when it is over.
    said: Option<Duration>,
    /// Whether it was said of this time.
    is_said: bool,
    /// What comes and goes is said no more often than anything else.
    told: RateLimit,
}

impl Trouble {
    /// It has failed: whether that is to be said.
    pub(super) fn failed(&mut self, now: Duration) -> bool {
        self.since.get_or_insert(now);
        if self.is_said && self.was_said_lately(now) || self.told.admit(now).is_none() {
            return false;
        }
        (self.said, self.is_said) = (Some(now), true);
        true
    }

    fn was_said_lately(&self, now: Duration) -> bool {
        self.said.is_some_and(|said| now.saturating_sub(said) < REMIND_EVERY)
    }

    /// Whether it has failed for so long that nothing is gained by trying again at once.
    pub(super) fn is_long(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= LONG)
    }

    /// It has succeeded: for how long it had failed, if it had and that was said.
    pub(super) fn is_over(&mut self, now: Duration) -> Option<Duration> {
        let since = self.since.take()?;
        std::mem::take(&mut self.is_said).then(|| now.saturating_sub(since))
    }
}

/// What fails, by bucket.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<String, Trouble>);

impl Troubles {
    /// It has failed for a bucket: whether that is to be said.
    pub(super) fn failed(&mut self, bucket: &str, now: Duration) -> bool {
        self.0.entry(bucket.to_owned()).or_default().failed(now)
    }

    /// Only for these buckets it still fails: those for which it does not any more, and for how long it had, if that was
    /// said.
    pub(super) fn keep(&mut self, fails: impl Fn(&str) -> bool, now: Duration) -> Vec<(String, Duration)> {
        let mut over = Vec::new();
        self.0.retain(|bucket, trouble| {
            if fails(bucket) {
                return true;
            }
            over.extend(trouble.is_over(now).map(|after| (bucket.clone(), after)));
            trouble.was_said_lately(now)
        });
        over
    }

    /// Whether all of it has failed for so long that nothing is gained by trying again at once.
    pub(super) fn are_long(&self, now: Duration) -> bool {
        let mut failing = self.0.values().filter(|trouble| trouble.since.is_some());
        failing.all(|trouble| trouble.is_long(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_told_alone() {
        let mut troubles = Troubles::default();
        let at = Duration::from_secs;
        assert!(troubles.failed("a", at(1)) && !troubles.failed("a", at(2)) && troubles.failed("b", at(2)));
        assert!(troubles.are_long(at(7)) && !troubles.are_long(at(6)));
        assert_eq!(troubles.keep(|bucket| bucket == "b", at(9)), [("a".to_owned(), at(8))]);
        assert!(troubles.failed("a", at(10)) && !troubles.failed("b", at(10)));
    }

    #[test]
    fn is_said_at_first_and_then_seldom() {
        let mut trouble = Trouble::default();
        let at = Duration::from_secs;
        assert_eq!(trouble.is_over(at(1)), None);
        assert!(trouble.failed(at(2)) && !trouble.failed(at(3)) && !trouble.failed(at(31)));
        assert!(trouble.failed(at(32)) && !trouble.failed(at(33)));
        assert_eq!(trouble.is_over(at(40)), Some(at(38)));
        assert!(trouble.failed(at(41)));
    }
    #[test]
    fn what_comes_and_goes_is_said_seldom() {
        let (mut trouble, mut troubles) = (Trouble::default(), Troubles::default());
        let at = Duration::from_millis;
        let (mut begun, mut over, mut by_bucket, mut by_bucket_over) = (0, 0, 0, 0);
        for round in 0..1_000 {
            let now = at(round * 20);
            begun += u32::from(trouble.failed(now));
            over += u32::from(trouble.is_over(now + at(10)).is_some());
            by_bucket += u32::from(troubles.failed("a", now));
            by_bucket_over += troubles.keep(|_| false, now + at(10)).len();
        }
        assert_eq!((begun, over, by_bucket, by_bucket_over), (4, 4, 4, 4), "in 20 seconds");
        assert!(troubles.are_long(at(20_000)), "none fails");
        assert!(troubles.keep(|_| false, at(60_000)).is_empty() && troubles.0.is_empty(), "it is forgotten");
    }

    #[test]
    fn what_was_not_said_at_first_is_said_if_it_goes_on() {
        let mut trouble = Trouble::default();
        let at = Duration::from_secs;
        assert!(trouble.failed(at(1)));
        assert_eq!(trouble.is_over(at(2)), Some(at(1)));
        assert!(!trouble.failed(at(3)) && trouble.failed(at(6)) && !trouble.failed(at(12)));
        assert_eq!(trouble.is_over(at(13)), Some(at(10)));
    }
}
