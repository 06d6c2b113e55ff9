//! How a node of a cluster shows another one that it belongs to the cluster, without sending the password.
//!
//! *Guarantee:* a proof is good for one method and path of one node, and for some minutes; for what changes something, once.
//! A proof of the last version, which has neither method nor time, is good for reading as long as such nodes are there.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, header};
use base::RateLimit;
use base::env::Env;
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use ::node::config::UserSpec;
use ::node::node_login::NodeSecret;
use ::node::sasl::digest::{Digest, Mechanism};

/// How often the password is hashed: as often as for SCRAM, which tells a listener as much.
const ITERATIONS: u32 = 4_096;
const SCHEME: &str = "Stave-Node";
/// How long a proof counts, in seconds, before and after its time: clocks of nodes that are further apart are wrong, as
/// Kerberos sees it, too.
const GOOD_FOR_S: u64 = 300;
/// The most proofs that are remembered so that they count once.
const MOST_SEEN: usize = 4_096;

/// A key that all nodes of a cluster have: made of their secret, or of their user and password, as earlier versions do.
#[derive(Clone, Copy)]
pub(super) struct NodeKey(Digest);

/// What a node asks another one for.
#[derive(Clone, Copy)]
pub(super) struct NodeRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    /// Which node is asked, by its name in the cluster's state.
    pub(super) node: &'a str,
}

