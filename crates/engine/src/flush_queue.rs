//! Which vBuckets have something to write, and when it is time to write it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::VbId;
use base::env::Clock;
use parking_lot::{Condvar, Mutex};

use crate::wakes::{Ring, assert_unlocked};

/// How long changes gather while nobody waits for them, and how many vBuckets are written together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The longer changes gather, the more of them share the tree nodes that are written for them, and the more the
    /// disk lags behind (docs/adr/0012-group-commit.md).
    gather: Duration,
    /// The same while few vBuckets have something to write: then it costs little, whenever it is written.
    gather_few: Duration,
    /// The most vBuckets that are written together.
    pub(crate) group_vbuckets: usize,
}

impl Pace {
    /// Where each vBucket of a group commits in a file of its own.
    pub(crate) const FILES: Pace =
        Pace { gather: Duration::from_secs(2), gather_few: Duration::from_millis(200), group_vbuckets: 128 };
    /// Where a group is one append, whatever it holds.
    pub(crate) const JOURNAL: Pace = Pace {
        gather: Duration::from_millis(200),
        gather_few: Duration::from_millis(200),
        group_vbuckets: 1024,
    };
}

/// So many vBuckets are few.
const FEW_VBUCKETS: usize = 256;
/// Longer than a tool waits that looks again and again whether all is written: `cbepctl drain` waits two seconds.
const DRAINED_FOR: Duration = Duration::from_secs(5);
/// So many changes of one vBucket gather no longer.
pub(crate) const LARGE_BACKLOG: u64 = 20_000;

/// Which vBuckets have something to write.
pub struct FlushQueue {
    pace: Pace,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Memory is short: nothing gathers.
    is_hurried: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: Waiting,
    /// vBuckets that somebody waits for, or that have a large backlog.
    urgent: VecDeque<VbId>,
    /// Which vBuckets stand in `urgent`, by number.
    is_urgent: Vec<bool>,
    /// Whether the last group was an urgent one.
    was_urgent: bool,
    stopping: bool,
    /// Until then nothing gathers, on the monotonic clock: a client waits until all is written.
    drained_until: Duration,
    /// Somebody asked for nothing to be written.
    is_held: bool,
    /// How many have said that they will look at what is urgent: so long the flusher is not woken for it.
    inline_flushes: u32,
}

/// Those that gather, oldest first. One that is urgent leaves it when it is taken.
#[derive(Default)]
struct Waiting {
    /// With the moment since when each waits; the first one counts. More than half of them do, or there are few.
    entries: VecDeque<(Duration, VbId)>,
    /// Since when each vBucket waits, by number; nothing if it does not.
    since: Vec<Option<Duration>>,
    len: usize,
}

/// So many entries that do not count any more are no matter.
const FEW_VOID: usize = 64;

impl Waiting {
    fn push(&mut self, vb: VbId, now: Duration) {
        let at = usize::from(vb.0);
        if self.since.len() <= at {
            self.since.resize(at + 1, None);
        }
        if self.since[at].is_none() {
            self.since[at] = Some(now);
            self.entries.push_back((now, vb));
            self.len += 1;
        }
    }

    fn remove(&mut self, vb: VbId) {
        let since = self.since.get_mut(usize::from(vb.0));
        if since.is_none_or(|since| since.take().is_none()) {
            return;
        }
        self.len -= 1;
        if self.entries.len() > 2 * self.len + FEW_VOID {
            let since = &self.since;
            self.entries.retain(|(at, vb)| since[usize::from(vb.0)] == Some(*at));
        }
        while self.entries.front().is_some_and(|(at, vb)| self.since[usize::from(vb.0)] != Some(*at)) {
            self.entries.pop_front();
        }
    }

    /// The one that waits for longest.
    fn front(&self) -> Option<(Duration, VbId)> {
        self.entries.front().copied()
    }

    fn pop(&mut self) -> Option<VbId> {
        let (_, vb) = self.front()?;
        self.remove(vb);
        Some(vb)
    }
}

/// What may be taken from the queue.
#[derive(Clone, Copy)]
pub(crate) enum Due {
    /// Everything.
    Now,
    /// What was urgent or has gathered for long enough, at this moment of the monotonic clock.
    Gathered(Duration),
}

impl Queue {
    /// How long the oldest gathers as things are.
    fn gather(&self, now: Duration, pace: Pace) -> Duration {
        match self.waiting.len {
            _ if now < self.drained_until => Duration::ZERO,
            0..=FEW_VBUCKETS => pace.gather_few,
            _ => pace.gather,
        }
    }

