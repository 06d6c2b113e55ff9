//! How bytes travel between the node and a client or another node: as they are, or encrypted.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::{Acceptance, TlsStream, server_name};

/// A socket, and what its bytes go through.
pub(crate) enum Transport {
    /// As they are.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream>),
}

impl Transport {
    /// The node's end; `None` if the connection has ended.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Transport::Plain(tcp) => tcp.local_addr(),
            Transport::Tls(tls) => tls.tcp().local_addr(),
        }
        .ok()
    }

    /// The node's side of a connection that was accepted, encrypted if there is something to do it with.
    ///
    /// # Errors
    ///
    /// A session cannot be made.
    pub(crate) fn accepted(tcp: TcpStream, tls: Option<Acceptance>) -> io::Result<Transport> {
        match tls {
            None => Ok(Transport::Plain(tcp)),
            Some(tls) => Ok(Transport::Tls(Box::new(TlsStream::accepted(tcp, tls)?))),
        }
    }

    /// Has a client that speaks HTTP without TLS, where TLS has to be spoken, answered this in clear.
    pub(crate) fn tell_without_tls(&mut self, answer: &'static [u8]) {
        match self {
            Transport::Plain(_) => {}
            Transport::Tls(stream) => stream.tell_without_tls(answer),
        }
    }

    /// This node's side of a connection that it made to `endpoint`, `HOST:PORT`; if it is encrypted, that must have a
    /// certificate for its host.
    ///
    /// # Errors
    ///
    /// The host is no name that a certificate can have.
    pub(crate) fn connected(
        tcp: TcpStream,
        endpoint: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> io::Result<Transport> {
        let Some(config) = tls else { return Ok(Transport::Plain(tcp)) };
        let stream = TlsStream::connected(tcp, config, server_name(endpoint)?)?;
        Ok(Transport::Tls(Box::new(stream)))
    }

    /// Who is at the other end.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Transport::Plain(tcp) => tcp.peer_addr(),
            Transport::Tls(stream) => stream.peer_addr(),
        }
    }

    /// Whether it is encrypted, or will be once it is agreed on how.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// Whether it is encrypted and not agreed on yet how.
    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(stream) => stream.is_handshaking(),
        }
    }

    /// The user that the client's certificate stands for, once it is agreed on how bytes are encrypted; an empty name if no
    /// rule finds one in it, and `None` if the client has shown no certificate.
    pub(crate) fn certified(&self) -> Option<String> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => stream.certified(),
        }
    }

    /// Whether bytes that were taken wait for the socket to take them.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Bytes that it holds beyond the fixed size of a session.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Transport::Plain(_) => 0,
            Transport::Tls(stream) => stream.held_bytes(),
        }
    }

    /// Why it was ended, if the client did not speak TLS as it must.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => stream.fault(),
        }
    }

    /// Takes as much as there is room for, without waiting. Fails with [`io::ErrorKind::WouldBlock`] if that is
    /// nothing.
    pub(crate) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Plain(tcp) => tcp.try_write_vectored(slices),
            Transport::Tls(stream) => stream.try_write_vectored(slices),
        }
    }

    /// The same of one piece.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(tcp) => tcp.try_write(bytes),
            Transport::Tls(stream) => stream.try_write_vectored(&[IoSlice::new(bytes)]),
        }
    }

    /// Ready when some bytes may find room.
    pub(crate) fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(tcp) => tcp.poll_write_ready(cx),
            Transport::Tls(stream) => stream.poll_sent(cx),
        }
    }

    /// Ready when the socket has taken everything.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            Transport::Tls(stream) => stream.poll_sent(cx),
        }
    }

    /// Reads behind what `into` holds, at most to its capacity. Ready with 0 at the end.
    pub(crate) fn poll_read_onto(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(tcp) => loop {
                ready!(tcp.poll_read_ready(cx))?;
                match tcp.try_read_buf(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return Poll::Ready(read),
                }
            },
            Transport::Tls(stream) => stream.poll_read_onto(cx, into),
        }
    }

    /// Ends what is sent.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(tcp) => tcp.shutdown().await,
            Transport::Tls(stream) => std::future::poll_fn(|cx| stream.poll_shutdown(cx)).await,
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Transport::Tls(stream) => stream.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Transport::Tls(stream) => stream.poll_write_vectored(cx, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Transport::Tls(stream) => stream.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Transport::Tls(stream) => stream.poll_shutdown(cx),
        }
    }
}
