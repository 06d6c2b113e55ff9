//! How connections to this node are protected, as scripts of the field ask for it. It is set in the configuration alone.

use ::node::config::{ClientAuth, ClientNameRule, ClusterEncryption, TlsConfig, TlsVersion};
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::shared::Shared;

/// What TLS is spoken with; `None` if the node does not speak it.
fn tls_of(shared: &Shared) -> Option<TlsConfig> {
    shared.peer_tls.own().map(|tls| tls.config())
}

/// `GET /settings/security`: the least version of TLS, cipher suites (none: all good ones), and which connections to other
/// nodes are encrypted.
pub(super) async fn show(State(shared): State<Shared>) -> Json<Value> {
    let tls = tls_of(&shared);
    let tls = tls.as_ref();
    let level = tls.map_or(ClusterEncryption::Off, |tls| tls.cluster_encryption);
    Json(json!({
        "tlsMinVersion": tls.map_or(TlsVersion::default(), |tls| tls.min_version).name(),
        "cipherSuites": tls.map(|tls| &tls.cipher_suites[..]).unwrap_or_default(),
        "clusterEncryptionLevel": level.name(),
        "disableUIOverHttp": false,
        "disableUIOverHttps": false,
    }))
}

/// `GET /settings/clientCertAuth`: whether clients show a certificate, and which user one stands for.
pub(super) async fn client_certificates(State(shared): State<Shared>) -> Json<Value> {
    let tls = tls_of(&shared);
    let state = tls.as_ref().map_or(ClientAuth::Off, |tls| tls.client_auth);
    let rule = |rule: &ClientNameRule| json!({ "path": rule.field.name(), "prefix": rule.prefix(), "delimiter": rule.delimiters() });
    let rules =
        tls.iter().filter(|_| state != ClientAuth::Off).flat_map(|tls| tls.client_names.iter().map(rule));
    Json(json!({ "state": state.state(), "prefixes": rules.collect::<Vec<Value>>() }))
}
