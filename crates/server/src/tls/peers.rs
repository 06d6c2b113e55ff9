//! Connections to other nodes: which of them are encrypted, and with what.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use ::node::config::ClusterEncryption;
use ::node::doors::Protection;
use ::node::kept_users::security::{SecuritySettings, TlsService};

use super::Tls;

/// What connections to other nodes are encrypted with.
#[derive(Clone, Default)]
pub struct PeerTls {
    level: ClusterEncryption,
    tls: Option<Arc<Tls>>,
}

impl PeerTls {
    /// As the node is set to. Without certificates nothing is encrypted; a configuration that asks for it is refused
    /// before.
    pub(crate) fn new(level: ClusterEncryption, tls: Option<Arc<Tls>>) -> PeerTls {
        PeerTls { level, tls }
    }

    /// For requests over HTTP, as the files are now; nothing if they are not encrypted.
    pub(crate) fn for_http(&self) -> Option<Arc<ClientConfig>> {
        if self.level.covers_http() { self.client(TlsService::ClusterManager) } else { None }
    }

    /// For connections that carry documents.
    pub(crate) fn for_documents(&self) -> Option<Arc<ClientConfig>> {
        if self.level.covers_documents() { self.client(TlsService::Data) } else { None }
    }

    /// What this node shows to clients; nothing if it does not speak TLS.
    pub(crate) fn own(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    fn client(&self, service: TlsService) -> Option<Arc<ClientConfig>> {
        self.tls.as_ref().and_then(|tls| tls.client(service))
    }

    /// Which connections to other nodes are encrypted.
    pub(crate) fn level(&self) -> ClusterEncryption {
        self.level
    }
}

impl Protection for PeerTls {
    fn follow(&self, settings: &SecuritySettings) {
        if let Some(tls) = &self.tls {
            tls.follow(settings);
        }
    }
}

/// The name that the certificate of the server at `HOST:PORT` must have.
///
/// # Errors
///
/// The host is neither a name nor an address.
pub fn server_name(endpoint: &str) -> io::Result<ServerName<'static>> {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)
}
