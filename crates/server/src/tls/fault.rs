//! What a client did that ends its TLS session, in words for whoever reads the log.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// In a few words.
pub(super) fn of(error: &Error) -> &'static str {
    match error {
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "it does not speak TLS: this port takes encrypted connections only"
        }
        Error::PeerIncompatible(incompatible) => of_incompatible(incompatible),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::DecryptError => "what it sent does not decrypt",
        Error::PeerMisbehaved(_) => "it broke the rules of TLS",
        Error::NoCertificatesPresented => "it shows no certificate, and one is required here",
        Error::InvalidCertificate(error) => of_certificate(error),
        _ => "TLS failed",
    }
}

/// What to do about a server that a node does not agree with, in words that follow the error.
pub(crate) fn cure(error: &Error) -> &'static str {
    match error {
        Error::AlertReceived(AlertDescription::UnsupportedCertificate) => {
            "the source refuses the certificate of this node (tls-cert): if it has an extended key usage, that needs clientAuth \
             beside serverAuth"
        }
        Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the source does not know the CA of this node's certificate: its tls-ca needs it"
        }
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the source says that the certificate of this node, or the CA of it, has expired: put a new one into the place of \
             tls-cert and tls-key"
        }
        Error::AlertReceived(AlertDescription::BadCertificate | AlertDescription::CertificateUnknown) => {
            "the source does not accept the certificate of this node (tls-cert): its log says why"
        }
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => {
            "the certificate of the source has an extended key usage without serverAuth: it needs another one"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the source needs a new certificate in the place of its tls-cert and tls-key"
        }
        _ => "the source needs tls-cert and tls-key, with a certificate for this host by a CA of tls-ca",
    }
}

fn of_certificate(error: &CertificateError) -> &'static str {
    match error {
        CertificateError::UnknownIssuer => "its certificate is of a CA that this node does not know (tls-ca)",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate, or the CA of it, has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: compare the clocks"
        }
        CertificateError::BadSignature => "its certificate is not signed by the CA that it names",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate does not have the name that it was reached by"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is for another purpose (extended key usage)"
        }
        CertificateError::ApplicationVerificationFailure => {
            "it shows a certificate, and the CAs of tls-ca that are to count cannot be read"
        }
        CertificateError::Revoked => "its certificate was revoked",
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "its certificate has a signature of an algorithm that is not supported"
        }
        CertificateError::BadEncoding | CertificateError::Other(_) => {
            "its certificate cannot be read: it has to be one of X.509 version 3"
        }
        _ => "its certificate is not accepted",
    }
}

fn of_incompatible(incompatible: &PeerIncompatible) -> &'static str {
    match incompatible {
        PeerIncompatible::SupportedVersionsExtensionRequired | PeerIncompatible::Tls12NotOfferedOrEnabled => {
            "it offers no version of TLS that is allowed here"
        }
        PeerIncompatible::NoSignatureSchemesInCommon => {
            "it takes no certificate with a key like that of this node's: one of ECDSA P-256 or RSA is taken by all"
        }
        PeerIncompatible::NoCipherSuitesInCommon => "it offers no cipher suite that is allowed here",
        _ => "it and this node have no way of TLS in common",
    }
}

fn of_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => "it does not trust the CA of this node's certificate",
        AlertDescription::CertificateExpired => "it says that this node's certificate has expired",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it does not accept this node's certificate: a name that is not in it, a wrong CA, or expired"
        }
        AlertDescription::ProtocolVersion => "it accepts no version of TLS that is allowed here",
        _ => "it ended the TLS session with an alert",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cure_is_for_the_node_that_has_the_fault() {
        let refused = cure(&Error::AlertReceived(AlertDescription::UnsupportedCertificate));
        assert!(refused.contains("the certificate of this node") && refused.contains("clientAuth"));
        let unknown = cure(&Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(unknown.contains("a certificate for this host by a CA of tls-ca"));
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_told() {
        let of = |error| of(&Error::InvalidCertificate(error));
        assert!(of(CertificateError::UnknownIssuer).contains("a CA that this node does not know"));
        assert!(of(CertificateError::Expired).contains("has expired"));
        assert!(super::of(&Error::NoCertificatesPresented).contains("no certificate"));
    }
}