    /// Whether the oldest has gathered for long enough.
    fn is_ripe(&self, due: Due, pace: Pace) -> bool {
        match (self.waiting.front(), due) {
            (None, _) => false,
            (Some(_), Due::Now) => true,
            (Some((since, _)), Due::Gathered(now)) => now.saturating_sub(since) >= self.gather(now, pace),
        }
    }
}

impl Queue {
    /// Appends urgent vBuckets to a group of at most so many.
    fn take_urgent(&mut self, most: usize, group: &mut Vec<VbId>) {
        while group.len() < most
            && let Some(vb) = self.urgent.pop_front()
        {
            self.is_urgent[usize::from(vb.0)] = false;
            self.waiting.remove(vb);
            group.push(vb);
        }
    }
}

impl FlushQueue {
    pub(crate) fn new(pace: Pace) -> FlushQueue {
        FlushQueue { pace, queue: Mutex::default(), wake: Condvar::new(), is_hurried: AtomicBool::new(false) }
    }

    /// The most vBuckets that it gives at once.
    pub(crate) fn group_vbuckets(&self) -> usize {
        self.pace.group_vbuckets
    }

    /// Something of `vb` is to be written since `now`.
    pub(crate) fn push(&self, vb: VbId, now: Duration) {
        if self.note(vb, now) {
            self.ring();
        }
    }

    /// The same, for a caller that holds the vBucket's lock. Whether the flusher is to be woken when that is released.
    #[must_use]
    pub(crate) fn note(&self, vb: VbId, now: Duration) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push(vb, now);
        queue.waiting.len == 1
    }

    /// Somebody waits for this vBucket, or it has much to write: it goes first, and gathers no longer.
    pub(crate) fn hurry(&self, vb: VbId) {
        if self.note_urgent(vb) {
            self.ring();
        }
    }

    /// The same, for a caller that holds the vBucket's lock. Whether the flusher is to be woken when that is released.
    #[must_use]
    pub(crate) fn note_urgent(&self, vb: VbId) -> bool {
        let mut queue = self.queue.lock();
        // Many may wait for the same one; it stands here once, so there are never more than vBuckets.
        let at = usize::from(vb.0);
        if queue.is_urgent.len() <= at {
            queue.is_urgent.resize(at + 1, false);
        }
        if std::mem::replace(&mut queue.is_urgent[at], true) {
            return false;
        }
        queue.urgent.push_back(vb);
        queue.urgent.len() == 1 && queue.inline_flushes == 0
    }

    /// Somebody will look at what is urgent, and say so with [`FlushQueue::stand_down`], within microseconds: until then
    /// the flusher is not woken for it. False if nothing may be written.
    pub(crate) fn inline_flush(&self) -> bool {
        let mut queue = self.queue.lock();
        let may = !queue.is_held && !queue.stopping;
        queue.inline_flushes += u32::from(may);
        may
    }

    /// An inline flush is over. What is urgent is appended to `group`, if there is one, as far as a group may
    /// be large; the flusher is woken for what is left.
    pub(crate) fn stand_down(&self, group: Option<&mut Vec<VbId>>) {
        let mut queue = self.queue.lock();
        queue.inline_flushes -= 1;
        if let Some(group) = group {
            queue.take_urgent(self.pace.group_vbuckets, group);
        }
        if !queue.urgent.is_empty() && queue.inline_flushes == 0 {
            self.wake.notify_one();
        }
    }

    /// Memory is short: nothing gathers until somebody calls [`FlushQueue::hurry_no_longer`].
    pub(crate) fn hurry_all(&self) {
        if self.is_hurried.load(Ordering::Relaxed) || self.is_hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        // Whoever is about to wait has either seen it or waits once the lock is released.
        drop(self.queue.lock());
        self.wake.notify_one();
    }

    /// There is memory again.
    pub(crate) fn hurry_no_longer(&self) {
        self.is_hurried.store(false, Ordering::Relaxed);
    }

    /// A client waits until all is written: for [`DRAINED_FOR`] from now on nothing gathers.
    pub(crate) fn drain(&self, now: Duration) {
        self.queue.lock().drained_until = now + DRAINED_FOR;
        self.wake.notify_one();
    }

    /// How long changes gather now.
    fn pace(&self) -> Pace {
        if self.is_hurried.load(Ordering::Relaxed) {
            Pace { gather: Duration::ZERO, gather_few: Duration::ZERO, ..self.pace }
        } else {
            self.pace
        }
    }

    /// Appends a group of different vBuckets: the urgent ones alone, so that who waits waits for no others, or those
    /// that wait for longest. While both are due they take turns.
    pub(crate) fn take(&self, group: &mut Vec<VbId>, due: Due) {
        let mut queue = self.queue.lock();
        let queue = &mut *queue;
        let is_ripe = queue.is_ripe(due, self.pace());
        queue.was_urgent = !(queue.urgent.is_empty() || is_ripe && queue.was_urgent);
        if queue.was_urgent {
            queue.take_urgent(self.pace.group_vbuckets, group);
        } else if is_ripe {
            while group.len() < self.pace.group_vbuckets
                && let Some(vb) = queue.waiting.pop()
            {
                group.push(vb);
            }
        }
    }

    /// vBuckets in the queue.
    pub fn len(&self) -> usize {
        self.queue.lock().waiting.len
    }

    /// Whether no vBucket is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until something is urgent or has gathered for long enough. False if the flusher shall stop.
    pub(crate) fn wait_for_work(&self, clock: &dyn Clock) -> bool {
        let mut queue = self.queue.lock();
        loop {
            let (now, pace) = (clock.monotonic(), self.pace());
            if queue.is_held && !queue.stopping {
                self.wake.wait(&mut queue);
                continue;
            }
            if queue.stopping || !queue.urgent.is_empty() || queue.is_ripe(Due::Gathered(now), pace) {
                return !queue.stopping;
            }
            match queue.waiting.front() {
                None => self.wake.wait(&mut queue),
                Some((since, _)) => {
                    let left = queue.gather(now, pace).saturating_sub(now.saturating_sub(since));
                    self.wake.wait_for(&mut queue, left);
                }
            }
        }
    }

    /// Lets nothing be written by the flusher's thread, or lets it go on.
    pub(crate) fn hold(&self, is_held: bool) {
        self.queue.lock().is_held = is_held;
        self.wake.notify_all();
    }

    /// Whether it is held.
    pub(crate) fn is_held(&self) -> bool {
        self.queue.lock().is_held
    }

    /// Waits a while, or until the flusher shall stop.
    pub(crate) fn pause(&self, time: Duration) {
        let mut queue = self.queue.lock();
        if !queue.stopping {
            self.wake.wait_for(&mut queue, time);
        }
    }

    /// Lets whoever waits for work go home.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.wake.notify_all();
    }
}

