//! Bytes to typed messages and back: the memcached binary protocol with its Couchbase extensions.
//!
//! No I/O, no clock, and nothing is remembered from one frame to the next: a frame goes in, a message comes out.
//! The format is described in kv_engine's `docs/BinaryProtocol.md`; where the recorded behaviour of servers says
//! more than the document, the recordings decide (`tests/recordings`).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod dcp;
pub mod error_map;
pub mod extras;
pub mod feature;
pub mod frame;
pub mod frame_info;
pub mod fuzz;
pub mod magic;
pub mod opcode;
pub mod reader;
pub mod request;
pub mod response;
pub mod server_duration;
pub mod status;
pub mod uuid;

#[cfg(test)]
mod tests;

pub use base::DurabilityLevel;
pub use frame::{FrameError, Limits, Parsed, parse};
pub use frame_info::{Durability, FrameInfoError, FrameInfos};
pub use request::{Request, RequestParts, write_request, write_server_request};
pub use response::{ParsedResponse, Response, ResponseView, parse_response};
pub use status::Status;

/// Bytes of the header that starts every frame.
pub const HEADER_BYTES: usize = 24;
