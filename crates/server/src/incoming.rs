//! Clients as they come to a listener, also while the process has no descriptors left.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use ::node::counters::AcceptCounters;
use ::node::user_data::UserData;

/// How long to leave clients alone when even the spare descriptor is gone.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection without traffic is probed after this long, so that dead clients go away.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A listener that keeps a spare descriptor: a client that there is no descriptor for is accepted with it and
/// disconnected, so that it learns at once that it is not served.
pub(crate) struct Incoming {
    listener: TcpListener,
    spare: Option<Socket>,
    counters: Arc<AcceptCounters>,
}

impl Incoming {
    /// Inside of a runtime.
    pub(crate) fn new(
        listener: std::net::TcpListener,
        counters: Arc<AcceptCounters>,
    ) -> io::Result<Incoming> {
        let spare = Some(SockRef::from(&listener).try_clone()?);
        Ok(Incoming { listener: TcpListener::from_std(listener)?, spare, counters })
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next client.
    pub(crate) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => match prepare(&stream) {
                    Ok(()) => return (stream, peer),
                    // It has gone already.
                    Err(error) => {
                        tracing::debug!(peer = %UserData(peer), %error, "a client could not be served")
                    }
                },
                Err(error) if is_of_client(&error) => {}
                Err(error) => self.turn_away(&error).await,
            }
        }
    }

    /// Disconnects the client that could not be accepted.
    async fn turn_away(&mut self, error: &io::Error) {
        let failures = self.counters.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures.is_power_of_two() {
            tracing::error!(
                event = "accept_failed",
                %error,
                failures,
                "cannot accept a connection: raise the limit of open files (ulimit -n, LimitNOFILE), or lower \
                 max-open-files or max-connections"
            );
        }
        self.spare = None;
        tokio::select! {
            biased;
            turned_away = self.listener.accept() => drop(turned_away),
            () = std::future::ready(()) => {}
        }
        match SockRef::from(&self.listener).try_clone() {
            Ok(spare) => {
                self.spare = Some(spare);
                tokio::task::yield_now().await;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

/// Whether an error is about the client that was to be accepted, and not about the listener or the process.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
