//! One node: everything that it does, and that needs no socket and no runtime: bytes in, bytes out.

pub mod address_places;
pub mod connection_memory;
pub mod data_dir;
pub mod dcp;
pub mod login_throttle;
pub mod lone_writer;
pub mod mailbox;
pub mod naming;
pub mod news;
pub mod notify;
pub mod output;
pub mod privilege;
pub mod quarantine;
pub mod sasl;
pub mod status_map;
pub mod version;