impl Ring for FlushQueue {
    /// The flusher looks at what is queued, under its lock, before it waits: it has seen it, or waits by now.
    fn ring(&self) {
        assert_unlocked();
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(queue: &FlushQueue, due: Due) -> Vec<u16> {
        let mut group = Vec::new();
        queue.take(&mut group, due);
        group.into_iter().map(|vb| vb.0).collect()
    }

    /// What README says of a write that is acknowledged from memory.
    #[test]
    fn a_write_waits_for_the_disk_as_long_as_readme_says() {
        let says = format!("is on disk {} seconds later", Pace::JOURNAL.gather.as_secs_f64());
        assert!(include_str!("../../../README.md").contains(&says), "README.md: a write {says}");
    }

    #[test]
    fn few_do_not_gather_for_long() {
        let queue = FlushQueue::new(Pace::FILES);
        queue.push(VbId(7), Duration::ZERO);
        assert!(take(&queue, Due::Gathered(Duration::from_millis(199))).is_empty());
        assert_eq!(take(&queue, Due::Gathered(Duration::from_millis(200))), [7]);
    }

    #[test]
    fn the_oldest_decides_when_a_group_goes() {
        let queue = FlushQueue::new(Pace::FILES);
        let at = |ms| Duration::from_millis(ms);
        for vb in 0..600 {
            queue.push(VbId(vb), at(5 * u64::from(vb)));
        }
        assert!(take(&queue, Due::Gathered(at(1999))).is_empty());
        assert_eq!(take(&queue, Due::Gathered(at(2000))), (0..128).collect::<Vec<_>>());
        assert!(take(&queue, Due::Gathered(at(2639))).is_empty(), "472 are left, which are not few");
        assert_eq!(take(&queue, Due::Gathered(at(2640))), (128..256).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_gathers_while_memory_is_short() {
        let queue = FlushQueue::new(Pace::FILES);
        (0..600).for_each(|vb| queue.push(VbId(vb), Duration::ZERO));
        assert!(take(&queue, Due::Gathered(Duration::ZERO)).is_empty());
        queue.hurry_all();
        assert_eq!(take(&queue, Due::Gathered(Duration::ZERO)).len(), 128);
        queue.hurry_no_longer();
        assert!(take(&queue, Due::Gathered(Duration::ZERO)).is_empty());
    }

    #[test]
    fn nothing_gathers_while_a_client_waits_until_all_is_written() {
        let queue = FlushQueue::new(Pace::JOURNAL);
        let at = |ms| Due::Gathered(Duration::from_millis(ms));
        queue.push(VbId(1), Duration::from_millis(1_000));
        assert!(take(&queue, at(1_100)).is_empty());
        queue.drain(Duration::from_millis(1_100));
        assert_eq!(take(&queue, at(1_100)), [1]);
        queue.push(VbId(2), Duration::from_millis(6_099));
        assert_eq!(take(&queue, at(6_099)), [2]);
        queue.push(VbId(3), Duration::from_millis(6_100));
        assert!(take(&queue, at(6_101)).is_empty(), "it waits no longer");
    }

    #[test]
    fn the_urgent_go_alone_and_nobody_starves() {
        let queue = FlushQueue::new(Pace::FILES);
        for vb in 0..4 {
            queue.push(VbId(vb), Duration::ZERO);
        }
        for vb in [3, 1, 3] {
            queue.hurry(VbId(vb));
        }
        let early = Due::Gathered(Duration::from_millis(10));
        assert_eq!(take(&queue, early), [3, 1]);
        assert!(take(&queue, early).is_empty());
        let late = Due::Gathered(Duration::from_secs(2));
        queue.hurry(VbId(2));
        assert_eq!(take(&queue, late), [2]);
        queue.hurry(VbId(2));
        assert_eq!(take(&queue, late), [0], "the others were written");
        assert_eq!(take(&queue, late), [2]);
        assert!(take(&queue, Due::Now).is_empty() && queue.is_empty());
    }

    #[test]
    fn who_stands_in_takes_what_is_urgent_and_leaves_what_gathers() {
        let queue = FlushQueue::new(Pace::FILES);
        queue.push(VbId(1), Duration::ZERO);
        assert!(queue.inline_flush());
        queue.hurry(VbId(2));
        let mut group = Vec::new();
        queue.stand_down(Some(&mut group));
        assert_eq!(group, [VbId(2)]);
        assert!(queue.inline_flush());
        queue.hurry(VbId(3));
        queue.stand_down(None);
        assert_eq!(take(&queue, Due::Gathered(Duration::ZERO)), [3], "nobody else did");
        assert_eq!(take(&queue, Due::Now), [1]);
        queue.hold(true);
        assert!(!queue.inline_flush(), "nothing may be written");
    }

    #[test]
    fn who_stood_in_and_did_nothing_wakes_the_flusher() {
        let queue = FlushQueue::new(Pace::FILES);
        let clock = base::env::Env::sim(1).0.clock;
        std::thread::scope(|scope| {
            let flusher = scope.spawn(|| queue.wait_for_work(&*clock));
            assert!(queue.inline_flush() && queue.inline_flush());
            queue.hurry(VbId(3));
            queue.stand_down(None);
            queue.stand_down(None);
            assert!(flusher.join().expect("it ran"));
        });
    }

    #[test]
    fn who_was_urgent_gathers_anew() {
        let queue = FlushQueue::new(Pace::FILES);
        let at = |ms| Duration::from_millis(ms);
        queue.push(VbId(1), at(0));
        queue.push(VbId(2), at(10));
        queue.hurry(VbId(1));
        assert_eq!(take(&queue, Due::Gathered(at(20))), [1]);
        queue.push(VbId(1), at(30));
        assert_eq!(queue.len(), 2);
        assert!(take(&queue, Due::Gathered(at(209))).is_empty());
        assert_eq!(take(&queue, Due::Gathered(at(210))), [2, 1], "the oldest decides");
        queue.push(VbId(1), at(300));
        assert!(take(&queue, Due::Gathered(at(499))).is_empty());
        assert_eq!(take(&queue, Due::Gathered(at(500))), [1]);
    }

    #[test]
    fn however_often_many_are_urgent_the_queue_is_bounded() {
        let queue = FlushQueue::new(Pace::FILES);
        queue.push(VbId(1000), Duration::ZERO);
        for round in 1..=100 {
            for vb in 0..100 {
                queue.push(VbId(vb), Duration::from_millis(round));
                queue.hurry(VbId(vb));
            }
            assert_eq!(take(&queue, Due::Gathered(Duration::from_millis(round))).len(), 100);
            assert!(queue.queue.lock().waiting.entries.len() <= 2 * 101 + FEW_VOID);
        }
        assert_eq!(take(&queue, Due::Now), [1000]);
        assert!(queue.is_empty());
    }
}
