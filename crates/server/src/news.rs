//! How connections hear, on whichever thread they are, that something about the node is different: there is a new
//! cluster map, a bucket is gone, clients have to wait.
//!
//! What is told is only that there is something; each looks for itself what it is. So nothing piles up for those who
//! are slow.

use tokio::sync::watch;

/// What there is to hear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Counts up whenever there is something to look at.
    pub edition: u64,
    /// Whether clients have to wait.
    pub is_frozen: bool,
}

/// The node's side.
#[derive(Default)]
pub struct Announcer(watch::Sender<News>);

impl Announcer {
    /// Says that there is something to look at.
    pub fn tell(&self) {
        self.0.send_modify(|news| news.edition += 1);
    }

    /// Lets clients wait, or go on.
    pub fn freeze(&self, is_frozen: bool) {
        self.0.send_if_modified(|news| std::mem::replace(&mut news.is_frozen, is_frozen) != is_frozen);
    }

    /// A new ear.
    pub fn hearing(&self) -> Hearing {
        Hearing(self.0.subscribe())
    }
}

/// Somebody's ear.
#[derive(Clone)]
pub struct Hearing(watch::Receiver<News>);

impl Hearing {
    /// What is so now; [`Hearing::changed`] tells of what comes after it.
    pub fn now(&mut self) -> News {
        *self.0.borrow_and_update()
    }

    /// Ready when something has changed since [`Hearing::now`]; never if the node is gone.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Ready as soon as clients need not wait.
    pub async fn thawed(&mut self) {
        while self.now().is_frozen {
            self.changed().await;
        }
    }
}
