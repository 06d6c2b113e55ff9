//! The first byte of a frame: who sends it, and which of the two header layouts it has (BinaryProtocol.md, Magic Byte).

/// A client's request.
pub const REQUEST: u8 = 0x80;
/// The server's answer.
pub const RESPONSE: u8 = 0x81;
/// A client's request with framing extras.
pub const ALT_REQUEST: u8 = 0x08;
/// The server's answer with framing extras.
pub const ALT_RESPONSE: u8 = 0x18;
/// A request that the server sends to the client.
pub const SERVER_REQUEST: u8 = 0x82;
/// The client's answer to the server's request.
pub const SERVER_RESPONSE: u8 = 0x83;
