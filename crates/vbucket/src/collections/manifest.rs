//! A bucket's manifest: which scopes and collections there are, parsed from and printed as the field's JSON.
//!
//! The JSON is that of kv_engine's Collections.md, "0xb9 - Set Collections Manifest".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base::{CollectionId, ScopeId};
use serde_json::{Value, json};

use super::event::SystemEvent;

/// Which manifest of a bucket: each change of it has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManifestUid(pub u64);

/// As JSON has it: hexadecimal without a prefix.
impl fmt::Display for ManifestUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The name of the default scope and of the default collection, which nothing else may have.
pub const DEFAULT_NAME: &str = "_default";
/// How many scopes a manifest may have, and how many collections (the field's defaults).
pub const MAX_SCOPES: usize = 1200;
/// How many collections a manifest may have, over all its scopes.
pub const MAX_COLLECTIONS: usize = 1200;
/// The longest name of a scope or collection, bytes.
pub const MAX_NAME_BYTES: usize = 251;
/// The longest max TTL, seconds.
const MAX_TTL_S: u64 = i32::MAX as u64;
/// Ids from 1 up to here are reserved.
const LAST_RESERVED: u32 = 7;

/// A named set of collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Never used twice in a bucket.
    pub id: ScopeId,
    /// Unique among the scopes of a manifest.
    pub name: String,
}

/// A named set of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Never used twice in a bucket.
    pub id: CollectionId,
    /// The scope it is in, for ever.
    pub scope: ScopeId,
    /// Unique in its scope.
    pub name: String,
    /// What comes before the bucket's max TTL, seconds; 0 means that documents never expire by it.
    pub max_ttl_s: Option<u32>,
}

/// Which scopes and collections a bucket has. Always valid by the rules of one manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    uid: ManifestUid,
    scopes: BTreeMap<ScopeId, Scope>,
    collections: BTreeMap<CollectionId, Collection>,
}

/// Why text is no manifest. Says where, for whoever wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidManifest(String);

impl fmt::Display for InvalidManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidManifest {}

/// Why a valid manifest cannot follow another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessorRefusal {
    /// Its uid is lower, or it says something else under the same uid.
    UidOutOfRange,
    /// An id that both have means another scope or collection: its name or scope differs.
    IdReused,
}

impl Default for Manifest {
    /// What a new bucket has: the default scope with the default collection, uid 0.
    fn default() -> Manifest {
        let scope = Scope { id: ScopeId(0), name: DEFAULT_NAME.into() };
        let collection = Collection {
            id: CollectionId::DEFAULT,
            scope: scope.id,
            name: DEFAULT_NAME.into(),
            max_ttl_s: None,
        };
        Manifest {
            uid: ManifestUid(0),
            scopes: BTreeMap::from([(scope.id, scope)]),
            collections: BTreeMap::from([(collection.id, collection)]),
        }
    }
}

impl Manifest {
    /// Reads a manifest from its JSON.
    pub fn parse(json: &[u8]) -> Result<Manifest, InvalidManifest> {
        let value: Value = serde_json::from_slice(json).map_err(|e| invalid(format!("not JSON: {e}")))?;
        let uid = ManifestUid(hexadecimal(&value, "uid")?);
        let mut scopes = Vec::new();
        let mut collections = Vec::new();
        for scope in list(&value, "scopes")?.ok_or_else(|| invalid("scopes are missing".into()))? {
            let id = ScopeId(id_of(scope)?);
            scopes.push(Scope { id, name: name_of(scope)? });
            for collection in list(scope, "collections")?.unwrap_or_default() {
                collections.push(Collection {
                    id: CollectionId(id_of(collection)?),
                    scope: id,
                    name: name_of(collection)?,
                    max_ttl_s: max_ttl_of(collection)?,
                });
            }
        }
        Manifest::new(uid, scopes, collections)
    }

