//! A connection to another node: bytes that came and are not read yet, and bytes that are not sent yet.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use ::node::replication::{LinkError, LoggingIn, Login};
use ::node::sasl::client::SaltedPassword;
use base::env::Env;
use dcp::Features;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Room that is kept when nothing waits in it.
const MOST_KEPT_BYTES: usize = 1 << 20;
/// After this a connection is tried anew: what was sent into a network that is cut is sent again by the system in ever
/// longer pauses.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// The connection.
pub(super) struct Wire {
    stream: TcpStream,
    /// Room for what comes, and how much of it is taken: mostly it is as large as one read, and written over.
    room: Vec<u8>,
    filled: usize,
    /// How many of the first bytes are done with.
    consumed: usize,
    /// What is to be sent; the first bytes of it are on their way.
    pub(super) out: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Connects. The name is looked up and the connection made on a thread of its own: both may take long.
    pub(super) async fn connect(env: &Env, node: &str) -> Result<Wire, LinkError> {
        let (done, outcome) = oneshot::channel();
        let (network, name) = (std::sync::Arc::clone(&env.network), node.to_owned());
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
        Ok(Wire { stream, room: Vec::new(), filled: 0, consumed: 0, out: Vec::new(), sent: 0 })
    }

    /// What came and is not done with, and where to put what is to be sent.
    pub(super) fn parts(&mut self) -> (&[u8], &mut Vec<u8>) {
        (&self.room[self.consumed..self.filled], &mut self.out)
    }

    /// So many bytes of it are done with now.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.consumed += bytes;
        if self.consumed == self.filled {
            (self.consumed, self.filled) = (0, 0);
            if self.room.len() > MOST_KEPT_BYTES {
                // One large message came: the next ones need less.
                self.room = Vec::new();
            }
        }
    }

    /// Bytes of memory that wait to be read from or sent.
    pub(super) fn held_bytes(&self) -> usize {
        self.room.capacity() + self.out.capacity()
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Result<SocketAddr, LinkError> {
        self.stream.peer_addr().map_err(LinkError::Io)
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Waits until bytes came, or can be sent; reads and sends what can be.
    pub(super) async fn turn(&mut self, reads: bool) -> Result<(), LinkError> {
        let mut interest = if reads { Some(Interest::READABLE) } else { None };
        if self.unsent_bytes() > 0 {
            interest = Some(interest.map_or(Interest::WRITABLE, |interest| interest.add(Interest::WRITABLE)));
        }
        // With nothing to wait for it is ready never: whoever calls waits for something else as well.
        let Some(interest) = interest else { return std::future::pending().await };
        let ready = self.stream.ready(interest).await.map_err(LinkError::Io)?;
        if ready.is_writable() {
            self.send()?;
        }
        if reads && ready.is_readable() {
            self.read()?;
        }
        Ok(())
    }

    /// Sends what can be sent at once.
    pub(super) fn send(&mut self) -> Result<(), LinkError> {
        while self.sent < self.out.len() {
            match self.stream.try_write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn read(&mut self) -> Result<(), LinkError> {
        self.room.copy_within(self.consumed..self.filled, 0);
        (self.consumed, self.filled) = (0, self.filled - self.consumed);
        let needed = self.filled + READ_BYTES;
        if self.room.len() < needed {
            self.room.resize(needed, 0);
        }
        match self.stream.try_read(&mut self.room[self.filled..]) {
            Ok(0) => Err(LinkError::Closed),
            Ok(bytes) => {
                self.filled += bytes;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(LinkError::Io(error)),
        }
    }

    /// Logs in, and waits for each answer; what was agreed on. `known` is what was derived from the password the last
    /// time.
    pub(super) async fn log_in(
        &mut self,
        login: Login<'_>,
        known: &mut Option<SaltedPassword>,
    ) -> Result<Features, LinkError> {
        let mut logging_in = LoggingIn::begin(login, &mut self.out)?;
        loop {
            let (received, out) = self.parts();
            let (consumed, agreed) = logging_in.receive(received, known, out)?;
            self.consume(consumed);
            if let Some(agreed) = agreed {
                return Ok(agreed);
            }
            self.turn(true).await?;
        }
    }
}
