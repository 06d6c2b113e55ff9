//! A connection to etcd or to another node, encrypted or not, that waits no longer than it is told to.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base::env::Clock;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::tls::server_name;

/// The connection.
pub(super) enum Wire {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Wire {
    /// Begins to speak; with TLS once the server at `endpoint` has shown that it is who it should be.
    pub(super) fn new(
        stream: TcpStream,
        endpoint: &str,
        tls: Option<&Arc<ClientConfig>>,
        clock: &dyn Clock,
        ends: Duration,
    ) -> io::Result<Wire> {
        let Some(config) = tls else { return Ok(Wire::Plain(stream)) };
        let name = server_name(endpoint)?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut stream = stream;
        while tls.is_handshaking() {
            stream.set_read_timeout(Some(left(clock, ends)?))?;
            if tls.wants_write() {
                tls.write_tls(&mut stream)?;
                continue;
            }
            if tls.read_tls(&mut stream).map_err(timed_out)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = tls.process_new_packets() {
                // It hears why it is refused, if it still listens.
                let _ = tls.write_tls(&mut stream);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        Ok(Wire::Tls(Box::new(StreamOwned::new(tls, stream))))
    }

    /// Sends all of it.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.write_all(bytes),
            Wire::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Reads what has come, or comes until then; nothing at the end.
    pub(super) fn read(&mut self, some: &mut [u8], clock: &dyn Clock, ends: Duration) -> io::Result<usize> {
        let left = left(clock, ends)?;
        let read = match self {
            Wire::Plain(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(some)
            }
            Wire::Tls(stream) => {
                stream.sock.set_read_timeout(Some(left))?;
                stream.read(some)
            }
        };
        read.map_err(timed_out)
    }
}

fn left(clock: &dyn Clock, ends: Duration) -> io::Result<Duration> {
    let left = ends.saturating_sub(clock.monotonic());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket that waits no longer says that it would have to.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}
