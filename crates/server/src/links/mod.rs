//! Connections to other nodes: links that replicate, on a thread with its own runtime, and readers of their changes.

pub(crate) mod acting;
mod reader;
mod supervisor;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use reader::RuntimeReaders;
pub use supervisor::RuntimeLinks;
