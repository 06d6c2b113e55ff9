//! Encrypted connections of clients: certificate, key, addresses.

use std::path::PathBuf;

use clap::Args;
use node::Settings;
use node::config::{ClientAuth, ClientNameRule, ClusterEncryption, TlsVersion};
use node::sasl::offer::SaslMethods;

/// What encrypted connections are served with.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsFlags {
    /// Speak TLS with clients, too: this node's certificate in PEM, with those between it and the CA behind it. New
    /// connections are made with the file as it is then
    #[arg(long, value_name = "FILE.pem", requires = "tls_key", env = "STAVE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate, not encrypted: PKCS#8, PKCS#1 or SEC1
    #[arg(long, value_name = "FILE.pem", requires = "tls_cert", env = "STAVE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Where clients connect with TLS; port 0 takes a free one [default: port 11207 beside --kv]
    #[arg(long, value_name = "HOST:PORT[,...]", env = "STAVE_KV_TLS")]
    kv_tls: Option<String>,
    /// Where HTTP is answered with TLS; port 0 takes a free one [default: port 18091 beside --http]
    #[arg(long, value_name = "HOST:PORT[,...]", env = "STAVE_HTTP_TLS")]
    http_tls: Option<String>,
    /// The lowest version of TLS that is spoken [default: 1.2]
    #[arg(long, value_name = "1.2|1.3", env = "STAVE_TLS_MIN_VERSION")]
    tls_min_version: Option<TlsVersion>,
    /// The cipher suites that are spoken, by their names at IANA, the best first; may be repeated, or several with commas
    /// between them [default: all of TLS 1.3, and of 1.2 those with ECDHE and an AEAD]
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "STAVE_TLS_CIPHER_SUITES")]
    tls_cipher_suites: Option<Vec<String>>,
    /// How users may log in to KV connections without TLS: SCRAM-SHA512, SCRAM-SHA256, SCRAM-SHA1, PLAIN (which shows the
    /// password to all who read along), with commas between them [default: all]
    #[arg(long, value_name = "NAME[,...]", env = "STAVE_SASL_MECHANISMS")]
    sasl_mechanisms: Option<SaslMethods>,
    /// The same with TLS [default: all]
    #[arg(long, value_name = "NAME[,...]", env = "STAVE_TLS_SASL_MECHANISMS")]
    tls_sasl_mechanisms: Option<SaslMethods>,
    /// The CAs that have signed the certificates of the other nodes of the cluster, and of clients that show one
    #[arg(long, value_name = "FILE.pem", env = "STAVE_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Whether clients show a certificate that a CA of --tls-ca has signed, and log in by it: off, optional (others log
    /// in by password), or required (who has none is not let in) [default: off]
    #[arg(long, value_name = "off|optional|required", env = "STAVE_TLS_CLIENT_AUTH")]
    tls_client_auth: Option<ClientAuth>,
    /// The user of a client's certificate: subject.cn, san.dnsname, san.uri or san.email, behind it prefix=TEXT and
    /// delimiters=CHARACTERS if that holds more than the name. May be repeated (in the variable: a line each): the first
    /// that finds a name counts [default: subject.cn]
    #[arg(long, value_name = "RULE", value_delimiter = '\n', env = "STAVE_TLS_CLIENT_USER")]
    tls_client_user: Option<Vec<ClientNameRule>>,
    /// Which connections to other nodes are encrypted: control (requests over HTTP, which carry no documents), all, or
    /// strict (all; and --kv and --http are reached from this machine alone). It takes --tls-ca [default: off]
    #[arg(long, value_name = "off|control|all|strict", env = "STAVE_CLUSTER_ENCRYPTION")]
    cluster_encryption: Option<ClusterEncryption>,
}

impl TlsFlags {
    /// As settings, which the configuration file may have, too.
    pub fn settings(self) -> Settings {
        Settings {
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            kv_tls: self.kv_tls,
            http_tls: self.http_tls,
            tls_min_version: self.tls_min_version,
            tls_ca: self.tls_ca,
            tls_client_auth: self.tls_client_auth,
            tls_client_user: self.tls_client_user,
            cluster_encryption: self.cluster_encryption,
            tls_cipher_suites: self.tls_cipher_suites,
            sasl_mechanisms: self.sasl_mechanisms,
            tls_sasl_mechanisms: self.tls_sasl_mechanisms,
            ..Settings::default()
        }
    }
}
