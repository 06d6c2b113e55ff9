//! The CAs that sign for clients.
//!
//! *Guarantee:* a client's certificate is accepted only if a chain leads from it to a CA that is valid at the moment.
//! webpki, which rustls verifies with, looks at the ends of a chain's certificates and never at the end of a CA (record 201).

use std::fmt;
use std::sync::Arc;

use ::node::config::ClientAuth;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use super::identity;

/// Verifies certificates of clients.
pub(super) struct ClientCas {
    /// By all of them, whether they are valid or not.
    all: Arc<dyn ClientCertVerifier>,
    /// Each with the last second of Unix time in which it is valid.
    cas: Vec<(CertificateDer<'static>, u64)>,
    auth: ClientAuth,
}

impl ClientCas {
    /// # Errors
    ///
    /// One of them cannot be read, or none is a CA.
    pub(super) fn new(cas: &[CertificateDer<'static>], auth: ClientAuth) -> Result<ClientCas, String> {
        // webpki takes any certificate for the end of a chain: the holder of a client's key could make others by it.
        let cas: Vec<_> = cas.iter().filter(|ca| identity::leaf(ca).is_none()).cloned().collect();
        let all = verifier(cas.iter(), auth)?;
        let end = |ca: &CertificateDer<'static>| {
            let ends = identity::ends(std::slice::from_ref(ca));
            (ca.clone(), ends.first().map_or(u64::MAX, |end| end.last_s))
        };
        Ok(ClientCas { all, cas: cas.iter().map(end).collect(), auth })
    }
}

fn verifier<'a>(
    cas: impl Iterator<Item = &'a CertificateDer<'static>>,
    auth: ClientAuth,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for ca in cas {
        roots.add(ca.clone()).map_err(|error| error.to_string())?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    let builder = if auth == ClientAuth::Optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|error| error.to_string())
}

impl fmt::Debug for ClientCas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCas").field("cas", &self.cas.len()).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ClientCas {
    fn offer_client_auth(&self) -> bool {
        self.all.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.all.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.all.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.all.verify_client_cert(end_entity, intermediates, now)?;
        let is_valid = |(_, last_s): &&(CertificateDer<'static>, u64)| now.as_secs() <= *last_s;
        let valid: Vec<_> = self.cas.iter().filter(is_valid).collect();
        if valid.len() == self.cas.len() {
            return Ok(verified);
        }
        // The chain may lead to one that is still valid, which the first verifier does not tell.
        let expired = || Error::InvalidCertificate(CertificateError::Expired);
        let valid = verifier(valid.into_iter().map(|(ca, _)| ca), self.auth).map_err(|_| expired())?;
        valid.verify_client_cert(end_entity, intermediates, now).map_err(|_| expired())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.all.supported_verify_schemes()
    }
}

/// Refuses each certificate: the CAs that are to count cannot be read (record 204). Clients that may go without one do.
#[derive(Debug)]
pub(super) struct NoClientCas {
    is_mandatory: bool,
    /// How signatures are checked, which is not come to.
    schemes: WebPkiSupportedAlgorithms,
}

impl NoClientCas {
    pub(super) fn new(auth: ClientAuth) -> NoClientCas {
        let schemes = ring::default_provider().signature_verification_algorithms;
        NoClientCas { is_mandatory: auth == ClientAuth::Required, schemes }
    }
}

impl ClientCertVerifier for NoClientCas {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.supported_schemes()
    }
}
