//! How a node shows etcd who it is, and knows that it speaks with the right one.

use std::path::{Path, PathBuf};

use anyhow::Context;
use base::env::Env;
use clap::Args;
use server::cluster::{EtcdAccess, EtcdTls, EtcdUser};

use super::serve::read_text;
use crate::cli::WrongArguments;
use crate::client::Secret;

/// Beside the address of etcd.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdFlags {
    /// Log in to etcd as this user; its password comes from a file or from STAVE_ETCD_PASSWORD
    #[arg(long, value_name = "USER", requires = "join")]
    etcd_user: Option<String>,
    /// A file whose first line is that user's password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    // Set by the environment alone: what stands on a command line can be read by everybody on the machine.
    #[arg(skip = password_of_environment())]
    etcd_password: Option<Secret>,
    /// Speak TLS with etcd, which must have a certificate that is signed by one of those in this file
    #[arg(long, value_name = "FILE.pem", requires = "join")]
    etcd_ca: Option<PathBuf>,
    /// This node's certificate, if etcd asks its clients for one (--client-cert-auth); if etcd's users log in, too, it
    /// must be one without CommonName
    #[arg(long, value_name = "FILE.pem", requires = "etcd_ca", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE.pem", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

fn password_of_environment() -> Option<Secret> {
    std::env::var("STAVE_ETCD_PASSWORD").ok().map(Secret)
}

impl EtcdFlags {
    /// Reads the files.
    pub fn read(&self, env: &Env) -> anyhow::Result<EtcdAccess> {
        Ok(EtcdAccess { user: self.user(env)?, tls: self.tls(env)? })
    }

    fn user(&self, env: &Env) -> anyhow::Result<Option<EtcdUser>> {
        let Some(name) = self.etcd_user.clone() else { return Ok(None) };
        let password = match (&self.etcd_password_file, &self.etcd_password) {
            (Some(path), _) => first_line(&read_text(env, path)?).to_owned(),
            (None, Some(Secret(password))) => password.clone(),
            (None, None) => String::new(),
        };
        if password.is_empty() {
            let what = "etcd's user needs a password: give --etcd-password-file, or set STAVE_ETCD_PASSWORD";
            return Err(WrongArguments(what.to_owned()).into());
        }
        Ok(Some(EtcdUser { name, password }))
    }

    fn tls(&self, env: &Env) -> anyhow::Result<Option<EtcdTls>> {
        let Some(ca) = &self.etcd_ca else { return Ok(None) };
        let read = |path: &Path| read_text(env, path).map(String::into_bytes);
        let own = match (&self.etcd_cert, &self.etcd_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let own = own.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
        let tls = EtcdTls::new(&read(ca)?, own);
        tls.map(Some).context("TLS with etcd cannot be set up")
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests write files that the command reads")]
mod tests {
    use super::*;

    fn read(flags: &EtcdFlags) -> Result<EtcdAccess, String> {
        flags.read(&Env::real()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_password_comes_from_the_first_line_of_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("password");
        std::fs::write(&path, "secret1\n").expect("a file");
        let flags = EtcdFlags {
            etcd_user: Some("ada".into()),
            etcd_password_file: Some(path),
            ..EtcdFlags::default()
        };
        let access = read(&flags).expect("it can be read");
        assert_eq!(
            access.user.map(|user| (user.name, user.password)),
            Some(("ada".into(), "secret1".into()))
        );
        let flags = EtcdFlags { etcd_password_file: None, ..flags };
        assert!(read(&flags).is_err_and(|why| why.contains("STAVE_ETCD_PASSWORD")));
        let flags = EtcdFlags { etcd_password: Some(Secret("secret2".into())), ..flags };
        assert_eq!(read(&flags).expect("it is set").user.map(|user| user.password), Some("secret2".into()));
    }

    #[test]
    fn a_file_without_certificates_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "nothing").expect("a file");
        let flags = EtcdFlags { etcd_ca: Some(path), ..EtcdFlags::default() };
        assert!(read(&flags).is_err_and(|why| why.contains("the CA's certificates")));
    }
}
