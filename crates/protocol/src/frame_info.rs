//! Framing extras: what travels beside a command without being part of it (BinaryProtocol.md, Request Header with
//! "flexible framing extras").
//!
//! Each is a byte of identifier (high half) and length (low half), then its value; 15 in a half means that a further
//! byte is added to it, the identifier's before the length's.

use base::DurabilityLevel;

use crate::reader::Reader;
use crate::status::Status;

/// A durability requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    /// How safe.
    pub level: DurabilityLevel,
    /// How long it may take; nothing for the bucket's default.
    pub timeout_ms: Option<u16>,
}

/// The framing extras of a request, decoded. Of several with the same identifier the last one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameInfos<'a> {
    /// Finish everything before it first, and start nothing behind it before it is finished.
    pub barrier: bool,
    /// How safe a write must be.
    pub durability: Option<Durability>,
    /// The DCP stream this belongs to.
    pub stream_id: Option<u16>,
    /// Do it with this user's rights; a name that starts with `^` is of an external domain.
    pub impersonate: Option<&'a [u8]>,
    /// Keep the document's expiry time.
    pub preserve_ttl: bool,
    /// A privilege to use on top of the impersonated user's.
    pub extra_privilege: Option<&'a [u8]>,
}

/// Why framing extras are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameInfoError {
    /// An identifier nobody knows.
    Unknown,
    /// It ends in the middle.
    Truncated,
    /// The barrier carries something.
    BarrierWithValue,
    /// The durability requirement has neither 1 nor 3 bytes.
    DurabilityLength(usize),
    /// No such durability level.
    DurabilityLevel,
    /// A durability timeout of 0, which means "the bucket's default" and must be left out instead.
    DefaultTimeout,
    /// A durability timeout of 0xffff, "infinite".
    InfiniteTimeout,
    /// The stream identifier does not have 2 bytes.
    StreamIdLength(usize),
    /// The user to act for is empty.
    EmptyUser,
    /// Preserve-TTL carries something.
    PreserveTtlWithValue,
    /// The extra privilege is empty.
    EmptyPrivilege,
}

impl FrameInfoError {
    /// What to answer.
    pub fn status(self) -> Status {
        match self {
            FrameInfoError::Unknown => Status::UnknownFrameInfo,
            FrameInfoError::DurabilityLevel
            | FrameInfoError::DefaultTimeout
            | FrameInfoError::InfiniteTimeout => Status::DurabilityInvalidLevel,
            _ => Status::Einval,
        }
    }

    /// What to say in the error context; empty for an unknown identifier, whose answer has no body.
    pub fn context(self) -> String {
        let fixed = match self {
            FrameInfoError::Unknown => "",
            FrameInfoError::Truncated => "Invalid encoding in FrameExtras",
            FrameInfoError::BarrierWithValue => "Barrier should not contain value",
            FrameInfoError::DurabilityLength(len) => return format!("Invalid sized buffer provided: {len}"),
            FrameInfoError::DurabilityLevel => "Content represents an invalid requirement specification",
            FrameInfoError::DefaultTimeout => "Timeout(): Cannot specify bucket default timeout",
            FrameInfoError::InfiniteTimeout => "Timeout(): Cannot specify an infinite timeout",
            FrameInfoError::StreamIdLength(len) => return format!("DcpStreamId invalid size:{len}"),
            FrameInfoError::EmptyUser => "Impersonated user must be set",
            FrameInfoError::PreserveTtlWithValue => "PreserveTtl should not contain value",
            FrameInfoError::EmptyPrivilege => "Privilege name must be set",
        };
        fixed.to_owned()
    }
}

const BARRIER: u32 = 0;
const DURABILITY: u32 = 1;
const STREAM_ID: u32 = 2;
const IMPERSONATE: u32 = 4;
const PRESERVE_TTL: u32 = 5;
const EXTRA_PRIVILEGE: u32 = 6;
/// Identifier 0 with a length of 2, in an answer.
pub(crate) const SERVER_DURATION_TAG: u8 = 0x02;

/// The next framing extra: identifier and value. `None` at the end, an error if it is cut off.
fn next<'a>(reader: &mut Reader<'a>) -> Option<Result<(u32, &'a [u8]), FrameInfoError>> {
    let tag = reader.u8()?;
    let mut half = |half: u8| -> Option<u32> {
        if half < 15 { Some(u32::from(half)) } else { reader.u8().map(|more| 15 + u32::from(more)) }
    };
    let id = half(tag >> 4);
    let len = half(tag & 15);
    let value = len.and_then(|len| reader.bytes(len as usize));
    Some(id.zip(value).ok_or(FrameInfoError::Truncated))
}

