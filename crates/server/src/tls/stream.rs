//! A TLS session over a socket that does not block.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::node::config::ClientNameRule;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{Acceptance, fault, identity};

/// Encrypted bytes that are received by one system call.
const RECEIVE_BYTES: usize = 64 << 10;
/// The least room for what was received: smaller would cost a system call for each piece.
const LEAST_RECEIVE_BYTES: usize = 1 << 10;
/// Bytes that may wait encrypted for the socket.
const MOST_UNSENT_BYTES: usize = 64 << 10;
/// The most that the other end may send before it is agreed on how bytes are encrypted; hellos of clients have less than
/// 2 KiB, and chains of certificates a few.
const MOST_HANDSHAKE_BYTES: usize = 16 << 10;
/// What a request over HTTP without TLS begins with, at most so much of it.
const BEGINS_HTTP: [&[u8]; 10] =
    [b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "];
/// Slices of one write.
const SLICES: usize = 16;

thread_local! {
    /// Where encrypted bytes are received: they are decrypted before anybody else receives.
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A socket whose bytes are encrypted.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    session: Connection,
    /// Whom a client's certificate stands for.
    names: Option<Arc<[ClientNameRule]>>,
    /// What was received, and had no room when it was to be decrypted: less than [`RECEIVE_BYTES`].
    kept: Vec<u8>,
    /// What was received of the handshake, which the session may keep until that is complete.
    handshake_bytes: usize,
    fault: Option<&'static str>,
    /// What a client is answered, as it is, that speaks HTTP without TLS.
    told_without_tls: Option<&'static [u8]>,
    is_ended: bool,
}

impl TlsStream {
    /// A client that speaks HTTP without TLS is answered this.
    pub(super) fn tell_without_tls(&mut self, answer: &'static [u8]) {
        self.told_without_tls = Some(answer);
    }

    /// The socket.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The node's side of a connection that was accepted.
    pub(crate) fn accepted(tcp: TcpStream, with: Acceptance) -> io::Result<TlsStream> {
        let session = ServerConnection::new(with.config).map_err(io::Error::other)?;
        Ok(TlsStream { names: Some(with.names), ..TlsStream::over(tcp, session.into()) })
    }

    /// This node's side of a connection that it made to a server that must have a certificate for `name`.
    pub(crate) fn connected(
        tcp: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<TlsStream> {
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(TlsStream::over(tcp, session.into()))
    }

    fn over(tcp: TcpStream, mut session: Connection) -> TlsStream {
        session.set_buffer_limit(Some(MOST_UNSENT_BYTES));
        TlsStream {
            tcp,
            session,
            names: None,
            kept: Vec::new(),
            handshake_bytes: 0,
            fault: None,
            told_without_tls: None,
            is_ended: false,
        }
    }

    pub(super) fn certified(&self) -> Option<String> {
        let (names, chain) = (self.names.as_ref()?, self.session.peer_certificates()?);
        Some(identity::user(chain.first()?, names).unwrap_or_default())
    }

    /// Who is at the other end.
    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.session.wants_write()
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.kept.capacity() + self.handshake_bytes + if self.has_unsent() { MOST_UNSENT_BYTES } else { 0 }
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Lets the socket take what waits, without waiting. Fails with [`io::ErrorKind::WouldBlock`] if it does not take
    /// all.
    fn try_send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut Unblocking(&self.tcp))?;
        }
        Ok(())
    }

    /// The same, and what does not fit waits.
    fn send_some(&mut self) -> io::Result<()> {
        match self.try_send() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            ready!(self.tcp.poll_write_ready(cx))?;
            self.send_some()?;
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut copies = [IoSlice::new(&[]); SLICES];
        let count = slices.len().min(SLICES);
        copies[..count].copy_from_slice(&slices[..count]);
        let mut rest = &mut copies[..count];
        let mut taken = 0;
        while !rest.is_empty() {
            match self.try_send() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            let bytes = self.session.writer().write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, bytes);
            if bytes == 0 {
                break;
            }
            taken += bytes;
        }
        self.send_some()?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    pub(super) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        loop {
            ready!(self.poll_sent(cx))?;
            match self.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// Reads into `buf`; nothing is read at the end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.take_decrypted(buf)?;
        while buf.filled().len() == before && !self.is_ended {
            ready!(self.poll_receive(cx, buf.remaining(), |stream| stream.take_decrypted(buf)))?;
        }
        Poll::Ready(Ok(()))
    }

    /// The same behind what `into` holds, at most to its capacity; says how much.
    pub(super) fn poll_read_onto(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let before = into.len();
        self.take_decrypted_onto(into)?;
        while into.len() == before && !self.is_ended {
            let room = into.capacity() - into.len();
            ready!(self.poll_receive(cx, room, |stream| stream.take_decrypted_onto(into)))?;
        }
        Poll::Ready(Ok(into.len() - before))
    }

    /// Moves bytes that are decrypted already.
    fn take_decrypted(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        while buf.remaining() > 0 {
            let read = self.session.reader().read(buf.initialize_unfilled());
            match self.taken(read)? {
                0 => break,
                bytes => buf.advance(bytes),
            }
        }
        Ok(())
    }

    fn take_decrypted_onto(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let room = into.capacity() - into.len();
        let read = self.session.reader().take(room as u64).read_to_end(into);
        if into.len() < into.capacity() {
            self.taken(read)?;
        }
        Ok(())
    }

    /// What a read says; nothing if there is nothing at present, or nothing will come any more.
    fn taken(&mut self, read: io::Result<usize>) -> io::Result<usize> {
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            // The client closed the socket without saying so before: as with a plain one.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_ended = true;
                Ok(0)
            }
            Err(error) => Err(error),
            Ok(bytes) => {
                self.is_ended |= bytes == 0;
                Ok(bytes)
            }
        }
    }

    /// Receives and decrypts; `take` moves what was decrypted on, so that there is room for more.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: impl FnMut(&mut TlsStream) -> io::Result<()>,
    ) -> Poll<io::Result<()>> {
        let kept = std::mem::take(&mut self.kept);
        if !kept.is_empty() {
            return Poll::Ready(self.decrypt(&kept, take));
        }
        RECEIVED.with_borrow_mut(|received| {
            if received.is_empty() {
                received.resize(RECEIVE_BYTES, 0);
            }
            let most = room.clamp(LEAST_RECEIVE_BYTES, RECEIVE_BYTES);
            let mut encrypted = ReadBuf::new(&mut received[..most]);
            ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut encrypted))?;
            if encrypted.filled().is_empty() {
                // The session has to know that nothing more comes.
                self.session.read_tls(&mut io::empty())?;
                self.is_ended = true;
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(self.decrypt(encrypted.filled(), take))
        })
    }

    fn decrypt(
        &mut self,
        encrypted: &[u8],
        mut take: impl FnMut(&mut TlsStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = encrypted;
        while !rest.is_empty() {
            let left = rest;
            match self.session.read_tls(&mut rest) {
                // The other end has said that nothing follows: what does is ignored (RFC 8446, 6.1), and never taken.
                Ok(0) => break,
                Ok(_) => {}
                // A message of the handshake that is longer than any, also behind the handshake: it never becomes whole.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.fault = Some("it sent a message of the handshake that is too long");
                    return Err(error);
                }
                // Who reads has no room for what is decrypted already.
                Err(_) => {
                    self.kept = left.to_vec();
                    break;
                }
            }
            if let Err(error) = self.session.process_new_packets() {
                self.fault = Some(fault::of(&error));
                let is_first = self.handshake_bytes == 0 && self.session.is_handshaking();
                match self.told_without_tls.filter(|_| is_first && is_http(encrypted)) {
                    Some(answer) => self.tell_in_clear(answer),
                    // An alert tells the client why.
                    None => drop(self.try_send()),
                }
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.note_handshake(left.len() - rest.len())?;
            take(self)?;
        }
        self.send_some()
    }

    /// Answers a client that speaks no TLS, if its socket takes that now. What it has sent is taken first, so that the system
    /// does not drop the answer.
    fn tell_in_clear(&self, answer: &[u8]) {
        let (mut rest, mut taken) = ([0; 4 << 10], 0);
        while let Ok(bytes @ 1..) = self.tcp.try_read(&mut rest)
            && taken < MOST_HANDSHAKE_BYTES
        {
            taken += bytes;
        }
        let _ = self.tcp.try_write(answer);
    }

    /// Bytes were received; fails if they are too many for a handshake that is not complete yet.
    fn note_handshake(&mut self, bytes: usize) -> io::Result<()> {
        if !self.session.is_handshaking() {
            self.handshake_bytes = 0;
            return Ok(());
        }
        self.handshake_bytes += bytes;
        if self.handshake_bytes > MOST_HANDSHAKE_BYTES {
            let fault = "its part of the handshake has more than 16 KiB";
            self.fault = Some(fault);
            return Err(io::Error::new(io::ErrorKind::InvalidData, fault));
        }
        Ok(())
    }

    /// Ends what is sent. The client is told before that nothing follows, if its socket takes that now: one that does not
    /// read is not waited for.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.send_close_notify();
        let _ = self.try_send();
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Whether bytes begin a request over HTTP. No record of TLS begins with a letter.
fn is_http(bytes: &[u8]) -> bool {
    BEGINS_HTTP.iter().any(|begin| bytes.starts_with(begin))
}

/// Writes what the socket takes at once.
struct Unblocking<'s>(&'s TcpStream);

impl Write for Unblocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
