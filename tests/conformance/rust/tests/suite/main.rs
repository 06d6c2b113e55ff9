//! Holds a server to what the official Rust SDK expects of it.

mod binary;
mod collections;
mod concurrency;
mod connection;
mod data_structures;
mod documents;
mod durability;
mod expiry;
mod limits;
mod locks;
mod lookup_in;
mod mutate_in;
mod replicas;
mod support;
mod tls;
mod values;
mod xattrs;
