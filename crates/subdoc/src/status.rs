//! The response statuses that sub-document commands give beside the path statuses of `PathError`.

/// Done.
pub const SUCCESS: u16 = 0x00;
/// The document does not exist.
pub const KEY_NOT_FOUND: u16 = 0x01;
/// The document exists, or has another CAS.
pub const KEY_EXISTS: u16 = 0x02;
/// The request cannot be understood.
pub const INVALID_ARGUMENTS: u16 = 0x04;
/// The connection did not negotiate what the request needs.
pub const NOT_SUPPORTED: u16 = 0x83;
/// No document can be created by an operation that needs an existing path.
pub const INTERNAL: u16 = 0x84;
/// The key of an extended attribute is not valid.
pub const XATTR_INVALID: u16 = 0x87;
/// Operations that cannot be combined, or too many or too few.
pub const INVALID_COMBINATION: u16 = 0xcb;
/// At least one operation of several failed.
pub const MULTI_PATH_FAILURE: u16 = 0xcc;
/// Done, on a deleted document.
pub const SUCCESS_DELETED: u16 = 0xcd;
/// Flags of an operation on extended attributes that do not go together.
pub const XATTR_FLAG_COMBINATION: u16 = 0xce;
/// More than one key of extended attributes.
pub const XATTR_KEY_COMBINATION: u16 = 0xcf;
/// The macro is not known.
pub const UNKNOWN_MACRO: u16 = 0xd0;
/// The virtual attribute is not known.
pub const UNKNOWN_VIRTUAL_ATTRIBUTE: u16 = 0xd1;
/// Virtual attributes cannot be changed.
pub const VIRTUAL_ATTRIBUTE_READ_ONLY: u16 = 0xd2;
/// At least one look-up of several failed, on a deleted document.
pub const MULTI_PATH_FAILURE_DELETED: u16 = 0xd3;
/// An operation on extended attributes after one on the body.
pub const XATTR_ORDER: u16 = 0xd4;
/// A macro names a virtual attribute that is not known.
pub const UNKNOWN_VIRTUAL_MACRO: u16 = 0xd5;
/// Only a deleted document can be revived.
pub const ONLY_DELETED_CAN_REVIVE: u16 = 0xd6;
/// A deleted document cannot have a body.
pub const DELETED_WITHOUT_VALUE: u16 = 0xd7;
