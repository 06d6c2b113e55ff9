//! Accepts HTTP clients, within the limits, and serves them until the node stops.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use ::node::connection_memory::ConnectionMemory;
use ::node::counters::AcceptCounters;
use ::node::kept_users::security::TlsService;
use ::node::news::Hearing;
use ::node::user_data::UserData;
use axum::Router;
use axum::middleware;
use base::env::Env;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::stream::Stream;
use super::watch::{self, Guest};
use super::{Connections, Full, HttpLimits};
use crate::acceptor::Entrance;
use crate::incoming::Incoming;
use crate::tls::{Acceptance, Tls, Transport};

/// Bytes that wait in a socket and were not sent yet: beyond them a client that does not read is noticed.
const UNSENT_BYTES: u32 = 128 << 10;

/// The answer to a request in clear at a port for TLS.
const WITHOUT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 77\r\n\
    Connection: close\r\n\r\nThis port speaks HTTP with TLS alone: begin the address of it with https://.\n";

/// How often, and how long each time, the next client waits for the descriptors of those that gave way.
const ROOM_LOOKS: u32 = 50;
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// What a listener is served with.
pub struct Serving {
    /// How many there may be, and how long each may take.
    pub limits: HttpLimits,
    /// Counts those that were accepted and refused.
    pub counters: Arc<AcceptCounters>,
    /// What their buffers are charged to.
    pub memory: Arc<ConnectionMemory>,
    /// Its clock tells when a limit is reached.
    pub env: Env,
    /// Tells whether clients have to wait, if anybody makes them.
    pub hearing: Option<Hearing>,
}

/// One address at which clients come.
struct Door {
    incoming: Incoming,
    /// What their connections are encrypted with; `None`: they are not.
    tls: Option<Arc<Tls>>,
}

pub(super) struct Listener {
    doors: Vec<Door>,
    /// The door that is looked at first.
    turn: usize,
    connections: Arc<Connections>,
    env: Env,
}

/// Serves until `stopped`, and then for as long as answers are under way.
pub async fn serve(
    entrances: Vec<Entrance>,
    app: Router,
    serving: Serving,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let Serving { limits, counters, memory, env, hearing } = serving;
    let connections = Arc::new(Connections::new(limits, Arc::clone(&counters), Arc::clone(&memory)));
    connections.tick(env.clock.monotonic().as_secs());
    let listener = Listener::new(entrances, &counters, Arc::clone(&connections), env.clone())?;
    let app = app.layer(middleware::from_fn(watch::watch));
    let service = app.into_make_service_with_connect_info::<Guest>();
    let waiting = Arc::clone(&connections);
    let stopped = async move {
        stopped.await;
        waiting.stop();
    };
    let ticking = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            // Who has to wait is not late.
            if !hearing.as_ref().is_some_and(Hearing::is_frozen) {
                let now_s = env.clock.monotonic().as_secs();
                connections.tick(now_s);
                memory.tick(now_s);
            }
        }
    };
    tokio::select! {
        served = axum::serve(listener, service).with_graceful_shutdown(stopped) => served,
        () = ticking => Ok(()),
    }
}

impl Door {
    async fn next(&mut self) -> (TcpStream, SocketAddr, Option<Acceptance>) {
        loop {
            let (tcp, peer) = self.incoming.next().await;
            match self.tls.as_ref().map(|tls| tls.present(TlsService::ClusterManager)) {
                None => return (tcp, peer, None),
                Some(Some(with)) => return (tcp, peer, Some(with)),
                // The log says why none is let in.
                Some(None) => {}
            }
        }
    }
}

/// What a client does not read must wait here and not in the kernel, where it looks as if it was taken.
#[cfg(target_os = "linux")]
fn keep_unsent_here(tcp: &TcpStream) {
    let _ = SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT_BYTES);
}

