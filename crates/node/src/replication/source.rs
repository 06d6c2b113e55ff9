//! Where a vBucket's changes come from.

use std::collections::BTreeMap;
use std::fmt;

use base::VbId;
use dcp::Mode;

/// A password: it does not show itself when something that holds it is printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The text.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Password {
    fn from(text: String) -> Password {
        Password(text)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The node that a vBucket follows, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The KV address of the node, HOST:PORT.
    pub node: String,
    /// Who this node logs in as.
    pub username: String,
    /// That user's password.
    pub password: Password,
    /// Whether the vBucket stays a replica, or becomes the active one.
    pub mode: Mode,
}

/// The sources of a bucket's vBuckets; those that are not named follow nobody.
pub type Sources = BTreeMap<VbId, Source>;
