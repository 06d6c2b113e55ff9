//! Accepts clients and hands each to the worker with the fewest.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::node::address_places::AddressPlaces;
use ::node::config::ConnectionLimits;
use ::node::counters::AcceptCounters;
use ::node::kept_users::security::TlsService;
use ::node::user_data::UserData;
use base::env::Env;

use crate::incoming::Incoming;
use crate::tls::Tls;
use crate::worker::{Accepted, Worker};

/// Connections above the limit that wait until one that has not logged in is closed for them. They take descriptors of
/// the reserve.
const MOST_ABOVE: usize = 16;
/// How often, and how long each time, the next client waits for those above the limit.
const ROOM_LOOKS: u32 = 50;
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// Listens at `addr`.
pub fn listen(env: &Env, addr: SocketAddr) -> io::Result<TcpListener> {
    let unsupported = || io::Error::other("this network has no sockets of the operating system");
    env.network.listen(addr)?.into_std().ok_or_else(unsupported)
}

/// A listener for clients, and what their connections are encrypted with if they are.
pub struct Entrance {
    /// The listener.
    pub listener: TcpListener,
    /// What is encrypted with.
    pub tls: Option<Arc<Tls>>,
}

/// Accepts clients until the future is dropped.
///
/// If there are as many connections as there may be, the one that has waited longest without logging in gives way; if
/// all have logged in, the new one is closed. So is one from an address that has as many as an address may have.
pub async fn accept(
    entrance: Entrance,
    workers: &[Worker],
    limits: &ConnectionLimits,
    places: &Arc<AddressPlaces>,
    counters: &Arc<AcceptCounters>,
) -> io::Result<()> {
    let max_connections = limits.connections;
    let mut incoming = Incoming::new(entrance.listener, Arc::clone(counters))?;
    loop {
        let (stream, peer) = incoming.next().await;
        // The log says why none is let in.
        let Ok(tls) = entrance.tls.as_ref().map(|tls| tls.present(TlsService::Data).ok_or(())).transpose()
        else {
            continue;
        };
        let Some(place) = places.take(peer.ip()) else {
            refuse_address(counters, peer);
            continue;
        };
        let is_crowded = connections(workers) >= max_connections;
        let worker = if is_crowded {
            with_stranger(workers, max_connections + MOST_ABOVE).await
        } else {
            workers.iter().min_by_key(|worker| worker.connections())
        };
        let Some(worker) = worker else {
            refuse(counters, max_connections);
            continue;
        };
        // The worker's runtime takes the socket over, still not blocking.
        match stream.into_std() {
            Ok(stream) => worker.hand_over(Accepted { stream, peer, place, is_crowded, tls }),
            Err(error) => tracing::debug!(peer = %UserData(peer), %error, "a client could not be served"),
        }
    }
}

fn connections(workers: &[Worker]) -> usize {
    workers.iter().map(Worker::connections).sum()
}

/// The worker with most connections that have not logged in, once there are fewer connections than `most`.
async fn with_stranger(workers: &[Worker], most: usize) -> Option<&Worker> {
    for _ in 0..ROOM_LOOKS {
        let strangers = workers.iter().filter(|worker| worker.strangers() > 0);
        let worker = strangers.max_by_key(|worker| worker.strangers())?;
        if connections(workers) < most {
            return Some(worker);
        }
        tokio::time::sleep(ROOM_PAUSE).await;
    }
    None
}

/// Notes that a client was closed because its address has as many connections as an address may have.
fn refuse_address(counters: &AcceptCounters, peer: SocketAddr) {
    let refused = counters.kv_refused_by_address.fetch_add(1, Ordering::Relaxed) + 1;
    if refused.is_power_of_two() {
        tracing::warn!(
            event = "address_refused",
            peer = %UserData(peer),
            refused,
            "an address has too many connections: raise max-connections-per-address, or close some"
        );
    }
}

/// Notes that a client was closed because there are as many as there may be.
pub(crate) fn refuse(counters: &AcceptCounters, max_connections: usize) {
    let refused = counters.kv_refused.fetch_add(1, Ordering::Relaxed) + 1;
    if refused.is_power_of_two() {
        tracing::error!(
            event = "connections_refused",
            max_connections,
            refused,
            "there are too many connections: raise max-connections, or close some"
        );
    }
}
