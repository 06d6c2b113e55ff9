//! A bucket's manifest: which scopes and collections there are, parsed from and printed as the field's JSON.
//!
//! The JSON is that of kv_engine's Collections.md, "0xb9 - Set Collections Manifest".

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base::{CollectionId, ScopeId};
use serde_json::{Value, json};

use super::event::{EncodedEvent, SystemEvent};

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
    /// Whether it has a part in the history of changes that its bucket keeps. `None` was never said, and means yes: such
    /// a collection is older than the field, or is in a bucket that can keep none.
    pub history: Option<bool>,
}

impl Collection {
    /// Whether a setting that may change is another one.
    pub(crate) fn differs(&self, max_ttl_s: Option<u32>, history: Option<bool>) -> bool {
        (self.max_ttl_s, self.history) != (max_ttl_s, history)
    }
}

/// Which scopes and collections a bucket has. Always valid by the rules of one manifest.
///
/// A clone shares scopes and collections with its original, so that the next manifest of a bucket costs little more than
/// what is new in it, and a comparison of the two passes over what they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    uid: ManifestUid,
    scopes: BTreeMap<ScopeId, Arc<Scope>>,
    scope_names: BTreeMap<Arc<str>, ScopeId>,
    collections: BTreeMap<CollectionId, Arc<Collection>>,
    /// The collections of each scope.
    members: BTreeMap<ScopeId, Arc<Members>>,
}

/// The collections of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Members {
    ids: BTreeSet<CollectionId>,
    names: BTreeMap<Arc<str>, CollectionId>,
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
            history: None,
        };
        let mut manifest = Manifest::empty(ManifestUid(0));
        manifest.put_scope(scope);
        manifest.put_collection(collection);
        manifest
    }
}

impl Manifest {
    /// Reads a manifest from its JSON.
    pub fn parse(json: &[u8]) -> Result<Manifest, InvalidManifest> {
        let value: Value = serde_json::from_slice(json).map_err(|e| invalid(format!("not JSON: {e}")))?;
        Manifest::from_json(&value)
    }

    /// The same of JSON that is parsed already.
    pub fn from_json(value: &Value) -> Result<Manifest, InvalidManifest> {
        let uid = Manifest::uid_in(value)?;
        let mut scopes = Vec::new();
        let mut collections = Vec::new();
        for scope in list(value, "scopes")?.ok_or_else(|| invalid("scopes are missing".into()))? {
            let id = ScopeId(id_of(scope)?);
            scopes.push(Scope { id, name: name_of(scope)? });
            for collection in list(scope, "collections")?.unwrap_or_default() {
                collections.push(Collection {
                    id: CollectionId(id_of(collection)?),
                    scope: id,
                    name: name_of(collection)?,
                    max_ttl_s: max_ttl_of(collection)?,
                    history: history_of(collection)?,
                });
            }
        }
        Manifest::new(uid, scopes, collections)
    }

    /// Only which manifest JSON is, which costs nothing.
    pub fn uid_in(value: &Value) -> Result<ManifestUid, InvalidManifest> {
        hexadecimal(value, "uid").map(ManifestUid)
    }

    /// Makes a manifest of what it shall contain, if that keeps the rules.
    pub fn new(
        uid: ManifestUid,
        scopes: impl IntoIterator<Item = Scope>,
        collections: impl IntoIterator<Item = Collection>,
    ) -> Result<Manifest, InvalidManifest> {
        let mut manifest = Manifest::empty(uid);
        for scope in scopes {
            manifest.add_scope(scope)?;
        }
        if !manifest.scopes.contains_key(&ScopeId(0)) {
            return Err(invalid("the default scope is missing".into()));
        }
        for collection in collections {
            manifest.add_collection(collection)?;
        }
        Ok(manifest)
    }

    fn empty(uid: ManifestUid) -> Manifest {
        Manifest {
            uid,
            scopes: BTreeMap::new(),
            scope_names: BTreeMap::new(),
            collections: BTreeMap::new(),
            members: BTreeMap::new(),
        }
    }

    /// The next manifest: the same scopes and collections under the next uid, to be changed.
    #[must_use]
    pub fn successor(&self) -> Manifest {
        Manifest { uid: ManifestUid(self.uid.0.saturating_add(1)), ..self.clone() }
    }

