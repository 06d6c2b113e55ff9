//! What encrypted connections are served with: files in PEM, addresses, and the least version.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::addresses::{is_off, parse_addresses};
use super::client_names::{ClientAuth, ClientNameRule};
use super::tls_words::{ClusterEncryption, TlsVersion};
use super::{ConfigError, Settings};

/// What encrypted connections are served with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Address for clients: the first one.
    pub kv_addr: SocketAddr,
    /// Address for HTTP: the first one.
    pub http_addr: SocketAddr,
    /// More addresses for clients.
    pub more_kv: Vec<SocketAddr>,
    /// More addresses for HTTP.
    pub more_http: Vec<SocketAddr>,
    /// The node's certificate and those between it and the CA, in this order.
    pub certificate: PathBuf,
    /// The key of the first of them.
    pub key: PathBuf,
    /// The lowest version that is spoken.
    pub min_version: TlsVersion,
    /// The cipher suites that are spoken, by name; all good ones if there is none.
    pub cipher_suites: Vec<String>,
    /// Whether the order of these counts, not the client's; it is set over HTTP alone.
    pub honors_order: bool,
    /// The CAs by which other nodes, and clients with certificates, are known.
    pub ca: Option<PathBuf>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// Whom such a certificate stands for: the first rule that finds a name.
    pub client_names: Vec<ClientNameRule>,
    /// Which connections to other nodes are encrypted.
    pub cluster_encryption: ClusterEncryption,
}

/// The addresses for connections with TLS: those that are given, or others beside those without TLS.
fn beside(
    own: Option<&str>,
    plain: Option<&str>,
    port: u16,
    default_port: u16,
) -> Result<(SocketAddr, Vec<SocketAddr>), ConfigError> {
    if let Some(own) = own {
        return parse_addresses(own);
    }
    // A node that listens beyond this machine without TLS does so with TLS as well. Several nodes of a machine have ports
    // of their own.
    let moved = |plain: SocketAddr| {
        let is_moved = plain.port() != default_port;
        SocketAddr::new(plain.ip(), if is_moved { 0 } else { port })
    };
    match plain.filter(|plain| !is_off(plain)) {
        None => Ok((SocketAddr::from(([127, 0, 0, 1], port)), Vec::new())),
        Some(plain) => {
            let (first, more) = parse_addresses(plain)?;
            Ok((moved(first), more.into_iter().map(moved).collect()))
        }
    }
}

impl TlsConfig {
    /// The addresses for clients.
    pub fn kv_addrs(&self) -> Vec<SocketAddr> {
        std::iter::once(self.kv_addr).chain(self.more_kv.iter().copied()).collect()
    }

    /// The addresses for HTTP.
    pub fn http_addrs(&self) -> Vec<SocketAddr> {
        std::iter::once(self.http_addr).chain(self.more_http.iter().copied()).collect()
    }

