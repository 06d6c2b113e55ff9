//! The server's answer.

use base::Cas;

use crate::HEADER_BYTES;
use crate::frame::{FrameError, Header};
use crate::frame_info;
use crate::magic;
use crate::status::Status;

/// What the server puts into an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response<'a> {
    /// The request's opcode.
    pub opcode: u8,
    /// How it went.
    pub status: Status,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The request's opaque.
    pub opaque: u32,
    /// The document's CAS, zero if it has none.
    pub cas: Cas,
    /// Encoded time the server took ([`crate::server_duration::encode`]); if given the alternative magic is used. A key
    /// that is too long for that magic goes without it.
    pub server_duration: Option<u16>,
    /// Fields of this command, at most 255 bytes.
    pub extras: &'a [u8],
    /// The key. Names of stats may have more than the 255 bytes of which the alternative magic can tell; of a key with more
    /// than 65,535 bytes the front is sent.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The longest key that a header can tell of.
const MAX_KEY_BYTES: usize = u16::MAX as usize;

impl Response<'_> {
    /// Appends header, framing extras, extras, key and value.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_before_value(self.value.len(), out);
        out.extend_from_slice(self.value);
    }

    /// Appends everything but the value, for one of `value_len` bytes that is sent from elsewhere.
    pub fn write_before_value(&self, value_len: usize, out: &mut Vec<u8>) {
        let key = self.key.get(..MAX_KEY_BYTES).unwrap_or(self.key);
        let [key_high, key_low] = (key.len() as u16).to_be_bytes();
        let duration = self.server_duration.filter(|_| key_high == 0);
        let frame_len = if duration.is_some() { 3 } else { 0 };
        let extras_len = u8::try_from(self.extras.len()).expect("the server's extras are short");
        let body_len = frame_len + self.extras.len() + key.len() + value_len;
        let body_len = u32::try_from(body_len).expect("the server's values are far below 4 GiB");
        let mut head = [0; HEADER_BYTES + 3];
        head[0] = if frame_len == 0 { magic::RESPONSE } else { magic::ALT_RESPONSE };
        head[1] = self.opcode;
        // With the alternative magic byte 2 is the length of the framing extras, else the high half of the key's.
        head[2] = if frame_len == 0 { key_high } else { frame_len as u8 };
        head[3] = key_low;
        head[4] = extras_len;
        head[5] = self.datatype;
        head[6..8].copy_from_slice(&self.status.code().to_be_bytes());
        head[8..12].copy_from_slice(&body_len.to_be_bytes());
        head[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        head[16..24].copy_from_slice(&self.cas.0.to_be_bytes());
        if let Some(duration) = duration {
            head[24] = frame_info::SERVER_DURATION_TAG;
            head[25..27].copy_from_slice(&duration.to_be_bytes());
        }
        out.extend_from_slice(head.get(..HEADER_BYTES + frame_len).unwrap_or(&head));
        out.extend_from_slice(self.extras);
        out.extend_from_slice(key);
    }
}

/// An answer as a client sees it, borrowed from the bytes it was received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseView<'a> {
    /// [`magic::RESPONSE`], [`magic::ALT_RESPONSE`], or [`magic::SERVER_REQUEST`] for a request of the server.
    pub magic: u8,
    /// The request's opcode.
    pub opcode: u8,
    /// How it went, as a number; see [`ResponseView::status`].
    pub status_code: u16,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The request's opaque.
    pub opaque: u32,
    /// The document's CAS.
    pub cas: Cas,
    /// Framing extras, encoded.
    pub frame_infos: &'a [u8],
    /// Fields of this command.
    pub extras: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl ResponseView<'_> {
    /// How it went; nothing if the number is unknown.
    pub fn status(&self) -> Option<Status> {
        Status::from_code(self.status_code)
    }

    /// How long the server took in microseconds, if it said so.
    pub fn server_duration_us(&self) -> Option<f64> {
        frame_info::server_duration(self.frame_infos).map(crate::server_duration::decode)
    }
}

/// What the front of the bytes from a server is.
#[derive(Clone, Copy, Debug)]
pub enum ParsedResponse<'a> {
    /// The beginning of a frame.
    Incomplete {
        /// Bytes, from the first of the frame, that must be there before it is worth looking again.
        need: usize,
    },
    /// A whole answer.
    Response {
        /// The answer.
        response: ResponseView<'a>,
        /// Bytes it took.
        total_len: usize,
    },
    /// Not a frame that a server sends.
    Bad(FrameError),
}

/// Looks at the front of what a server sent. A body larger than `body_limit_bytes` is a fault.
pub fn parse_response(bytes: &[u8], body_limit_bytes: usize) -> ParsedResponse<'_> {
    let Some(&first) = bytes.first() else { return ParsedResponse::Incomplete { need: HEADER_BYTES } };
    if !matches!(first, magic::RESPONSE | magic::ALT_RESPONSE | magic::SERVER_REQUEST) {
        return ParsedResponse::Bad(FrameError::Magic(first));
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return ParsedResponse::Incomplete { need: HEADER_BYTES };
    };
    let header = Header::decode(header);
    let body_bytes = header.body_len;
    if body_bytes > body_limit_bytes {
        return ParsedResponse::Bad(FrameError::BodyTooLarge { body_bytes, limit_bytes: body_limit_bytes });
    }
    if header.parts_len() > body_bytes {
        let parts_bytes = header.parts_len();
        return ParsedResponse::Bad(FrameError::PartsExceedBody { parts_bytes, body_bytes });
    }
    let total_len = header.total_len();
    let parts = rest.get(..body_bytes).and_then(|body| header.split(body));
    let Some([frame_infos, extras, key, value]) = parts else {
        return ParsedResponse::Incomplete { need: total_len };
    };
    let response = ResponseView {
        magic: header.magic,
        opcode: header.opcode,
        status_code: header.vbucket_or_status,
        datatype: header.datatype,
        opaque: header.opaque,
        cas: Cas(header.cas),
        frame_infos,
        extras,
        key,
        value,
    };
    ParsedResponse::Response { response, total_len }
}
