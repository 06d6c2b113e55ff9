//! What nodes ask of the coordination store, and what it answers. The simulation of the cluster's logic has this file,
//! too.

use std::time::Duration;

use cluster::store::{LeaseId, Snapshot, Store, StoreFailure, Swap, Swapped, Version};
use cluster::{MemoryStore, State, keys};

/// How long a lease lives without being renewed.
pub const TTL: Duration = Duration::from_secs(1);

/// What is asked.
pub enum Request {
    /// A lease.
    Grant,
    /// An entry that says that the node is alive, in the place of the one of this version.
    Member(LeaseId, Version, Vec<u8>),
    /// Another term of a lease.
    KeepAlive(LeaseId),
    /// Everything.
    Read,
    /// To lead.
    Lead(LeaseId),
    /// Not to lead any more.
    Resign(Version),
    /// Another document in the place of the one of this version.
    Write(Version, Box<State>),
    /// A report.
    Report(LeaseId, Vec<u8>),
}

/// What is answered.
pub enum Reply {
    /// A lease, and the version of the member that there is.
    Granted(LeaseId, Version),
    /// The member was written, or its lease is over.
    IsMember(LeaseId, bool),
    /// Whether a lease is alive.
    Alive(LeaseId, bool),
    /// Everything.
    Everything(Box<Snapshot>),
}

/// Does what a node asks.
pub fn serve(store: &MemoryStore, uuid: &str, request: Request) -> Result<Option<Reply>, StoreFailure> {
    let put =
        |key: &str, expected, value: Option<&[u8]>, lease| store.swap(Swap { key, expected, value, lease });
    Ok(match request {
        Request::Grant => {
            Some(Reply::Granted(store.grant(TTL)?, store.read()?.version_of(&keys::member(uuid))))
        }
        Request::Member(lease, version, json) => {
            let swapped = put(&keys::member(uuid), Some(version), Some(&json), Some(lease))?;
            Some(Reply::IsMember(lease, matches!(swapped, Swapped::Done(_))))
        }
        Request::KeepAlive(lease) => Some(Reply::Alive(lease, store.keep_alive(lease)?)),
        Request::Read => Some(Reply::Everything(Box::new(store.read()?))),
        Request::Lead(lease) => {
            put(keys::LEADER, Some(Version::ABSENT), Some(uuid.as_bytes()), Some(lease))?;
            None
        }
        Request::Resign(version) => {
            put(keys::LEADER, Some(version), None, None)?;
            None
        }
        Request::Report(lease, json) => {
            put(&keys::report(uuid), None, Some(&json), Some(lease))?;
            None
        }
        // The world writes documents itself, so that it sees them.
        Request::Write(..) => None,
    })
}