fn decode_durability(value: &[u8]) -> Result<Durability, FrameInfoError> {
    let (level, timeout_ms) = match *value {
        [level] => (level, None),
        [level, high, low] => (level, Some(u16::from_be_bytes([high, low]))),
        _ => return Err(FrameInfoError::DurabilityLength(value.len())),
    };
    match timeout_ms {
        Some(0) => return Err(FrameInfoError::DefaultTimeout),
        Some(u16::MAX) => return Err(FrameInfoError::InfiniteTimeout),
        _ => {}
    }
    let level = DurabilityLevel::from_wire(level).ok_or(FrameInfoError::DurabilityLevel)?;
    Ok(Durability { level, timeout_ms })
}

impl<'a> FrameInfos<'a> {
    /// Decodes a request's framing extras.
    ///
    /// Identifier 3 once carried a tracing context and is unknown to the newest servers; 7 is for authentication
    /// tokens, which nobody issues here.
    pub fn decode(bytes: &'a [u8]) -> Result<FrameInfos<'a>, FrameInfoError> {
        let mut infos = FrameInfos::default();
        let mut reader = Reader(bytes);
        while let Some(info) = next(&mut reader) {
            let (id, value) = info?;
            match id {
                BARRIER if value.is_empty() => infos.barrier = true,
                BARRIER => return Err(FrameInfoError::BarrierWithValue),
                DURABILITY => infos.durability = Some(decode_durability(value)?),
                STREAM_ID => {
                    let id: [u8; 2] =
                        value.try_into().map_err(|_| FrameInfoError::StreamIdLength(value.len()))?;
                    infos.stream_id = Some(u16::from_be_bytes(id));
                }
                IMPERSONATE if value.is_empty() => return Err(FrameInfoError::EmptyUser),
                IMPERSONATE => infos.impersonate = Some(value),
                PRESERVE_TTL if value.is_empty() => infos.preserve_ttl = true,
                PRESERVE_TTL => return Err(FrameInfoError::PreserveTtlWithValue),
                EXTRA_PRIVILEGE if value.is_empty() => return Err(FrameInfoError::EmptyPrivilege),
                EXTRA_PRIVILEGE => infos.extra_privilege = Some(value),
                _ => return Err(FrameInfoError::Unknown),
            }
        }
        Ok(infos)
    }

    /// Appends these framing extras.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.barrier {
            encode_one(out, BARRIER, &[]);
        }
        if let Some(Durability { level, timeout_ms }) = self.durability {
            match timeout_ms.map(u16::to_be_bytes) {
                None => encode_one(out, DURABILITY, &[level as u8]),
                Some([high, low]) => encode_one(out, DURABILITY, &[level as u8, high, low]),
            }
        }
        if let Some(id) = self.stream_id {
            encode_one(out, STREAM_ID, &id.to_be_bytes());
        }
        if let Some(user) = self.impersonate {
            encode_one(out, IMPERSONATE, user);
        }
        if self.preserve_ttl {
            encode_one(out, PRESERVE_TTL, &[]);
        }
        if let Some(privilege) = self.extra_privilege {
            encode_one(out, EXTRA_PRIVILEGE, privilege);
        }
    }
}

/// Appends one framing extra; a value of more than 270 bytes is cut, the frame could not hold it anyway.
fn encode_one(out: &mut Vec<u8>, id: u32, value: &[u8]) {
    let value = value.get(..270).unwrap_or(value);
    let halves = [id as usize, value.len()];
    out.push((halves[0].min(15) << 4 | halves[1].min(15)) as u8);
    for half in halves {
        if half >= 15 {
            out.push((half - 15) as u8);
        }
    }
    out.extend_from_slice(value);
}

/// The encoded server duration among the framing extras of an answer, if it is there.
pub(crate) fn server_duration(frame_infos: &[u8]) -> Option<u16> {
    let mut reader = Reader(frame_infos);
    while let Some(Ok((id, value))) = next(&mut reader) {
        if let (0, &[high, low]) = (id, value) {
            return Some(u16::from_be_bytes([high, low]));
        }
    }
    None
}