    /// Makes a manifest of what it shall contain, if that keeps the rules.
    pub fn new(
        uid: ManifestUid,
        scopes: impl IntoIterator<Item = Scope>,
        collections: impl IntoIterator<Item = Collection>,
    ) -> Result<Manifest, InvalidManifest> {
        let mut manifest = Manifest { uid, scopes: BTreeMap::new(), collections: BTreeMap::new() };
        let mut names = BTreeSet::new();
        for scope in scopes {
            check_id(scope.id.0, &scope.name)?;
            if !names.insert(scope.name.clone()) {
                return Err(invalid(format!("two scopes are named {:?}", scope.name)));
            }
            if let Some(other) = manifest.scopes.insert(scope.id, scope) {
                return Err(invalid(format!("two scopes have the id {:x}", other.id.0)));
            }
        }
        if !manifest.scopes.contains_key(&ScopeId(0)) {
            return Err(invalid("the default scope is missing".into()));
        }
        let mut names = BTreeSet::new();
        for collection in collections {
            check_id(collection.id.0, &collection.name)?;
            if !manifest.scopes.contains_key(&collection.scope) {
                return Err(invalid(format!(
                    "collection {:?} is in a scope that is not there",
                    collection.name
                )));
            }
            if collection.id == CollectionId::DEFAULT && collection.scope != ScopeId(0) {
                return Err(invalid("the default collection is not in the default scope".into()));
            }
            if !names.insert((collection.scope, collection.name.clone())) {
                return Err(invalid(format!("two collections of a scope are named {:?}", collection.name)));
            }
            if let Some(other) = manifest.collections.insert(collection.id, collection) {
                return Err(invalid(format!("two collections have the id {:x}", other.id.0)));
            }
        }
        if manifest.scopes.len() > MAX_SCOPES || manifest.collections.len() > MAX_COLLECTIONS {
            return Err(invalid(format!("more than {MAX_SCOPES} scopes or {MAX_COLLECTIONS} collections")));
        }
        Ok(manifest)
    }

    /// Its JSON, which [`Manifest::parse`] reads.
    pub fn to_json(&self) -> Value {
        // The newest scope comes first, as recorded.
        let scopes: Vec<Value> = self.scopes.values().rev().map(|scope| self.scope_json(scope)).collect();
        json!({"uid": self.uid.to_string(), "scopes": scopes})
    }

    fn scope_json(&self, scope: &Scope) -> Value {
        let collections: Vec<Value> = self.collections_of(scope.id).map(collection_json).collect();
        json!({"name": scope.name, "uid": format!("{:x}", scope.id.0), "collections": collections})
    }

    /// Which one it is.
    pub fn uid(&self) -> ManifestUid {
        self.uid
    }

    /// All scopes by id.
    pub fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.scopes.values()
    }

    /// All collections by id.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.collections.values()
    }

    /// The collections of a scope by id.
    pub fn collections_of(&self, scope: ScopeId) -> impl Iterator<Item = &Collection> {
        self.collections.values().filter(move |collection| collection.scope == scope)
    }

    /// The scope with this id.
    pub fn scope(&self, id: ScopeId) -> Option<&Scope> {
        self.scopes.get(&id)
    }

    /// The collection with this id.
    pub fn collection(&self, id: CollectionId) -> Option<&Collection> {
        self.collections.get(&id)
    }

    /// The scope with this name.
    pub fn scope_named(&self, name: &str) -> Option<&Scope> {
        self.scopes.values().find(|scope| scope.name == name)
    }

    /// The collection with this name in a scope.
    pub fn collection_named(&self, scope: ScopeId, name: &str) -> Option<&Collection> {
        self.collections_of(scope).find(|collection| collection.name == name)
    }

    /// Whether `next` may take this one's place.
    pub fn check_successor(&self, next: &Manifest) -> Result<(), SuccessorRefusal> {
        if next.uid < self.uid || next.uid == self.uid && next != self {
            return Err(SuccessorRefusal::UidOutOfRange);
        }
        let is_other_scope = |scope: &Scope| next.scope(scope.id).is_some_and(|new| new.name != scope.name);
        let is_other = |collection: &Collection| {
            let new = next.collection(collection.id);
            new.is_some_and(|new| (&new.name, new.scope) != (&collection.name, collection.scope))
        };
        if self.scopes().any(is_other_scope) || self.collections().any(is_other) {
            return Err(SuccessorRefusal::IdReused);
        }
        Ok(())
    }
}

/// What leads from one manifest of a bucket to the next, worked out once for all its vBuckets.
#[derive(Clone, Debug)]
pub struct ManifestChange {
    /// The manifest before.
    pub(crate) from: ManifestUid,
    /// See [`difference`].
    pub(crate) events: Vec<SystemEvent>,
}

impl ManifestChange {
    /// The change between two manifests.
    pub fn between(old: &Manifest, new: &Manifest) -> ManifestChange {
        ManifestChange { from: old.uid, events: difference(old, new) }
    }
}

