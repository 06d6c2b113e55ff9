//! Waking tasks from other threads, whichever runtime polls them, or none: a flag for one waiter, and a counter for many.
//!
//! A wake-up is never lost: what happened since a waiter looked last is told to it as soon as it waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The wakers of those who wait, each under a number of its own; never more than there are waiting tasks.
#[derive(Default)]
struct Waiting {
    next_id: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Waiting {
    /// Keeps the newest waker of one who waits.
    fn keep(&mut self, id: &mut Option<u64>, waker: &Waker) {
        let known = id.and_then(|id| self.wakers.iter_mut().find(|(of, _)| *of == id));
        match known {
            Some((_, known)) => known.clone_from(waker),
            None => {
                self.next_id += 1;
                *id = Some(self.next_id);
                self.wakers.push((self.next_id, waker.clone()));
            }
        }
    }

    fn forget(&mut self, id: Option<u64>) {
        if let Some(id) = id {
            self.wakers.retain(|(of, _)| *of != id);
        }
    }
}

/// A flag that one waiter takes down: however often it was raised before, the waiter hears of it once.
#[derive(Default)]
pub struct Notify {
    inner: Mutex<Flag>,
}

#[derive(Default)]
struct Flag {
    is_raised: bool,
    waiting: Waiting,
}

impl Notify {
    /// Lets one waiter go on, or the next one that comes.
    pub fn notify_one(&self) {
        let waker = {
            let mut inner = self.inner.lock();
            inner.is_raised = true;
            inner.waiting.wakers.first().map(|(_, waker)| waker.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready when it was notified since another waiter was.
    pub fn notified(&self) -> Notified<'_> {
        Notified { of: self, id: None }
    }
}

/// Waits for a [`Notify`].
pub struct Notified<'a> {
    of: &'a Notify,
    id: Option<u64>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut inner = this.of.inner.lock();
        if std::mem::take(&mut inner.is_raised) {
            inner.waiting.forget(this.id.take());
            return Poll::Ready(());
        }
        inner.waiting.keep(&mut this.id, cx.waker());
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    /// A wake-up that came for this one is the next one's.
    fn drop(&mut self) {
        if self.id.is_none() {
            return;
        }
        let waker = {
            let mut inner = self.of.inner.lock();
            inner.waiting.forget(self.id);
            let next = inner.waiting.wakers.first().map(|(_, waker)| waker.clone());
            next.filter(|_| inner.is_raised)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A counter that tasks watch: each of them hears that it went up since that task looked last.
#[derive(Clone, Default)]
pub struct Edition {
    inner: Arc<Mutex<Counter>>,
}

#[derive(Default)]
struct Counter {
    edition: u64,
    waiting: Waiting,
}

impl Edition {
    /// Counts up, and lets all go on that wait.
    pub fn advance(&self) {
        let wakers = {
            let mut inner = self.inner.lock();
            inner.edition += 1;
            std::mem::take(&mut inner.waiting.wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Where the counter is.
    pub fn now(&self) -> u64 {
        self.inner.lock().edition
    }

    /// Ready with the counter when it is not `seen` any more.
    pub fn after(&self, seen: u64) -> Advanced {
        Advanced { of: self.clone(), seen, id: None }
    }
}

/// Waits for an [`Edition`].
pub struct Advanced {
    of: Edition,
    seen: u64,
    id: Option<u64>,
}

impl Future for Advanced {
    type Output = u64;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u64> {
        let this = &mut *self;
        let mut inner = this.of.inner.lock();
        if inner.edition != this.seen {
            inner.waiting.forget(this.id.take());
            return Poll::Ready(inner.edition);
        }
        inner.waiting.keep(&mut this.id, cx.waker());
        Poll::Pending
    }
}

impl Drop for Advanced {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.of.inner.lock().waiting.forget(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn one_waiter_takes_the_flag_down() {
        let notify = Notify::default();
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (one, two) = (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&second)));
        notify.notify_one();
        notify.notify_one();
        assert!(pin!(notify.notified()).poll(&mut Context::from_waker(&one)).is_ready(), "told before");
        let mut waits = Box::pin(notify.notified());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&one)).is_pending(), "twice is once");
        let mut other = Box::pin(notify.notified());
        assert!(other.as_mut().poll(&mut Context::from_waker(&two)).is_pending());
        notify.notify_one();
        assert_eq!((first.get(), second.get()), (1, 0));
        drop(waits);
        assert_eq!((first.get(), second.get()), (1, 1), "it gave up what it was woken for");
        assert!(other.as_mut().poll(&mut Context::from_waker(&two)).is_ready());
        drop(other);
        assert!(notify.inner.lock().waiting.wakers.is_empty());
    }

    #[test]
    fn all_who_watch_a_counter_hear_of_it() {
        let edition = Edition::default();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut watching: Vec<_> = (0..3).map(|_| Box::pin(edition.after(0))).collect();
        assert!(watching.iter_mut().all(|one| one.as_mut().poll(&mut cx).is_pending()));
        assert!(watching.iter_mut().all(|one| one.as_mut().poll(&mut cx).is_pending()), "asked again");
        drop(watching.pop());
        edition.advance();
        assert_eq!(count.get(), 2);
        assert!(watching.iter_mut().all(|one| one.as_mut().poll(&mut cx) == Poll::Ready(1)));
        assert!(pin!(edition.after(0)).poll(&mut cx).is_ready(), "what was before is not lost");
        assert!(pin!(edition.after(1)).poll(&mut cx).is_pending());
        assert!(edition.inner.lock().waiting.wakers.is_empty());
    }
}
