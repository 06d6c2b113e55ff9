//! Scopes and collections: the manifest of a bucket, and the events that tell its changes.

pub mod event;
mod flat;
pub mod manifest;

pub use event::SystemEvent;
pub use manifest::{Collection, InvalidManifest, Manifest, ManifestUid, Scope, SuccessorRefusal, difference};