    /// Adds a scope, if that keeps the rules; otherwise nothing changes.
    pub fn add_scope(&mut self, scope: Scope) -> Result<(), InvalidManifest> {
        check_id(scope.id.0, &scope.name)?;
        if self.scope_names.contains_key(&*scope.name) {
            return Err(invalid(format!("two scopes are named {:?}", scope.name)));
        }
        if self.scopes.contains_key(&scope.id) {
            return Err(invalid(format!("two scopes have the id {:x}", scope.id.0)));
        }
        if self.scopes.len() >= MAX_SCOPES {
            return Err(too_many());
        }
        self.put_scope(scope);
        Ok(())
    }

    fn put_scope(&mut self, scope: Scope) {
        self.scope_names.insert(scope.name.as_str().into(), scope.id);
        self.scopes.insert(scope.id, Arc::new(scope));
    }

    /// Removes a scope with its collections. The default scope stays.
    pub fn remove_scope(&mut self, id: ScopeId) {
        if id == ScopeId(0) {
            return;
        }
        let Some(scope) = self.scopes.remove(&id) else { return };
        self.scope_names.remove(&*scope.name);
        if let Some(members) = self.members.remove(&id) {
            members.ids.iter().for_each(|id| drop(self.collections.remove(id)));
        }
    }

    /// Adds a collection, if that keeps the rules; otherwise nothing changes.
    pub fn add_collection(&mut self, collection: Collection) -> Result<(), InvalidManifest> {
        check_id(collection.id.0, &collection.name)?;
        if !self.scopes.contains_key(&collection.scope) {
            return Err(invalid(format!("collection {:?} is in a scope that is not there", collection.name)));
        }
        if collection.id == CollectionId::DEFAULT && collection.scope != ScopeId(0) {
            return Err(invalid("the default collection is not in the default scope".into()));
        }
        if self.collection_named(collection.scope, &collection.name).is_some() {
            return Err(invalid(format!("two collections of a scope are named {:?}", collection.name)));
        }
        if self.collections.contains_key(&collection.id) {
            return Err(invalid(format!("two collections have the id {:x}", collection.id.0)));
        }
        if self.collections.len() >= MAX_COLLECTIONS {
            return Err(too_many());
        }
        self.put_collection(collection);
        Ok(())
    }

    fn put_collection(&mut self, collection: Collection) {
        let members = Arc::make_mut(self.members.entry(collection.scope).or_default());
        members.ids.insert(collection.id);
        members.names.insert(collection.name.as_str().into(), collection.id);
        self.collections.insert(collection.id, Arc::new(collection));
    }

    /// Removes a collection.
    pub fn remove_collection(&mut self, id: CollectionId) {
        let Some(collection) = self.collections.remove(&id) else { return };
        let Some(members) = self.members.get_mut(&collection.scope) else { return };
        let members = Arc::make_mut(members);
        members.ids.remove(&id);
        members.names.remove(&*collection.name);
        if members.ids.is_empty() {
            self.members.remove(&collection.scope);
        }
    }

    /// Gives a collection another max TTL.
    pub fn set_max_ttl(&mut self, id: CollectionId, max_ttl_s: Option<u32>) {
        if let Some(collection) = self.collections.get_mut(&id) {
            Arc::make_mut(collection).max_ttl_s = max_ttl_s;
        }
    }

    /// Says whether a collection has a part in the history of changes.
    pub fn set_history(&mut self, id: CollectionId, history: Option<bool>) {
        if let Some(collection) = self.collections.get_mut(&id) {
            Arc::make_mut(collection).history = history;
        }
    }

    /// Its JSON, which [`Manifest::parse`] reads.
    pub fn to_json(&self) -> Value {
        // The newest scope comes first, as recorded.
        let scopes: Vec<Value> = self.scopes.values().rev().map(|scope| self.scope_json(scope)).collect();
        json!({"uid": self.uid.to_string(), "scopes": scopes})
    }

