//! What a link needs of the outside: a connection to another node as bytes, and the time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use dcp::Features;

use super::download::{Bring, brings_none};
use super::link::Link;
use super::login::{LinkError, LoggingIn, Login};
use crate::sasl::client::SaltedPassword;
use crate::timer::Timer;

/// A connection to another node: bytes that came and are not read yet, and bytes that are not sent yet.
pub trait Wire {
    /// What came and is not done with, and where to put what is to be sent.
    fn parts(&mut self) -> (&[u8], &mut Vec<u8>);

    /// So many of the bytes that came are done with now.
    fn consume(&mut self, bytes: usize);

    /// Sends what can be sent at once.
    ///
    /// # Errors
    ///
    /// The connection broke.
    fn send(&mut self) -> Result<(), LinkError>;

    /// Bytes that wait to be sent.
    fn unsent_bytes(&self) -> usize;

    /// Bytes of memory that wait to be read from or sent.
    fn held_bytes(&self) -> usize;

    /// Ready when bytes came, if it `reads`, or were sent. Never ready if there is nothing to read or send; the caller
    /// waits for other events, too.
    ///
    /// # Errors
    ///
    /// The connection broke.
    fn poll_turn(&mut self, reads: bool, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>>;
}

/// The time of what polls links.
pub trait Pace {
    /// Time limits and pauses.
    fn timer(&self) -> &dyn Timer;

    /// Ready once all else that is polled beside has had a turn.
    fn give_turns(&self) -> impl Future<Output = ()>;
}

/// Who connects links to other nodes.
pub trait Dial {
    /// How files of vBuckets are copied from the nodes that links follow.
    fn files(&self) -> Bring {
        brings_none()
    }

    /// The connections that it makes.
    type Wire: Wire;
    /// The time of its links.
    type Pace: Pace;

    /// Connects a link to the node that it follows.
    fn connect(&self, link: &Link) -> impl Future<Output = Result<Self::Wire, LinkError>>;

    /// The time of its links.
    fn pace(&self) -> &Self::Pace;
}

/// Logs in, and waits for each answer; what was agreed on. `known` is what was derived from the password the last time.
///
/// # Errors
///
/// Why there can be no link.
pub async fn log_in<W: Wire>(
    wire: &mut W,
    login: Login<'_>,
    known: &mut Option<SaltedPassword>,
) -> Result<Features, LinkError> {
    let mut logging_in = LoggingIn::begin(login, wire.parts().1)?;
    loop {
        let (received, out) = wire.parts();
        let (consumed, agreed) = logging_in.receive(received, known, out)?;
        wire.consume(consumed);
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
        poll_fn(|cx| wire.poll_turn(true, cx)).await?;
    }
}

/// What the first of two comes to that is ready; of two that are ready, the first one.
pub(super) async fn first_of<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Waker;

    use super::*;

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_first_that_is_ready_is_taken() {
        assert_eq!(poll(first_of(ready(1), ready(2))), Poll::Ready(1));
        assert_eq!(poll(first_of(pending(), ready(2))), Poll::Ready(2));
        assert_eq!(poll(first_of(pending::<u8>(), pending())), Poll::Pending);
    }
}