/// Elsewhere the buffer for what is sent is as small instead: there is no call that limits what is not sent yet.
#[cfg(not(target_os = "linux"))]
fn keep_unsent_here(tcp: &TcpStream) {
    let _ = SockRef::from(tcp).set_send_buffer_size(UNSENT_BYTES as usize);
}

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            let (tcp, peer, tls) = self.next().await;
            keep_unsent_here(&tcp);
            let local = tcp.local_addr();
            self.connections.look_at_clock(self.env.clock.monotonic().as_secs());
            let place =
                if self.has_room().await { self.connections.admit(peer) } else { Err(Full::Listener) };
            match place {
                Ok(connection) => match Transport::accepted(tcp, tls) {
                    Ok(mut transport) => {
                        transport.tell_without_tls(WITHOUT_TLS);
                        if let Ok(local) = local {
                            // A connection has one.
                            let _ = connection.local.set(local);
                        }
                        if transport.is_encrypted() {
                            let _ = connection.is_encrypted.set(());
                        }
                        return (Stream::new(transport, connection, Arc::clone(&self.connections)), peer);
                    }
                    Err(error) => {
                        self.connections.leave(&connection);
                        // It has gone already.
                        tracing::debug!(peer = %UserData(peer), %error, "an HTTP client could not be served");
                    }
                },
                Err(full) => self.refuse(&tcp, tls.is_some(), full),
            }
            // A connection that gave way gives its descriptor back before the next one comes.
            tokio::task::yield_now().await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.doors.first().ok_or_else(|| io::Error::other("there is no listener"))?;
        first.incoming.local_addr()
    }
}

impl Listener {
    fn new(
        entrances: Vec<Entrance>,
        counters: &Arc<AcceptCounters>,
        connections: Arc<Connections>,
        env: Env,
    ) -> io::Result<Listener> {
        let door = |Entrance { listener, tls }| -> io::Result<Door> {
            Ok(Door { incoming: Incoming::new(listener, Arc::clone(counters))?, tls })
        };
        let doors = entrances.into_iter().map(door).collect::<io::Result<_>>()?;
        Ok(Listener { doors, turn: 0, connections, env })
    }

    /// The next client, and what its connection is to be encrypted with. Each door has its turn.
    async fn next(&mut self) -> (TcpStream, SocketAddr, Option<Acceptance>) {
        self.turn = (self.turn + 1) % self.doors.len().max(1);
        let mut waits: Vec<_> = self.doors.iter_mut().map(|door| Box::pin(door.next())).collect();
        waits.rotate_left(self.turn);
        poll_fn(|cx| {
            let mut polled = waits.iter_mut().map(|wait| wait.as_mut().poll(cx));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Waits a while for the descriptors of connections that gave way. Whether there are enough then.
    async fn has_room(&self) -> bool {
        for _ in 0..ROOM_LOOKS {
            if !self.connections.is_above() {
                return true;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
        false
    }

    /// Says why a client is not served; with TLS it would have to be asked for its hello first.
    fn refuse(&self, tcp: &TcpStream, is_encrypted: bool, full: Full) {
        let refused = self.connections.counters.http_refused.fetch_add(1, Ordering::Relaxed) + 1;
        let HttpLimits { connections, per_address, .. } = self.connections.limits;
        let why = match full {
            Full::Listener => format!("there are {connections} HTTP connections already: try again later"),
            Full::Address => {
                format!("there are {per_address} HTTP connections from this address already: close some")
            }
        };
        if refused.is_power_of_two() {
            tracing::error!(
                event = "http_client_refused",
                connections,
                per_address,
                refused,
                "an HTTP client was refused: {why}"
            );
        }
        if is_encrypted {
            return;
        }
        let body = format!("{{\"message\":\"{why}\"}}");
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = tcp.try_write(answer.as_bytes());
        // What it has sent is taken, so that the system does not drop the answer.
        let _ = tcp.try_read(&mut [0; 4096]);
    }
}
