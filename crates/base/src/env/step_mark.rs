//! What a thread does in a step of its work, for the watch that finds blocked threads.
//!
//! A mark is a number that its thread alone writes: it changes when a step begins or ends, and at both ends of each call of
//! the disk in it. A watch that finds the same number for a while knows that the thread has done none of that meanwhile, and whether
//! it waits for the disk. No clock is read, and a thread without a step pays nothing but the look that it has none.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DiskCall {
    /// To open, rename or remove files, or to make, list or remove folders.
    Names = 2,
    /// To read.
    Read,
    /// To write, or to change a file's length.
    Write,
    /// To make what was written durable.
    Sync,
}

impl DiskCall {
    /// In words: it waits for ...
    pub fn name(self) -> &'static str {
        match self {
            DiskCall::Names => "an operation on files and folders",
            DiskCall::Read => "a read",
            DiskCall::Write => "a write",
            DiskCall::Sync => "a sync",
        }
    }
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is in no step: it waits for work, or there is no such thread.
    Nothing,
    /// It is in a step, and waits for no disk.
    Step,
    /// It is in a call of the disk.
    Disk(DiskCall),
}

/// What was seen of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLook {
    /// Another number than at an earlier look: something began or ended between them.
    pub number: u64,
    /// What the thread does.
    pub doing: Doing,
}

const NOTHING: u64 = 0;
const STEP: u64 = 1;
/// Bits that say what the thread does; the others count up.
const DOING_BITS: u32 = 8;

/// The mark of one thread at a time.
#[derive(Default)]
struct StepMark(AtomicU64);

impl StepMark {
    /// Takes it for a step, if no other thread has it.
    fn begin(&self) -> bool {
        let found = self.0.load(Ordering::Relaxed);
        found & ((1 << DOING_BITS) - 1) == NOTHING
            && self.0.compare_exchange(found, next(found, STEP), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Only by the thread that has it.
    fn set(&self, doing: u64) {
        self.0.store(next(self.0.load(Ordering::Relaxed), doing), Ordering::Relaxed);
    }

    fn look(&self) -> StepLook {
        let number = self.0.load(Ordering::Relaxed);
        let doing = match number & ((1 << DOING_BITS) - 1) {
            NOTHING => Doing::Nothing,
            2 => Doing::Disk(DiskCall::Names),
            3 => Doing::Disk(DiskCall::Read),
            4 => Doing::Disk(DiskCall::Write),
            5 => Doing::Disk(DiskCall::Sync),
            _ => Doing::Step,
        };
        StepLook { number, doing }
    }
}

/// The next number, which says that the thread does this now.
fn next(number: u64, doing: u64) -> u64 {
    (((number >> DOING_BITS) + 1) << DOING_BITS) | doing
}

thread_local! {
    /// The mark of the step that this thread is in.
    static PRESENT: RefCell<Option<Arc<StepMark>>> = const { RefCell::new(None) };
}

/// Threads that run steps of one task at the same time; further ones have no mark.
const MARKS: usize = 4;

/// The marks of the threads that run steps of one task.
#[derive(Default)]
pub struct StepMarks([Arc<StepMark>; MARKS]);

/// Ends a step, also if it panics.
struct Present {
    before: Option<Arc<StepMark>>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let ended = PRESENT.replace(self.before.take());
        ended.iter().for_each(|mark| mark.set(NOTHING));
    }
}

impl StepMarks {
    /// Runs a step, marked.
    pub fn run<T>(&self, step: impl FnOnce() -> T) -> T {
        let Some(mark) = self.0.iter().find(|mark| mark.begin()) else { return step() };
        let _present = Present { before: PRESENT.replace(Some(Arc::clone(mark))) };
        step()
    }

    /// What each of its threads does.
    pub fn look(&self) -> impl Iterator<Item = StepLook> {
        self.0.iter().map(|mark| mark.look())
    }
}

/// Does what waits for the disk, marked if the thread is in a step.
#[inline]
pub fn marked<T>(call: DiskCall, work: impl FnOnce() -> T) -> T {
    set_present(call as u64);
    let done = work();
    set_present(STEP);
    done
}

#[inline]
fn set_present(doing: u64) {
    // A thread that ends may have no such place any more.
    let _ = PRESENT.try_with(|present| {
        if let Ok(present) = present.try_borrow()
            && let Some(mark) = &*present
        {
            mark.set(doing);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(marks: &StepMarks) -> Vec<Doing> {
        marks.look().map(|look| look.doing).filter(|doing| *doing != Doing::Nothing).collect()
    }

    #[test]
    fn a_step_and_its_calls_of_the_disk_are_seen() {
        let (marks, inner) = (StepMarks::default(), StepMarks::default());
        let number = || marks.look().next().map(|look| look.number);
        let before = number();
        marks.run(|| {
            assert_eq!(look(&marks), [Doing::Step]);
            let begun = number();
            assert_ne!(begun, before);
            marked(DiskCall::Sync, || assert_eq!(look(&marks), [Doing::Disk(DiskCall::Sync)]));
            assert_eq!(look(&marks), [Doing::Step]);
            assert_ne!(number(), begun, "a call was between");
            inner.run(|| marked(DiskCall::Read, || assert_eq!(look(&inner), [Doing::Disk(DiskCall::Read)])));
            assert_eq!((look(&marks), look(&inner)), (vec![Doing::Step], vec![]));
        });
        assert_eq!(look(&marks), []);
        marked(DiskCall::Write, || assert_eq!(look(&marks), [], "the thread is in no step"));
    }

    #[test]
    fn each_thread_has_a_mark_as_far_as_there_are_some() {
        let marks = StepMarks::default();
        fn nested(marks: &StepMarks, depth: usize) -> usize {
            if depth == 0 { look(marks).len() } else { marks.run(|| nested(marks, depth - 1)) }
        }
        assert_eq!((nested(&marks, 3), nested(&marks, MARKS + 2), look(&marks).len()), (3, MARKS, 0));
    }
}
