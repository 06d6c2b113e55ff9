//! What a certificate tells: whom it stands for, and until when it is valid.

use ::node::config::{CertificateField, ClientNameRule};
use rustls::pki_types::CertificateDer;
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

/// When the first of these certificates to end is not valid any more, in seconds of Unix time.
pub(super) fn valid_until_s(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    });
    ends.min()
}
