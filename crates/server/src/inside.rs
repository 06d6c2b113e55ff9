//! How the node's own requests over the KV protocol reach the node: by its port without TLS, or, if it has none, on a
//! connection that begins and ends in this process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ::node::address_places::AddressPlaces;
use base::env::Env;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::worker::{Accepted, Worker};

/// Loopback takes no time; a machine without it must not hold up other requests.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Connections that were made inside, for the workers.
pub(crate) type Inner = UnboundedReceiver<(TcpStream, SocketAddr)>;

/// How the node's own requests reach it.
#[derive(Clone)]
pub(crate) enum OwnDoor {
    /// At the port without TLS.
    Port(SocketAddr),
    /// Inside of the process.
    Inside(UnboundedSender<(TcpStream, SocketAddr)>),
}

impl OwnDoor {
    /// The port if there is one. Otherwise the workers have to be handed what comes inside.
    pub(crate) fn of(port: Option<SocketAddr>) -> (OwnDoor, Option<Inner>) {
        if let Some(port) = port {
            return (OwnDoor::Port(port), None);
        }
        let (sender, inner) = unbounded_channel();
        (OwnDoor::Inside(sender), Some(inner))
    }
}

/// A connection that begins here, and whose other end is on its way to a worker.
pub(crate) fn open(env: &Env, workers: &UnboundedSender<(TcpStream, SocketAddr)>) -> io::Result<TcpStream> {
    let no_socket = || io::Error::other("this network has no sockets of the operating system");
    let mut listener = env.network.listen((Ipv4Addr::LOCALHOST, 0).into())?;
    let ours = env.network.connect_within(listener.local_addr()?, CONNECT_WITHIN)?;
    let ours = ours.into_std().ok_or_else(no_socket)?;
    let own = ours.local_addr()?;
    loop {
        let theirs = listener.try_accept()?;
        // Another process may have connected meanwhile: it is not let in.
        if theirs.peer_addr()? != own {
            continue;
        }
        let theirs = theirs.into_std().ok_or_else(no_socket)?;
        ours.set_nodelay(true)?;
        theirs.set_nodelay(true)?;
        workers.send((theirs, own)).map_err(|_| io::Error::other("the node stops"))?;
        return Ok(ours);
    }
}

/// Hands connections that were made inside to the workers.
pub(crate) async fn accept(
    mut inner: Inner,
    workers: &[Worker],
    places: &Arc<AddressPlaces>,
) -> io::Result<()> {
    while let Some((stream, peer)) = inner.recv().await {
        let worker = workers.iter().min_by_key(|worker| worker.connections());
        let Some((worker, place)) = worker.zip(places.take(peer.ip())) else { continue };
        worker.hand_over(Accepted { stream, peer, place, is_crowded: false, tls: None });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_inside_are_this_process() {
        let (env, (sender, mut inner)) = (Env::real(), unbounded_channel());
        let ours = open(&env, &sender).expect("a connection");
        let (theirs, peer) = inner.try_recv().expect("its other end");
        assert_eq!(theirs.peer_addr().ok(), Some(peer));
        assert_eq!((ours.local_addr().ok(), theirs.local_addr().ok()), (Some(peer), ours.peer_addr().ok()));
        drop(inner);
        assert!(open(&env, &sender).is_err(), "the node stops");
    }

    #[test]
    fn a_node_with_a_port_is_reached_there() {
        let port = (Ipv4Addr::LOCALHOST, 7).into();
        assert!(matches!(OwnDoor::of(Some(port)), (OwnDoor::Port(at), None) if at == port));
        assert!(matches!(OwnDoor::of(None), (OwnDoor::Inside(_), Some(_))));
    }
}
