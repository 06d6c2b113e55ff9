//! Whole requests against one document: which version they apply to, what they read, what they make of it.

mod binary_value;
mod existence;
mod lookup;
mod macros;
mod mutate;
mod virtual_attributes;
mod workspace;

pub(crate) use binary_value::is_well_formed;
pub use lookup::{LookupOutcome, LookupResult, LookupValue, lookup};
pub(crate) use macros::macro_named;
pub use macros::{MacroKind, Placeholder};
pub use mutate::{Late, MutationOutcome, NewDocument, mutate};
pub use virtual_attributes::{ClockMode, Metadata};

#[cfg(test)]
mod tests;

/// The current version of a document, live or deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Document<'a> {
    /// The value, inflated: attributes (if the datatype says so) and body.
    pub value: &'a [u8],
    /// The datatype as stored; the Snappy bit only shows in `$document.datatype`.
    pub datatype: u8,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// What virtual attributes tell about it.
    pub metadata: Metadata,
}
