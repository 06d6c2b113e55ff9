//! Streams of changes for readers who are no nodes: lines and events, positions as readers keep them.

pub mod anchor;
pub mod bell;
pub mod cursor;
pub mod elsewhere;
pub mod event;
pub mod exchange;
pub mod feed;
pub mod positions;
pub mod short;
pub mod token;
mod told_events;