/// The events that lead from one manifest to another, in the order in which a vBucket has them: what is dropped comes
/// before what is made, a scope before its collections and, dropped, after them.
///
/// Each event carries the uid of the manifest that is complete with it: the last one the new uid, all others the old.
pub fn difference(old: &Manifest, new: &Manifest) -> Vec<SystemEvent> {
    let manifest = old.uid;
    let mut events = Vec::new();
    let ended = old.collections().filter(|collection| new.collection(collection.id).is_none());
    events.extend(ended.map(|c| SystemEvent::CollectionEnd { manifest, scope: c.scope, id: c.id }));
    let ended = old.scopes().filter(|scope| new.scope(scope.id).is_none());
    events.extend(ended.map(|scope| SystemEvent::ScopeEnd { manifest, id: scope.id }));
    let begun = new.scopes().filter(|scope| old.scope(scope.id).is_none());
    events.extend(begun.map(|scope| SystemEvent::ScopeBegin { manifest, scope: scope.clone() }));
    for collection in new.collections() {
        match old.collection(collection.id) {
            None => events.push(SystemEvent::CollectionBegin { manifest, collection: collection.clone() }),
            Some(there) if there.max_ttl_s != collection.max_ttl_s => {
                events.push(SystemEvent::CollectionChanged { manifest, collection: collection.clone() });
            }
            Some(_) => {}
        }
    }
    if let Some(last) = events.last_mut() {
        last.set_manifest(new.uid);
    }
    events
}

/// Whether a manifest may have a scope or collection of this name; names that begin with `_` are the system's.
pub fn is_valid_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-%$".contains(&byte);
    let is_system = name.starts_with('_');
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('$')
        && (is_system || !name.contains('$'))
}

/// Whether a client may make a scope or collection of this name.
pub fn is_user_name(name: &str) -> bool {
    is_valid_name(name) && !name.starts_with(['_', '%'])
}

fn invalid(reason: String) -> InvalidManifest {
    InvalidManifest(reason)
}

/// The id 0 and the name `_default` belong together.
fn check_id(id: u32, name: &str) -> Result<(), InvalidManifest> {
    if !is_valid_name(name) {
        return Err(invalid(format!("{name:?} is no name for a scope or collection")));
    }
    if (1..=LAST_RESERVED).contains(&id) {
        return Err(invalid(format!("the id {id:x} of {name:?} is reserved")));
    }
    if (id == 0) != (name == DEFAULT_NAME) {
        return Err(invalid(format!(
            "{name:?} has the id {id:x}: 0 is for {DEFAULT_NAME:?} and nothing else"
        )));
    }
    Ok(())
}

fn hexadecimal(value: &Value, field: &str) -> Result<u64, InvalidManifest> {
    let text = value.get(field).and_then(Value::as_str).filter(|text| text.len() <= 16);
    let is_hex = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.filter(is_hex)
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .ok_or_else(|| invalid(format!("{field:?} must be a hexadecimal number in a string")))
}

fn id_of(value: &Value) -> Result<u32, InvalidManifest> {
    u32::try_from(hexadecimal(value, "uid")?).map_err(|_| invalid("an id has at most 32 bits".into()))
}

fn name_of(value: &Value) -> Result<String, InvalidManifest> {
    let name = value.get("name").and_then(Value::as_str);
    name.map(str::to_owned).ok_or_else(|| invalid("a scope or collection has no name".into()))
}

fn max_ttl_of(value: &Value) -> Result<Option<u32>, InvalidManifest> {
    let Some(ttl) = value.get("maxTTL") else { return Ok(None) };
    let ttl = ttl.as_u64().filter(|ttl| *ttl <= MAX_TTL_S);
    let ttl = ttl.ok_or_else(|| invalid(format!("\"maxTTL\" must be a number from 0 to {MAX_TTL_S}")))?;
    Ok(Some(ttl as u32))
}

fn list<'a>(value: &'a Value, field: &str) -> Result<Option<&'a [Value]>, InvalidManifest> {
    let Some(list) = value.get(field) else { return Ok(None) };
    let list = list.as_array().ok_or_else(|| invalid(format!("{field:?} must be a list")))?;
    Ok(Some(list))
}

fn collection_json(collection: &Collection) -> Value {
    let mut json = json!({"name": collection.name, "uid": format!("{:x}", collection.id.0)});
    if let Some(ttl) = collection.max_ttl_s {
        json["maxTTL"] = ttl.into();
    }
    json
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
