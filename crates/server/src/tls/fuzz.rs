//! A body for fuzzers: whatever stands in the files of certificate, key and CAs is taken, or refused with a reason.

use ::node::config::{ClientAuth, ClientNameRule};
use rustls::pki_types::CertificateDer;

use super::certificate::{certificates, client_verifier, roots, server_config};
use super::{Spoken, client_of, identity};

/// Any bytes as all that files in PEM are read for, and as a certificate as it is sent.
pub fn fuzz_pem(bytes: &[u8]) {
    let (known, spoken) = (roots(bytes).ok(), Spoken::any());
    for auth in [ClientAuth::Off, ClientAuth::Optional, ClientAuth::Required] {
        if let Ok(clients) = client_verifier(known.as_ref(), auth) {
            let _ = server_config(bytes, bytes, clients, &spoken);
        }
    }
    let _ = client_of(bytes, Some((bytes, bytes)));
    let rules = ["subject.cn", "san.dnsname", "san.uri prefix=urn:", "san.email delimiters=@."];
    let rules: Vec<ClientNameRule> = rules.iter().filter_map(|rule| rule.parse().ok()).collect();
    let look = |certificate: &CertificateDer<'_>| {
        let _ = (identity::user(certificate, &rules), identity::is_version_1(certificate));
    };
    let chain = certificates(bytes).unwrap_or_default();
    chain.iter().for_each(look);
    look(&CertificateDer::from(bytes));
    let _ = identity::valid_until_s(&chain);
}

#[cfg(test)]
mod tests {
    use base::fuzz::replay;

    use super::*;

    #[test]
    fn damaged_certificates_and_keys_never_panic() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let both = certificate.pem() + &key.serialize_pem();
        replay(4, 1_000, &[both.into_bytes(), certificate.der().to_vec()], fuzz_pem);
    }
}
