//! Accepts clients and hands each to the worker with the fewest.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use base::env::Env;
use socket2::{SockRef, TcpKeepalive};

use crate::worker::{Accepted, Worker};

/// How long to leave clients alone when the system has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection without traffic is probed after this long, so that dead clients go away.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Listens at `addr`.
pub fn listen(env: &Env, addr: SocketAddr) -> io::Result<TcpListener> {
    let unsupported = || io::Error::other("this network has no sockets of the operating system");
    env.network.listen(addr)?.into_std().ok_or_else(unsupported)
}

/// Accepts clients until the future is dropped.
pub async fn accept(listener: TcpListener, workers: Vec<Worker>, max_connections: usize) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut refused = 0u64;
    loop {
        match listener.accept().await.and_then(prepare) {
            Ok(accepted) => {
                let connections: usize = workers.iter().map(Worker::connections).sum();
                if connections >= max_connections {
                    refused += 1;
                    if refused.is_power_of_two() {
                        tracing::error!(
                            max_connections,
                            refused,
                            "there are too many connections: raise max-connections, or close some"
                        );
                    }
                    continue;
                }
                let worker = workers.iter().min_by_key(|worker| worker.connections());
                worker.expect("there is at least one worker").hand_over(accepted);
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection: is the limit of open files (ulimit -n) reached?");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn prepare((stream, peer): (tokio::net::TcpStream, SocketAddr)) -> io::Result<Accepted> {
    // The worker's runtime takes the socket over, still not blocking.
    let stream = stream.into_std()?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(Accepted { stream, peer })
}