    /// The text of [`Manifest::to_json`], byte for byte, without making that.
    pub fn to_text(&self) -> String {
        let mut out = Text(String::with_capacity(64 * (self.scopes.len() + self.collections.len())));
        out.push("{\"scopes\":[");
        for (at, scope) in self.scopes.values().rev().enumerate() {
            out.push(if at == 0 { "{\"collections\":[" } else { ",{\"collections\":[" });
            for (at, collection) in self.collections_of(scope.id).enumerate() {
                out.push(if at == 0 { "{" } else { ",{" });
                if let Some(history) = collection.history {
                    out.push("\"history\":").number(format_args!("{history}")).push(",");
                }
                if let Some(ttl) = collection.max_ttl_s {
                    out.push("\"maxTTL\":").number(format_args!("{ttl}")).push(",");
                }
                out.name_and_uid(&collection.name, collection.id.0);
            }
            out.push("],").name_and_uid(&scope.name, scope.id.0);
        }
        out.push("],\"uid\":\"").number(format_args!("{}", self.uid)).push("\"}");
        out.0
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
    pub fn scopes(&self) -> impl DoubleEndedIterator<Item = &Scope> {
        self.scopes.values().map(|scope| &**scope)
    }

    /// All collections by id.
    pub fn collections(&self) -> impl DoubleEndedIterator<Item = &Collection> {
        self.collections.values().map(|collection| &**collection)
    }

    /// The collections of a scope by id.
    pub fn collections_of(&self, scope: ScopeId) -> impl Iterator<Item = &Collection> {
        let ids = self.members.get(&scope).into_iter().flat_map(|members| &members.ids);
        ids.filter_map(|id| self.collection(*id))
    }

    /// The scope with this id.
    pub fn scope(&self, id: ScopeId) -> Option<&Scope> {
        self.scopes.get(&id).map(|scope| &**scope)
    }

    /// The collection with this id.
    pub fn collection(&self, id: CollectionId) -> Option<&Collection> {
        self.collections.get(&id).map(|collection| &**collection)
    }

    /// The scope with this name.
    pub fn scope_named(&self, name: &str) -> Option<&Scope> {
        self.scope(*self.scope_names.get(name)?)
    }

    /// The collection with this name in a scope.
    pub fn collection_named(&self, scope: ScopeId, name: &str) -> Option<&Collection> {
        self.collection(*self.members.get(&scope)?.names.get(name)?)
    }

    /// Whether `next` may take this one's place.
    pub fn check_successor(&self, next: &Manifest) -> Result<(), SuccessorRefusal> {
        if next.uid < self.uid || next.uid == self.uid && next != self {
            return Err(SuccessorRefusal::UidOutOfRange);
        }
        let is_other_scope = |(old, new): (Option<&Scope>, Option<&Scope>)| match (old, new) {
            (Some(old), Some(new)) => old.name != new.name,
            _ => false,
        };
        let is_other = |(old, new): (Option<&Collection>, Option<&Collection>)| match (old, new) {
            (Some(old), Some(new)) => (&old.name, old.scope) != (&new.name, new.scope),
            _ => false,
        };
        if differing(&self.scopes, &next.scopes).any(is_other_scope)
            || differing(&self.collections, &next.collections).any(is_other)
        {
            return Err(SuccessorRefusal::IdReused);
        }
        Ok(())
    }
}

/// What two maps have of each id, by id, but for what they share.
fn differing<'m, K: Ord, T>(
    old: &'m BTreeMap<K, Arc<T>>,
    new: &'m BTreeMap<K, Arc<T>>,
) -> impl Iterator<Item = (Option<&'m T>, Option<&'m T>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let mut next = move || {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        let of_old = if order.is_le() { old.next() } else { None };
        let of_new = if order.is_ge() { new.next() } else { None };
        Some((of_old.map(|(_, one)| one), of_new.map(|(_, one)| one)))
    };
    std::iter::from_fn(move || {
        loop {
            match next()? {
                (Some(old), Some(new)) if Arc::ptr_eq(old, new) => {}
                (old, new) => return Some((old.map(|one| &**one), new.map(|one| &**one))),
            }
        }
    })
}

/// What leads from one manifest of a bucket to the next, worked out once for all its vBuckets.
///
/// Each event is encoded here, so that it is not encoded again for each vBucket.
#[derive(Clone, Debug)]
pub struct ManifestChange {
    /// The manifest before.
    pub(crate) from: ManifestUid,
    /// See [`difference`].
    pub(crate) events: Vec<EncodedEvent>,
    only_drops: bool,
}

