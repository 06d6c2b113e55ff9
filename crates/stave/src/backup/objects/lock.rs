//! A lock that is an object: whoever holds it changes it again and again.
//!
//! # Guarantees
//!
//! - Two processes hold it at once only if the store knows no conditional requests, or if a holder did not reach the store
//!   for longer than [`STALE_AFTER`]; that one notices, and completes nothing.
//! - The lock of a process that was killed holds others up for [`STALE_AFTER`], whatever the clocks show.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::store::{ObjectStore, PutIf};

/// Tests wait for less.
const SECOND: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// A lock that has not changed for so long belongs to a process that is gone.
const STALE_AFTER: Duration = SECOND.saturating_mul(60);
/// Between two looks at the lock of another one.
const LOOK: Duration = SECOND.saturating_mul(3);
/// Between two changes of one's own.
const RENEW_AFTER: Duration = SECOND.saturating_mul(15);
/// A holder that could not change it for so long gives it up, before others may take it.
const LOST_AFTER: Duration = SECOND.saturating_mul(45);

/// A lock that is held.
pub(crate) struct ObjectLock {
    store: ObjectStore,
    key: String,
    is_lost: Arc<AtomicBool>,
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
    /// Takes the lock. Waits for [`STALE_AFTER`] if another process holds it, until it is clear whether that one still runs.
    pub(super) fn take(store: &ObjectStore, key: &str) -> std::result::Result<ObjectLock, NotLocked> {
        let holder = format!("{:016x}{:016x}", store.env().random.next_u64(), store.env().random.next_u64());
        let body = format!("{holder} 0\n");
        let etag = first_etag(store, key, &body)?;
        let (renewing, is_lost) = (store.another(), Arc::new(AtomicBool::new(false)));
        let (stop, stopped) = channel();
        let renewal =
            Renewal { store: renewing, key: key.to_owned(), holder, etag, is_lost: is_lost.clone() };
        let thread = std::thread::spawn(move || renewal.run(&|| stopped.recv_timeout(RENEW_AFTER)));
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(ObjectLock { store: store.another(), key: key.to_owned(), is_lost, stop, thread })
    }

    /// Whether another process may hold it by now.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for ObjectLock {
    fn drop(&mut self) {
        self.stop = None;
        let etag = self.thread.take().and_then(|thread| thread.join().ok());
        let is_ours = !self.is_lost()
            && self.store.head(&self.key).is_ok_and(|head| head.map(|head| head.etag) == etag);
        if is_ours {
            // One that stays is taken over later.
            let _ = self.store.remove(&self.key);
        }
    }
}

/// Puts the lock; its entity tag.
fn first_etag(store: &ObjectStore, key: &str, body: &str) -> std::result::Result<String, NotLocked> {
    let (mut seen, mut since) = (None, Instant::now());
    loop {
        let head = store.head(key)?;
        let condition = match &head {
            None => PutIf::Missing,
            Some(head) if seen.as_ref() == Some(head) => {
                if since.elapsed() < STALE_AFTER {
                    std::thread::sleep(LOOK);
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
        match store.put(key, body.as_bytes(), condition) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The answer to an earlier try may have been lost.
                if let Some(head) = store.head(key)?
                    && is(store, key, &head, body)?
                {
                    return Ok(head.etag);
                }
                return Err(NotLocked::Held);
            }
            done => return Ok(done?),
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
    is_lost: Arc<AtomicBool>,
}

impl Renewal {
    /// Until it is to stop or the lock is lost; the lock's entity tag.
    fn run(mut self, wait: &dyn Fn() -> std::result::Result<(), RecvTimeoutError>) -> String {
        let (mut renewed, mut count) = (Instant::now(), 0);
        while wait() == Err(RecvTimeoutError::Timeout) {
            count += 1;
            let body = format!("{} {count}\n", self.holder);
            match self.renew(&body) {
                Ok(Some(etag)) => (self.etag, renewed) = (etag, Instant::now()),
                Ok(None) => self.is_lost.store(true, Ordering::Relaxed),
                Err(_) if renewed.elapsed() < LOST_AFTER => {}
                Err(_) => self.is_lost.store(true, Ordering::Relaxed),
            }
            if self.is_lost.load(Ordering::Relaxed) {
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
