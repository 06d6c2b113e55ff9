//! Which servers the SDK trusts over TLS, and which certificates log in; each refusal by its reason.
//!
//! The SDK tells an application that it could not connect, not why. So the reason is what the other side of the handshake
//! hears: a server of the test's own that says nothing, or the node by a client of the test's own.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use couchbase::authenticator::{Authenticator, CertificateAuthenticator, PasswordAuthenticator};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::support::*;

/// What is said of a certificate that another CA has signed.
const ANOTHER_CA: AlertDescription = AlertDescription::UnknownCA;

/// Certificate chain and key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// What the side that is shown a certificate, or shows one, learns of the other one.
#[derive(Debug, PartialEq)]
enum Heard {
    /// It goes on behind the handshake.
    Bytes,
    Refused(Error),
    /// The connection ended without a word.
    End(String),
}

impl Heard {
    fn alert(alert: AlertDescription) -> Heard {
        Heard::Refused(Error::AlertReceived(alert))
    }

    fn of(error: io::Error) -> Heard {
        let reason = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        reason.map_or_else(|| Heard::End(error.to_string()), |reason| Heard::Refused(reason.clone()))
    }

    /// With TLS 1.3 what the other side thinks of a certificate comes behind the handshake.
    async fn from(mut stream: impl AsyncRead + Unpin) -> Heard {
        match stream.read(&mut [0; 1]).await {
            Ok(0) => Heard::End("the end".to_owned()),
            Ok(_) => Heard::Bytes,
            Err(error) => Heard::of(error),
        }
    }
}

/// Whether there is TLS: without it there is nothing to trust.
fn is_encrypted() -> bool {
    std::env::var_os("STAVE_CA").is_some()
}

fn identity(chain: &Path, key: &Path) -> Identity {
    let chain = CertificateDer::pem_file_iter(chain)
        .expect("a file")
        .collect::<Result<_, _>>()
        .expect("certificates");
    (chain, PrivateKeyDer::from_pem_file(key).expect("a key"))
}

/// The administrator's certificate, as `stave certs client` writes it into this variable's folder.
fn certified(variable: &str) -> Identity {
    let folder = PathBuf::from(env(variable));
    identity(&folder.join("client.pem"), &folder.join("client.key"))
}

/// A certificate of the node's CA that has ended.
fn expired() -> Identity {
    let both = PathBuf::from(env("STAVE_EXPIRED"));
    identity(&both, &both)
}

/// The node's own certificate, which is for 127.0.0.1 alone.
fn of_node() -> Identity {
    let folder = PathBuf::from(env("STAVE_CA")).with_file_name("");
    identity(&folder.join("node.pem"), &folder.join("node.key"))
}

fn password() -> Authenticator {
    PasswordAuthenticator::new(env("STAVE_USER"), env("STAVE_PASSWORD")).into()
}

fn by_certificate((chain, key): Identity) -> Authenticator {
    CertificateAuthenticator::new(chain, key).into()
}

fn roots(ca: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(env(ca)).expect("a certificate")).expect("a CA");
    roots
}

/// A server that shows `own`, asks clients for a certificate of the node's CA if `wants_certificate`, and answers
/// nothing. What it hears of each client, in their order.
async fn mute_server(own: Identity, wants_certificate: bool) -> (SocketAddr, mpsc::UnboundedReceiver<Heard>) {
    let provider = Arc::new(default_provider());
    let config =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let config = config.expect("versions");
    let config = if wants_certificate {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots("STAVE_CA")), provider);
        config.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        config.with_no_client_auth()
    };
    let acceptor =
        TlsAcceptor::from(Arc::new(config.with_single_cert(own.0, own.1).expect("certificate and key")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (hears, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (acceptor, hears) = (acceptor.clone(), hears.clone());
            tokio::spawn(async move {
                let what = match acceptor.accept(connection).await {
                    Ok(stream) => Heard::from(stream).await,
                    Err(error) => Heard::of(error),
                };
                // The test may be over.
                let _ = hears.send(what);
            });
        }
    });
    (address, heard)
}

/// What such a server hears first of the SDK, which is to reach it by the name `host`.
async fn first_heard(
    own: Identity,
    wants_certificate: bool,
    host: &str,
    ca: &str,
    login: Authenticator,
) -> Heard {
    let (address, mut heard) = mute_server(own, wants_certificate).await;
    let (conn, ca) = (format!("couchbases://{host}:{}", address.port()), env(ca));
    tokio::select! {
        connected = connect_as(&conn, Some(&ca), login) => {
            panic!("it connected to a server that answers nothing: {:?}", connected.err())
        }
        heard = heard.recv() => heard.expect("the server runs"),
    }
}

