//! Bodies for fuzzers: what must hold for any bytes in files of backups.

pub use super::block::{block_seeds, fuzz_block};
pub use super::log::fuzz::{frame_seeds, fuzz_frame};
