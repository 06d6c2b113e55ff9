//! The socket of an HTTP client, whose reads and writes fail once the connection was cut.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::node::first_head::FirstHead;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Connection, Connections, Cut, Phase};
use crate::tls::{HANDSHAKE_S, Transport};

/// So much of a first head is read at once.
const PIECE_BYTES: usize = 1 << 10;
const LARGE_HEAD: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const SLOW_HEAD: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A socket and its place among the connections.
pub(crate) struct Stream {
    transport: Transport,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
    /// It is not agreed on yet how bytes are encrypted.
    is_handshaking: bool,
    /// What is handed to hyper once it is there: what hyper holds for a connection is more than a client may have that has
    /// not logged in (record 185).
    first: FirstHead,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connections.leave(&self.connection);
    }
}

impl Stream {
    pub(super) fn new(
        transport: Transport,
        connection: Arc<Connection>,
        connections: Arc<Connections>,
    ) -> Stream {
        let is_handshaking = transport.is_handshaking();
        if is_handshaking {
            connection.enter(Phase::Head, connections.now_s() + HANDSHAKE_S);
        }
        let first = FirstHead::of(connections.limits.head_bytes);
        Stream { transport, connection, connections, is_handshaking, first }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Says why there will be no answer, if the client reads that: nothing else is on its way while a head comes.
    fn say(&mut self, answer: &[u8]) {
        let _ = self.transport.try_write(answer);
    }

    /// Fails if the connection was cut.
    fn check_read(&mut self, cx: &Context<'_>) -> io::Result<()> {
        self.connection.register(cx);
        if self.connections.is_head_too_large(&self.connection) && self.connection.cut().is_none() {
            self.connection.close(Cut::LargeHead);
        }
        match self.connection.cut() {
            None => return Ok(()),
            Some(Cut::LargeHead) => self.say(LARGE_HEAD),
            Some(Cut::SlowHead) => self.say(SLOW_HEAD),
            Some(Cut::CrowdedOut | Cut::Idle | Cut::SlowBody | Cut::SlowReader | Cut::HeldMost) => {}
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn check_write(&mut self, cx: &Context<'_>) -> io::Result<()> {
        self.connection.register(cx);
        match self.connection.cut() {
            None | Some(Cut::SlowBody) => Ok(()),
            Some(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => self.connections.blocked(&self.connection),
            Poll::Ready(Ok(bytes)) => self.connections.taken(&self.connection, *bytes),
            Poll::Ready(Err(_)) => {}
        }
        written
    }
}

impl Stream {
    /// Reads what the client has sent, at most what a head may still have.
    fn poll_client(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_read(cx)?;
        let before = buf.filled().len();
        let polled = match self.connections.head_room(&self.connection) {
            // What is read of a head is bounded, however much of it the client has sent.
            Some(room) => {
                let mut part = ReadBuf::new(buf.initialize_unfilled_to(room.min(buf.remaining())));
                let polled = Pin::new(&mut self.transport).poll_read(cx, &mut part);
                let read = part.filled().len();
                buf.advance(read);
                polled
            }
            None => Pin::new(&mut self.transport).poll_read(cx, buf),
        };
        if self.is_handshaking && !self.transport.is_handshaking() {
            self.is_handshaking = false;
            if let Some(user) = self.transport.certified() {
                self.connection.certify(user);
            }
            let idle_s = self.connections.limits.idle_timeout_s;
            self.connection.enter(Phase::Waiting, self.connections.now_s() + idle_s);
        }
        ready!(polled)?;
        self.connections.received(&self.connection, buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }

    /// Reads until the first head is there, with a small body, or cannot become one.
    fn poll_first_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.first.is_there() {
            let mut piece = [0; PIECE_BYTES];
            let mut part = ReadBuf::new(&mut piece);
            ready!(self.poll_client(cx, &mut part))?;
            match part.filled() {
                [] => self.first.end(),
                came => self.first.take(came),
            }
        }
        if self.first.is_whole() {
            // It is not the first look.
            let _ = self.connection.is_first_whole.set(());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_there() {
            ready!(self.poll_first_head(cx))?;
        }
        let bytes = self.first.give(buf.remaining());
        if bytes.is_empty() {
            return self.poll_client(cx, buf);
        }
        buf.put_slice(bytes);
        self.first.let_go();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_write(cx)?;
        let written = Pin::new(&mut self.transport).poll_write(cx, buf);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_write(cx)?;
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, bufs);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    /// Asked for when all was handed to the socket.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_write(cx)?;
        self.connections.flushed(&self.connection);
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
