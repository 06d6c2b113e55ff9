//! A document's value: its JSON body and extended attributes, and edits in it by path.
//!
//! Bytes in, bytes out: no I/O, no clock, no knowledge of memory, wire framing or disk.
//! `request` parses and checks what a client asks, `exec` decides and computes, `reply` encodes.

pub mod exec;
#[doc(hidden)]
pub mod fuzz;
pub mod json;
pub mod ops;
pub mod path;
pub mod reply;
pub mod request;
pub mod status;
pub mod xattr;

/// Datatype bit: the body is JSON.
pub const DATATYPE_JSON: u8 = 0x01;
/// Datatype bit: the stored value is compressed with Snappy.
pub const DATATYPE_SNAPPY: u8 = 0x02;
/// Datatype bit: the value starts with extended attributes.
pub const DATATYPE_XATTR: u8 = 0x04;
