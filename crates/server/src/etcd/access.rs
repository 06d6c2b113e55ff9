//! Who this node is to etcd, and how it knows that it speaks with the right one: name and password, certificates.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// What etcd asks for beyond its address; nothing if it asks nobody.
#[derive(Clone, Default)]
pub struct EtcdAccess {
    /// A user of etcd with their password.
    pub user: Option<EtcdUser>,
    /// If it is there, connections are encrypted, and etcd must have a certificate as this says.
    pub tls: Option<EtcdTls>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Certificates, read.
#[derive(Clone)]
pub struct EtcdTls(pub(super) Arc<ClientConfig>);

/// Certificates that are none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Nothing in the file is a certificate.
    #[error("there is no certificate in it: it must hold lines like -----BEGIN CERTIFICATE-----")]
    None,
    /// Something in the file is no certificate or no key.
    #[error("it holds something that cannot be used: {0}")]
    Invalid(String),
}

/// Which of the files is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The certificates of who signs for etcd.
    #[error("the CA's certificates: {0}")]
    Ca(CertificateError),
    /// This node's certificate.
    #[error("this node's certificate: {0}")]
    Certificate(CertificateError),
    /// The key that belongs to it.
    #[error("the key of this node's certificate: {0}")]
    Key(CertificateError),
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(CertificateError::None),
        Ok(all) => Ok(all),
        Err(error) => Err(invalid(error)),
    }
}

fn invalid(error: impl fmt::Display) -> CertificateError {
    CertificateError::Invalid(error.to_string())
}

impl EtcdTls {
    /// From texts in PEM: certificates of the CA that signs for etcd, and certificate and key of this node, if etcd
    /// asks its clients for one.
    pub fn new(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<EtcdTls, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca).map_err(TlsError::Ca)? {
            roots.add(certificate).map_err(|error| TlsError::Ca(invalid(error)))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Ca(invalid(error)))?
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(TlsError::Certificate)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Key(invalid(error)))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| TlsError::Key(invalid(error)))?
            }
        };
        Ok(EtcdTls(Arc::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_told() {
        let none = |pem: &[u8]| EtcdTls::new(pem, None).err();
        assert_eq!(none(b""), Some(TlsError::Ca(CertificateError::None)));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(none(broken), Some(TlsError::Ca(CertificateError::Invalid(_)))));
    }

    #[test]
    fn passwords_are_not_shown() {
        let user = EtcdUser { name: "ada".to_owned(), password: "secret".to_owned() };
        assert!(!format!("{user:?}").contains("secret"));
    }
}
