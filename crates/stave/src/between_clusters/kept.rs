//! What the bucket that is sent to is known to have kept: a failover there can lose changes that it had answered, and they
//! have to be sent again.
//!
//! # Guarantee
//!
//! A point is given out only if each change in front of its positions is in the history that the vBucket has now.

use std::time::Duration;

use crate::client::dcp::{History, Position};

/// So many points are kept: the newest ones, and older ones further and further apart.
const MOST_POINTS: usize = 8;

/// How far the bucket that is read was sent at some moment, and where the one that is sent to was afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptPoint {
    /// Of each vBucket that is read: everything in front of it was answered.
    pub(super) positions: Vec<Position>,
    /// Of each vBucket that is sent to: the UUID of its history, and its highest seqno.
    pub(super) heights: Vec<(u64, u64)>,
}

/// The vBuckets that are sent to, as they were at a moment.
#[derive(Clone, Debug)]
pub(super) struct Heights {
    /// On the monotonic clock, before they were asked.
    pub(super) asked: Duration,
    /// Of each vBucket: its histories, the newest first, and its highest seqno.
    pub(super) vbuckets: Vec<(History, u64)>,
}

/// A vBucket that is sent to and lost changes, or may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LostChanges<'a> {
    /// Its number there.
    pub(super) vb: u16,
    /// The newest point of which it has everything; nothing if no such point is known.
    pub(super) since: Option<&'a KeptPoint>,
}

/// The points, and the histories that were seen last.
#[derive(Debug, Default)]
pub(super) struct KeptPoints {
    /// The oldest first.
    points: Vec<KeptPoint>,
    /// The UUID and the highest seqno of each vBucket; empty until they are known.
    seen: Vec<(u64, u64)>,
}

impl KeptPoints {
    /// Those of an earlier run, the oldest first, and the histories that it saw last, with how far they were.
    pub(super) fn of(points: Vec<KeptPoint>, seen: Vec<(u64, u64)>) -> KeptPoints {
        KeptPoints { points, seen }
    }

    /// The UUIDs of the histories that were seen last, of each vBucket, and the highest seqno in them; none if they were
    /// never seen.
    pub(super) fn seen(&self) -> &[(u64, u64)] {
        &self.seen
    }

    /// The newest, the oldest, and one between them: enough to be kept in a file.
    pub(super) fn few(&self) -> Vec<&KeptPoint> {
        let last = self.points.len().saturating_sub(1);
        let mut few: Vec<usize> = vec![0, last / 2, last];
        few.dedup();
        few.into_iter().filter_map(|at| self.points.get(at)).collect()
    }

    /// Whether the newest point says already that so much was sent.
    pub(super) fn has(&self, positions: &[Position]) -> bool {
        self.points.last().is_some_and(|newest| newest.positions == positions)
    }

    /// Notes the histories that the vBuckets have now. What was lost in a vBucket whose history is another one than when
    /// it was seen last, or is not as long any more, as when a copy of its files was put back.
    pub(super) fn look(&mut self, heights: &Heights) -> Vec<LostChanges<'_>> {
        let newest = heights.vbuckets.iter().map(|(history, high)| (uuid(history), *high)).collect();
        let seen = std::mem::replace(&mut self.seen, newest);
        let changed = |(vb, (history, high)): &(usize, &(History, u64))| {
            seen.get(*vb).is_some_and(|(seen, before)| *seen != uuid(history) || high < before)
        };
        let lost = heights.vbuckets.iter().enumerate().filter(changed);
        let since = |vb: usize, history: &History, high: u64| {
            self.points.iter().rev().find(|point| point.is_kept(vb, history, high))
        };
        let loss = |(vb, (history, high)): (usize, &(History, u64))| LostChanges {
            vb: vb as u16,
            since: since(vb, history, *high),
        };
        lost.map(loss).collect()
    }

    /// Everything in front of `positions` was answered before the vBuckets were asked for `heights`, and none of them has
    /// had another history since the last look.
    pub(super) fn add(&mut self, positions: Vec<Position>, heights: &Heights) {
        let heights = heights.vbuckets.iter().map(|(history, high)| (uuid(history), *high)).collect();
        self.points.push(KeptPoint { positions, heights });
        if self.points.len() > MOST_POINTS {
            // The oldest stays.
            self.points.remove(3);
            self.points.remove(1);
        }
    }
}

fn uuid(history: &History) -> u64 {
    history.first().map_or(0, |(uuid, _)| uuid.0)
}

impl KeptPoint {
    /// Whether a vBucket with this history, which is so long now, has everything that it had at this point.
    fn is_kept(&self, vb: usize, history: &History, now: u64) -> bool {
        let Some((uuid, high)) = self.heights.get(vb) else { return false };
        if *high == 0 {
            return true;
        }
        let Some(at) = history.iter().position(|(one, _)| one.0 == *uuid) else { return false };
        // A history ends where the next one begins.
        *high <= at.checked_sub(1).map_or(now, |next| history[next].1.0)
    }
}

