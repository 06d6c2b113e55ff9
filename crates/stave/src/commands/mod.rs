//! The commands of the binary, a file for each family.

pub mod bench;
pub mod check;
pub mod compact;
pub mod dcp_tail;
pub mod document;
pub mod drain;
pub mod dump;
pub mod import;
pub mod replicate;
pub mod serve;
pub mod set_param;
pub mod stats;
