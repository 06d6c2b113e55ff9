//! Certificates and keys in PEM.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::node::config::ClientAuth;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::client_cas::{ClientCas, NoClientCas};
use super::identity;
use super::spoken::Spoken;

/// Certificates that are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Nothing in the file is a certificate.
    #[error("there is no certificate in it: it must hold lines like -----BEGIN CERTIFICATE-----")]
    None,
    /// The certificate has no extensions.
    #[error(
        "it is a certificate of X.509 version 1, which TLS does not accept: make one of version 3, with extensions"
    )]
    Version1,
    /// The key needs a password.
    #[error(
        "it is encrypted with a password, which a node cannot be given: write it without one (openssl pkey -in \
         ENCRYPTED.key -out NODE.key), readable by the node's user alone"
    )]
    Encrypted,
    /// None of the certificates in the place of CAs is one.
    #[error(
        "none of its certificates is one of a CA (basicConstraints with CA:TRUE): put that of the CA into it which signed \
         them"
    )]
    NoCa,
    /// Nothing in the file is a key.
    #[error(
        "there is no private key in it: it must hold lines like -----BEGIN PRIVATE KEY-----, -----BEGIN RSA PRIVATE KEY----- \
         or -----BEGIN EC PRIVATE KEY-----"
    )]
    NoKey,
    /// The file ends within a block of PEM.
    #[error(
        "it ends before the line -----END {0}-----: it was cut, or is still being written; write it again, and put it into its \
         place by renaming"
    )]
    Cut(String),
    /// A block of PEM is damaged.
    #[error("it is damaged: {0}; write it again")]
    Damaged(&'static str),
    /// The key is one that TLS is not spoken with here.
    #[error(
        "it cannot be used for TLS{0}: make one of ECDSA (P-256 or P-384) or of RSA with 2,048 to 4,096 bits (openssl ecparam \
         -name prime256v1 -genkey -noout, openssl genrsa 3072), and have the CA issue a certificate for it"
    )]
    Unsupported(String),
    /// Something in the file is no certificate or no key.
    #[error("it holds something that cannot be used: {0}")]
    Invalid(String),
}

/// Which of certificate and key is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The certificates.
    #[error("the certificate: {0}")]
    Certificate(CertificateError),
    /// The key.
    #[error("the key: {0}")]
    Key(CertificateError),
    /// Each is sound, and the one is not the other's.
    #[error("the key does not belong to the first certificate of the file: {0}")]
    Mismatch(String),
}

/// The certificates of a text in PEM, at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(CertificateError::None),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(error, CertificateError::None)),
    }
}

/// What is wrong with a text that is no PEM, in words that do not need to know what a parser looks for. `none` is for one
/// in which what is looked for is not.
fn unreadable(error: pem::Error, none: CertificateError) -> CertificateError {
    match error {
        pem::Error::NoItemsFound => none,
        pem::Error::MissingSectionEnd { end_marker } => {
            CertificateError::Cut(String::from_utf8_lossy(&end_marker).trim_end().to_owned())
        }
        pem::Error::IllegalSectionStart { .. } => {
            CertificateError::Damaged("a line with -----BEGIN does not end with -----")
        }
        pem::Error::Base64Decode(_) => CertificateError::Damaged(
            "between its lines -----BEGIN and -----END are characters that are not Base64",
        ),
        error => invalid(error),
    }
}

fn invalid(error: impl fmt::Display) -> CertificateError {
    CertificateError::Invalid(error.to_string())
}

/// The key of a text in PEM: PKCS#8, PKCS#1 or SEC1, not encrypted.
fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, CertificateError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match is_encrypted(pem) {
        true => CertificateError::Encrypted,
        false => unreadable(error, CertificateError::NoKey),
    })
}

/// Whether a text in PEM has a key that needs a password, in PKCS#8 or as OpenSSL wrote them before.
fn is_encrypted(pem: &[u8]) -> bool {
    let marks: [&[u8]; 2] = [b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED"];
    pem.split(|byte| *byte == b'\n').any(|line| marks.iter().any(|mark| line.starts_with(mark)))
}

/// Whether a server with this key can agree with some client on what is spoken.
pub(super) fn can_serve(key: &[u8], spoken: &Spoken) -> Result<bool, PairError> {
    let key = self::key(key).map_err(PairError::Key)?;
    let loaded = spoken.provider.key_provider.load_private_key(key);
    Ok(spoken.works_with(&*loaded.map_err(|error| PairError::Key(invalid(error)))?))
}

/// What a server speaks TLS with.
pub(super) fn server_config(
    certificate: &[u8],
    key: &[u8],
    clients: Arc<dyn ClientCertVerifier>,
    spoken: &Spoken,
) -> Result<Arc<ServerConfig>, PairError> {
    let chain = certificates(certificate).map_err(PairError::Certificate)?;
    let key = self::key(key).map_err(PairError::Key)?;
    let first = chain.first().cloned();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&spoken.provider))
        .with_protocol_versions(spoken.versions)
        .map_err(|error| PairError::Key(invalid(error)))?;
    let config = builder.with_client_cert_verifier(clients).with_single_cert(chain, key);
    let mut config = config.map_err(|error| refused(&error, first.as_ref()))?;
    // Sessions are taken up again without a table that many clients could fill.
    config.ticketer = ring::Ticketer::new().map_err(|error| PairError::Key(invalid(error)))?;
    config.send_tls13_tickets = 1;
    config.ignore_client_order = spoken.honors_order;
    Ok(Arc::new(config))
}

