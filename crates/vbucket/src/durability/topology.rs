//! Who shall hold a vBucket: one or two replication chains, each with the active node first.

use std::fmt;
use std::sync::Arc;

use base::planted::{self, Bug};

/// The most members of a chain: the active node and three replicas.
pub const MAX_CHAIN: usize = 4;
/// The longest name of a node, in bytes.
pub const MAX_NODE_NAME_BYTES: usize = 255;

/// The members of a chain in order, the active node first; nothing stands for a member that is not defined yet.
/// A clone costs a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Arc<[Option<Box<str>>]>);

/// One chain, or two while a vBucket moves from one set of nodes to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    first: Chain,
    second: Option<Chain>,
}

/// What is wrong with a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// It is not an array of one or two chains.
    NotChains,
    /// A chain is not an array of one to [`MAX_CHAIN`] members.
    NotMembers,
    /// A member is neither a name of 1 to [`MAX_NODE_NAME_BYTES`] bytes nor null.
    NotAName,
    /// A chain does not begin with a defined member.
    NoActive,
    /// A chain names a node twice.
    Twice,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopologyError::NotChains => "The topology must be an array of one or two chains",
            TopologyError::NotMembers => "A chain must be an array of one to four members",
            TopologyError::NotAName => "A member of a chain must be a node's name or null",
            TopologyError::NoActive => "A chain must begin with the active node",
            TopologyError::Twice => "A chain must not name a node twice",
        })
    }
}

impl std::error::Error for TopologyError {}

impl Chain {
    /// A chain of these members, the active node first.
    pub fn new(members: Vec<Option<Box<str>>>) -> Result<Chain, TopologyError> {
        if members.is_empty() || members.len() > MAX_CHAIN {
            return Err(TopologyError::NotMembers);
        }
        if members[0].is_none() {
            return Err(TopologyError::NoActive);
        }
        let defined = || members.iter().flatten().map(|name| &**name);
        if defined().any(|name| name.is_empty() || name.len() > MAX_NODE_NAME_BYTES) {
            return Err(TopologyError::NotAName);
        }
        let is_twice = |(at, name): (usize, &str)| defined().skip(at + 1).any(|other| other == name);
        if defined().enumerate().any(is_twice) {
            return Err(TopologyError::Twice);
        }
        Ok(Chain(members.into()))
    }

    /// Its members in order.
    pub fn members(&self) -> impl Iterator<Item = Option<&str>> {
        self.0.iter().map(|member| member.as_deref())
    }

    /// How many members a write must reach, those that are not defined counted as members.
    pub fn majority(&self) -> usize {
        if planted::is(Bug::MajorityOfDefined) {
            return self.0.iter().flatten().count() / 2 + 1;
        }
        self.0.len() / 2 + 1
    }

    /// Whether there are as many defined members as a write must reach.
    pub fn is_possible(&self) -> bool {
        self.0.iter().flatten().count() >= self.majority()
    }
}

impl Topology {
    /// A topology of these chains.
    pub fn new(first: Chain, second: Option<Chain>) -> Topology {
        Topology { first, second }
    }

    /// A topology of these chains, one or two.
    pub fn of(chains: Vec<Chain>) -> Result<Topology, TopologyError> {
        let mut chains = chains.into_iter();
        let (first, second) = (chains.next(), chains.next());
        match (first, chains.next()) {
            (Some(first), None) => Ok(Topology { first, second }),
            _ => Err(TopologyError::NotChains),
        }
    }

    /// The place of a node among the replicas of the first chain; nothing if it is none of them.
    pub fn replica_place(&self, node: &str) -> Option<usize> {
        self.first.members().skip(1).position(|member| member == Some(node))
    }

    /// The replica in a place of the first chain; nothing if none is defined there.
    pub fn replica(&self, place: usize) -> Option<&str> {
        self.first.members().nth(1 + place)?
    }

    /// Its chains.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// The active node: the first one of the first chain.
    pub fn active(&self) -> &str {
        self.first.0[0].as_deref().expect("a chain begins with a defined member")
    }

    /// Whether a chain has this node.
    pub fn names(&self, node: &str) -> bool {
        self.chains().any(|chain| chain.members().flatten().any(|name| name == node))
    }

    /// Whether each chain has as many defined members as a write must reach.
    pub fn is_possible(&self) -> bool {
        self.chains().all(Chain::is_possible)
    }
}

/// As JSON: an array of arrays of names and nulls, as it comes with a vBucket's state.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, chain) in self.chains().enumerate() {
            f.write_str(if at == 0 { "[[" } else { ",[" })?;
            for (at, member) in chain.members().enumerate() {
                f.write_str(if at == 0 { "" } else { "," })?;
                match member {
                    Some(name) => write_json(f, name)?,
                    None => f.write_str("null")?,
                }
            }
            f.write_str("]")?;
        }
        f.write_str("]")
    }
}

/// A string as JSON (RFC 8259, section 7).
fn write_json(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}
