//! What a reader is told of its position: short tokens, for which the server keeps positions where that is needed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::Bucket;
use parking_lot::Mutex;

use super::anchor::Anchor;
use super::bell::Bell;
use super::short;
use super::token::Token;

/// A reader's positions are kept no more often than this.
pub const SPACING: Duration = Duration::from_secs(5);
/// A kept position that is older is not referred to any more: its tokens are to be good for days.
const REFERRED_TO_US: u64 = 24 * 3600 * 1_000_000;

/// What the thread that keeps a position leaves behind.
#[derive(Default)]
enum Keeping {
    #[default]
    Nothing,
    UnderWay,
    /// The position, and its token.
    Done(Option<Anchor>, String),
}

/// How one reader is told its positions.
pub struct Positions {
    bucket: Arc<Bucket>,
    bell: Arc<Bell>,
    /// The reader wants tokens that need nothing of the server.
    are_whole: bool,
    /// What short tokens refer to.
    anchor: Option<Anchor>,
    /// The number that this reader's positions are kept under.
    reader: u32,
    keeping: Arc<Mutex<Keeping>>,
    /// When a position was kept last, on the monotonic clock.
    kept_at: Option<Duration>,
}

/// What came of asking for a token.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// This is it.
    Now(String),
    /// It is being made; [`Positions::made`] has it when the bell has rung.
    Soon,
    /// It would be made too soon after the last one, or that is not made yet.
    Later,
}

impl Positions {
    /// Of a reader that listens to this bell, and came with a token that refers to `anchor`.
    pub fn new(bucket: Arc<Bucket>, bell: Arc<Bell>, are_whole: bool, anchor: Option<Anchor>) -> Positions {
        let new = || bucket.env().random.next_u64() as u32;
        let reader = anchor.as_ref().map_or_else(new, |anchor| anchor.id.reader());
        Positions { bucket, bell, are_whole, anchor, reader, keeping: Arc::default(), kept_at: None }
    }

    /// The token of a position, if it can be had without the disk; otherwise a thread begins to keep the position.
    /// The last one of a reader is kept however soon it comes.
    pub fn tell(&mut self, token: &Token, is_last: bool) -> Told {
        if self.are_whole {
            return Told::Now(token.encode());
        }
        let oldest_us = (self.bucket.now().0 / 1_000).saturating_sub(REFERRED_TO_US);
        let anchor = self.anchor.as_ref().filter(|anchor| anchor.id.made_us() >= oldest_us);
        if let Some(text) = short::encode(token, anchor) {
            return Told::Now(text);
        }
        let now = self.bucket.env().clock.monotonic();
        let is_soon = self.kept_at.is_some_and(|at| now.saturating_sub(at) < SPACING);
        if self.is_keeping() || (is_soon && !is_last) {
            return Told::Later;
        }
        self.kept_at = Some(now);
        *self.keeping.lock() = Keeping::UnderWay;
        let (bucket, bell, keeping) =
            (Arc::clone(&self.bucket), Arc::clone(&self.bell), Arc::clone(&self.keeping));
        let position = token.clone();
        let reader = self.reader;
        let keep = move || {
            let whole = position.encode();
            let kept = Anchor::keep(&bucket, position, reader);
            let done = match kept {
                Ok(anchor) => {
                    let text = short::encode(&anchor.token, Some(&anchor)).unwrap_or(whole);
                    Keeping::Done(Some(anchor), text)
                }
                // The long token says the same, where it can be sent.
                Err(error) => {
                    warn(&bucket, &error);
                    Keeping::Done(None, whole)
                }
            };
            *keeping.lock() = done;
            bell.ring();
        };
        if let Err(error) = self.bucket.env().spawn.spawn("position", Box::new(keep)) {
            warn(&self.bucket, &error);
            *self.keeping.lock() = Keeping::Nothing;
            return Told::Now(token.encode());
        }
        Told::Soon
    }

    /// Whether a position is being kept, or its token was not taken yet.
    pub fn is_keeping(&self) -> bool {
        !matches!(*self.keeping.lock(), Keeping::Nothing)
    }

    /// The token that has been made since.
    pub fn made(&mut self) -> Option<String> {
        let mut keeping = self.keeping.lock();
        if !matches!(*keeping, Keeping::Done(..)) {
            return None;
        }
        let Keeping::Done(anchor, text) = std::mem::take(&mut *keeping) else { return None };
        if let Some(anchor) = anchor {
            self.anchor = Some(anchor);
        }
        Some(text)
    }
}

fn warn(bucket: &Bucket, error: &io::Error) {
    if let Some(left_out) = engine::admit_log(bucket, "position not kept") {
        tracing::warn!(
            event = "changes_position_not_kept", bucket = bucket.name(), %error, left_out,
            "the position of a reader of changes cannot be kept; the reader gets a long token instead"
        );
    }
}
