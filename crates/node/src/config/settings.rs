//! Where a node's configuration comes from: a TOML file and the command line, each of which may be silent about anything.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{
    AuditTable, BucketTable, ClientAuth, ClientNameRule, ClusterEncryption, ConfigError, LogConfig, LogFile,
    LogFormat, MetricsLogin, Switch, TlsVersion, UserSpec,
};
use crate::sasl::offer::SaslMethods;

/// A source of settings: the file, or the command line. What is missing is decided elsewhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Where the data are.
    pub data: Option<PathBuf>,
    /// Addresses for clients, with commas between them, or `off`.
    pub kv: Option<String>,
    /// Addresses for HTTP, or `off`.
    pub http: Option<String>,
    /// Addresses for clients with TLS.
    pub kv_tls: Option<String>,
    /// Addresses for HTTP with TLS.
    pub http_tls: Option<String>,
    /// The node's certificate, in PEM, and those between it and the CA behind it.
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// The lowest version of TLS that is spoken.
    pub tls_min_version: Option<TlsVersion>,
    /// The CAs by which other nodes, and clients with certificates, are known, in PEM.
    pub tls_ca: Option<PathBuf>,
    /// Whether clients show a certificate.
    pub tls_client_auth: Option<ClientAuth>,
    /// Whom such a certificate stands for.
    pub tls_client_user: Option<Vec<ClientNameRule>>,
    /// Which connections to other nodes are encrypted.
    pub cluster_encryption: Option<ClusterEncryption>,
    /// The cipher suites that TLS is spoken with.
    pub tls_cipher_suites: Option<Vec<String>>,
    /// How users may log in without TLS.
    pub sasl_mechanisms: Option<SaslMethods>,
    /// How users may log in with TLS.
    pub tls_sasl_mechanisms: Option<SaslMethods>,
    /// How often SCRAM hashes passwords that are set from now on.
    pub scram_iterations: Option<u32>,
    /// The memory of a hash of a password, as `12MiB`.
    pub argon2id_memory: Option<String>,
    /// How often that memory is gone through.
    pub argon2id_time: Option<u32>,
    /// Name of the administrator.
    pub username: Option<String>,
    /// Password of the administrator.
    pub password: Option<String>,
    /// A file whose first line is the administrator's password.
    pub password_file: Option<PathBuf>,
    /// Buckets, as `NAME[:QUOTA[:TYPE]]`.
    pub buckets: Option<Vec<String>>,
    /// vBuckets of each bucket.
    pub vbuckets: Option<u16>,
    /// Worker threads.
    pub threads: Option<usize>,
    /// The name or address that clients reach this node by; if missing, the one they connected to.
    pub advertise: Option<String>,
    /// Where clients of another network reach this node, as `HOST[,kv=PORT,mgmt=PORT,kvSSL=PORT,mgmtSSL=PORT]`.
    pub alternate_address: Option<String>,
    /// KV connections at the same time.
    pub max_connections: Option<usize>,
    /// Of these, from one address.
    pub max_connections_per_address: Option<usize>,
    /// The most that all connections may hold together, as `256MiB`.
    pub connection_memory: Option<String>,
    /// HTTP connections at the same time.
    pub max_http_connections: Option<usize>,
    /// Of these, from one address.
    pub max_http_connections_per_address: Option<usize>,
    /// Seconds that an HTTP connection may be without a request.
    pub http_idle_timeout_s: Option<u64>,
    /// Seconds from accept to logged in.
    pub login_timeout_s: Option<u64>,
    /// Who may read `/metrics`.
    pub metrics_login: Option<MetricsLogin>,
    /// Whether changes go to a journal before they go to the files.
    pub journal: Option<Switch>,
    /// Files of documents that may be open at the same time, of all buckets together.
    pub max_open_files: Option<usize>,
    /// A file is compacted when so many of a hundred bytes of it are not in use.
    pub compaction_fragmentation_percent: Option<u8>,
    /// And at least so many bytes, as `1MiB`.
    pub compaction_min_waste: Option<String>,
    /// Tombstones older than so many seconds are forgotten when their file is compacted.
    pub purge_age_s: Option<u32>,
    /// The most that the quotas of all buckets may come to when another is made while the node runs, as `8GiB`.
    pub memory_quota: Option<String>,
    /// The cluster to belong to, as `etcd://HOST:PORT[,...]/CLUSTER`.
    pub join: Option<String>,
    /// The user of etcd.
    pub etcd_user: Option<String>,
    /// A file whose first line is that user's password.
    pub etcd_password_file: Option<PathBuf>,
    /// The certificates that etcd's is signed by.
    pub etcd_ca: Option<PathBuf>,
    /// This node's certificate for etcd.
    pub etcd_cert: Option<PathBuf>,
    /// The key of that certificate.
    pub etcd_key: Option<PathBuf>,
    /// How much is logged: error, warn, info or debug.
    pub log: Option<String>,
    /// How a line of the log is written.
    pub log_format: Option<LogFormat>,
    /// The file that the log goes to.
    pub log_file: Option<PathBuf>,
    /// How large that file becomes, with a unit.
    pub log_file_size: Option<String>,
    /// How many earlier files are kept.
    pub log_files: Option<u32>,
    /// So many seconds the files of a bucket that the cluster deleted are kept.
    pub quarantine_s: Option<u64>,
    /// A file with the key that the keys of encrypted files are wrapped with.
    pub encryption_key_file: Option<PathBuf>,
    /// A command that prints that key.
    pub encryption_key_command: Option<String>,
    /// Buckets that need more words, beside those in `buckets`.
    #[serde(default)]
    pub bucket: Vec<BucketTable>,
    /// Further users.
    #[serde(default)]
    pub user: Vec<UserSpec>,
    /// The audit log.
    pub audit: Option<AuditTable>,
    /// Where traces of slow operations go: `http[s]://HOST:PORT[/PATH]`.
    pub trace_endpoint: Option<String>,
    /// A file with the CAs of the collector's certificate.
    pub trace_ca: Option<PathBuf>,
    /// Milliseconds that commands may take before they are slow, by the command's name.
    pub slow_operations: Option<BTreeMap<String, u64>>,
    /// Descriptors that the node may have; `None` if they are not limited. The system says it, not the file.
    #[serde(skip)]
    pub descriptors: Option<u64>,
}

