//! How a node shows etcd who it is, and knows that it speaks with the right one.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base::env::Env;
use clap::Args;
use node::Settings;
use server::etcd::{EtcdAccess, EtcdTls, EtcdUser};

use super::serve::read_text;
use crate::client::Secret;
use crate::wrong_arguments::WrongArguments;

/// Beside the address of etcd.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdFlags {
    /// Log in to etcd as this user; its password comes from a file or from STAVE_ETCD_PASSWORD
    #[arg(long, value_name = "USER", env = "STAVE_ETCD_USER")]
    etcd_user: Option<String>,
    /// A file whose first line is that user's password
    #[arg(long, value_name = "FILE", env = "STAVE_ETCD_PASSWORD_FILE")]
    etcd_password_file: Option<PathBuf>,
    /// Speak TLS with etcd, which must have a certificate that is signed by one of those in this file
    #[arg(long, value_name = "FILE.pem", env = "STAVE_ETCD_CA")]
    etcd_ca: Option<PathBuf>,
    /// This node's certificate, if etcd asks its clients for one (--client-cert-auth); if etcd's users log in, too, it
    /// must be one without CommonName
    #[arg(long, value_name = "FILE.pem", env = "STAVE_ETCD_CERT")]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE.pem", env = "STAVE_ETCD_KEY")]
    etcd_key: Option<PathBuf>,
}

/// The environment alone has it: what stands on a command line can be read by everybody on the machine.
fn password_of_environment() -> Option<Secret> {
    std::env::var("STAVE_ETCD_PASSWORD").ok().map(Secret)
}

impl EtcdFlags {
    /// As settings, which the configuration file may have, too.
    pub fn settings(self) -> Settings {
        Settings {
            etcd_user: self.etcd_user,
            etcd_password_file: self.etcd_password_file,
            etcd_ca: self.etcd_ca,
            etcd_cert: self.etcd_cert,
            etcd_key: self.etcd_key,
            ..Settings::default()
        }
    }
}

/// What is shown to etcd, and where it is kept.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct EtcdNames {
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// What those files hold.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct EtcdTexts {
    user: Option<String>,
    password: String,
    ca: Option<Vec<u8>>,
    /// This node's certificate and key.
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdNames {
    /// What settings name, if these go together.
    pub(super) fn of(settings: &Settings) -> anyhow::Result<EtcdNames> {
        let is_set = settings.etcd_user.is_some() || settings.etcd_ca.is_some();
        if is_set && settings.join.is_none() {
            bail!(WrongArguments(
                "etcd is asked only by a node that joins a cluster: give join, too".to_owned()
            ));
        }
        if settings.etcd_password_file.is_some() && settings.etcd_user.is_none() {
            bail!(WrongArguments("etcd-password-file is of no use without etcd-user".to_owned()));
        }
        if settings.etcd_cert.is_some() != settings.etcd_key.is_some()
            || (settings.etcd_cert.is_some() && settings.etcd_ca.is_none())
        {
            bail!(WrongArguments("etcd-cert, etcd-key and etcd-ca go together".to_owned()));
        }
        Ok(EtcdNames {
            user: settings.etcd_user.clone(),
            password_file: settings.etcd_password_file.clone(),
            ca: settings.etcd_ca.clone(),
            cert: settings.etcd_cert.clone(),
            key: settings.etcd_key.clone(),
        })
    }

    /// Whether there is a file whose content may change.
    pub(super) fn has_files(&self) -> bool {
        self.password_file.is_some() || self.ca.is_some()
    }

    /// Reads the files. The password may be in the environment. Blocks while the disk works.
    pub(super) fn read(&self, env: &Env) -> anyhow::Result<EtcdTexts> {
        self.read_with(env, password_of_environment())
    }

    fn read_with(&self, env: &Env, password: Option<Secret>) -> anyhow::Result<EtcdTexts> {
        let read = |path: &Path| read_text(env, path).map(String::into_bytes);
        let own = match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let ca = self.ca.as_deref().map(read).transpose()?;
        Ok(EtcdTexts { user: self.user.clone(), password: self.password(env, password)?, ca, own })
    }

    /// Empty without a user.
    fn password(&self, env: &Env, password: Option<Secret>) -> anyhow::Result<String> {
        if self.user.is_none() {
            return Ok(String::new());
        }
        let password = match (&self.password_file, password) {
            (Some(path), _) => first_line(&read_text(env, path)?).to_owned(),
            (None, Some(Secret(password))) => password,
            (None, None) => String::new(),
        };
        if password.is_empty() {
            let what = "etcd's user needs a password: give --etcd-password-file, or set STAVE_ETCD_PASSWORD";
            return Err(WrongArguments(what.to_owned()).into());
        }
        Ok(password)
    }
}

impl EtcdTexts {
    /// What requests to etcd are made with.
    pub(super) fn access(&self) -> anyhow::Result<EtcdAccess> {
        let user = self.user.clone().map(|name| EtcdUser { name, password: self.password.clone() });
        let own = self.own.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
        let tls = self.ca.as_ref().map(|ca| EtcdTls::new(ca, own)).transpose();
        Ok(EtcdAccess { user, tls: tls.context("TLS with etcd cannot be set up")? })
    }
}

pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests write files that the command reads")]
mod tests {
    use super::*;

    fn read(settings: &Settings, password: Option<&str>) -> Result<EtcdAccess, String> {
        let password = password.map(|password| Secret(password.to_owned()));
        let texts = EtcdNames::of(settings).and_then(|names| names.read_with(&Env::real(), password));
        texts.and_then(|texts| texts.access()).map_err(|error| format!("{error:#}"))
    }

    fn joining() -> Settings {
        Settings { join: Some("etcd://e:1/c".to_owned()), ..Settings::default() }
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
        let settings = flags.settings().over(joining());
        let access = read(&settings, None).expect("it can be read");
        assert_eq!(
            access.user.map(|user| (user.name, user.password)),
            Some(("ada".into(), "secret1".into()))
        );
        let settings = Settings { etcd_password_file: None, ..settings };
        assert!(read(&settings, None).is_err_and(|why| why.contains("STAVE_ETCD_PASSWORD")));
        let access = read(&settings, Some("secret2")).expect("it is set");
        assert_eq!(access.user.map(|user| user.password), Some("secret2".into()));
    }

    #[test]
    fn the_file_may_say_how_etcd_is_reached() {
        let text = "join = \"etcd://e:1/c\"\netcd-user = \"ada\"";
        let settings = Settings::parse(text).expect("a valid file");
        let access = read(&settings, Some("secret")).expect("it is whole");
        assert_eq!(access.user.map(|user| user.name), Some("ada".into()));
        let alone = Settings { join: None, ..settings };
        assert!(read(&alone, Some("secret")).is_err_and(|why| why.contains("give join")));
        let half = Settings { etcd_cert: Some("c.pem".into()), ..joining() };
        assert!(read(&half, None).is_err_and(|why| why.contains("go together")));
    }

    #[test]
    fn a_file_without_certificates_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "nothing").expect("a file");
        let settings = Settings { etcd_ca: Some(path), ..joining() };
        assert!(read(&settings, None).is_err_and(|why| why.contains("the CA's certificates")));
    }
}
