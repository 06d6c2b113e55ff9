//! The handlers of the commands, by family.

pub mod admin;
pub mod auth;
pub mod collections;
pub mod later_issue;
pub mod session;
pub mod stats;