/// The SDK does not write, whether it says so or tries until the caller gives up.
async fn assert_kept_out(conn: &str, ca: &str, login: Authenticator, key: &str) {
    let write = async {
        let other = connect_as(conn, Some(&env(ca)), login).await?;
        other.bucket(env("STAVE_BUCKET")).default_collection().upsert(key, 1, None).await
    };
    if let Ok(result) = timeout(SHORT * 5, write).await {
        assert!(result.is_err(), "it wrote to {conn}");
    }
}

/// What the node says to a client that shows this certificate.
async fn said_by_node((chain, key): Identity) -> Heard {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots("STAVE_CA"));
    let config = config.with_client_auth_cert(chain, key).expect("certificate and key");
    let conn = env("STAVE_CONN");
    let address = conn.rsplit('/').next().expect("an address");
    let connection = TcpStream::connect(address).await.expect("the node listens");
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    match TlsConnector::from(Arc::new(config)).connect(name, connection).await {
        Ok(mut stream) => {
            // No-op: a node that lets the client in answers it.
            let mut request = [0; 24];
            (request[0], request[1]) = (0x80, 0x0a);
            // A node that refuses may have ended the connection.
            let _ = stream.write_all(&request).await;
            Heard::from(stream).await
        }
        Err(error) => Heard::of(error),
    }
}

#[test]
fn a_node_whose_certificate_another_ca_has_signed_is_not_trusted() {
    run(async |_, key| {
        if !is_encrypted() {
            return;
        }
        let why = first_heard(of_node(), false, "127.0.0.1", "STAVE_STRANGE_CA", password()).await;
        assert_eq!(why, Heard::alert(ANOTHER_CA));
        assert_kept_out(&env("STAVE_CONN"), "STAVE_STRANGE_CA", password(), &key).await;
    });
}

/// The same certificate at its own name is trusted.
#[test]
fn a_name_that_is_not_in_the_certificate_is_not_trusted() {
    run(async |_, key| {
        if !is_encrypted() {
            return;
        }
        let heard = async |host| first_heard(of_node(), false, host, "STAVE_CA", password()).await;
        assert_eq!(heard("127.0.0.1").await, Heard::Bytes);
        assert_eq!(heard("localhost").await, Heard::alert(AlertDescription::BadCertificate));
        let conn = env("STAVE_CONN");
        let port = conn.rsplit(':').next().expect("a port");
        assert_kept_out(&format!("couchbases://localhost:{port}"), "STAVE_CA", password(), &key).await;
    });
}

#[test]
fn an_expired_certificate_is_not_trusted() {
    run(async |_, _| {
        if !is_encrypted() {
            return;
        }
        // It has both names.
        for host in ["127.0.0.1", "localhost"] {
            let why = first_heard(expired(), false, host, "STAVE_CA", password()).await;
            assert_eq!(why, Heard::alert(AlertDescription::CertificateExpired), "{host}");
        }
    });
}

#[test]
fn a_certificate_takes_the_place_of_a_password() {
    run(async |_, key| {
        if !is_encrypted() {
            return;
        }
        let login = by_certificate(certified("STAVE_CLIENT"));
        let own = connect_as(&env("STAVE_CONN"), Some(&env("STAVE_CA")), login).await.expect("it logs in");
        let bucket = own.bucket(env("STAVE_BUCKET"));
        wait_until_ready(&bucket).await;
        let documents = bucket.default_collection();
        documents.upsert(&key, 1, None).await.expect("it writes");
        assert_eq!(content(&documents, &key).await, 1);
        assert_eq!(said_by_node(certified("STAVE_CLIENT")).await, Heard::Bytes);
    });
}

#[test]
fn a_certificate_of_another_ca_or_one_that_has_ended_does_not() {
    run(async |_, key| {
        if !is_encrypted() {
            return;
        }
        let conn = env("STAVE_CONN");
        for (shown, why) in [
            (certified("STAVE_STRANGE_CLIENT"), ANOTHER_CA),
            (expired(), AlertDescription::CertificateExpired),
        ] {
            let again = (shown.0.clone(), shown.1.clone_key());
            assert_eq!(said_by_node(again).await, Heard::alert(why));
            assert_kept_out(&conn, "STAVE_CA", by_certificate(shown), &key).await;
        }
    });
}

/// A server that asks for a certificate is shown the SDK's, and none if the SDK has a password.
#[test]
fn the_sdk_shows_its_certificate() {
    run(async |_, _| {
        if !is_encrypted() {
            return;
        }
        let heard = async |login| first_heard(of_node(), true, "127.0.0.1", "STAVE_CA", login).await;
        assert_eq!(heard(by_certificate(certified("STAVE_CLIENT"))).await, Heard::Bytes);
        let strange = heard(by_certificate(certified("STAVE_STRANGE_CLIENT"))).await;
        assert_eq!(strange, Heard::Refused(CertificateError::UnknownIssuer.into()));
        assert_eq!(heard(password()).await, Heard::Refused(Error::NoCertificatesPresented));
    });
}