#[cfg(test)]
mod tests {
    use base::{Seqno, VbUuid};

    use super::*;

    fn heights(vbuckets: &[(&[(u64, u64)], u64)]) -> Heights {
        let history =
            |of: &[(u64, u64)]| of.iter().map(|(uuid, from)| (VbUuid(*uuid), Seqno(*from))).collect();
        let vbuckets = vbuckets.iter().map(|(of, high)| (history(of), *high)).collect();
        Heights { asked: Duration::ZERO, vbuckets }
    }

    fn sent(seqno: u64) -> Vec<Position> {
        vec![Position::at(VbUuid(1), Seqno(seqno))]
    }

    fn since(points: &mut KeptPoints, now: &Heights) -> Option<Option<u64>> {
        let losses = points.look(now);
        losses.first().map(|loss| loss.since.map(|point| point.positions[0].seqno.0))
    }

    #[test]
    fn the_newest_point_that_a_failover_has_kept_is_gone_back_to() {
        let mut points = KeptPoints::default();
        for (seqno, high) in [(10, 100), (20, 200), (30, 300)] {
            let now = heights(&[(&[(7, 0)], high)]);
            assert_eq!(since(&mut points, &now), None);
            points.add(sent(seqno), &now);
        }
        assert!(points.has(&sent(30)) && !points.has(&sent(20)));
        // The replica had 250 of them.
        assert_eq!(since(&mut points, &heights(&[(&[(8, 250), (7, 0)], 255)])), Some(Some(20)));
        // It is said once.
        assert_eq!(since(&mut points, &heights(&[(&[(8, 250), (7, 0)], 260)])), None);
        // Twice between two looks, the second time with less.
        assert_eq!(since(&mut points, &heights(&[(&[(9, 100), (7, 0)], 100)])), Some(Some(10)));
        // A history that nothing is known of.
        assert_eq!(since(&mut points, &heights(&[(&[(5, 0)], 100)])), Some(None));
    }

    #[test]
    fn a_history_that_is_shorter_than_before_has_lost_what_it_had() {
        let mut points = KeptPoints::default();
        for (seqno, high) in [(10, 100), (20, 200)] {
            let now = heights(&[(&[(7, 0)], high)]);
            assert_eq!(since(&mut points, &now), None);
            points.add(sent(seqno), &now);
        }
        let now = heights(&[(&[(7, 0)], 150)]);
        assert_eq!(since(&mut again(&points), &now), Some(Some(10)), "over a restart, too");
        assert_eq!(since(&mut points, &now), Some(Some(10)));
        assert_eq!(since(&mut points, &now), None, "it is said once");
    }

    #[test]
    fn other_vbuckets_and_empty_ones_have_lost_nothing() {
        let mut points = KeptPoints::default();
        let now = heights(&[(&[(7, 0)], 10), (&[(70, 0)], 0)]);
        assert!(points.look(&now).is_empty());
        points.add(sent(5), &now);
        let losses = points.look(&heights(&[(&[(7, 0)], 12), (&[(71, 0)], 0)]));
        assert_eq!(
            losses.iter().map(|loss| (loss.vb, loss.since.is_some())).collect::<Vec<_>>(),
            [(1, true)]
        );
    }

    fn again(points: &KeptPoints) -> KeptPoints {
        KeptPoints::of(points.few().into_iter().cloned().collect(), points.seen().to_vec())
    }

    #[test]
    fn what_was_noted_in_a_file_is_compared_with_what_is_there_now() {
        let mut points = KeptPoints::default();
        let now = heights(&[(&[(7, 0)], 10)]);
        assert!(points.look(&now).is_empty());
        // Without a point everything is sent again.
        assert_eq!(since(&mut again(&points), &heights(&[(&[(8, 10), (7, 0)], 10)])), Some(None));
        points.add(sent(5), &now);
        assert_eq!(since(&mut again(&points), &heights(&[(&[(8, 9), (7, 0)], 10)])), Some(None));
        assert_eq!(since(&mut again(&points), &heights(&[(&[(8, 10), (7, 0)], 10)])), Some(Some(5)));
    }

    #[test]
    fn few_points_are_kept_and_the_oldest_is_among_them() {
        let mut points = KeptPoints::default();
        let now = heights(&[(&[(7, 0)], 10)]);
        for seqno in 1..=1_000 {
            points.add(sent(seqno), &now);
            assert!(points.points.len() <= MOST_POINTS && points.has(&sent(seqno)));
        }
        let few: Vec<u64> = points.few().iter().map(|point| point.positions[0].seqno.0).collect();
        assert!(few.len() == 3 && few[0] == 1 && few[2] == 1_000 && few.is_sorted(), "{few:?}");
    }
}
