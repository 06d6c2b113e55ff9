//! Cuts connections whose clients take too long: one timer per worker, however many connections there are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use base::planted::{self, Bug};

use crate::close_reason::CloseReason;
use crate::counters::WorkerCounters;

/// What a client may take too long for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Patience {
    /// Logging in.
    Login,
    /// Sending the rest of a frame.
    Frame,
    /// Taking what is sent.
    Write,
}

const WHAT: [&str; 3] =
    ["not logged in in time", "a frame was not completed", "nothing was read of what was sent"];
const NEVER: u64 = u64::MAX;

/// The deadlines of one connection.
pub struct Watch {
    deadlines_s: [Cell<u64>; 3],
    cut: Cell<Option<CloseReason>>,
    /// When the connection wants to be woken to look at its own times.
    alarm_s: Cell<u64>,
    waits_for_memory: Cell<bool>,
    /// Bytes that have not moved a deadline yet.
    earned_bytes: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    place: Cell<usize>,
    counters: Arc<WorkerCounters>,
}

/// Whether a client that is late with this keeps its connection by mistake.
fn stays(late: usize) -> bool {
    (late == Patience::Frame as usize && planted::is(Bug::UnfinishedFrameStays))
        || (late == Patience::Write as usize && planted::is(Bug::StoppedClientStays))
}

impl Watch {
    /// Sets a deadline.
    pub fn arm(&self, patience: Patience, deadline_s: u64) {
        let before_s = self.deadlines_s[patience as usize].replace(deadline_s);
        if patience == Patience::Login && before_s == NEVER {
            self.counters.stranger_comes();
        }
    }

    /// Whether a deadline is set.
    pub fn is_armed(&self, patience: Patience) -> bool {
        self.deadlines_s[patience as usize].get() != NEVER
    }

    /// Removes a deadline.
    pub fn disarm(&self, patience: Patience) {
        let before_s = self.deadlines_s[patience as usize].replace(NEVER);
        if patience == Patience::Login && before_s != NEVER {
            self.counters.stranger_goes();
        }
    }

    /// Moves a deadline that is set: a second further for each `bytes_per_s` of `bytes`, at most to `latest_s`.
    pub fn earn(&self, patience: Patience, bytes: usize, bytes_per_s: usize, latest_s: u64) {
        let deadline_s = &self.deadlines_s[patience as usize];
        if deadline_s.get() == NEVER {
            return;
        }
        let earned = self.earned_bytes.get() + bytes;
        self.earned_bytes.set(earned % bytes_per_s);
        deadline_s.set((deadline_s.get() + (earned / bytes_per_s) as u64).min(latest_s));
    }

    /// Whether the connection waits for memory: then it is woken when there may be some.
    pub fn wait_for_memory(&self, waits: bool) {
        self.waits_for_memory.set(waits);
    }

    /// Why the connection must be closed now, if it must.
    pub fn cut(&self) -> Option<CloseReason> {
        self.cut.get()
    }

    /// Wakes the connection when the coarse clock shows this.
    pub fn set_alarm(&self, at_s: u64) {
        self.alarm_s.set(at_s);
    }