impl ManifestChange {
    /// Whether it makes room: nothing is made or gets other settings, which are events, too.
    pub fn only_drops(&self) -> bool {
        self.only_drops
    }

    /// Events that a vBucket takes for it.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// The change between two manifests.
    pub fn between(old: &Manifest, new: &Manifest) -> ManifestChange {
        let events = difference(old, new);
        let is_drop = |event: &SystemEvent| {
            matches!(event, SystemEvent::CollectionEnd { .. } | SystemEvent::ScopeEnd { .. })
        };
        let only_drops = events.iter().all(is_drop);
        ManifestChange {
            from: old.uid,
            events: events.into_iter().map(EncodedEvent::from).collect(),
            only_drops,
        }
    }
}

/// The events that lead from one manifest to another, in the order in which a vBucket has them: what is dropped comes
/// before what is made, a scope before its collections and, dropped, after them.
///
/// Each event carries the uid of the manifest that is complete with it: the last one the new uid, all others the old.
pub fn difference(old: &Manifest, new: &Manifest) -> Vec<SystemEvent> {
    let manifest = old.uid;
    let mut events = Vec::new();
    let scopes: Vec<_> = differing(&old.scopes, &new.scopes).collect();
    let collections: Vec<_> = differing(&old.collections, &new.collections).collect();
    let ended = collections.iter().filter_map(|(old, new)| old.filter(|_| new.is_none()));
    events.extend(ended.map(|c| SystemEvent::CollectionEnd { manifest, scope: c.scope, id: c.id }));
    let ended = scopes.iter().filter_map(|(old, new)| old.filter(|_| new.is_none()));
    events.extend(ended.map(|scope| SystemEvent::ScopeEnd { manifest, id: scope.id }));
    let begun = scopes.iter().filter_map(|(old, new)| new.filter(|_| old.is_none()));
    events.extend(begun.map(|scope| SystemEvent::ScopeBegin { manifest, scope: scope.clone() }));
    for (there, collection) in collections {
        let Some(collection) = collection else { continue };
        match there {
            None => events.push(SystemEvent::CollectionBegin { manifest, collection: collection.clone() }),
            Some(there) if collection.differs(there.max_ttl_s, there.history) => {
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

fn too_many() -> InvalidManifest {
    invalid(format!("more than {MAX_SCOPES} scopes or {MAX_COLLECTIONS} collections"))
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

fn history_of(value: &Value) -> Result<Option<bool>, InvalidManifest> {
    let Some(history) = value.get("history") else { return Ok(None) };
    history.as_bool().map(Some).ok_or_else(|| invalid("\"history\" must be true or false".into()))
}

fn list<'a>(value: &'a Value, field: &str) -> Result<Option<&'a [Value]>, InvalidManifest> {
    let Some(list) = value.get(field) else { return Ok(None) };
    let list = list.as_array().ok_or_else(|| invalid(format!("{field:?} must be a list")))?;
    Ok(Some(list))
}

/// JSON that is written piece by piece. Names of scopes and collections have nothing to escape, see [`is_valid_name`].
struct Text(String);

impl Text {
    fn push(&mut self, text: &str) -> &mut Text {
        self.0.push_str(text);
        self
    }

    fn number(&mut self, number: fmt::Arguments<'_>) -> &mut Text {
        // A string takes whatever is written to it.
        let _ = fmt::Write::write_fmt(&mut self.0, number);
        self
    }

    /// The end of an object.
    fn name_and_uid(&mut self, name: &str, id: u32) {
        self.push("\"name\":\"").push(name).push("\",\"uid\":\"").number(format_args!("{id:x}")).push("\"}");
    }
}

fn collection_json(collection: &Collection) -> Value {
    let mut json = json!({"name": collection.name, "uid": format!("{:x}", collection.id.0)});
    if let Some(ttl) = collection.max_ttl_s {
        json["maxTTL"] = ttl.into();
    }
    if let Some(history) = collection.history {
        json["history"] = history.into();
    }
    json
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
