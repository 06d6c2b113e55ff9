//! A CA of the test's own.
#![allow(clippy::disallowed_methods, reason = "these are files of the test's own")]
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// A CA, and certificates that it signs.
pub struct Ca {
    issuer: Issuer,
}

impl Ca {
    /// A new one.
    pub fn new() -> Ca {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Ca { issuer: CertifiedIssuer::self_signed(params, key).expect("a CA") }
    }

    /// One that ended with the year 2001.
    pub fn ended() -> Ca {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2001, 12, 31));
        let key = KeyPair::generate().expect("a key");
        Ca { issuer: CertifiedIssuer::self_signed(params, key).expect("a CA") }
    }

    /// A certificate that does not say that it is one of a CA, and whose key signs others all the same: its own, or one that
    /// `issuer` signed.
    pub fn that_is_none(issuer: Option<&Ca>) -> Ca {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "no CA");
        let key = KeyPair::generate().expect("a key");
        let made = match issuer {
            None => CertifiedIssuer::self_signed(params, key),
            Some(issuer) => CertifiedIssuer::signed_by(params, key, &issuer.issuer),
        };
        Ca { issuer: made.expect("signed") }
    }

    /// Writes its own certificate and key, as a node's.
    pub fn write_own(&self, folder: &Path) {
        std::fs::write(folder.join("node.pem"), self.pem()).expect("written");
        std::fs::write(folder.join("node.key"), self.issuer.key().serialize_pem()).expect("written");
    }

    /// Writes a certificate for these names and its key; says where.
    pub fn write(&self, folder: &Path, names: &[&str]) -> (PathBuf, PathBuf) {
        self.write_for(folder, names, &[])
    }

    /// The same for these purposes alone, if there are any.
    pub fn write_for(
        &self,
        folder: &Path,
        names: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> (PathBuf, PathBuf) {
        self.write_with(folder, names, purposes, &KeyPair::generate().expect("a key"))
    }

    /// The same with this key.
    pub fn write_with(
        &self,
        folder: &Path,
        names: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
        key: &KeyPair,
    ) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = purposes.to_vec();
        let certificate = params.signed_by(key, &self.issuer).expect("signed");
        let files = (folder.join("node.pem"), folder.join("node.key"));
        std::fs::write(&files.0, certificate.pem()).expect("written");
        std::fs::write(&files.1, key.serialize_pem()).expect("written");
        files
    }

    /// A certificate with what `describe` says, and its key.
    pub fn sign(
        &self,
        describe: impl FnOnce(&mut CertificateParams),
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        describe(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("PKCS#8");
        (vec![certificate.der().clone()], key)
    }

    /// Its certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Its certificate.
    pub fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }
}