    /// What settings say; nothing if they name no certificate.
    pub(super) fn of(settings: &Settings) -> Result<Option<TlsConfig>, ConfigError> {
        let (certificate, key) = match (&settings.tls_cert, &settings.tls_key) {
            (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
            (None, None) => {
                let others = [
                    ("kv-tls", settings.kv_tls.is_some()),
                    ("http-tls", settings.http_tls.is_some()),
                    ("tls-min-version", settings.tls_min_version.is_some()),
                    ("tls-cipher-suites", settings.tls_cipher_suites.is_some()),
                    ("tls-sasl-mechanisms", settings.tls_sasl_mechanisms.is_some()),
                    ("tls-ca", settings.tls_ca.is_some()),
                    ("tls-client-auth", settings.tls_client_auth.unwrap_or_default() != ClientAuth::Off),
                    ("tls-client-user", settings.tls_client_user.is_some()),
                    ("cluster-encryption", settings.cluster_encryption.unwrap_or_default().covers_http()),
                ];
                let lost = others.into_iter().find(|(_, is_given)| *is_given);
                return lost.map_or(Ok(None), |(name, _)| Err(ConfigError::NoCertificate(name)));
            }
            _ => return Err(ConfigError::HalfCertificate),
        };
        let cluster_encryption = settings.cluster_encryption.unwrap_or_default();
        let client_auth = settings.tls_client_auth.unwrap_or_default();
        let knows_others = cluster_encryption.covers_http() || client_auth != ClientAuth::Off;
        if knows_others && settings.tls_ca.is_none() {
            return Err(ConfigError::NoCa);
        }
        let (kv_addr, more_kv) = beside(settings.kv_tls.as_deref(), settings.kv.as_deref(), 11207, 11210)?;
        let (http_addr, more_http) =
            beside(settings.http_tls.as_deref(), settings.http.as_deref(), 18091, 8091)?;
        Ok(Some(TlsConfig {
            kv_addr,
            http_addr,
            more_kv,
            more_http,
            certificate,
            key,
            min_version: settings.tls_min_version.unwrap_or_default(),
            cipher_suites: settings.tls_cipher_suites.clone().unwrap_or_default(),
            honors_order: false,
            ca: settings.tls_ca.clone(),
            client_auth,
            client_names: settings.tls_client_user.clone().unwrap_or_else(|| vec![ClientNameRule::default()]),
            cluster_encryption,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<TlsConfig>, ConfigError> {
        TlsConfig::of(&Settings::parse(text).expect("a valid file"))
    }

    #[test]
    fn addresses_follow_those_without_tls() {
        let addresses = |text: &str| {
            let config =
                of(&format!("tls-cert = \"c\"\ntls-key = \"k\"\n{text}")).expect("valid").expect("TLS");
            (config.kv_addr.to_string(), config.http_addr.to_string())
        };
        let pair = |kv: &str, http: &str| (kv.to_owned(), http.to_owned());
        assert_eq!(addresses(""), pair("127.0.0.1:11207", "127.0.0.1:18091"));
        assert_eq!(addresses("kv = \"0.0.0.0:11210\""), pair("0.0.0.0:11207", "127.0.0.1:18091"));
        assert_eq!(addresses("kv = \"127.0.0.1:0\""), pair("127.0.0.1:0", "127.0.0.1:18091"));
        assert_eq!(addresses("http-tls = \"127.0.0.1:9\""), pair("127.0.0.1:11207", "127.0.0.1:9"));
    }

    #[test]
    fn what_is_of_no_use_alone_is_refused() {
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("tls-cert = \"c\""), Err(ConfigError::HalfCertificate));
        assert_eq!(of("kv-tls = \"127.0.0.1:1\""), Err(ConfigError::NoCertificate("kv-tls")));
        assert_eq!(of("tls-min-version = \"1.3\""), Err(ConfigError::NoCertificate("tls-min-version")));
        assert_eq!(of("cluster-encryption = \"all\""), Err(ConfigError::NoCertificate("cluster-encryption")));
        let pair = "tls-cert = \"c\"\ntls-key = \"k\"\n";
        assert_eq!(of(&format!("{pair}cluster-encryption = \"control\"")), Err(ConfigError::NoCa));
        assert_eq!(of(&format!("{pair}tls-client-auth = \"optional\"")), Err(ConfigError::NoCa));
        assert!(of(&format!("{pair}cluster-encryption = \"off\"")).is_ok());
        assert!(of(&format!("{pair}cluster-encryption = \"strict\"\ntls-ca = \"a\"")).is_ok());
    }

    #[test]
    fn without_tls_a_strict_node_is_reached_from_its_own_machine_alone() {
        use ClusterEncryption::{All, Strict};
        let at = |level: ClusterEncryption, addr: &str| {
            level.plain_addr(addr.parse().expect("an address")).to_string()
        };
        assert_eq!(at(All, "0.0.0.0:11210"), "0.0.0.0:11210");
        assert_eq!(at(Strict, "0.0.0.0:11210"), "127.0.0.1:11210");
        assert_eq!(at(Strict, "[::]:8091"), "[::1]:8091");
        assert_eq!(at(Strict, "127.0.0.3:8091"), "127.0.0.3:8091");
    }
}
