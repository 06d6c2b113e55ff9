//! What a certificate tells: which user it names, which names of hosts and purposes it is for, and until when it is valid.

use std::net::IpAddr;

use ::node::config::{CertificateField, ClientNameRule};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Version;

/// The user that a certificate stands for by the first rule that finds a name in it. The certificate must have been
/// verified; nothing if no rule finds one.
pub(super) fn user(certificate: &CertificateDer<'_>, rules: &[ClientNameRule]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    rules.iter().find_map(|rule| {
        let values = values(&certificate, rule.field);
        values.iter().find_map(|value| rule.name_in(value).map(str::to_owned))
    })
}

fn values(certificate: &X509Certificate<'_>, field: CertificateField) -> Vec<String> {
    if field == CertificateField::SubjectCn {
        let names = certificate.subject().iter_common_name();
        return names.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect();
    }
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let value = |name: &GeneralName<'_>| match (field, name) {
        (CertificateField::SanDnsName, GeneralName::DNSName(text))
        | (CertificateField::SanUri, GeneralName::URI(text))
        | (CertificateField::SanEmail, GeneralName::RFC822Name(text)) => Some((*text).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(value).collect()
}

/// Whether it is a certificate of X.509 version 1, which has no extensions.
pub(super) fn is_version_1(certificate: &CertificateDer<'_>) -> bool {
    let parsed = X509Certificate::from_der(certificate);
    parsed.is_ok_and(|(_, certificate)| certificate.version() == X509Version::V1)
}

/// What a certificate's key is, in words.
pub(super) fn key(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let public = certificate.public_key();
    let bits = || public.parsed().map_or(0, |key| key.key_size());
    Some(match public.algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => format!("RSA with {} bits", bits()),
        "1.2.840.10045.2.1" => format!("ECDSA with {} bits", bits()),
        ED25519 => "Ed25519".to_owned(),
        id => format!("of the algorithm {id}"),
    })
}

/// The object identifier of keys that the C++ core of SDKs does not take (RFC 8410).
const ED25519: &str = "1.3.101.112";

/// Whether a certificate has a key of Ed25519.
pub(super) fn is_ed25519(certificate: &CertificateDer<'_>) -> bool {
    let parsed = X509Certificate::from_der(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.public_key().algorithm.algorithm.to_id_string() == ED25519)
}

/// Whether a certificate is for a key with this public half, in DER.
pub(super) fn has_public_key(certificate: &CertificateDer<'_>, public: &[u8]) -> bool {
    let parsed = X509Certificate::from_der(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.public_key().raw == public)
}

/// A certificate among the CAs that is none of a CA.
#[derive(Clone)]
pub(super) struct Leaf {
    /// Its subject.
    pub(super) name: String,
    /// Who signed it; `None` if it was signed with its own key.
    pub(super) issuer: Option<String>,
}

/// What a certificate is if it is none of a CA. One of X.509 version 1 cannot say what it is.
pub(super) fn leaf(certificate: &CertificateDer<'_>) -> Option<Leaf> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let is_none = certificate.version() != X509Version::V1 && !certificate.is_ca();
    let (name, issuer) = (certificate.subject().to_string(), certificate.issuer());
    is_none.then(|| Leaf { name, issuer: (certificate.subject() != issuer).then(|| issuer.to_string()) })
}

/// Whether a certificate is one of a CA, and says so.
pub(super) fn is_ca(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// Who signed a certificate, as that says it.
pub(super) fn issuer(certificate: &CertificateDer<'_>) -> Option<String> {
    X509Certificate::from_der(certificate).ok().map(|(_, certificate)| certificate.issuer().to_string())
}

/// A use of a certificate that an extended key usage may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// What a node shows to clients is for servers.
    Server,
    /// What a node shows to other nodes that ask for certificates is for clients.
    Client,
}

/// Whether one of these certificates has an extended key usage without this purpose: who verifies it for that refuses it.
/// `anyExtendedKeyUsage` does not count, as with webpki.
pub(super) fn leaves_out(chain: &[CertificateDer<'_>], purpose: Purpose) -> bool {
    chain.iter().any(|certificate| {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let Ok(Some(usage)) = certificate.extended_key_usage() else { return false };
        match purpose {
            Purpose::Server => !usage.value.server_auth,
            Purpose::Client => !usage.value.client_auth,
        }
    })
}

/// The names and addresses that a certificate is for.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|ip| ip.to_string()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Whether clients that look for this host in the certificate accept it. What is no host at all is not looked for.
pub(super) fn is_for(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(name) = ServerName::try_from(host) else { return true };
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

/// The end of a CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CaEnd {
    /// Its subject.
    pub(super) name: String,
    /// The last second of Unix time in which it is valid.
    pub(super) last_s: u64,
}

/// When each of these CAs ends; one that tells no end has none.
pub(super) fn ends(cas: &[CertificateDer<'_>]) -> Vec<CaEnd> {
    let end = |certificate: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let last_s = certificate.validity().not_after.timestamp().max(0).unsigned_abs();
        Some(CaEnd { name: certificate.subject().to_string(), last_s })
    };
    cas.iter().filter_map(end).collect()
}

/// When the first of these certificates to end is not valid any more, in seconds of Unix time.
pub(super) fn valid_until_s(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    });
    ends.min()
}
