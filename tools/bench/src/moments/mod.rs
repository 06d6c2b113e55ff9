//! `bench scan`, `backup`, `restore`, `follow` and `snapshot`: reading, copying and bringing back a bucket, each beside what
//! it is measured by in the same run.

pub mod backup;
mod common;
pub mod follow;
pub mod restore;
pub mod scan;
pub mod snapshot;

pub use common::MomentOptions;