/// What is wrong with a file, and where. Of the line itself only the name is told: its value may be a password.
fn place_of(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
    let of_line =
        text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map(|(name, _)| name.trim());
    let is_name =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let name = of_line.filter(is_name).map_or(String::new(), |name| format!(" ({name})"));
    format!("line {line}, column {column}{name}: {}", error.message())
}

/// What is wrong with a table of a list that is written like one that there is once, if there is such a table.
fn table_of_a_list(text: &str) -> Option<String> {
    ["bucket", "user"].iter().find_map(|name| {
        let lines = || text.lines().map(str::trim_start).enumerate();
        let first = lines().find(|(_, line)| line.starts_with(&format!("[[{name}]]")));
        let found = lines().find(|(at, line)| {
            let is_part = line.starts_with(&format!("[{name}.")) && first.is_none_or(|(first, _)| *at < first);
            is_part || line.starts_with(&format!("[{name}]"))
        });
        let (at, line) = found?;
        let header = line.split_inclusive(']').next().unwrap_or(line);
        let write = if header.contains('.') {
            format!("it belongs to the table [[{name}]] above it, and there is none: write [[{name}]] and name = \"...\" first")
        } else {
            format!("there may be several: write [[{name}]]")
        };
        Some(format!("line {}, {header}: {write}", at + 1))
    })
}

impl Settings {
    /// Reads a TOML file's text.
    pub fn parse(text: &str) -> Result<Settings, ConfigError> {
        let told = |error| table_of_a_list(text).unwrap_or_else(|| place_of(&error, text));
        toml::from_str(text).map_err(|error| ConfigError::File(told(error)))
    }

    /// These settings, and where they are silent, `other`'s. A source that names buckets names all of them.
    pub fn over(self, other: Settings) -> Settings {
        let names_buckets = self.buckets.is_some() || !self.bucket.is_empty();
        let (buckets, bucket) =
            if names_buckets { (self.buckets, self.bucket) } else { (other.buckets, other.bucket) };
        let user = if self.user.is_empty() { other.user } else { self.user };
        macro_rules! settings {
            ($($name:ident),+ $(,)?) => {
                Settings { buckets, bucket, user, $($name: self.$name.or(other.$name)),+ }
            };
        }
        settings! {
            data, kv, http, kv_tls, http_tls, tls_cert, tls_key, tls_min_version, tls_ca, tls_client_auth,
            tls_client_user, cluster_encryption, tls_cipher_suites, sasl_mechanisms, tls_sasl_mechanisms,
            scram_iterations, argon2id_memory, argon2id_time, username, password, password_file, vbuckets, threads,
            advertise, alternate_address, max_connections, max_connections_per_address, connection_memory,
            max_http_connections, max_http_connections_per_address, http_idle_timeout_s, login_timeout_s,
            metrics_login, journal, max_open_files, compaction_fragmentation_percent, compaction_min_waste,
            purge_age_s, memory_quota, join, etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key,
            log, log_format, log_file, log_file_size, log_files, quarantine_s, encryption_key_file,
            encryption_key_command, audit, trace_endpoint, trace_ca, slow_operations,
            descriptors,
        }
    }

    /// What is said of the log, checked.
    pub fn log(&self) -> Result<LogConfig, ConfigError> {
        let file = LogFile::checked(self.log_file.clone(), self.log_file_size.as_deref(), self.log_files)?;
        Ok(LogConfig { level: self.log.clone(), format: self.log_format, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_list_is_told_with_its_two_brackets() {
        for (text, told) in [
            ("[bucket]\nname = \"a\"", "line 1, [bucket]: there may be several: write [[bucket]]"),
            (
                "threads = 1\n[bucket.settings] # of it\nexp_pager_stime = 60",
                "line 2, [bucket.settings]: it belongs to the table [[bucket]] above it, and there is none",
            ),
            ("[user]\nname = \"a\"", "line 1, [user]: there may be several: write [[user]]"),
        ] {
            let error = Settings::parse(text).expect_err(text).to_string();
            assert!(error.contains(told), "{error}");
        }
        let fine = "[[bucket]]\nname = \"a\"\n[bucket.settings]\nexp_pager_stime = 60";
        assert!(Settings::parse(fine).is_ok());
    }

    #[test]
    fn what_is_wrong_with_a_file_does_not_show_its_lines() {
        let error = Settings::parse("threads = 1\npassword = unmistakable").expect_err("it has no quotes");
        let told = error.to_string();
        assert!(told.contains("line 2, column 12 (password)") && !told.contains("unmistakable"), "{told}");
    }
}
