//! TLS of the client's end: the CAs that it trusts, and a stream that is encrypted or not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, StreamOwned};
use server::tls::server_name;

use crate::wrong_arguments::{WrongArguments, cannot_read};

/// How a node is spoken with by TLS.
#[derive(Clone, Debug, Default, Args)]
pub struct ClientTlsFlags {
    /// Speak TLS, with servers whose certificate one of these CAs has signed. The usual ports are then 11207 for KV and 18091 for HTTP
    #[arg(long, value_name = "FILE.pem", env = "STAVE_CLIENT_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate that is shown to servers which ask for one
    #[arg(long, value_name = "FILE.pem", env = "STAVE_CLIENT_TLS_CERT", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE.pem", env = "STAVE_CLIENT_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl ClientTlsFlags {
    /// What the files of these flags say; `None` if the client is to speak without TLS.
    pub fn trust(&self) -> anyhow::Result<Option<Trust>> {
        let Some(ca) = &self.tls_ca else { return Ok(None) };
        let read = |file: &Path| std::fs::read(file).map_err(|error| cannot_read(file, error));
        let own = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let own = own.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        let config = server::tls::client_of(&read(ca)?, own).map_err(|why| {
            let files = [Some(ca), self.tls_cert.as_ref(), self.tls_key.as_ref()];
            let files: Vec<String> =
                files.into_iter().flatten().map(|file| file.display().to_string()).collect();
            anyhow!(WrongArguments(format!("{}: {why}", files.join(", "))))
        })?;
        Ok(Some(Trust { config, shows_certificate: own.is_some() }))
    }
}

/// The CAs that a client trusts, and the certificate that it shows.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    shows_certificate: bool,
}

impl Trust {
    /// These CAs are trusted, and no certificate is shown.
    pub fn of_ca(pem: &[u8]) -> anyhow::Result<Trust> {
        let config =
            server::tls::client_of(pem, None).map_err(|why| anyhow!(WrongArguments(why.to_string())))?;
        Ok(Trust { config, shows_certificate: false })
    }

    /// Whether a server can know by a certificate who we are.
    pub fn shows_certificate(&self) -> bool {
        self.shows_certificate
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Channel {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted, with a server that has shown a certificate for its address.
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Channel {
    /// Agrees on encryption, until a moment at most, if there are CAs to trust.
    ///
    /// # Errors
    ///
    /// Why TLS cannot be spoken, with what to do; or the socket's error; `TimedOut` at that moment.
    pub fn open(socket: TcpStream, trust: Option<&Trust>, addr: &str, until: Instant) -> Result<Channel> {
        let Some(Trust { config, .. }) = trust else { return Ok(Channel::Plain(socket)) };
        let name = server_name(addr)?;
        let host = name.to_str().into_owned();
        let session = ClientConnection::new(Arc::clone(config), name).map_err(std::io::Error::other)?;
        let mut stream = Box::new(StreamOwned::new(session, socket));
        while stream.conn.is_handshaking() || stream.conn.wants_write() {
            step(&mut stream.conn, &mut stream.sock, until).map_err(|error| explained(error, &host))?;
        }
        Ok(Channel::Encrypted(stream))
    }

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Channel::Plain(socket) => socket,
            Channel::Encrypted(stream) => &stream.sock,
        }
    }

    /// Whether something was written that the socket has not taken yet.
    pub fn wants_write(&self) -> bool {
        match self {
            Channel::Plain(_) => false,
            Channel::Encrypted(stream) => stream.conn.wants_write(),
        }
    }

    /// Whether decrypted bytes wait to be read.
    pub fn has_more(&mut self) -> bool {
        match self {
            Channel::Plain(_) => false,
            Channel::Encrypted(stream) => {
                let state = stream.conn.process_new_packets();
                state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
            }
        }
    }

    /// How long a read waits.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        self.socket().set_read_timeout(limit)
    }

    /// How long a write waits.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        self.socket().set_write_timeout(limit)
    }
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        match self {
            Channel::Plain(socket) => socket.read(into),
            Channel::Encrypted(stream) => {
                stream.read(into).map_err(|error| match error.kind() {
                    // With TLS 1.3 a server refuses a client when the client believes to be done.
                    ErrorKind::InvalidData => explained(error, "it"),
                    ErrorKind::UnexpectedEof => {
                        let what = "the server ended the connection in the middle of its answer, or speaks another \
                                    protocol there";
                        std::io::Error::new(ErrorKind::UnexpectedEof, what)
                    }
                    _ => error,
                })
            }
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Channel::Plain(socket) => socket.write(bytes),
            Channel::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Channel::Plain(socket) => socket.flush(),
            Channel::Encrypted(stream) => stream.flush(),
        }
    }
}

/// Sends or receives once, as the handshake needs it.
fn step(session: &mut ClientConnection, socket: &mut TcpStream, until: Instant) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    socket.set_read_timeout(Some(left))?;
    socket.set_write_timeout(Some(left))?;
    let done = if session.wants_write() {
        session.write_tls(socket).map(drop)
    } else {
        session
            .read_tls(socket)
            .and_then(|read| if read == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    };
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
        Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
        _ => {}
    }
    session.process_new_packets().map(drop).map_err(|fault| {
        // The server is told why, if it still listens.
        let _ = session.write_tls(socket);
        std::io::Error::new(ErrorKind::InvalidData, fault)
    })
}

/// A failed handshake, with what to do about it; another failure as it is.
fn explained(error: std::io::Error, host: &str) -> std::io::Error {
    let kind = error.kind();
    if matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) {
        let why = "the server ended the connection before TLS was agreed on; for TLS the usual ports are 11207 for KV \
                   and 18091 for HTTP";
        return std::io::Error::new(kind, why);
    }
    let Some(fault) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return error;
    };
    let advice = match fault {
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "no CA of --tls-ca has signed its certificate".to_owned(),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("its certificate is not for {host}: name it with --addr as the certificate does"),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired: renew it there, or look at this machine's clock".to_owned(),
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS there; the usual ports are 11207 for KV and 18091 for HTTP".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it asks for a certificate: give --tls-cert and --tls-key".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "it says that the certificate of --tls-cert has expired".to_owned()
        }
        rustls::Error::AlertReceived(_) => {
            "does it trust the CA of the certificate in --tls-cert? Its log may say more".to_owned()
        }
        _ => "look at the log of the server".to_owned(),
    };
    std::io::Error::new(kind, format!("{fault}: {advice}"))
}
