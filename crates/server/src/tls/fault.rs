//! What a client did that ends its TLS session, in words for whoever reads the log.

use rustls::{AlertDescription, Error, PeerIncompatible};

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
        _ => "TLS failed",
    }
}

fn of_incompatible(incompatible: &PeerIncompatible) -> &'static str {
    match incompatible {
        PeerIncompatible::SupportedVersionsExtensionRequired | PeerIncompatible::Tls12NotOfferedOrEnabled => {
            "it offers no version of TLS that is allowed here"
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
