//! DCP: from cursors to messages, and from messages to applied items. State machines without sockets and threads.

mod agreement;
mod filter;

pub use agreement::{Agreement, BackfillOrder, OutOfOrder, Priority, Side};
pub use filter::{Filter, FilterRefusal};
