//! Threads of a bucket that do not go on in the middle of a step, and calls of the disk that do not end (record 0216).
//!
//! *Guarantee:* a slow disk blocks no thread that uses it. Each of its calls that begins or ends is progress, and while one
//! does not end, that call is told and not the threads that wait for the thread which made it. A thread that waits for one
//! that works on has ten minutes.
//!
//! A look finds the marks of the steps ([`StepMarks`](base::env::StepMarks)) as they are, and how long they have been the
//! same at the looks before; a thread that waits for work is in no step.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::env::{DiskCall, Doing, StepLook};
use parking_lot::Mutex;

/// A call of the disk that has not ended for so long is told,
const DISK_AFTER: Duration = Duration::from_secs(10);
/// and a thread that has done nothing for so long without one, while no other one of its bucket went on,
const THREAD_AFTER: Duration = Duration::from_secs(120);
/// or for so long, while others did: it may wait for a lock that one of them holds over much work of the disk.
const WAITING_AFTER: Duration = Duration::from_secs(600);
/// Between two looks, which are 5 s apart, no more time counts: a process that was suspended has not looked.
const LONGEST_BETWEEN: Duration = Duration::from_secs(5);

/// A thread that does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The task that it works on.
    pub task: &'static str,
    /// What that does, in words.
    pub does: &'static str,
    /// The call of the disk that does not end; `None` if it waits for none.
    pub call: Option<DiskCall>,
    /// For so long at least.
    pub for_s: u64,
}

/// What was seen of the threads of a bucket at the last look.
#[derive(Default)]
pub(crate) struct ThreadWatch {
    watched: Mutex<Watched>,
    pub(crate) disk_is_told: AtomicBool,
    pub(crate) threads_are_told: AtomicBool,
}

#[derive(Default)]
struct Watched {
    looked_at: Duration,
    /// A mark each, in the order of the looks.
    seen: Vec<SeenMark>,
}

#[derive(Clone, Copy, Default)]
struct SeenMark {
    number: u64,
    unchanged: Duration,
}

impl ThreadWatch {
    /// Looks at the marks, which always come in the same order.
    pub(crate) fn look(
        &self,
        now: Duration,
        marks: impl Iterator<Item = (&'static str, &'static str, StepLook)>,
    ) -> Vec<Blocked> {
        let mut watched = self.watched.lock();
        let passed = now.saturating_sub(watched.looked_at).min(LONGEST_BETWEEN);
        watched.looked_at = now;
        let (mut busy, mut works) = (Vec::new(), false);
        for (at, (task, does, StepLook { number, doing })) in marks.enumerate() {
            if watched.seen.len() <= at {
                watched.seen.push(SeenMark::default());
            }
            let seen = &mut watched.seen[at];
            let unchanged = if seen.number == number { seen.unchanged + passed } else { Duration::ZERO };
            *seen = SeenMark { number, unchanged };
            let call = match doing {
                Doing::Nothing => continue,
                Doing::Step => None,
                Doing::Disk(call) => Some(call),
            };
            works |= call.is_some() || unchanged.is_zero();
            busy.push((Blocked { task, does, call, for_s: unchanged.as_secs() }, unchanged));
        }
        let after = |one: &Blocked| match one.call {
            Some(_) => DISK_AFTER,
            None if works => WAITING_AFTER,
            None => THREAD_AFTER,
        };
        let blocked = busy.into_iter().filter(|(one, unchanged)| *unchanged >= after(one));
        blocked.map(|(one, _)| one).collect()
    }
}

#[cfg(test)]
mod tests {
    use base::env::{StepMarks, marked};

    use super::*;

    struct World {
        now: Duration,
        watch: ThreadWatch,
        flusher: StepMarks,
        fetcher: StepMarks,
    }

    impl World {
        fn new() -> World {
            let (flusher, fetcher) = (StepMarks::default(), StepMarks::default());
            World { now: Duration::from_secs(1000), watch: ThreadWatch::default(), flusher, fetcher }
        }

        /// Looks every five seconds; what the last look found, by task.
        fn pass(&self, from_s: u64, seconds: u64) -> Vec<(&'static str, Option<DiskCall>, u64)> {
            let mut found = Vec::new();
            for at in (0..=seconds).step_by(5) {
                let of = |name, marks: &StepMarks| {
                    marks.look().map(move |look| (name, "", look)).collect::<Vec<_>>()
                };
                let marks = of("flusher", &self.flusher).into_iter().chain(of("fetcher", &self.fetcher));
                found = self.watch.look(self.now + Duration::from_secs(from_s + at), marks);
            }
            found.into_iter().map(|one| (one.task, one.call, one.for_s)).collect()
        }
    }

    #[test]
    fn a_thread_without_work_is_not_blocked() {
        let world = World::new();
        assert_eq!(world.pass(0, 1000), []);
        world.flusher.run(|| assert_eq!(world.pass(1005, 20), [], "its step has just begun"));
        assert_eq!(world.pass(1030, 1000), []);
    }

    #[test]
    fn a_thread_that_does_not_go_on_is_told_with_its_task() {
        let world = World::new();
        world.fetcher.run(|| {
            assert_eq!(world.pass(0, 115), []);
            assert_eq!(world.pass(120, 0), [("fetcher", None, 120)]);
            marked(DiskCall::Read, || ());
            assert_eq!(world.pass(125, 115), [], "it went on");
            assert_eq!(world.pass(245, 0), [("fetcher", None, 120)]);
        });
        assert_eq!(world.pass(250, 0), []);
    }

    #[test]
    fn a_thread_that_waits_for_one_that_works_on_has_longer() {
        let world = World::new();
        world.fetcher.run(|| {
            world.flusher.run(|| {
                for second in (0..595).step_by(5) {
                    marked(DiskCall::Write, || ());
                    assert_eq!(world.pass(second, 0), []);
                }
                marked(DiskCall::Write, || ());
                assert_eq!(world.pass(595, 0), []);
                marked(DiskCall::Write, || ());
                assert_eq!(world.pass(600, 0), [("fetcher", None, 600)]);
            });
            assert_eq!(world.pass(605, 0), [("fetcher", None, 605)], "and no other thread works any more");
        });
    }

    #[test]
    fn a_slow_disk_blocks_nothing_and_a_call_that_does_not_end_is_told_sooner() {
        let world = World::new();
        world.flusher.run(|| {
            for second in (0..600).step_by(5) {
                marked(DiskCall::Sync, || assert_eq!(world.pass(second, 5), [], "each call ends"));
            }
            marked(DiskCall::Sync, || {
                assert_eq!(world.pass(600, 10), [("flusher", Some(DiskCall::Sync), 10)]);
            });
            assert_eq!(world.pass(615, 5), []);
        });
    }

    #[test]
    fn a_process_that_was_suspended_is_not_blocked() {
        let world = World::new();
        world.flusher.run(|| {
            assert_eq!(world.pass(0, 5), []);
            assert_eq!(world.pass(3600, 0), []);
            marked(DiskCall::Sync, || {
                assert_eq!(world.pass(3605, 0), []);
                assert_eq!(world.pass(7200, 0), [], "nor has the disk kept it waiting");
            });
        });
    }
}