    /// Remembers whom to wake.
    pub fn register(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    fn close(&self, reason: CloseReason) {
        self.cut.set(Some(reason));
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// The deadlines of a worker's connections.
#[derive(Default)]
pub struct Reaper {
    watches: RefCell<Vec<Rc<Watch>>>,
    now_s: Cell<u64>,
    stopping: Cell<bool>,
    /// Where it is counted who has not logged in.
    counters: Arc<WorkerCounters>,
}

impl Reaper {
    /// For the worker that counts there.
    pub fn new(counters: Arc<WorkerCounters>) -> Reaper {
        Reaper { counters, ..Reaper::default() }
    }

    /// Watches a new connection.
    pub fn watch(&self) -> Rc<Watch> {
        let mut watches = self.watches.borrow_mut();
        let watch = Rc::new(Watch {
            deadlines_s: [Cell::new(NEVER), Cell::new(NEVER), Cell::new(NEVER)],
            alarm_s: Cell::new(NEVER),
            cut: Cell::new(self.stopping.get().then_some(CloseReason::Shutdown)),
            waits_for_memory: Cell::new(false),
            earned_bytes: Cell::new(0),
            waker: RefCell::new(None),
            place: Cell::new(watches.len()),
            counters: Arc::clone(&self.counters),
        });
        watches.push(Rc::clone(&watch));
        watch
    }

    /// Forgets a connection.
    pub fn forget(&self, watch: &Watch) {
        watch.disarm(Patience::Login);
        let mut watches = self.watches.borrow_mut();
        let place = watch.place.get();
        watches.swap_remove(place);
        if let Some(moved) = watches.get(place) {
            moved.place.set(place);
        }
    }

    /// Seconds on the worker's coarse clock.
    pub fn now_s(&self) -> u64 {
        self.now_s.get()
    }

    /// Moves the coarse clock and cuts no connection: the process may have been suspended since the last tick, and a client
    /// that connects then is not late.
    pub fn look_at_clock(&self, now_s: u64) {
        self.now_s.set(self.now_s.get().max(now_s));
    }

    /// Moves the coarse clock, and cuts whoever is late.
    pub fn tick(&self, now_s: u64) {
        self.now_s.set(now_s);
        for watch in self.watches.borrow().iter() {
            let mut deadlines_s = watch.deadlines_s.iter().map(Cell::get);
            let late = deadlines_s.position(|deadline_s| deadline_s <= now_s).filter(|late| !stays(*late));
            if let Some(late) = late {
                watch.close(CloseReason::TooSlow(WHAT[late]));
            } else if watch.alarm_s.get() <= now_s {
                watch.alarm_s.set(NEVER);
                watch.wake();
            } else if watch.waits_for_memory.get() {
                watch.wake();
            }
        }
    }

    /// Closes the connection that has waited longest without logging in; false if all have logged in.
    pub fn crowd_out(&self) -> bool {
        let watches = self.watches.borrow();
        let strangers =
            watches.iter().filter(|watch| watch.is_armed(Patience::Login) && watch.cut.get().is_none());
        let longest = strangers.min_by_key(|watch| watch.deadlines_s[Patience::Login as usize].get());
        if let Some(watch) = longest {
            watch.disarm(Patience::Login);
            watch.close(CloseReason::CrowdedOut);
        }
        longest.is_some()
    }

    /// Lets those look that wait for memory.
    pub fn wake_waiting(&self) {
        self.watches
            .borrow()
            .iter()
            .filter(|watch| watch.waits_for_memory.get())
            .for_each(|watch| watch.wake());
    }

    /// Lets every connection look what there is to do.
    pub fn wake_all(&self) {
        self.watches.borrow().iter().for_each(|watch| watch.wake());
    }

    /// Closes all connections, those to come as well.
    pub fn shut_down(&self) {
        self.stopping.set(true);
        for watch in self.watches.borrow().iter() {
            watch.close(CloseReason::Shutdown);
        }
    }

    /// How many connections are watched.
    pub fn len(&self) -> usize {
        self.watches.borrow().len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.watches.borrow().is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn cuts_the_late_and_nobody_else() {
        let reaper = Reaper::default();
        let (a, b, c) = (reaper.watch(), reaper.watch(), reaper.watch());
        a.arm(Patience::Login, 10);
        b.arm(Patience::Write, 20);
        reaper.tick(9);
        assert_eq!((a.cut(), b.cut()), (None, None));
        reaper.tick(10);
        assert_eq!(a.cut(), Some(CloseReason::TooSlow("not logged in in time")));
        reaper.forget(&a);
        b.disarm(Patience::Write);
        reaper.tick(30);
        assert_eq!((b.cut(), c.cut(), reaper.len()), (None, None, 2));
        reaper.shut_down();
        assert_eq!(c.cut(), Some(CloseReason::Shutdown));
        assert_eq!(reaper.watch().cut(), Some(CloseReason::Shutdown));
    }

    #[test]
    fn who_comes_before_the_tick_of_a_process_that_stood_still_is_not_late() {
        let reaper = Reaper::default();
        reaper.tick(9);
        reaper.look_at_clock(1_000);
        let new = reaper.watch();
        new.arm(Patience::Login, reaper.now_s() + 10);
        reaper.look_at_clock(9);
        reaper.tick(1_001);
        assert_eq!((reaper.now_s(), new.cut()), (1_001, None));
    }

    #[test]
    pub(crate) fn who_takes_nothing_of_what_is_sent_is_cut() {
        let reaper = Reaper::default();
        let (stopped, reads) = (reaper.watch(), reaper.watch());
        for watch in [&stopped, &reads] {
            watch.arm(Patience::Write, 10);
        }
        reads.disarm(Patience::Write);
        reaper.tick(9);
        assert_eq!(stopped.cut(), None);
        reaper.tick(10);
        assert_eq!(stopped.cut(), Some(CloseReason::TooSlow("nothing was read of what was sent")));
        assert_eq!(reads.cut(), None);
    }

    #[test]
    pub(crate) fn a_deadline_moves_with_what_is_done_and_not_beyond_its_length() {
        let reaper = Reaper::default();
        let watch = reaper.watch();
        watch.earn(Patience::Frame, 1 << 20, 100, 1_000);
        assert!(!watch.is_armed(Patience::Frame));
        watch.arm(Patience::Frame, 10);
        watch.earn(Patience::Frame, 150, 100, 1_000);
        reaper.tick(10);
        assert_eq!(watch.cut(), None);
        watch.earn(Patience::Frame, 50, 100, 1_000);
        reaper.tick(11);
        assert_eq!(watch.cut(), None);
        watch.earn(Patience::Frame, 1 << 20, 100, 20);
        reaper.tick(20);
        assert_eq!(watch.cut(), Some(CloseReason::TooSlow("a frame was not completed")));
    }

    #[test]
    fn who_has_waited_longest_without_logging_in_gives_way() {
        let counters = Arc::new(WorkerCounters::default());
        let reaper = Reaper::new(Arc::clone(&counters));
        let (a, b, c) = (reaper.watch(), reaper.watch(), reaper.watch());
        assert!(!reaper.crowd_out(), "no connection has to log in");
        for (watch, deadline_s) in [(&a, 30), (&b, 10), (&c, 20)] {
            watch.arm(Patience::Login, deadline_s);
        }
        assert_eq!(counters.strangers(), 3);
        b.disarm(Patience::Login);
        assert!(reaper.crowd_out());
        assert_eq!((a.cut(), b.cut(), c.cut()), (None, None, Some(CloseReason::CrowdedOut)));
        reaper.forget(&c);
        assert!(reaper.crowd_out());
        assert_eq!((a.cut(), counters.strangers()), (Some(CloseReason::CrowdedOut), 0));
        assert!(!reaper.crowd_out(), "who logged in stays");
    }
}
