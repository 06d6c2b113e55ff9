//! Cuts a stream of bytes into request frames.

use std::fmt;

use base::limits::{MAX_FRAME_BODY_BYTES, MAX_UNAUTHENTICATED_BODY_BYTES};
use base::{Cas, VbId};

use crate::HEADER_BYTES;
use crate::magic;
use crate::request::Request;

/// How much a client may send in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body in bytes: everything behind the header.
    pub body_bytes: usize,
}

impl Limits {
    /// For a client that has logged in.
    pub const AUTHENTICATED: Limits = Limits { body_bytes: MAX_FRAME_BODY_BYTES };
    /// For a client that has not.
    pub const UNAUTHENTICATED: Limits = Limits { body_bytes: MAX_UNAUTHENTICATED_BODY_BYTES };
}

/// What the front of the received bytes is.
#[derive(Clone, Copy, Debug)]
pub enum Parsed<'a> {
    /// The beginning of a frame.
    Incomplete {
        /// Bytes, from the first of the frame, that must be there before it is worth looking again.
        need: usize,
    },
    /// A whole request.
    Request {
        /// The request.
        request: Request<'a>,
        /// Bytes it took.
        total_len: usize,
    },
    /// The client's answer: to a message of a stream (magic 0x81, 0x18), or to another request of the server (0x83).
    /// One that nobody waits for is passed over in silence.
    Answer {
        /// What it says.
        answer: ClientAnswer<'a>,
        /// Bytes it took.
        total_len: usize,
    },
    /// Not a frame. Nothing behind it can be trusted: the connection must be closed.
    Bad(FrameError),
}

/// What a client answers to a request of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAnswer<'a> {
    /// To which command.
    pub opcode: u8,
    /// How it went, see [`crate::Status`].
    pub status: u16,
    /// The opaque of the request.
    pub opaque: u32,
    /// What it brings.
    pub value: &'a [u8],
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The first byte is no magic that a client may send.
    Magic(u8),
    /// The body is larger than allowed.
    BodyTooLarge {
        /// What the header says.
        body_bytes: usize,
        /// What is allowed.
        limit_bytes: usize,
    },
    /// Framing extras, extras and key are longer than the body that holds them.
    PartsExceedBody {
        /// Framing extras, extras and key together.
        parts_bytes: usize,
        /// What the header says.
        body_bytes: usize,
    },
}

/// What a TLS record with a handshake begins with (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Whether a method of HTTP begins so: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, CONNECT, TRACE; or the preface of
/// HTTP/2.
fn is_http(byte: u8) -> bool {
    b"GHPDOCT".contains(&byte)
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FrameError::Magic(TLS_HANDSHAKE) => f.write_str(
                "0x16 is not a magic but begins a TLS handshake: this port speaks without TLS, so connect with \
                 couchbase:// instead of couchbases://",
            ),
            FrameError::Magic(byte) if is_http(byte) => write!(
                f,
                "0x{byte:02x} is not a magic but {:?}, as HTTP begins: this port speaks the KV protocol, and HTTP has \
                 another port (--http)",
                char::from(byte)
            ),
            FrameError::Magic(byte) => write!(f, "0x{byte:02x} is not a magic that a client may send"),
            FrameError::BodyTooLarge { body_bytes, limit_bytes } => {
                write!(f, "a body of {body_bytes} bytes exceeds the limit of {limit_bytes}")
            }
            FrameError::PartsExceedBody { parts_bytes, body_bytes } => {
                write!(f, "extras and key of {parts_bytes} bytes do not fit into a body of {body_bytes}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// The fields of a header, for both layouts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub magic: u8,
    pub opcode: u8,
    pub frame_infos_len: usize,
    pub key_len: usize,
    pub extras_len: usize,
    pub datatype: u8,
    /// vBucket of a request, status of a response.
    pub vbucket_or_status: u16,
    pub body_len: usize,
    pub opaque: u32,
    pub cas: u64,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        let magic = bytes[0];
        // The alternative layout splits the key length field in two.
        let (frame_infos_len, key_len) = if matches!(magic, magic::ALT_REQUEST | magic::ALT_RESPONSE) {
            (usize::from(bytes[2]), usize::from(bytes[3]))
        } else {
            (0, usize::from(u16::from_be_bytes([bytes[2], bytes[3]])))
        };
        Header {
            magic,
            opcode: bytes[1],
            frame_infos_len,
            key_len,
            extras_len: usize::from(bytes[4]),
            datatype: bytes[5],
            vbucket_or_status: u16::from_be_bytes([bytes[6], bytes[7]]),
            body_len: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize,
            opaque: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            cas: u64::from_be_bytes([
                bytes[16], bytes[17], bytes[18], bytes[19], bytes[20], bytes[21], bytes[22], bytes[23],
            ]),
        }
    }

    pub(crate) fn parts_len(&self) -> usize {
        self.frame_infos_len + self.extras_len + self.key_len
    }

    pub(crate) fn total_len(&self) -> usize {
        HEADER_BYTES + self.body_len
    }

    /// Framing extras, extras, key and value, in the order in which they are sent.
    /// Nothing if the parts do not fit into `body`.
    pub(crate) fn split<'a>(&self, body: &'a [u8]) -> Option<[&'a [u8]; 4]> {
        let (frame_infos, rest) = body.split_at_checked(self.frame_infos_len)?;
        let (extras, rest) = rest.split_at_checked(self.extras_len)?;
        let (key, value) = rest.split_at_checked(self.key_len)?;
        Some([frame_infos, extras, key, value])
    }
}

/// Looks at the front of what a client sent.
///
/// Faults are found as early as possible: the magic in the first byte, lengths once the header is there.
pub fn parse(bytes: &[u8], limits: Limits) -> Parsed<'_> {
    let Some(&first) = bytes.first() else { return Parsed::Incomplete { need: HEADER_BYTES } };
    let is_request = matches!(first, magic::REQUEST | magic::ALT_REQUEST);
    let is_answer = matches!(first, magic::RESPONSE | magic::ALT_RESPONSE | magic::SERVER_RESPONSE);
    if !is_request && !is_answer {
        return Parsed::Bad(FrameError::Magic(first));
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Parsed::Incomplete { need: HEADER_BYTES };
    };
    let header = Header::decode(header);
    if header.body_len > limits.body_bytes {
        let limit_bytes = limits.body_bytes;
        return Parsed::Bad(FrameError::BodyTooLarge { body_bytes: header.body_len, limit_bytes });
    }
    if header.parts_len() > header.body_len {
        let parts_bytes = header.parts_len();
        return Parsed::Bad(FrameError::PartsExceedBody { parts_bytes, body_bytes: header.body_len });
    }
    let total_len = header.total_len();
    let parts = rest.get(..header.body_len).and_then(|body| header.split(body));
    let Some([frame_infos, extras, key, value]) = parts else {
        return Parsed::Incomplete { need: total_len };
    };
    if is_answer {
        let (status, opaque) = (header.vbucket_or_status, header.opaque);
        let answer = ClientAnswer { opcode: header.opcode, status, opaque, value };
        return Parsed::Answer { answer, total_len };
    }
    let request = Request {
        magic: header.magic,
        opcode: header.opcode,
        datatype: header.datatype,
        vbucket: VbId(header.vbucket_or_status),
        opaque: header.opaque,
        cas: Cas(header.cas),
        frame_infos,
        extras,
        key,
        value,
    };
    Parsed::Request { request, total_len }
}