/// What a request shows of where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing that was made with the key for what is asked.
    None,
    /// A node of the last version made it, whenever that was.
    Timeless,
    /// It was made so many seconds ago, or is to be made in so many.
    Late { off_by_s: u64 },
    /// It was made just now. What it is known by, and until when it counts, in seconds of Unix time.
    Timely { id: [u8; 32], until_s: u64 },
}

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

    /// The header field that lets its owner do this once, or look at it for some minutes. The node that it is sent to can do
    /// nothing else with it.
    pub(super) fn authorization(&self, asked: NodeRequest<'_>, env: &Env) -> String {
        let mut nonce = [0; 16];
        env.random.fill(&mut nonce);
        self.at(asked, u64::from(env.clock.unix_s()), &hex(&nonce))
    }

    fn at(&self, asked: NodeRequest<'_>, time_s: u64, nonce: &str) -> String {
        let NodeRequest { method, path, node } = asked;
        let text = format!("timed\n{method}\n{path}\n{node}\n{time_s}\n{nonce}");
        let proof = Mechanism::Sha256.hmac(self.0.bytes(), &[text.as_bytes()]);
        format!("{SCHEME} time={time_s},nonce={nonce},proof={}", hex(proof.bytes()))
    }

    /// The same for a node of the last version, whatever the method is.
    pub(super) fn timeless(&self, path: &str, node: &str) -> String {
        let parts = [b"GET", path.as_bytes(), node.as_bytes()].join(&b'\n');
        let proof = Mechanism::Sha256.hmac(self.0.bytes(), &[&parts]);
        format!("{SCHEME} {}", hex(proof.bytes()))
    }

    /// What a request shows at this moment of Unix time, in seconds.
    pub(super) fn proof(&self, headers: &HeaderMap, asked: NodeRequest<'_>, now_s: u64) -> Proof {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(shown) = shown else { return Proof::None };
        let is = |expected: &str| bool::from(shown.as_bytes().ct_eq(expected.as_bytes()));
        let Some((time_s, nonce)) = time_and_nonce(shown) else {
            return if is(&self.timeless(asked.path, asked.node)) { Proof::Timeless } else { Proof::None };
        };
        if !is(&self.at(asked, time_s, nonce)) {
            return Proof::None;
        }
        let off_by_s = now_s.abs_diff(time_s);
        if off_by_s > GOOD_FOR_S {
            return Proof::Late { off_by_s };
        }
        let id = Mechanism::Sha256.hmac(self.0.bytes(), &[b"seen", shown.as_bytes()]);
        let id = *id.bytes().first_chunk().expect("a digest has 32 bytes");
        Proof::Timely { id, until_s: time_s + GOOD_FOR_S }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of a header field as [`NodeKey::at`] makes it. What is read here counts only if the whole field is what the key makes of it.
fn time_and_nonce(shown: &str) -> Option<(u64, &str)> {
    let rest = shown.strip_prefix(SCHEME)?.strip_prefix(" time=")?;
    let (time, rest) = rest.split_once(",nonce=")?;
    let (nonce, _) = rest.split_once(",proof=")?;
    Some((time.parse().ok()?, nonce))
}

/// Proofs of what changes something, until they do not count any more: each counts once.
#[derive(Default)]
pub(super) struct SeenProofs {
    until_s: Mutex<BTreeMap<[u8; 32], u64>>,
    /// Of proofs that come too late.
    pub(super) told_late: RateLimit,
}

impl SeenProofs {
    /// Whether a proof was not seen yet, which it was from now on. One that cannot be remembered does not count.
    pub(super) fn is_first(&self, id: [u8; 32], until_s: u64, now_s: u64) -> bool {
        let mut seen = self.until_s.lock();
        if seen.len() >= MOST_SEEN {
            seen.retain(|_, until_s| *until_s >= now_s);
        }
        seen.len() < MOST_SEEN && seen.insert(id, until_s).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::node::config::Role;

    fn key(password: &str, cluster: &str) -> NodeKey {
        let user = UserSpec {
            name: "ada".to_owned(),
            password: password.to_owned(),
            role: Role::Admin,
            buckets: None,
        };
        NodeKey::derive(&user, cluster)
    }

    fn headers_of(shown: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, shown.parse().expect("a header"))])
    }

    const ASKED: NodeRequest<'_> = NodeRequest { method: &Method::GET, path: "/v1/figures", node: "a:1" };

    #[test]
    fn it_is_good_for_one_method_and_path_of_one_node_of_one_cluster() {
        let own = key("secret1", "c");
        let shown = own.at(ASKED, 1_000, "00ff");
        assert!(!shown.contains("secret1"), "{shown}");
        let headers = headers_of(&shown);
        assert!(matches!(own.proof(&headers, ASKED, 1_000), Proof::Timely { until_s: 1_300, .. }));
        for other in [
            NodeRequest { node: "b:1", ..ASKED },
            NodeRequest { path: "/v1/cluster", ..ASKED },
            NodeRequest { method: &Method::POST, ..ASKED },
        ] {
            assert_eq!(own.proof(&headers, other, 1_000), Proof::None);
        }
        assert_eq!(own.proof(&HeaderMap::new(), ASKED, 1_000), Proof::None);
        for other in [key("secret2", "c"), key("secret1", "d")] {
            assert_eq!(other.proof(&headers, ASKED, 1_000), Proof::None);
        }
        for wrong in [shown.replace("1000", "1001"), shown.replace("00ff", "00fe"), format!("{shown} ")] {
            assert_eq!(own.proof(&headers_of(&wrong), ASKED, 1_000), Proof::None, "{wrong}");
        }
    }

    #[test]
    fn it_is_good_for_some_minutes() {
        let key = key("secret1", "c");
        let headers = headers_of(&key.at(ASKED, 1_000, "00ff"));
        for now_s in [700, 1_300] {
            assert!(matches!(key.proof(&headers, ASKED, now_s), Proof::Timely { .. }), "{now_s}");
        }
        for (now_s, off_by_s) in [(699, 301), (1_301, 301), (u64::MAX, u64::MAX - 1_000)] {
            assert_eq!(key.proof(&headers, ASKED, now_s), Proof::Late { off_by_s });
        }
    }

    #[test]
    fn one_of_the_last_version_is_told_from_it() {
        let key = key("secret1", "c");
        let shown = headers_of(&key.timeless("/v1/figures", "a:1"));
        assert_eq!(key.proof(&shown, ASKED, 1_000), Proof::Timeless);
        assert_eq!(key.proof(&shown, NodeRequest { node: "b:1", ..ASKED }, 1_000), Proof::None);
    }

    #[test]
    fn a_proof_is_seen_once_and_few_are_remembered() {
        let seen = SeenProofs::default();
        let id = |n: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            id
        };
        assert!(seen.is_first(id(0), 10, 1) && !seen.is_first(id(0), 10, 1));
        assert!((1..MOST_SEEN).all(|n| seen.is_first(id(n), 10, 1)));
        assert!(!seen.is_first(id(MOST_SEEN), 10, 10), "there is no room");
        assert!(seen.is_first(id(MOST_SEEN), 30, 11), "the others count no more");
    }
}
