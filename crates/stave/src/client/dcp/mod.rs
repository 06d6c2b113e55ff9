//! Following a bucket by DCP: where each vBucket stands, what is said on the connection, and the connection itself.

mod everywhere;
mod follow;
mod position;
mod session;
#[cfg(test)]
mod tests;

pub use everywhere::{ask_everywhere, follow_everywhere, members};
pub use follow::{Watch, follow, high_seqnos, newest_histories};
pub use position::Position;
pub use session::{Event, Received, Session, Start, Wishes};
