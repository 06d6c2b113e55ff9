//! A client's request.

use base::{Cas, VbId};

use crate::frame_info::{FrameInfoError, FrameInfos};
use crate::magic;

/// A request, borrowed from the bytes it was received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// [`magic::REQUEST`] or [`magic::ALT_REQUEST`].
    pub magic: u8,
    /// What is wanted, see [`crate::opcode`].
    pub opcode: u8,
    /// Bits that describe the value, unchecked.
    pub datatype: u8,
    /// The vBucket of the key.
    pub vbucket: VbId,
    /// Comes back in the answer.
    pub opaque: u32,
    /// Zero for "any".
    pub cas: Cas,
    /// Framing extras, encoded.
    pub frame_infos: &'a [u8],
    /// Fields of this command.
    pub extras: &'a [u8],
    /// The key; with a collection prefix if that was negotiated.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Request<'a> {
    /// Decodes the framing extras.
    pub fn decode_frame_infos(&self) -> Result<FrameInfos<'a>, FrameInfoError> {
        if self.frame_infos.is_empty() {
            Ok(FrameInfos::default())
        } else {
            FrameInfos::decode(self.frame_infos)
        }
    }

    /// Bytes behind the header.
    pub fn body_len(&self) -> usize {
        self.frame_infos.len() + self.extras.len() + self.key.len() + self.value.len()
    }
}

/// What a client puts into a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestParts<'a> {
    /// What is wanted, see [`crate::opcode`].
    pub opcode: u8,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The vBucket of the key.
    pub vbucket: VbId,
    /// Comes back in the answer.
    pub opaque: u32,
    /// Zero for "any".
    pub cas: Cas,
    /// Framing extras, encoded (see [`FrameInfos::encode`]); if there are any the alternative magic is used.
    pub frame_infos: &'a [u8],
    /// Fields of this command.
    pub extras: &'a [u8],
    /// The key; with a collection prefix if that was negotiated.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Appends a request of the server to a client that agreed to such (`Duplex`); no client answers it. As
/// [`write_request`], without framing extras.
pub fn write_server_request(out: &mut Vec<u8>, parts: &RequestParts<'_>) -> bool {
    let at = out.len();
    let written = parts.frame_infos.is_empty() && write_request(out, parts);
    if let Some(begin) = out.get_mut(at).filter(|_| written) {
        *begin = magic::SERVER_REQUEST;
    }
    written
}

/// Appends a request. Nothing is written, and `false` returned, if a part is too long for its length field.
pub fn write_request(out: &mut Vec<u8>, parts: &RequestParts<'_>) -> bool {
    let body_len = parts.frame_infos.len() + parts.extras.len() + parts.key.len() + parts.value.len();
    let (Ok(body_len), Ok(extras_len)) = (u32::try_from(body_len), u8::try_from(parts.extras.len())) else {
        return false;
    };
    let (magic, key_field) = if parts.frame_infos.is_empty() {
        let Ok(key_len) = u16::try_from(parts.key.len()) else { return false };
        (magic::REQUEST, key_len.to_be_bytes())
    } else {
        let lens = (u8::try_from(parts.frame_infos.len()), u8::try_from(parts.key.len()));
        let (Ok(frame_infos_len), Ok(key_len)) = lens else { return false };
        (magic::ALT_REQUEST, [frame_infos_len, key_len])
    };
    out.reserve(crate::HEADER_BYTES + body_len as usize);
    out.extend_from_slice(&[magic, parts.opcode, key_field[0], key_field[1], extras_len, parts.datatype]);
    out.extend_from_slice(&parts.vbucket.0.to_be_bytes());
    out.extend_from_slice(&body_len.to_be_bytes());
    out.extend_from_slice(&parts.opaque.to_be_bytes());
    out.extend_from_slice(&parts.cas.0.to_be_bytes());
    for part in [parts.frame_infos, parts.extras, parts.key, parts.value] {
        out.extend_from_slice(part);
    }
    true
}
