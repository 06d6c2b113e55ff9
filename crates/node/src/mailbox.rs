//! Where other threads leave wake-ups for the connections of a worker: many of them cost one wake of its thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use parking_lot::Mutex;

thread_local! {
    static OF_THIS_WORKER: RefCell<Option<Arc<Mailbox>>> = const { RefCell::new(None) };
}

/// Wake-ups that were left for a worker; never more than its connections wait for things.
#[derive(Default)]
struct Mailbox {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    letters: Vec<Arc<Letter>>,
    /// Wakes whoever delivers.
    postman: Option<Waker>,
}

impl Mailbox {
    fn leave(&self, letter: Arc<Letter>) {
        let postman = {
            let mut inner = self.inner.lock();
            inner.letters.push(letter);
            if inner.letters.len() == 1 { inner.postman.clone() } else { None }
        };
        if let Some(postman) = postman {
            postman.wake();
        }
    }
}

/// A waker of a task of this worker, for somebody on another thread.
struct Letter {
    mailbox: Arc<Mailbox>,
    task: Waker,
}

impl Wake for Letter {
    fn wake(self: Arc<Self>) {
        let mailbox = Arc::clone(&self.mailbox);
        mailbox.leave(self);
    }
}

/// Delivers what is left for this thread's tasks, for as long as it is polled.
pub async fn deliver() {
    let mailbox = Arc::new(Mailbox::default());
    OF_THIS_WORKER.set(Some(Arc::clone(&mailbox)));
    std::future::poll_fn(|cx| {
        let letters = {
            let mut inner = mailbox.inner.lock();
            inner.postman = Some(cx.waker().clone());
            std::mem::take(&mut inner.letters)
        };
        letters.into_iter().for_each(|letter| letter.task.wake_by_ref());
        Poll::<()>::Pending
    })
    .await;
}

/// A waker that does the same as `task`, but is cheap to call from another thread.
pub fn through(task: &Waker) -> Waker {
    let mailbox = OF_THIS_WORKER.with_borrow(Clone::clone);
    match mailbox {
        Some(mailbox) => Waker::from(Arc::new(Letter { mailbox, task: task.clone() })),
        // Nobody delivers here: the task is woken as ever.
        None => task.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn many_letters_wake_the_postman_once() {
        let (postman, task) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let count = |of: &Arc<Count>| of.0.load(Ordering::Relaxed);
        let postman_waker = Waker::from(Arc::clone(&postman));
        let mut cx = Context::from_waker(&postman_waker);
        let mut delivering = pin!(deliver());
        assert!(delivering.as_mut().poll(&mut cx).is_pending());
        for round in 1..=2 {
            for _ in 0..10 {
                let letter = through(&Waker::from(Arc::clone(&task)));
                std::thread::scope(|scope| drop(scope.spawn(|| letter.wake())));
            }
            assert_eq!((count(&postman), count(&task)), (round, 10 * (round - 1)));
            assert!(delivering.as_mut().poll(&mut cx).is_pending());
            assert_eq!(count(&task), 10 * round);
        }
    }
}
