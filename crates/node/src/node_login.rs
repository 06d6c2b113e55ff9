//! How nodes log in at each other: as [`NODE_USER`], with a secret of their cluster that is no user's password (record
//! 159).
//!
//! *Guarantee:* the secret is in no log, error, answer or file of the node. What is sent proves it and does not tell it.

use std::collections::BTreeSet;
use std::fmt;

use base::env::Random;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::replication::Password;
use crate::sasl::digest::{Digest, Mechanism};

/// Who a node is to another one. No user can have the name: those that are made have none that begins with `@`.
pub const NODE_USER: &str = "@node";
/// What the name under which a node logs in begins with; the identifier of its secret follows.
pub const LOGIN_PREFIX: &str = "@node/";
const SECRET_BYTES: usize = 32;
const ID_BYTES: usize = 8;

/// A secret that the nodes of one cluster have, and no client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSecret {
    /// Names it, and gives nothing of it away.
    id: String,
    /// Random bytes, in hexadecimal.
    secret: String,
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSecret({})", self.id)
    }
}

impl NodeSecret {
    /// One that no cluster has had before.
    pub fn new(random: &dyn Random) -> NodeSecret {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        random.fill(&mut id);
        random.fill(&mut secret);
        NodeSecret { id: hex(&id), secret: hex(&secret) }
    }

    /// Whether it has the form of one: a short secret could be guessed.
    pub(crate) fn is_sound(&self) -> bool {
        let is_hex = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        is_hex(&self.id, ID_BYTES) && is_hex(&self.secret, SECRET_BYTES)
    }

    /// Names it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name that is logged in with: it says which secret is meant, while a cluster has two.
    pub(crate) fn login_name(&self) -> String {
        format!("{LOGIN_PREFIX}{}", self.id)
    }

    /// What is logged in with.
    pub(crate) fn password(&self) -> Password {
        Password::from(self.secret.clone())
    }

    /// The secret itself, for tests.
    #[cfg(test)]
    pub(crate) fn password_text(&self) -> &str {
        &self.secret
    }

    pub(crate) fn secret_bytes(&self) -> &[u8] {
        self.secret.as_bytes()
    }

    /// A key for one purpose.
    pub fn key(&self, purpose: &str) -> Digest {
        Mechanism::Sha512.hmac(self.secret.as_bytes(), &[purpose.as_bytes()])
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As whom a node logs in at others, now.
#[derive(Default)]
pub struct NodeLogins(RwLock<Logins>);

#[derive(Default)]
struct Logins {
    secret: Option<NodeSecret>,
    /// What nodes of an earlier version let in.
    administrator: Option<(String, Password)>,
    /// The KV addresses of those.
    earlier: BTreeSet<String>,
}

impl NodeLogins {
    /// Name and password for the node with this KV address, as they are at the moment.
    pub fn at(&self, address: &str) -> (String, Password) {
        let logins = self.0.read();
        match (&logins.secret, &logins.administrator) {
            (Some(secret), _) if !logins.earlier.contains(address) => {
                (secret.login_name(), secret.password())
            }
            (_, Some(administrator)) => administrator.clone(),
            _ => (NODE_USER.to_owned(), Password::default()),
        }
    }

    /// Whether there is a secret to log in with.
    pub(crate) fn has_secret(&self) -> bool {
        self.0.read().secret.is_some()
    }

    pub(crate) fn set_secret(&self, secret: Option<NodeSecret>) {
        self.0.write().secret = secret;
    }

    pub(crate) fn set_administrator(&self, name: String, password: Password) {
        self.0.write().administrator = Some((name, password));
    }

    pub(crate) fn set_earlier(&self, addresses: BTreeSet<String>) {
        if self.0.read().earlier != addresses {
            self.0.write().earlier = addresses;
        }
    }
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn nodes_of_an_earlier_version_are_asked_as_the_administrator() {
        let (env, _) = Env::sim(1);
        let (logins, secret) = (NodeLogins::default(), NodeSecret::new(&*env.random));
        assert_eq!(logins.at("a:1").0, NODE_USER, "nothing is known");
        logins.set_administrator("ada".to_owned(), "p".to_owned().into());
        assert_eq!(logins.at("a:1").0, "ada");
        logins.set_secret(Some(secret.clone()));
        assert_eq!(logins.at("a:1"), (secret.login_name(), secret.password()));
        logins.set_earlier(BTreeSet::from(["b:1".to_owned()]));
        assert_eq!((logins.at("a:1").0, logins.at("b:1").0), (secret.login_name(), "ada".to_owned()));
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let (env, _) = Env::sim(1);
        let secret = NodeSecret::new(&*env.random);
        assert!(secret.is_sound() && !format!("{secret:?}").contains(&secret.secret));
        assert!(!NodeSecret { secret: String::new(), ..secret.clone() }.is_sound());
        assert_ne!(secret.key("one").bytes(), secret.key("other").bytes());
    }
}
