//! The handlers of the commands, by family.

pub mod admin;
pub mod auth;
pub mod bucket_snapshot;
pub mod collections;
pub mod command_timer;
pub mod counter;
pub mod dcp;
pub mod dcp_consumer;
pub mod delete;
pub mod file_snapshot;
pub mod get;
pub mod lock;
pub mod meta;
pub mod mutate_with_meta;
pub mod mutation;
pub mod observe;
pub mod range_scan;
pub mod session;
pub mod stats;
pub mod store;
pub mod subdoc;
pub mod touch;
pub mod vbucket;
