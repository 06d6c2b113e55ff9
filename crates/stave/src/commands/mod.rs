//! The commands of the binary, a file for each family.

pub mod bench;
pub mod document;
pub mod serve;
pub mod stats;
