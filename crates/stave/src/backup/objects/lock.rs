//! A lock that is an object: whoever holds it changes it again and again.
//!
//! # Guarantees
//!
//! - Two processes hold it at once only if the store knows no conditional requests, or if a holder did not reach the store
//!   for longer than a minute; that one notices, and completes nothing.
//! - The lock of a process that was killed holds others up for a minute, whatever the clocks show.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::store::{ObjectStore, PutIf};

/// Between two looks whether one's own thread has ended.
const END_LOOK: Duration = Duration::from_millis(1);

/// How long a lock lasts.
#[derive(Clone, Copy)]
pub(super) struct LockTimes {
    /// A lock that has not changed for so long belongs to a process that is gone.
    stale_after: Duration,
    /// Between two looks at the lock of another one.
    look: Duration,
    /// Between two changes of one's own.
    renew_after: Duration,
    /// A holder that could not change it for so long gives it up, before others may take it.
    lost_after: Duration,
}

impl LockTimes {
    /// A lock is stale after 60 of these; tests of locks wait for less than seconds.
    pub(super) const fn of(second: Duration) -> LockTimes {
        LockTimes {
            stale_after: second.saturating_mul(60),
            look: second.saturating_mul(3),
            renew_after: second.saturating_mul(15),
            lost_after: second.saturating_mul(45),
        }
    }

    pub(super) const REAL: LockTimes = LockTimes::of(Duration::from_secs(1));
}

/// What a holder and its thread know of the lock.
struct Hold {
    is_lost: AtomicBool,
    lost_after: Duration,
    begun: Instant,
    /// When the last change that the store has was asked for, in nanoseconds since then: others count from a moment behind.
    changed_ns: AtomicU64,
}

impl Hold {
    fn since(begun: Instant, lost_after: Duration) -> Hold {
        Hold { is_lost: AtomicBool::new(false), lost_after, begun, changed_ns: AtomicU64::new(0) }
    }

    fn changed(&self, asked: Instant) {
        let ns = asked.saturating_duration_since(self.begun).as_nanos() as u64;
        self.changed_ns.store(ns, Ordering::Relaxed);
    }

    /// By the clock as well: the thread may wait for an answer of the store.
    fn is_lost(&self) -> bool {
        let changed = Duration::from_nanos(self.changed_ns.load(Ordering::Relaxed));
        if self.begun.elapsed().saturating_sub(changed) >= self.lost_after {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// A lock that is held.
pub(crate) struct ObjectLock {
    store: ObjectStore,
    key: String,
    hold: Arc<Hold>,
    /// Ends the thread when it is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<String>>,
}

/// Why the lock is not held.
pub(crate) enum NotLocked {
    Held,
    Failed(Error),
}

impl From<Error> for NotLocked {
    fn from(error: Error) -> NotLocked {
        NotLocked::Failed(error)
    }
}

impl ObjectLock {
    /// Takes the lock. If another process holds it, waits until it is clear whether that one still runs.
    pub(super) fn take(
        store: &ObjectStore,
        key: &str,
        times: LockTimes,
    ) -> std::result::Result<ObjectLock, NotLocked> {
        let holder = format!("{:016x}{:016x}", store.env().random.next_u64(), store.env().random.next_u64());
        let body = format!("{holder} 0\n");
        let (etag, asked) = first_etag(store, key, &body, times)?;
        let (renewing, hold) = (store.another(), Arc::new(Hold::since(asked, times.lost_after)));
        let (stop, stopped) = channel();
        let renewal = Renewal { store: renewing, key: key.to_owned(), holder, etag, hold: hold.clone() };
        let thread = std::thread::spawn(move || renewal.run(&|| stopped.recv_timeout(times.renew_after)));
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(ObjectLock { store: store.another(), key: key.to_owned(), hold, stop, thread })
    }

    /// Whether another process may hold it by now.
    pub(crate) fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }
}

impl Drop for ObjectLock {
    fn drop(&mut self) {
        self.stop = None;
        // One that waits for the store is not waited for longer than the lock lasts.
        while !self.is_lost() && self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(END_LOOK);
        }
        let thread = self.thread.take().filter(JoinHandle::is_finished);
        let etag = thread.and_then(|thread| thread.join().ok());
        let is_ours = !self.is_lost()
            && self.store.head(&self.key).is_ok_and(|head| head.map(|head| head.etag) == etag);
        if is_ours {
            // One that stays is taken over later.
            let _ = self.store.remove(&self.key);
        }
    }
}

/// Puts the lock; its entity tag, and when it was asked for.
fn first_etag(
    store: &ObjectStore,
    key: &str,
    body: &str,
    times: LockTimes,
) -> std::result::Result<(String, Instant), NotLocked> {
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        let head = store.head(key)?;
        let condition = match &head {
            None => PutIf::Missing,
            Some(head) if seen.as_ref() == Some(head) => {
                if since.elapsed() < times.stale_after {
                    std::thread::sleep(times.look);
                    continue;
                }
                PutIf::Is(&head.etag)
            }
            // It changes: whoever holds it runs.
            Some(_) if seen.is_some() => return Err(NotLocked::Held),
            Some(head) => {
                (seen, since) = (Some(head.clone()), Instant::now());
                continue;
            }
        };
        let asked = Instant::now();
        match store.put(key, body.as_bytes(), condition) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The answer to an earlier try may have been lost.
                if let Some(head) = store.head(key)?
                    && is(store, key, &head, body)?
                {
                    return Ok((head.etag, asked));
                }
                return Err(NotLocked::Held);
            }
            done => return Ok((done?, asked)),
        }
    }
}

/// Whether the lock has this content.
fn is(store: &ObjectStore, key: &str, head: &super::store::ObjectHead, body: &str) -> Result<bool> {
    Ok(head.len == body.len() as u64 && store.read(key, head, 0..head.len)? == body.as_bytes())
}

/// Changes the lock again and again.
struct Renewal {
    store: ObjectStore,
    key: String,
    holder: String,
    etag: String,
    hold: Arc<Hold>,
}

impl Renewal {
    /// Until it is to stop or the lock is lost; the lock's entity tag.
    fn run(mut self, wait: &dyn Fn() -> std::result::Result<(), RecvTimeoutError>) -> String {
        let mut count = 0;
        while wait() == Err(RecvTimeoutError::Timeout) {
            count += 1;
            let (body, asked) = (format!("{} {count}\n", self.holder), Instant::now());
            match self.renew(&body) {
                Ok(Some(etag)) => {
                    self.etag = etag;
                    // Unless it was given up while the answer was under way.
                    if !self.hold.is_lost() {
                        self.hold.changed(asked);
                    }
                }
                Ok(None) => self.hold.is_lost.store(true, Ordering::Relaxed),
                Err(_) => {}
            }
            if self.hold.is_lost() {
                break;
            }
        }
        self.etag
    }

    /// The new entity tag; `None` if another process has the lock.
    fn renew(&self, body: &str) -> Result<Option<String>> {
        match self.store.put(&self.key, body.as_bytes(), PutIf::Is(&self.etag)) {
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
                let head = self.store.head(&self.key)?;
                let Some(head) = head else { return Ok(None) };
                Ok(is(&self.store, &self.key, &head, body)?.then_some(head.etag))
            }
            done => done.map(Some),
        }
    }
}
