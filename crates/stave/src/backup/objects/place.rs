//! Where backups are: a folder, or a bucket of an S3-compatible store, with what is needed to reach it.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use base::encryption::WrappingKeys;
use base::env::Env;
use clap::Args;

use super::disk::ObjectDisk;
use super::http::Endpoint;
use super::sign::Credentials;
use super::store::{ObjectStore, StoreBucket};
use crate::backup::Repository;
use crate::backup::keys::BackupKeyFlags;
use crate::cli::WrongArguments;
use crate::client::Trust;

/// What a place in an object store begins with.
pub(super) const SCHEME: &str = "s3://";
/// Where systems keep the CAs that they trust.
const CA_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// What these flags are under in help texts; of them alone, unlike a heading of the struct.
const HEADING: &str = "Places like s3://BUCKET/PATH";

/// How an S3-compatible store is reached, and the key of encrypted backups.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ObjectStoreFlags {
    /// The store's address, if it is not Amazon's: https://HOST[:PORT]; also AWS_ENDPOINT_URL_S3
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    s3_endpoint: Option<String>,
    /// The region of the store's bucket; also AWS_REGION, AWS_DEFAULT_REGION, or ~/.aws/config; us-east-1 if none says
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    s3_region: Option<String>,
    /// The store's bucket is named by the host at --s3-endpoint, as BUCKET.HOST, and not by the path
    #[arg(long, requires = "s3_endpoint", help_heading = HEADING)]
    s3_virtual_host: bool,
    /// Trust these CAs instead of the system's; also AWS_CA_BUNDLE
    #[arg(long, value_name = "FILE.pem", help_heading = HEADING)]
    s3_ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) key: BackupKeyFlags,
}

/// Where backups are.
pub(crate) struct BackupPlace {
    /// The world, with the place's files.
    env: Env,
    dir: PathBuf,
    store: Option<Arc<ObjectStore>>,
    /// The key of those that are encrypted.
    wrapping: Option<WrappingKeys>,
}

impl BackupPlace {
    /// A folder, or a place like `s3://BUCKET/PATH`.
    pub(crate) fn open(env: &Env, place: &Path, flags: &ObjectStoreFlags) -> anyhow::Result<BackupPlace> {
        let text = place.to_str().unwrap_or_default();
        let wrapping = flags.key.keys(env)?;
        let Some(rest) = text.strip_prefix(SCHEME) else {
            if text.starts_with("s3:") {
                bail!(WrongArguments(format!(
                    "`{text}` is no place: write it like s3://BUCKET/PATH, or ./{text}"
                )));
            }
            let dir = std::path::absolute(place)?;
            return Ok(BackupPlace { env: env.clone(), dir, store: None, wrapping });
        };
        let bucket = rest.split('/').next().unwrap_or_default();
        if bucket.is_empty() {
            bail!(WrongArguments(format!(
                "`{}` names no bucket; write it like s3://BUCKET/PATH",
                place.display()
            )));
        }
        let store = Arc::new(flags.store(env, bucket)?);
        let disk = Arc::new(ObjectDisk::new(store.clone()));
        let dir = PathBuf::from(place.to_string_lossy().trim_end_matches('/'));
        Ok(BackupPlace { env: Env { disk, ..env.clone() }, dir, store: Some(store), wrapping })
    }

    #[cfg(test)]
    pub(crate) fn of_store(env: &Env, dir: &str, store: ObjectStore) -> BackupPlace {
        let store = Arc::new(store);
        let disk = Arc::new(ObjectDisk::new(store.clone()));
        let (env, store) = (Env { disk, ..env.clone() }, Some(store));
        BackupPlace { env, dir: PathBuf::from(dir), store, wrapping: None }
    }

