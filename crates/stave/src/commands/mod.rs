//! The commands of the binary, a file for each family.

pub mod bench;
pub mod check;
pub mod compact;
pub mod document;
pub mod dump;
pub mod import;
pub mod serve;
pub mod set_param;
pub mod stats;
