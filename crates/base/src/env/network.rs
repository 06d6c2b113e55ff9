//! Where connections come from and go to: byte streams that never block.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A network as one machine sees it.
pub trait Network: Send + Sync {
    /// Waits for connections on an address; port 0 takes a free one.
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>>;
    /// Begins a connection. A refusal may show only when the stream is used.
    fn connect(&self, addr: SocketAddr) -> io::Result<Box<dyn Stream>>;
    /// The same, given up after `at_most` where connecting may wait at all.
    fn connect_within(&self, addr: SocketAddr, at_most: Duration) -> io::Result<Box<dyn Stream>> {
        let _ = at_most;
        self.connect(addr)
    }
}

/// An address that takes connections.
pub trait Listener: Send {
    /// The address, its port chosen.
    fn local_addr(&self) -> io::Result<SocketAddr>;
    /// The next connection; [`io::ErrorKind::WouldBlock`] if there is none yet.
    fn try_accept(&mut self) -> io::Result<Box<dyn Stream>>;
    /// The operating system's listener, non-blocking, for an async runtime; nothing if there is none behind it.
    fn into_std(self: Box<Self>) -> Option<TcpListener>;
}

/// A connection.
pub trait Stream: Send {
    /// Takes bytes that have arrived; 0 at the end, [`io::ErrorKind::WouldBlock`] if there are none yet.
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Hands over bytes, some of them; [`io::ErrorKind::WouldBlock`] if there is no room.
    fn try_write(&mut self, buf: &[u8]) -> io::Result<usize>;
    /// Nothing more will be written; the other end reads to the end.
    fn shut_down_writing(&mut self) -> io::Result<()>;
    /// The other end's address.
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    /// The operating system's stream, non-blocking, for an async runtime; nothing if there is none behind it.
    fn into_std(self: Box<Self>) -> Option<TcpStream>;
}

/// How long the machine may try to connect: a host that does not answer must not hold its caller for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The machine's TCP.
pub struct RealNetwork;

impl Network for RealNetwork {
    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    fn listen(&self, addr: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(Box::new(RealListener(listener)))
    }

    fn connect(&self, addr: SocketAddr) -> io::Result<Box<dyn Stream>> {
        self.connect_within(addr, CONNECT_TIMEOUT)
    }

    #[allow(clippy::disallowed_methods, reason = "this is the door itself")]
    fn connect_within(&self, addr: SocketAddr, at_most: Duration) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect_timeout(&addr, at_most)?;
        Ok(Box::new(RealStream::new(stream)?))
    }
}

struct RealListener(TcpListener);

impl Listener for RealListener {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn try_accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let (stream, _) = self.0.accept()?;
        Ok(Box::new(RealStream::new(stream)?))
    }

    fn into_std(self: Box<Self>) -> Option<TcpListener> {
        Some(self.0)
    }
}

struct RealStream(TcpStream);

impl RealStream {
    fn new(stream: TcpStream) -> io::Result<RealStream> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(RealStream(stream))
    }
}

impl Stream for RealStream {
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut self.0, buf)
    }

    fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut self.0, buf)
    }

    fn shut_down_writing(&mut self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    fn into_std(self: Box<Self>) -> Option<TcpStream> {
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_door_gives_up_its_listener() {
        let listener = RealNetwork.listen(([127, 0, 0, 1], 0).into()).expect("loopback is there");
        let addr = listener.local_addr().expect("it is bound");
        assert_ne!(addr.port(), 0);
        let listener = listener.into_std().expect("it is real");
        assert_eq!(listener.accept().expect_err("nobody called").kind(), io::ErrorKind::WouldBlock);
        let stream = RealNetwork.connect(addr).expect("somebody listens");
        assert_eq!(stream.peer_addr().expect("it is connected"), addr);
    }
}
