//! Who this node is to etcd, and how it knows that it speaks with the right one: name and password, certificates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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

/// How etcd is reached, for a store and those beside it: what is shown to it, which may change while requests are under way,
/// and what is wrong with that.
#[derive(Default)]
pub(super) struct Way {
    access: Mutex<Arc<EtcdAccess>>,
    /// What etcd gave for a name and a password; `None` before it was needed.
    token: Mutex<Option<(Arc<EtcdAccess>, String)>>,
    /// With the moment of the monotonic clock when it was noted.
    fault: Mutex<Option<(&'static str, Duration)>>,
}

/// For so long other requests that are done say nothing of a change that was not permitted: reads, and those of leases, need
/// less. One that is still not permitted is tried again before.
const PERMITS_AFTER: Duration = Duration::from_secs(30);

/// etcd's certificate, as this node sees it.
pub(super) const NOT_TRUSTED: &str = "its certificate is not accepted: etcd-ca must hold the CA that signed it, and \
                                      the certificate must be valid and name its host";
/// This node's certificate, as etcd sees it.
pub(super) const CERTIFICATE_REFUSED: &str =
    "it ends TLS with this node: look at the certificate in etcd-cert, and whether etcd trusts its CA";
/// This node's user of etcd.
pub(super) const LOGIN_REFUSED: &str =
    "it refuses this node's login: look at etcd-user and the password in etcd-password-file";
/// The rights of that user.
pub(super) const NOT_PERMITTED: &str =
    "its user of this node (etcd-user) may not read and write the keys of the cluster";

impl Way {
    pub(super) fn new(access: EtcdAccess) -> Way {
        Way { access: Mutex::new(Arc::new(access)), ..Way::default() }
    }

    pub(super) fn access(&self) -> Arc<EtcdAccess> {
        Arc::clone(&self.access.lock())
    }

    /// Requests from now on are made with this.
    pub(super) fn change(&self, access: EtcdAccess) {
        *self.access.lock() = Arc::new(access);
        *self.token.lock() = None;
    }

    /// The token, unless it is that of an access before.
    pub(super) fn token(&self) -> Option<String> {
        let (access, token) = (self.access(), self.token.lock());
        let known = token.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &access));
        known.map(|(_, token)| token.clone())
    }

    pub(super) fn keep_token(&self, of: &Arc<EtcdAccess>, token: Option<&str>) {
        *self.token.lock() = token.map(|token| (Arc::clone(of), token.to_owned()));
    }

    /// What the last request found wrong with what is shown to etcd; `None` if it found nothing of the kind.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault.lock().map(|(fault, _)| fault)
    }

    pub(super) fn note(&self, fault: Option<&'static str>, now: Duration) {
        *self.fault.lock() = fault.map(|fault| (fault, now));
    }

    /// etcd has answered, whatever it said: neither side refuses the other one's certificate.
    pub(super) fn reached(&self) {
        let mut fault = self.fault.lock();
        if matches!(*fault, Some((NOT_TRUSTED | CERTIFICATE_REFUSED, _))) {
            *fault = None;
        }
    }

    /// etcd has done what a request asked for, which may be a change.
    pub(super) fn done(&self, is_change: bool, now: Duration) {
        let mut fault = self.fault.lock();
        let is_fresh = |noted: Duration| now < noted + PERMITS_AFTER;
        if is_change || !matches!(*fault, Some((NOT_PERMITTED, noted)) if is_fresh(noted)) {
            *fault = None;
        }
    }
}

/// What a failed connection says of certificates; `None` if it failed for another reason.
pub(super) fn fault_of(error: &std::io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(_) => Some(NOT_TRUSTED),
        rustls::Error::AlertReceived(_) => Some(CERTIFICATE_REFUSED),
        _ => None,
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
    fn a_fault_is_told_until_it_is_mended() {
        let (way, at) = (Way::default(), Duration::from_secs);
        way.note(Some(NOT_TRUSTED), at(1));
        way.reached();
        assert_eq!(way.fault(), None, "what etcd answers needs TLS");
        way.note(Some(LOGIN_REFUSED), at(1));
        way.reached();
        assert_eq!(way.fault(), Some(LOGIN_REFUSED));
        way.done(false, at(1));
        assert_eq!(way.fault(), None);
        // A user that may only read.
        way.note(Some(NOT_PERMITTED), at(1));
        way.done(false, at(30));
        assert_eq!(way.fault(), Some(NOT_PERMITTED));
        way.done(true, at(30));
        assert_eq!(way.fault(), None);
        way.note(Some(NOT_PERMITTED), at(1));
        way.done(false, at(31));
        assert_eq!(way.fault(), None, "the change that was refused is not tried again");
    }

    #[test]
    fn passwords_are_not_shown() {
        let user = EtcdUser { name: "ada".to_owned(), password: "secret".to_owned() };
        assert!(!format!("{user:?}").contains("secret"));
    }
}
