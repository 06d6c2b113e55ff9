//! Addresses at which a node listens: one or more of each kind, and none without TLS if these are off.

use std::net::SocketAddr;

use super::addresses::{OFF, is_off, parse_addresses};
use super::{ConfigError, Settings, TlsConfig};

const DEFAULT_KV: &str = "127.0.0.1:11210";
const DEFAULT_HTTP: &str = "127.0.0.1:8091";

/// What is listened at without TLS beside the first address of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// The KV protocol is not spoken without TLS.
    pub kv_is_off: bool,
    /// HTTP is not answered without TLS.
    pub http_is_off: bool,
    /// More addresses for the KV protocol.
    pub more_kv: Vec<SocketAddr>,
    /// More addresses for HTTP.
    pub more_http: Vec<SocketAddr>,
}

/// Addresses as a person reads them.
pub fn shown(addresses: &[SocketAddr]) -> String {
    if addresses.is_empty() {
        return OFF.to_owned();
    }
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

impl Listening {
    /// The first addresses for KV and HTTP, and what there is beside them.
    pub(super) fn of(
        settings: &Settings,
        tls: Option<&TlsConfig>,
    ) -> Result<(SocketAddr, SocketAddr, Listening), ConfigError> {
        let one = |text: Option<&str>, default: &str| match text {
            Some(text) if is_off(text) => {
                parse_addresses(default).map(|(first, _)| (first, Vec::new(), true))
            }
            text => parse_addresses(text.unwrap_or(default)).map(|(first, more)| (first, more, false)),
        };
        let (kv, more_kv, kv_is_off) = one(settings.kv.as_deref(), DEFAULT_KV)?;
        let (http, more_http, http_is_off) = one(settings.http.as_deref(), DEFAULT_HTTP)?;
        for (name, is_off, least) in
            [("kv", kv_is_off, "all or strict"), ("http", http_is_off, "control, all or strict")]
        {
            if !is_off {
                continue;
            }
            let Some(tls) = tls else { return Err(ConfigError::NoWayIn(name)) };
            let level = tls.cluster_encryption;
            let is_reached = if name == "kv" { level.covers_documents() } else { level.covers_http() };
            if settings.join.is_some() && !is_reached {
                return Err(ConfigError::OffInCluster(name, least));
            }
        }
        Ok((kv, http, Listening { kv_is_off, http_is_off, more_kv, more_http }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const TLS: &str = "tls-cert = \"c\"\ntls-key = \"k\"\ntls-ca = \"a\"\n";

    fn config(toml: &str) -> Result<Config, ConfigError> {
        Config::new(Settings::parse(toml)?, "/data".into(), 1, || "made-up".to_owned())
    }

    /// What is listened at: KV and HTTP without TLS, then with it.
    fn listens(toml: &str) -> [String; 4] {
        let config = config(&format!("{TLS}{toml}")).expect("valid");
        let tls = config.tls.as_ref().expect("it speaks TLS");
        [config.plain_kv(), config.plain_http(), tls.kv_addrs(), tls.http_addrs()].map(|all| shown(&all))
    }

    #[test]
    fn several_addresses_are_given_with_commas() {
        assert_eq!(
            listens("kv = \"127.0.0.1:11210, [::1]:11210\"\nhttp-tls = \"localhost:1,[::1]:2\""),
            [
                "127.0.0.1:11210,[::1]:11210",
                "127.0.0.1:8091",
                "127.0.0.1:11207,[::1]:11207",
                "127.0.0.1:1,[::1]:2"
            ]
        );
        for wrong in ["", "127.0.0.1:1,", "off,127.0.0.1:1", "127.0.0.1:1,off"] {
            let error = config(&format!("kv = {wrong:?}")).err();
            assert!(matches!(error, Some(ConfigError::Address(_))), "{wrong}");
        }
        let open = config("http = \"127.0.0.1:1,0.0.0.0:2\"").err();
        assert!(matches!(open, Some(ConfigError::OpenWithoutPassword(_))), "each of them counts");
    }

    #[test]
    fn ports_without_tls_are_off_only_beside_those_with_it() {
        assert_eq!(
            listens("kv = \"off\"\nhttp = \"off\""),
            ["off", "off", "127.0.0.1:11207", "127.0.0.1:18091"]
        );
        assert_eq!(listens("kv = \"off\"")[1], "127.0.0.1:8091");
        for name in ["kv", "http"] {
            assert_eq!(config(&format!("{name} = \"off\"")).err(), Some(ConfigError::NoWayIn(name)));
            let error = config(&format!("{TLS}{name} = \"off\"\n{name}-tls = \"off\"")).err();
            assert_eq!(error, Some(ConfigError::Address("off".to_owned())), "no way in is left");
        }
    }

    #[test]
    fn the_other_nodes_of_a_cluster_find_a_way_in() {
        let is_let = |name: &str, level: &str| {
            let join = "join = \"etcd://127.0.0.1:2379/demo\"\npassword = \"p\"";
            config(&format!("{TLS}{name} = \"off\"\ncluster-encryption = {level:?}\n{join}")).is_ok()
        };
        assert_eq!(
            ["off", "control", "all", "strict"].map(|level| is_let("kv", level)),
            [false, false, true, true]
        );
        assert_eq!(["off", "control", "all"].map(|level| is_let("http", level)), [false, true, true]);
    }
}
