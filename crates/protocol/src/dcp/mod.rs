//! The messages of DCP, the change protocol (kv_engine, `docs/dcp/documentation/commands/`).
//!
//! All are requests: whoever has changes sends them to whoever follows. The opaque is that of the stream request.

mod end;
mod message;
mod names;
mod open;
mod stream_request;
pub mod system_event;
#[cfg(test)]
mod tests;

pub use end::EndReason;
pub use message::{Deletion, Marker, MarkerMore, Message, Mutation, Prepare, What};
pub use names::CollectionNames;
pub use open::OpenFlags;
pub use stream_request::{FailoverLog, StreamFlags, StreamRequest};
pub use system_event::WireEvent;
