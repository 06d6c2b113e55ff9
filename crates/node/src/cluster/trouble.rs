//! Something that fails again and again: it is said when it begins, now and then, and when it is over.

use std::collections::BTreeMap;
use std::time::Duration;

/// After so long it is tried less often.
const LONG: Duration = Duration::from_secs(5);
/// How often it is said that it still fails.
const REMIND_EVERY: Duration = Duration::from_secs(30);

/// What fails, and since when.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    since: Option<Duration>,
    said: Duration,
}

impl Trouble {
    /// It has failed: whether that is to be said.
    pub(super) fn failed(&mut self, now: Duration) -> bool {
        let is_new = self.since.is_none();
        self.since.get_or_insert(now);
        if !is_new && now.saturating_sub(self.said) < REMIND_EVERY {
            return false;
        }
        self.said = now;
        true
    }

    /// Whether it has failed for so long that nothing is gained by trying again at once.
    pub(super) fn is_long(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= LONG)
    }

    /// It has succeeded: for how long it had failed, if it had.
    pub(super) fn is_over(&mut self, now: Duration) -> Option<Duration> {
        self.since.take().map(|since| now.saturating_sub(since))
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

    /// Only for these buckets it still fails: those for which it does not any more, and for how long it had.
    pub(super) fn keep(&mut self, fails: impl Fn(&str) -> bool, now: Duration) -> Vec<(String, Duration)> {
        let over = self.0.extract_if(.., |bucket, _| !fails(bucket));
        over.filter_map(|(bucket, mut trouble)| Some((bucket, trouble.is_over(now)?))).collect()
    }

    /// Whether all of it has failed for so long that nothing is gained by trying again at once.
    pub(super) fn are_long(&self, now: Duration) -> bool {
        self.0.values().all(|trouble| trouble.is_long(now))
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
}
