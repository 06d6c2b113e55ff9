//! How a node of a cluster shows another one that it belongs to the cluster, without sending the password.

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use ::node::config::UserSpec;
use ::node::node_login::NodeSecret;
use ::node::sasl::digest::{Digest, Mechanism};

/// How often the password is hashed: as often as for SCRAM, which tells a listener as much.
const ITERATIONS: u32 = 4_096;
const SCHEME: &str = "Stave-Node";

/// A key that all nodes of a cluster have: made of their secret, or of their user and password, as earlier versions do.
#[derive(Clone, Copy)]
pub(super) struct NodeKey(Digest);

impl NodeKey {
    /// The key for a cluster with this secret.
    pub(super) fn of_secret(secret: &NodeSecret, cluster: &str) -> NodeKey {
        NodeKey(secret.key(&format!("stave node-to-node {cluster}")))
    }

    /// Derives the key for a cluster with nodes of an earlier version.
    pub(super) fn derive(user: &UserSpec, cluster: &str) -> NodeKey {
        let secret = format!("{}:{}:{}", user.name.len(), user.name, user.password);
        let salt = format!("stave node-to-node {cluster}");
        NodeKey(Mechanism::Sha512.pbkdf2(secret.as_bytes(), salt.as_bytes(), ITERATIONS))
    }

    /// The header field that lets its owner use one path of one node. Whoever is sent it can do nothing else with it.
    pub(super) fn authorization(&self, path: &str, node: &str) -> String {
        let parts = [b"GET", path.as_bytes(), node.as_bytes()].join(&b'\n');
        let proof = Mechanism::Sha256.hmac(self.0.bytes(), &[&parts]);
        let hex = proof.bytes().iter().map(|byte| format!("{byte:02x}"));
        format!("{SCHEME} {}", hex.collect::<String>())
    }

    /// Whether a request for `path` shows that it comes from a node of the cluster and is meant for `node`.
    pub(super) fn is_shown(&self, headers: &HeaderMap, path: &str, node: &str) -> bool {
        let shown = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        shown.is_some_and(|shown| bool::from(shown.ct_eq(self.authorization(path, node).as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::node::config::Role;

    #[test]
    fn it_is_good_for_one_path_of_one_node_of_one_cluster() {
        let user = |password: &str| UserSpec {
            name: "ada".to_owned(),
            password: password.to_owned(),
            role: Role::Admin,
            buckets: None,
        };
        let key = NodeKey::derive(&user("secret1"), "c");
        let shown = key.authorization("/v1/figures", "a:1");
        assert!(!shown.contains("secret1"), "{shown}");
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, shown.parse().expect("a header"))]);
        assert!(key.is_shown(&headers, "/v1/figures", "a:1"));
        assert!(!key.is_shown(&headers, "/v1/figures", "b:1"));
        assert!(!key.is_shown(&headers, "/v1/cluster", "a:1"));
        assert!(!key.is_shown(&HeaderMap::new(), "/v1/figures", "a:1"));
        for other in [NodeKey::derive(&user("secret2"), "c"), NodeKey::derive(&user("secret1"), "d")] {
            assert!(!other.is_shown(&headers, "/v1/figures", "a:1"));
        }
    }
}
