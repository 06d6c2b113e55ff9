//! The commands of the binary, a file for each family.

pub mod backup;
pub mod bench;
pub mod certs;
pub mod check;
pub mod cluster;
pub mod compact;
pub mod dcp_tail;
pub mod dev;
pub mod document;
pub mod drain;
pub mod dump;
mod etcd_flags;
pub mod group;
mod http_flags;
pub mod import;
mod login_flags;
mod password;
mod rbac;
pub mod replicate;
pub mod restore;
pub mod serve;
pub mod set_param;
pub mod shell;
pub mod stats;
pub mod timings;
mod tls_flags;
pub mod user;
