//! The operations on a JSON text by path, done in place on the text: what is not touched keeps its bytes.

mod counter;
mod edit;
mod lookup;
mod resolve;

pub(crate) use edit::edit_root_of_attribute;
pub use edit::{Edit, Operation, edit};
pub use lookup::{count, exists, get};

#[cfg(test)]
pub(crate) mod property_tests;
#[cfg(test)]
mod tests;

/// Why a path operation was refused; one to one with the path statuses of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PathError {
    /// Nothing lies at the path.
    NotFound = 0xc0,
    /// A component does not fit the kind of value that it meets.
    Mismatch = 0xc1,
    /// The path cannot be parsed, or has the wrong form for the operation.
    InvalidPath = 0xc2,
    /// Too long, or too many components.
    PathTooBig = 0xc3,
    /// The document nests deeper than these commands walk.
    DocumentTooDeep = 0xc4,
    /// The value cannot stand at that place, or a counter would overflow.
    CannotInsert = 0xc5,
    /// The document is not JSON.
    NotJson = 0xc6,
    /// The number at the path does not fit 64 bits with sign.
    NumberOutOfRange = 0xc7,
    /// The delta of a counter is zero or no integer of 64 bits.
    BadDelta = 0xc8,
    /// Something lies at the path already.
    Exists = 0xc9,
    /// The value would nest too deep.
    ValueTooDeep = 0xca,
    /// `$document` has no field that a macro names.
    UnknownMacro = 0xd5,
    /// The value at the path does not hold bytes, as was asked for.
    NotBinaryValue = 0xd8,
    /// An operation that needs a path or a value was given none.
    InvalidArguments = 0x04,
    /// An operation on what is there was to make the document; the status is as recorded.
    NoDocument = 0x84,
}

impl PathError {
    /// The status on the wire.
    pub fn status(self) -> u16 {
        self as u16
    }
}
