//! How encrypted connections are, in the words of a configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The lowest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum TlsVersion {
    /// 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// 1.3 alone.
    #[serde(rename = "1.3")]
    V1_3,
}

impl TlsVersion {
    /// As the original's REST API writes it.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::V1_2 => "tlsv1.2",
            TlsVersion::V1_3 => "tlsv1.3",
        }
    }
}

impl std::str::FromStr for TlsVersion {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<TlsVersion, &'static str> {
        match text {
            "1.2" => Ok(TlsVersion::V1_2),
            "1.3" => Ok(TlsVersion::V1_3),
            _ => Err("write 1.2 or 1.3"),
        }
    }
}

/// Which connections to other nodes are encrypted. The names are those of the original's levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterEncryption {
    /// None.
    #[default]
    Off,
    /// Requests over HTTP, which carry no documents.
    Control,
    /// All.
    All,
    /// All, and without TLS the node is reached from its own machine alone.
    Strict,
}

impl ClusterEncryption {
    /// The word of the configuration for it.
    pub fn name(self) -> &'static str {
        match self {
            ClusterEncryption::Off => "off",
            ClusterEncryption::Control => "control",
            ClusterEncryption::All => "all",
            ClusterEncryption::Strict => "strict",
        }
    }

    /// Whether requests over HTTP are encrypted.
    pub fn covers_http(self) -> bool {
        self != ClusterEncryption::Off
    }

    /// Whether connections that carry documents are.
    pub fn covers_documents(self) -> bool {
        matches!(self, ClusterEncryption::All | ClusterEncryption::Strict)
    }

    /// Where a port without TLS is listened at: with [`ClusterEncryption::Strict`] on loopback.
    pub fn plain_addr(self, addr: SocketAddr) -> SocketAddr {
        let loopback: IpAddr = match addr.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let stays = self != ClusterEncryption::Strict || addr.ip().is_loopback();
        if stays { addr } else { SocketAddr::new(loopback, addr.port()) }
    }
}

impl std::str::FromStr for ClusterEncryption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ClusterEncryption, &'static str> {
        match text {
            "off" => Ok(ClusterEncryption::Off),
            "control" => Ok(ClusterEncryption::Control),
            "all" => Ok(ClusterEncryption::All),
            "strict" => Ok(ClusterEncryption::Strict),
            _ => Err("write off, control, all or strict"),
        }
    }
}
