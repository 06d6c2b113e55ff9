//! Sockets of the connections to other nodes that read a bucket's changes for readers here.
//!
//! What comes, what waits and what is answered is the business of [`::node::changes::exchange`].

use std::sync::Arc;

use ::node::changes::exchange::{LOGIN_TIMEOUT, LOOK_AGAIN, MOST_SILENT, ReaderExchange, ReaderTarget};
use ::node::doors::ReaderLinks;
use ::node::replication::{LinkError, Wire as _};
use rustls::ClientConfig;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::wire::Wire;
use crate::tls::PeerTls;

/// Connections that readers of this node may have to others together.
pub(crate) struct RuntimeReaders {
    places: Arc<Semaphore>,
    tls: PeerTls,
}

impl RuntimeReaders {
    /// This number of them, so encrypted.
    pub(crate) fn new(places: usize, tls: PeerTls) -> RuntimeReaders {
        RuntimeReaders { places: Arc::new(Semaphore::new(places)), tls }
    }
}

impl ReaderLinks for RuntimeReaders {
    fn free_places(&self) -> usize {
        self.places.available_permits()
    }

    /// On the caller's runtime.
    fn connect(&self, reading: ReaderTarget, exchange: &Arc<ReaderExchange>) -> Option<Box<dyn Send>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (exchange, tls) = (Arc::clone(exchange), self.tls.for_documents());
        let task = tokio::spawn(async move {
            let Err(error) = drive(&reading, &exchange, tls).await;
            tracing::debug!(bucket = reading.bucket, node = reading.node, %error, "a reader's connection ended");
            exchange.ended(&error);
        });
        Some(Box::new((Connection(task), place)))
    }
}

/// The connection; it is closed when this is dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Follows the connection to its end.
async fn drive(
    reading: &ReaderTarget,
    exchange: &ReaderExchange,
    tls: Option<Arc<ClientConfig>>,
) -> Result<std::convert::Infallible, LinkError> {
    let mut wire =
        tokio::time::timeout(LOGIN_TIMEOUT, open(reading, tls)).await.map_err(|_| LinkError::TimeOut)??;
    exchange.logged_in(&reading.memory, wire.peer()?);
    let mut hearing = reading.hearing.clone();
    loop {
        hearing.thawed().await;
        let (received, out) = wire.parts();
        let consumed = exchange.receive(received, out)?;
        wire.consume(consumed);
        exchange.give(&mut wire.out);
        wire.send()?;
        // Others of this thread have their turns, also if the socket always has something to read.
        tokio::task::yield_now().await;
        // Each turn hears something or is asked something: a node that is silent is not asked that often.
        let reads = exchange.may_read(wire.held_bytes());
        let silent = tokio::time::sleep(if reads { MOST_SILENT } else { LOOK_AGAIN });
        tokio::pin!(silent);
        loop {
            tokio::select! {
                turned = wire.turn(reads) => { turned?; break }
                () = exchange.changed() => {
                    exchange.give(&mut wire.out);
                    wire.send()?;
                    if !reads {
                        break;
                    }
                }
                () = reading.memory.freed(), if !reads => break,
                () = exchange.given_up() => return Err(LinkError::Memory),
                () = &mut silent => {
                    if reads {
                        return Err(LinkError::Silent(MOST_SILENT.as_secs()));
                    }
                    break;
                }
            }
        }
    }
}

/// Connects, logs in and opens the connection for changes; its first requests are not sent yet.
async fn open(reading: &ReaderTarget, tls: Option<Arc<ClientConfig>>) -> Result<Wire, LinkError> {
    let mut wire = Wire::connect(&reading.env, &reading.node, tls).await?;
    wire.log_in(reading.login(), &mut None).await?;
    reading.open(&mut wire.out)?;
    Ok(wire)
}
