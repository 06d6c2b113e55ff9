//! Who this node is to etcd, and how it knows that it speaks with the right one: name and password, certificates.

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::tls::{CertificateError, PairError, Spoken, client_config, roots};

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

/// Which of the files is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdTlsError {
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

impl EtcdTls {
    /// From texts in PEM: certificates of the CA that signs for etcd, and certificate and key of this node, if etcd
    /// asks its clients for one.
    pub fn new(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<EtcdTls, EtcdTlsError> {
        let roots = roots(ca).map_err(EtcdTlsError::Ca)?;
        let config = client_config(roots, own, &Spoken::any()).map_err(|error| match error {
            PairError::Certificate(error) => EtcdTlsError::Certificate(error),
            PairError::Key(error) => EtcdTlsError::Key(error),
            PairError::Mismatch(what) => EtcdTlsError::Key(CertificateError::Invalid(what)),
        })?;
        Ok(EtcdTls(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_told() {
        let none = |pem: &[u8]| EtcdTls::new(pem, None).err();
        assert_eq!(none(b""), Some(EtcdTlsError::Ca(CertificateError::None)));
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(none(broken), Some(EtcdTlsError::Ca(CertificateError::Invalid(_)))));
    }

    #[test]
    fn passwords_are_not_shown() {
        let user = EtcdUser { name: "ada".to_owned(), password: "secret".to_owned() };
        assert!(!format!("{user:?}").contains("secret"));
    }
}
