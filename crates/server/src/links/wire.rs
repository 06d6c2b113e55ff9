//! A connection to another node: bytes that came and are not read yet, and bytes that are not sent yet.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::node::replication::{LinkError, Login, Wire as LinkWire, log_in};
use ::node::sasl::client::SaltedPassword;
use base::env::Env;
use dcp::Features;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::tls::{self, Transport};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Room that is kept when nothing waits in it.
const MOST_KEPT_BYTES: usize = 1 << 20;
/// After this a connection is tried anew: what was sent into a network that is cut is sent again by the system in ever
/// longer pauses.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// The connection.
pub(super) struct Wire {
    transport: Transport,
    /// Room for what comes: mostly it is as large as one read, and used again.
    room: Vec<u8>,
    /// How many of the first bytes are done with.
    consumed: usize,
    /// What is to be sent; the first bytes of it are on their way.
    pub(super) out: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Connects, encrypted if there is something to do it with. The name is looked up and the connection made on a thread
    /// of its own: both may take long.
    pub(super) async fn connect(
        env: &Env,
        node: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Wire, LinkError> {
        let (done, outcome) = oneshot::channel();
        let (network, name) = (Arc::clone(&env.network), node.to_owned());
        let job = move || {
            let connect = || {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for addr in name.to_socket_addrs()? {
                    match network.connect_within(addr, CONNECT_WITHIN) {
                        Ok(stream) => return Ok(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            };
            // The link may have been closed meanwhile.
            let _ = done.send(connect());
        };
        env.spawn.spawn("connect", Box::new(job)).map_err(LinkError::Connect)?;
        let stream = outcome.await.map_err(|_| LinkError::Closed)?.map_err(LinkError::Connect)?;
        let stream = stream.into_std().ok_or(LinkError::Closed)?;
        let stream = TcpStream::from_std(stream).map_err(LinkError::Connect)?;
        let transport = Transport::connected(stream, node, tls).map_err(LinkError::Connect)?;
        Ok(Wire { transport, room: Vec::new(), consumed: 0, out: Vec::new(), sent: 0 })
    }

    /// A connection that is there, not encrypted.
    pub(super) fn over(stream: TcpStream) -> Wire {
        let transport = Transport::Plain(stream);
        Wire { transport, room: Vec::new(), consumed: 0, out: Vec::new(), sent: 0 }
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Result<SocketAddr, LinkError> {
        self.transport.peer_addr().map_err(LinkError::Io)
    }

    /// Waits until bytes came, or can be sent; reads and sends what can be.
    pub(super) async fn turn(&mut self, reads: bool) -> Result<(), LinkError> {
        poll_fn(|cx| self.poll_turn(reads, cx)).await
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Tls(_))
    }

    fn poll_ready(&mut self, reads: bool, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let mut turned = Poll::Pending;
        if self.unsent_bytes() > 0 {
            if let Poll::Ready(ready) = self.transport.poll_write_ready(cx) {
                ready.map_err(LinkError::Io)?;
                self.send()?;
                turned = Poll::Ready(Ok(()));
            }
        } else if let Poll::Ready(sent) = self.transport.poll_sent(cx) {
            // What was encrypted waits for the socket.
            sent.map_err(LinkError::Io)?;
        }
        if reads && self.poll_read(cx)?.is_ready() {
            turned = Poll::Ready(Ok(()));
        }
        turned
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, LinkError> {
        self.room.drain(..self.consumed);
        self.consumed = 0;
        self.room.reserve(READ_BYTES);
        match self.transport.poll_read_onto(cx, &mut self.room) {
            Poll::Ready(Ok(0)) => Err(LinkError::Closed),
            Poll::Ready(Ok(_)) => Ok(Poll::Ready(())),
            Poll::Ready(Err(error)) => Err(LinkError::Io(error)),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    /// Logs in, and waits for each answer; what was agreed on. `known` is what was derived from the password the last
    /// time.
    pub(super) async fn log_in(
        &mut self,
        login: Login<'_>,
        known: &mut Option<SaltedPassword>,
    ) -> Result<Features, LinkError> {
        log_in(self, login, known).await
    }
}

impl LinkWire for Wire {
    fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.room[self.consumed..], &mut self.out)
    }

    fn consume(&mut self, bytes: usize) {
        self.consumed += bytes;
        if self.consumed == self.room.len() {
            self.consumed = 0;
            self.room.clear();
            if self.room.capacity() > MOST_KEPT_BYTES {
                // One large message came: the next ones need less.
                self.room = Vec::new();
            }
        }
    }

    fn send(&mut self) -> Result<(), LinkError> {
        while self.sent < self.out.len() {
            match self.transport.try_write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn unsent_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    fn held_bytes(&self) -> usize {
        self.room.capacity() + self.out.capacity() + self.transport.held_bytes()
    }

    fn poll_turn(&mut self, reads: bool, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.poll_ready(reads, cx).map_err(|error| match error {
            LinkError::Io(error) if self.is_encrypted() && error.kind() == io::ErrorKind::InvalidData => {
                LinkError::Tls(told(&error))
            }
            error => error,
        })
    }
}

/// A failure of TLS, and what to do about it.
fn told(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
    of_tls.map_or_else(|| error.to_string(), |of_tls| format!("{error}; {}", tls::cure(of_tls)))
}
