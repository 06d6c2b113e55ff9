//! Scopes and collections: the manifest of a bucket, the events that tell its changes, and what a vBucket has of them.

pub mod current;
pub mod event;
pub mod flat;
pub mod manifest;

pub use current::{CollectionOps, Collections, DroppedCollection, Held, OpenCollection, OpenScope};
pub use event::{EventKind, SystemEvent};
pub use manifest::{
    Collection, InvalidManifest, MAX_COLLECTIONS, MAX_SCOPES, Manifest, ManifestChange, ManifestUid, Scope,
    SuccessorRefusal, difference,
};
