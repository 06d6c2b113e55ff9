//! What collections are called, for those who show a stream to people.

use std::collections::BTreeMap;

use base::{CollectionId, ScopeId};

use super::WireEvent;

/// The names of a bucket's scopes and collections, as far as they were heard of: from its manifest, and from the
/// events of its streams.
///
/// A name stays when its collection is dropped: a stream that is far behind still brings documents of it.
/// Bounded by how many collections a bucket ever had.
#[derive(Clone, Debug, Default)]
pub struct CollectionNames {
    scopes: BTreeMap<u32, String>,
    collections: BTreeMap<u32, (u32, String)>,
}

impl CollectionNames {
    /// Only what every bucket begins with.
    pub fn new() -> CollectionNames {
        let mut names = CollectionNames::default();
        names.add_scope(ScopeId(0), "_default");
        names.add_collection(CollectionId::DEFAULT, ScopeId(0), "_default");
        names
    }

    /// A scope is called so.
    pub fn add_scope(&mut self, id: ScopeId, name: &str) {
        self.scopes.insert(id.0, name.to_owned());
    }

    /// A collection of a scope is called so.
    pub fn add_collection(&mut self, id: CollectionId, scope: ScopeId, name: &str) {
        self.collections.insert(id.0, (scope.0, name.to_owned()));
    }

    /// Remembers what an event tells.
    pub fn learn(&mut self, event: &WireEvent<'_>) {
        match *event {
            WireEvent::CollectionBegin { scope, collection, name, .. } => {
                self.add_collection(collection, scope, &String::from_utf8_lossy(name));
            }
            WireEvent::ScopeBegin { scope, name, .. } => {
                self.add_scope(scope, &String::from_utf8_lossy(name))
            }
            WireEvent::CollectionEnd { .. } | WireEvent::ScopeEnd { .. } => {}
        }
    }

    /// A collection as `scope.collection`; nothing if it was not heard of.
    pub fn collection(&self, id: CollectionId) -> Option<String> {
        let (scope, name) = self.collections.get(&id.0)?;
        Some(format!("{}.{name}", self.scopes.get(scope)?))
    }

    /// A scope; nothing if it was not heard of.
    pub fn scope(&self, id: ScopeId) -> Option<&str> {
        self.scopes.get(&id.0).map(String::as_str)
    }
}

impl WireEvent<'_> {
    /// What happened, in a word for people and programs.
    pub fn word(&self) -> &'static str {
        match self {
            WireEvent::CollectionBegin { .. } => "collection_created",
            WireEvent::CollectionEnd { .. } => "collection_dropped",
            WireEvent::ScopeBegin { .. } => "scope_created",
            WireEvent::ScopeEnd { .. } => "scope_dropped",
        }
    }

    /// The manifest that is complete with it.
    pub fn manifest(&self) -> u64 {
        match *self {
            WireEvent::CollectionBegin { manifest, .. }
            | WireEvent::CollectionEnd { manifest, .. }
            | WireEvent::ScopeBegin { manifest, .. }
            | WireEvent::ScopeEnd { manifest, .. } => manifest,
        }
    }

    /// What it happened to: `scope.collection`, or a scope; by number where no name was heard of.
    pub fn subject(&self, names: &CollectionNames) -> String {
        match *self {
            WireEvent::CollectionBegin { collection, .. } | WireEvent::CollectionEnd { collection, .. } => {
                names.collection(collection).unwrap_or_else(|| format!("0x{:x}", collection.0))
            }
            WireEvent::ScopeBegin { scope, .. } | WireEvent::ScopeEnd { scope, .. } => {
                names.scope(scope).map_or_else(|| format!("0x{:x}", scope.0), str::to_owned)
            }
        }
    }

    /// Its collection, if it is about one.
    pub fn collection(&self) -> Option<CollectionId> {
        match *self {
            WireEvent::CollectionBegin { collection, .. } | WireEvent::CollectionEnd { collection, .. } => {
                Some(collection)
            }
            WireEvent::ScopeBegin { .. } | WireEvent::ScopeEnd { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_learned_and_stay() {
        let mut names = CollectionNames::new();
        assert_eq!(names.collection(CollectionId::DEFAULT).as_deref(), Some("_default._default"));
        let (scope, collection) = (ScopeId(9), CollectionId(0x1a));
        let begun =
            WireEvent::CollectionBegin { manifest: 3, scope, collection, max_ttl_s: None, name: b"orders" };
        names.learn(&begun);
        assert_eq!(names.collection(collection), None, "its scope was not heard of");
        assert_eq!(begun.subject(&names), "0x1a");
        names.learn(&WireEvent::ScopeBegin { manifest: 2, scope, name: b"shop" });
        assert_eq!(names.collection(collection).as_deref(), Some("shop.orders"));
        let ended = WireEvent::CollectionEnd { manifest: 4, scope, collection };
        names.learn(&ended);
        assert_eq!((ended.word(), ended.subject(&names)), ("collection_dropped", "shop.orders".to_owned()));
        assert_eq!(WireEvent::ScopeEnd { manifest: 5, scope }.subject(&names), "shop");
        assert_eq!((ended.manifest(), ended.collection()), (4, Some(collection)));
    }
}