/// Why a pair is refused whose first certificate this is.
fn refused(error: &rustls::Error, first: Option<&CertificateDer<'_>>) -> PairError {
    match error {
        rustls::Error::InconsistentKeys(_) => PairError::Mismatch(error.to_string()),
        rustls::Error::InvalidCertificate(_) if first.is_some_and(identity::is_version_1) => {
            PairError::Certificate(CertificateError::Version1)
        }
        rustls::Error::InvalidCertificate(_) => PairError::Certificate(invalid(error)),
        // The provider of keys says of each that it cannot load the same words, with names of its own.
        rustls::Error::General(_) => {
            let of_certificate = first.and_then(identity::key);
            let told = of_certificate.map(|key| format!(" (the key of the certificate is {key})"));
            PairError::Key(CertificateError::Unsupported(told.unwrap_or_default()))
        }
        error => PairError::Key(invalid(error)),
    }
}

/// Whether a chain leads from the first of these certificates, through the others, to one of these. What else is wrong with it
/// is not looked at.
pub(super) fn is_of(chain: &[CertificateDer<'_>], cas: &[CertificateDer<'static>], now_s: u64) -> bool {
    let Some((first, between)) = chain.split_first() else { return false };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(cas.iter().cloned());
    let Ok(parsed) = ParsedCertificate::try_from(first) else { return false };
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s));
    let verified = verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, now, algorithms);
    // A chain that has ended, or is for other uses, is told as that; one that webpki does not go is none.
    use rustls::CertificateError::{
        Expired, ExpiredContext, InvalidPurpose, InvalidPurposeContext, NotValidYet, NotValidYetContext,
    };
    let of_chain = |error: rustls::Error| {
        let rustls::Error::InvalidCertificate(what) = error else { return false };
        let is_other =
            matches!(what, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. });
        is_other || matches!(what, InvalidPurpose | InvalidPurposeContext { .. })
    };
    verified.map_or_else(of_chain, |()| true)
}

/// Whether the first certificate of a text in PEM is for a key with this public half (SubjectPublicKeyInfo, in DER).
///
/// # Errors
///
/// There is no certificate in it.
pub fn is_for_key(pem: &[u8], public: &[u8]) -> Result<bool, CertificateError> {
    Ok(certificates(pem)?.first().is_some_and(|first| identity::has_public_key(first, public)))
}

/// Verifies the certificates of clients, which one of these CAs must have signed that has not expired. With
/// `ClientAuth::Off` the node asks no client for one.
pub(super) fn client_verifier(
    cas: Option<&[CertificateDer<'static>]>,
    auth: ClientAuth,
) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
    let (Some(cas), ClientAuth::Optional | ClientAuth::Required) = (cas, auth) else {
        return Ok(WebPkiClientVerifier::no_client_auth());
    };
    if cas.iter().all(|ca| identity::leaf(ca).is_some()) {
        return Err(CertificateError::NoCa);
    }
    Ok(Arc::new(ClientCas::new(cas, auth).map_err(invalid)?))
}

/// Refuses each certificate of a client: which of them count is not known.
pub(super) fn no_client(auth: ClientAuth) -> Arc<dyn ClientCertVerifier> {
    match auth {
        ClientAuth::Off => WebPkiClientVerifier::no_client_auth(),
        ClientAuth::Optional | ClientAuth::Required => Arc::new(NoClientCas::new(auth)),
    }
}

/// The CAs of a text in PEM, at least one. webpki takes any certificate for the end of a chain, so that the holder of its
/// key can make others: one that a CA has signed for something else is left out. One that was signed with its own key
/// stays: it stands for the server that has it.
pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        if identity::leaf(&certificate).is_none_or(|leaf| leaf.issuer.is_none()) {
            roots.add(certificate).map_err(invalid)?;
        }
    }
    if roots.is_empty() { Err(CertificateError::NoCa) } else { Ok(roots) }
}

/// What a client speaks TLS with: it accepts servers with a certificate of `roots`, and shows `own`, a chain and
/// its key, to servers that ask for one.
pub(crate) fn client_config(
    roots: RootCertStore,
    own: Option<(&[u8], &[u8])>,
    spoken: &Spoken,
) -> Result<Arc<ClientConfig>, PairError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(&spoken.provider))
        .with_protocol_versions(spoken.versions)
        .map_err(|error| PairError::Key(invalid(error)))?
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate).map_err(PairError::Certificate)?;
            let key = self::key(key).map_err(PairError::Key)?;
            let first = chain.first().cloned();
            builder.with_client_auth_cert(chain, key).map_err(|error| refused(&error, first.as_ref()))?
        }
    };
    Ok(Arc::new(config))
}
