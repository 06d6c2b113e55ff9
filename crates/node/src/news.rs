//! How connections hear, on whichever thread they are, that something about the node is different: there is a new
//! cluster map, a bucket is gone, clients have to wait.
//!
//! What is told is only that there is something; each looks for itself what it is. So nothing piles up for those who
//! are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::notify::Edition;

/// The node's side.
#[derive(Default)]
pub struct Announcer {
    /// Counts up whenever there is something to look at.
    edition: Edition,
    is_frozen: Arc<AtomicBool>,
    is_killed: Arc<AtomicBool>,
}

impl Announcer {
    /// Says that there is something to look at.
    pub fn tell(&self) {
        self.edition.advance();
    }

    /// Lets clients wait from now on, or go on.
    pub fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::SeqCst);
        self.tell();
    }

    /// Cuts all clients, whatever they wait for; those to come as well. The node stands still from now on.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::SeqCst);
        self.freeze(true);
    }

    /// A new ear.
    pub fn hearing(&self) -> Hearing {
        Hearing {
            seen: self.edition.now(),
            edition: self.edition.clone(),
            is_frozen: Arc::clone(&self.is_frozen),
            is_killed: Arc::clone(&self.is_killed),
        }
    }
}

/// Somebody's ear.
#[derive(Clone)]
pub struct Hearing {
    edition: Edition,
    /// The edition that was looked at last.
    seen: u64,
    is_frozen: Arc<AtomicBool>,
    is_killed: Arc<AtomicBool>,
}

impl Hearing {
    /// Counts up whenever there is something to look at; [`Hearing::changed`] tells of what comes after this.
    pub fn edition(&mut self) -> u64 {
        self.seen = self.edition.now();
        self.seen
    }

    /// Whether clients have to wait. When that ends it is told.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::SeqCst)
    }

    /// Whether clients are to be cut at once; who has to be cut has to wait, too.
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Ready when something has changed since [`Hearing::edition`], or since this was ready last.
    pub async fn changed(&mut self) {
        self.seen = self.edition.after(self.seen).await;
    }

    /// Ready as soon as clients need not wait.
    pub async fn thawed(&mut self) {
        loop {
            self.edition();
            if !self.is_frozen() {
                return;
            }
            self.changed().await;
        }
    }
}