    /// The same with a key.
    #[cfg(test)]
    pub(crate) fn with_keys(self, wrapping: Option<WrappingKeys>) -> BackupPlace {
        BackupPlace { wrapping, ..self }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn repository(&self) -> Repository<'_> {
        let repository = Repository::new(&self.env, &self.dir).with_keys(self.wrapping.clone());
        match &self.store {
            Some(store) => repository.in_store(store.clone()),
            None => repository,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl ObjectStoreFlags {
    fn store(&self, env: &Env, bucket: &str) -> anyhow::Result<ObjectStore> {
        let profile = Profile::load()?;
        let region = self.s3_region.clone().or_else(|| variable("AWS_REGION"));
        let region = region.or_else(|| variable("AWS_DEFAULT_REGION")).or_else(|| profile.get("region"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = self.s3_endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL_S3"));
        let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL"));
        // A certificate of Amazon's is not for a name with further dots.
        let by_path = if endpoint.is_some() { !self.s3_virtual_host } else { bucket.contains('.') };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let parsed = Endpoint::parse(&endpoint).ok_or_else(|| {
            WrongArguments(format!("`{endpoint}` is no address of a store; write it like https://HOST:PORT"))
        })?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !bucket.bytes().all(is_name) {
            bail!(WrongArguments(format!(
                "`{bucket}` is no name of a bucket; write the place like s3://BUCKET/PATH"
            )));
        }
        let trust = if parsed.is_tls { Some(self.trust()?) } else { None };
        let (name, credentials) = (bucket.to_owned(), profile.credentials()?);
        Ok(ObjectStore::new(env, StoreBucket { endpoint: parsed, name, region, by_path, credentials, trust }))
    }

    fn trust(&self) -> anyhow::Result<Trust> {
        let named = self.s3_ca.clone().or_else(|| variable("AWS_CA_BUNDLE").map(PathBuf::from));
        let named = named.or_else(|| variable("SSL_CERT_FILE").map(PathBuf::from));
        let found = || CA_BUNDLES.iter().map(PathBuf::from).find(|path| path.exists());
        let path =
            named.or_else(found).context("this system has no file of CAs that are trusted; give --s3-ca")?;
        let pem = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Trust::of_ca(&pem).with_context(|| path.display().to_string())
    }
}

/// What the files of AWS tools say of a profile.
struct Profile {
    name: String,
    values: BTreeMap<String, String>,
}

impl Profile {
    /// Reads the files, as far as they are there.
    fn load() -> anyhow::Result<Profile> {
        let name = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
        let of = |name: &str, file: &str| {
            variable(name).map_or_else(|| home.join(".aws").join(file), PathBuf::from)
        };
        let mut values = BTreeMap::new();
        let files = [of("AWS_CONFIG_FILE", "config"), of("AWS_SHARED_CREDENTIALS_FILE", "credentials")];
        for path in files {
            match std::fs::read_to_string(&path) {
                Ok(text) => values.extend(section(&text, &name)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(anyhow!("cannot read {}: {error}", path.display())),
            }
        }
        Ok(Profile { name, values })
    }

    fn get(&self, name: &str) -> Option<String> {
        self.values.get(name).cloned()
    }

    /// From the environment, or from the files.
    fn credentials(&self) -> anyhow::Result<Credentials> {
        let of_environment = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
        let (key, secret, token) = match of_environment {
            Some((key, secret)) => (key, secret, variable("AWS_SESSION_TOKEN")),
            None => {
                let both = self.get("aws_access_key_id").zip(self.get("aws_secret_access_key"));
                let (key, secret) = both.with_context(|| {
                    format!(
                        "no credentials for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into \
                         profile `{}` of ~/.aws/credentials",
                        self.name
                    )
                })?;
                (key, secret, self.get("aws_session_token"))
            }
        };
        Ok(Credentials { key, secret, token })
    }
}

/// The values of a profile in a file like `[default]` or `[profile name]`, and `key = value` below.
fn section(text: &str, profile: &str) -> BTreeMap<String, String> {
    let (mut values, mut is_inside) = (BTreeMap::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            is_inside = name.strip_prefix("profile ").map_or(name, str::trim) == profile;
        } else if is_inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_as_aws_tools_write_it() {
        let text = "[default]\naws_access_key_id = A\n# region = x\nregion=eu-west-1\n[profile b]\n region = b \n[c]\nx=1\n";
        let of = |name: &str| section(text, name);
        assert_eq!(of("default")["aws_access_key_id"], "A");
        assert_eq!((&*of("default")["region"], &*of("b")["region"]), ("eu-west-1", "b"));
        assert_eq!((of("c")["x"].as_str(), of("d").len()), ("1", 0));
    }

    #[test]
    fn a_place_without_a_bucket_and_a_wrong_endpoint_are_refused() {
        let env = Env::real();
        let open = |place: &str, endpoint: &str| {
            let flags =
                ObjectStoreFlags { s3_endpoint: Some(endpoint.to_owned()), ..ObjectStoreFlags::default() };
            BackupPlace::open(&env, Path::new(place), &flags).err().map(|error| format!("{error:#}"))
        };
        assert!(open("s3://", "http://h").expect("no bucket").contains("s3://BUCKET/PATH"));
        assert!(open("s3://b", "h:1").expect("no address").contains("https://HOST:PORT"));
        assert!(open("s3://b", "ftp://h").expect("no address").contains("https://HOST:PORT"));
        assert!(open("s3:/b", "http://h").expect("one slash").contains("s3://BUCKET/PATH"));
        assert_eq!(open("./s3:/b", "http://h"), None);
        assert_eq!(open("folder", "http://h"), None);
    }
}
