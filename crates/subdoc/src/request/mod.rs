//! Requests: parsed from the bytes of a frame into specs, and checked as far as the document is not needed.
//!
//! kv_engine docs/SubDocument.md, "Wire Protocol Format".

mod checks;
mod parse;
mod table;

pub(crate) use checks::split_xattr_path;
pub use parse::{parse_multi_lookup, parse_multi_mutation, parse_single_lookup, parse_single_mutation};

use crate::ops::Operation;
use crate::status;
use crate::xattr::{KeyKind, key_kind};

#[cfg(test)]
mod tests;

/// Most specs of a request.
pub const MAX_SPECS: usize = 16;

/// Flags of a spec.
pub mod path_flag {
    /// Make the objects that are missing on the way.
    pub const MKDIR_P: u8 = 0x01;
    /// The path starts with the key of an extended attribute.
    pub const XATTR: u8 = 0x04;
    /// The value is a macro.
    pub const EXPAND_MACROS: u8 = 0x10;
    /// The value is any bytes, kept as a string that holds them.
    pub const BINARY_VALUE: u8 = 0x20;
}

/// Flags of a request.
pub mod doc_flag {
    /// Make the document if there is none.
    pub const MKDOC: u8 = 0x01;
    /// Make the document; fail if there is one.
    pub const ADD: u8 = 0x02;
    /// Tombstones may be read and changed.
    pub const ACCESS_DELETED: u8 = 0x04;
    /// A document that is made is a tombstone.
    pub const CREATE_AS_DELETED: u8 = 0x08;
    /// A tombstone becomes a document.
    pub const REVIVE: u8 = 0x10;
    /// Read from a replica.
    pub const REPLICA_READ: u8 = 0x20;
}

/// What the connection negotiated, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Extended attributes.
    pub xattr: bool,
    /// Several keys of extended attributes in one request.
    pub multiple_xattr_keys: bool,
}

/// A request that is answered without looking at any document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the reply.
    pub status: u16,
    /// The text for the JSON error context; empty if the reply has no body.
    pub context: &'static str,
}

impl Refusal {
    pub(crate) const fn bare(status: u16) -> Refusal {
        Refusal { status, context: "" }
    }

    pub(crate) const fn invalid(context: &'static str) -> Refusal {
        Refusal { status: status::INVALID_ARGUMENTS, context }
    }
}

/// What a look-up spec asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupOp {
    /// The value at the path.
    #[default]
    Get,
    /// Whether there is one.
    Exists,
    /// How many entries it has.
    GetCount,
    /// The whole body.
    GetDoc,
}

/// One look-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupSpec<'a> {
    /// What is asked for.
    pub op: LookupOp,
    /// See `path_flag`.
    pub flags: u8,
    /// The path as sent.
    pub path: &'a [u8],
}

/// What a mutation spec does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MutationOp {
    /// A new body.
    #[default]
    SetDoc,
    /// Deletes the document.
    DeleteDoc,
    /// The body becomes what an extended attribute holds.
    ReplaceBodyWithXattr,
    /// An operation by path.
    Path(Operation),
}

/// One mutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MutationSpec<'a> {
    /// What is done.
    pub op: MutationOp,
    /// See `path_flag`.
    pub flags: u8,
    /// The path as sent.
    pub path: &'a [u8],
    /// The value as sent.
    pub value: &'a [u8],
}

/// Up to sixteen specs, without allocation.
#[derive(Clone, Copy, Debug)]
pub struct Specs<T> {
    items: [T; MAX_SPECS],
    len: usize,
}

impl<T: Copy + Default> Specs<T> {
    pub(crate) fn new() -> Specs<T> {
        Specs { items: [T::default(); MAX_SPECS], len: 0 }
    }

    /// Refuses one more spec if there are sixteen.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        if self.len < MAX_SPECS {
            return Ok(());
        }
        Err(Refusal { status: status::INVALID_COMBINATION, context: "Request must contain at most 16 paths" })
    }

    /// Appends, or says that there are too many.
    pub(crate) fn push(&mut self, item: T) -> Result<(), Refusal> {
        self.check_room()?;
        self.items[self.len] = item;
        self.len += 1;
        Ok(())
    }

    /// The specs in the order of the request.
    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }
}

/// A look-up request, checked.
#[derive(Clone, Copy, Debug)]
pub struct LookupRequest<'a> {
    /// Whether it came as a single-path command, which is answered in another form.
    pub is_single: bool,
    /// See `doc_flag`.
    pub doc_flags: u8,
    /// The CAS of the frame; 0 is none. Parsing leaves it 0, the caller fills it in.
    pub cas: u64,
    /// Whether `$XTOC` leaves system attributes out. Parsing leaves it unset, the caller fills it in.
    pub hides_system: bool,
    /// What is asked for.
    pub specs: Specs<LookupSpec<'a>>,
}

impl LookupRequest<'_> {
    /// Whether a system attribute is read.
    pub fn reads_system(&self) -> bool {
        self.specs.as_slice().iter().any(|spec| is_system_path(spec.flags, spec.path))
    }
}

/// A mutation request, checked.
#[derive(Clone, Copy, Debug)]
pub struct MutationRequest<'a> {
    /// Whether it came as a single-path command, which is answered in another form.
    pub is_single: bool,
    /// See `doc_flag`.
    pub doc_flags: u8,
    /// The expiry as sent, if it was sent.
    pub expiry: Option<u32>,
    /// The flags of the document that is made of it, if they were sent.
    pub user_flags: Option<u32>,
    /// The CAS of the frame; 0 is none. Parsing leaves it 0, the caller fills it in.
    pub cas: u64,
    /// What is done, in this order.
    pub specs: Specs<MutationSpec<'a>>,
}

impl MutationRequest<'_> {
    /// Whether a system attribute is changed, or becomes the body.
    pub fn changes_system(&self) -> bool {
        self.specs.as_slice().iter().any(|spec| is_system_path(spec.flags, spec.path))
    }

    /// Whether the reply or the new body tells what the document held: a counter, an attribute that becomes the body.
    pub fn reads(&self) -> bool {
        self.specs.as_slice().iter().any(MutationSpec::reads)
    }

    /// Whether that is a system attribute.
    pub fn reads_system(&self) -> bool {
        let reads = |spec: &MutationSpec<'_>| spec.reads() && is_system_path(spec.flags, spec.path);
        self.specs.as_slice().iter().any(reads)
    }

    /// Whether the document is deleted.
    pub fn deletes_document(&self) -> bool {
        self.specs.as_slice().iter().any(|spec| spec.op == MutationOp::DeleteDoc)
    }
}

impl MutationSpec<'_> {
    fn reads(&self) -> bool {
        matches!(self.op, MutationOp::ReplaceBodyWithXattr | MutationOp::Path(Operation::Counter))
    }
}

/// Whether a path with these flags lies in a system attribute.
fn is_system_path(flags: u8, path: &[u8]) -> bool {
    flags & path_flag::XATTR != 0 && key_kind(split_xattr_path(path).0) == Some(KeyKind::System)
}
