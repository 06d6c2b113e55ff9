//! Following a bucket by DCP: where each vBucket stands, what is said on the connection, and the connection itself.

mod everywhere;
mod follow;
mod position;
mod session;
#[cfg(test)]
mod tests;

pub use everywhere::{
    BucketSnapshot, KeptOnNode, ask_everywhere, end_on, end_snapshot, find_snapshot, follow_everywhere,
    kept_on, make_snapshot, members,
};
pub use follow::{History, Watch, failover_logs, follow, high_seqnos, newest_histories};
pub use position::Position;
pub(crate) use session::seqno_of;
pub use session::{Event, Received, Session, Start, Wishes};
