//! Bodies for fuzzers: the files of certificate, key and CAs are taken or refused with a reason whatever they hold, and
//! records of a client that has not logged in end its session or are followed by others.

use std::io::Read;
use std::sync::Arc;

use ::node::config::{ClientAuth, ClientNameRule};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

use super::certificate::{PairError, certificates, client_verifier, server_config};
use super::{Spoken, client_of, fault, identity};

/// The most that the node answers before a session is agreed on: its certificate and little beside it.
const MOST_ANSWER_BYTES: usize = 16 << 10;
/// More than a session takes at once.
const MOST_TAKEN_BYTES: usize = 8 << 10;

/// Any bytes as all that files in PEM are read for, and as a certificate as it is sent.
pub fn fuzz_pem(bytes: &[u8]) {
    let (known, spoken) = (certificates(bytes).ok(), Spoken::any());
    for auth in [ClientAuth::Off, ClientAuth::Optional, ClientAuth::Required] {
        if let Ok(clients) = client_verifier(known.as_deref(), auth) {
            let _ = server_config(bytes, bytes, clients, &spoken);
        }
    }
    let _ = client_of(bytes, Some((bytes, bytes)));
    let rules = ["subject.cn", "san.dnsname", "san.uri prefix=urn:", "san.email delimiters=@."];
    let rules: Vec<ClientNameRule> = rules.iter().filter_map(|rule| rule.parse().ok()).collect();
    let look = |certificate: &CertificateDer<'_>| {
        let _ = (identity::user(certificate, &rules), identity::is_version_1(certificate));
        let _ = (identity::names(certificate), identity::is_for(certificate, "localhost"));
    };
    let chain = certificates(bytes).unwrap_or_default();
    chain.iter().for_each(look);
    look(&CertificateDer::from(bytes));
    let _ = (identity::valid_until_s(&chain), identity::ends(&chain));
    let _ = identity::leaves_out(&chain, identity::Purpose::Client);
}

/// A node and a client that can agree on a session.
pub struct Handshakes {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Handshakes {
    /// Both with this certificate, which is for `localhost`, and its key; each takes certificates that a CA has signed. All is
    /// PEM.
    ///
    /// # Errors
    ///
    /// Certificate and key do not go together, or there is no CA.
    pub fn new(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<Handshakes, PairError> {
        let cas = certificates(ca).map_err(PairError::Certificate)?;
        // Certificates of clients are looked at, too.
        let clients = client_verifier(Some(&cas), ClientAuth::Optional).map_err(PairError::Certificate)?;
        let server = server_config(certificate, key, clients, &Spoken::any())?;
        Ok(Handshakes { server, client: client_of(ca, Some((certificate, key)))? })
    }

    /// Any bytes as the first records of a client, in the place of what it sends behind its hello, as changes of that, and
    /// behind the end of its session: the node is never told a byte of a client that it has not agreed with, never answers
    /// much, and comes to an end.
    pub fn fuzz(&self, bytes: &[u8]) {
        answer(&mut self.server(), bytes);
        answer(&mut self.begun().0, bytes);
        let (mut session, _, mut second) = self.begun();
        // A place in two bytes, and what is changed there.
        for change in bytes.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
            if let Some(byte) = second.get_mut(at) {
                *byte ^= change[2];
            }
        }
        answer(&mut session, &second);
        let (mut session, mut client, second) = self.begun();
        answer(&mut session, &second);
        assert!(!session.is_handshaking(), "both agree on a session");
        client.send_close_notify();
        answer(&mut session, &[&sent(&mut client), bytes, &[0; MOST_TAKEN_BYTES]].concat());
    }

    fn server(&self) -> Connection {
        ServerConnection::new(Arc::clone(&self.server)).expect("a session").into()
    }

    fn client(&self) -> Connection {
        let name = ServerName::try_from("localhost").expect("a name");
        ClientConnection::new(Arc::clone(&self.client), name).expect("a session").into()
    }

    /// A session that has answered a hello, its client, and what that sends next.
    fn begun(&self) -> (Connection, Connection, Vec<u8>) {
        let (mut session, mut client) = (self.server(), self.client());
        let told = answer(&mut session, &sent(&mut client));
        let mut told = &told[..];
        while !told.is_empty() {
            client.read_tls(&mut told).expect("there is room");
            client.process_new_packets().expect("the client takes the node's certificate");
        }
        let second = sent(&mut client);
        (session, client, second)
    }

    /// Whether the node goes on with a client that says this first.
    pub fn is_taken(&self, hello: &[u8]) -> bool {
        // An answer that begins with a record of the handshake (RFC 8446, 5.1).
        answer(&mut self.server(), hello).first() == Some(&22)
    }
}

/// What a side has to send.
fn sent(session: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).expect("there is room");
    }
    bytes
}

/// What the node answers to bytes, as its streams do.
fn answer(session: &mut Connection, bytes: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    // Of what follows the end of a session nothing is taken.
    while !rest.is_empty() && session.read_tls(&mut rest).is_ok_and(|taken| taken > 0) {
        if let Err(error) = session.process_new_packets() {
            assert!(!fault::of(&error).is_empty());
            break;
        }
        let mut read = Vec::new();
        let _ = session.reader().read_to_end(&mut read);
        assert!(read.is_empty() || !session.is_handshaking(), "a byte of an unknown client");
    }
    let told = sent(session);
    assert!(told.len() <= MOST_ANSWER_BYTES, "{} bytes", told.len());
    told
}

#[cfg(test)]
mod tests {
    use base::fuzz::replay;

    use super::*;

    #[test]
    fn damaged_certificates_and_keys_never_panic() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let both = certificate.pem() + &key.serialize_pem();
        replay(4, 1_000, &[both.into_bytes(), certificate.der().to_vec()], fuzz_pem);
    }
}
