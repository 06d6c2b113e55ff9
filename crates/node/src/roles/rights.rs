//! What grants come to in one bucket.
//!
//! *Invariant:* where no grant names a scope or collection of the bucket, `narrow` is `None`, and a check is one test
//! of bits.

use std::collections::HashMap;
use std::sync::Arc;

use base::{CollectionId, ScopeId};
use engine::StreamWanted;
use vbucket::Manifest;

use super::Grant;
use crate::privilege::{Privilege, Privileges};

/// What a session may do in its bucket.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// In the whole bucket, and beside buckets.
    pub whole: Privileges,
    /// In every bucket, and beside buckets: what is told of the node as a whole needs these.
    pub node: Privileges,
    /// What is added in scopes and collections.
    pub narrow: Option<Arc<NarrowRights>>,
}

/// What grants add in one scope or collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrow {
    scope: Box<str>,
    collection: Option<Box<str>>,
    privileges: Privileges,
}

/// What grants add in scopes and collections, by the numbers that they have in one manifest.
#[derive(Debug)]
pub struct NarrowRights {
    /// What the numbers are from.
    manifest: Arc<Manifest>,
    grants: Arc<[Narrow]>,
    collections: ById<CollectionId>,
    scopes: ById<ScopeId>,
    any: Privileges,
}

/// Privileges by number, in order: a look at a few of them, which every request makes, costs less than a hash.
#[derive(Debug)]
struct ById<I>(Box<[(I, Privileges)]>);

impl<I: Ord + Copy> ById<I> {
    fn new(all: HashMap<I, Privileges>) -> ById<I> {
        let mut all: Vec<(I, Privileges)> = all.into_iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        ById(all.into())
    }

    fn get(&self, id: I) -> Option<Privileges> {
        self.0.binary_search_by_key(&id, |(of, _)| *of).ok().map(|at| self.0[at].1)
    }
}

/// Whether a privilege is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It is.
    Allowed,
    /// It is not, and others are.
    Denied(Privilege),
    /// It is not, and nothing else is: for this user there is no such scope or collection.
    Hidden,
}

impl Narrow {
    /// What is added in the whole of the scope of this name.
    pub fn of_scope(&self, scope: &str) -> Option<Privileges> {
        (self.collection.is_none() && &*self.scope == scope).then_some(self.privileges)
    }
}

impl Rights {
    /// What `grants` allow where no bucket is selected: what holds beside buckets, and in all of them.
    pub fn without_bucket(grants: &[Grant]) -> Rights {
        let is_for_all = |grant: &&Grant| grant.bucket().is_none_or(|bucket| bucket == super::ALL_BUCKETS);
        let whole = grants.iter().filter(is_for_all).fold(Privileges::NONE, |all, grant| {
            let row = grant.row();
            all.or(row.cluster).or(row.bucket).or(row.place)
        });
        Rights { whole, node: whole, narrow: None }
    }

    /// What `grants` allow in a bucket, and what they add by the names of scopes and collections.
    pub fn in_bucket(grants: &[Grant], bucket: &str) -> (Privileges, Vec<Narrow>) {
        let (mut whole, mut narrow) = (Privileges::NONE, Vec::new());
        for grant in grants {
            let row = grant.row();
            whole = whole.or(row.cluster);
            if !grant.is_about(bucket) {
                continue;
            }
            whole = whole.or(row.bucket);
            match grant.scope() {
                None => whole = whole.or(row.place),
                Some(scope) => narrow.push(Narrow {
                    scope: scope.into(),
                    collection: grant.collection().map(Into::into),
                    privileges: row.place,
                }),
            }
        }
        (whole, narrow)
    }

    /// What `grants` allow in a bucket with this manifest, without what was given up.
    pub fn of(grants: &[Grant], bucket: &str, manifest: &Arc<Manifest>, dropped: Privileges) -> Rights {
        let (whole, narrow) = Rights::in_bucket(grants, bucket);
        let narrow: Arc<[Narrow]> = narrow.into();
        let narrow = (!narrow.is_empty()).then(|| Arc::new(NarrowRights::new(narrow, manifest, dropped)));
        let node = Rights::without_bucket(grants).node.less(dropped);
        Rights { whole: whole.less(dropped), node, narrow }
    }

    /// The same by the numbers of another manifest.
    pub fn follow(&mut self, manifest: &Arc<Manifest>, dropped: Privileges) {
        if let Some(narrow) = &mut self.narrow
            && !Arc::ptr_eq(&narrow.manifest, manifest)
        {
            *narrow = Arc::new(NarrowRights::new(Arc::clone(&narrow.grants), manifest, dropped));
        }
    }

    /// With these in the whole bucket and beside buckets, too.
    pub(crate) fn with(mut self, more: Privileges) -> Rights {
        (self.whole, self.node) = (self.whole.or(more), self.node.or(more));
        self
    }

    /// Only what `most` has, too, and what it adds.
    pub fn within(mut self, most: Privileges) -> Rights {
        self.whole = self.whole.and(most);
        self.node = self.node.and(most);
        let missing = Privileges::all().less(most);
        self.narrow = self
            .narrow
            .map(|narrow| Arc::new(NarrowRights::new(Arc::clone(&narrow.grants), &narrow.manifest, missing)));
        self
    }

    /// Whether both come to the same.
    pub fn is_same(&self, other: &Rights) -> bool {
        let narrow = match (&self.narrow, &other.narrow) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        narrow && self.whole == other.whole && self.node == other.node
    }

    /// Whether all that a stream is about may be streamed: one of everything needs the privilege in the whole bucket, one
    /// of a scope in that, one of collections in each.
    pub fn may_stream(&self, wanted: StreamWanted<'_>) -> bool {
        let of = |id: &CollectionId| self.in_collection(*id).has(Privilege::DcpStream);
        match wanted {
            StreamWanted::Everything => self.whole.has(Privilege::DcpStream),
            StreamWanted::Default => of(&CollectionId::DEFAULT),
            StreamWanted::Collections(wanted) => wanted.iter().all(of),
            StreamWanted::Scope(scope) => self.in_scope(scope).has(Privilege::DcpStream),
        }
    }

    /// What is allowed in a collection.
    pub fn in_collection(&self, id: CollectionId) -> Privileges {
        let narrow = self.narrow.as_ref().and_then(|narrow| narrow.collections.get(id));
        self.whole.or(narrow.unwrap_or_default())
    }

    /// What is allowed in the whole of a scope.
    pub fn in_scope(&self, id: ScopeId) -> Privileges {
        let narrow = self.narrow.as_ref().and_then(|narrow| narrow.scopes.get(id));
        self.whole.or(narrow.unwrap_or_default())
    }

    /// What is allowed in some collection, or in all of them.
    pub fn anywhere(&self) -> Privileges {
        self.whole.or(self.narrow.as_ref().map_or(Privileges::NONE, |narrow| narrow.any))
    }

    /// Whether a collection is there for the user.
    pub fn sees_collection(&self, id: CollectionId) -> bool {
        self.narrow.is_none() || !self.in_collection(id).and(Privileges::OF_COLLECTIONS).is_empty()
    }

    /// Whether a scope is there for the user: it, or a collection of it.
    pub fn sees_scope(&self, id: ScopeId) -> bool {
        let Some(narrow) = &self.narrow else { return true };
        !self.in_scope(id).and(Privileges::OF_COLLECTIONS).is_empty()
            || narrow.manifest.collections_of(id).any(|one| self.sees_collection(one.id))
    }

    /// Whether these are allowed in a collection.
    pub fn check_collection(&self, needed: Privileges, id: CollectionId) -> Permission {
        match needed.missing_in(self.in_collection(id)) {
            None => Permission::Allowed,
            Some(_) if !self.sees_collection(id) => Permission::Hidden,
            Some(missing) => Permission::Denied(missing),
        }
    }

    /// Whether these are allowed in the whole of a scope.
    pub fn check_scope(&self, needed: Privileges, id: ScopeId) -> Permission {
        match needed.missing_in(self.in_scope(id)) {
            None => Permission::Allowed,
            Some(_) if !self.sees_scope(id) => Permission::Hidden,
            Some(missing) => Permission::Denied(missing),
        }
    }
}

impl NarrowRights {
    fn new(grants: Arc<[Narrow]>, manifest: &Arc<Manifest>, dropped: Privileges) -> NarrowRights {
        let mut collections: HashMap<CollectionId, Privileges> = HashMap::new();
        let mut scopes: HashMap<ScopeId, Privileges> = HashMap::new();
        let mut any = Privileges::NONE;
        for grant in grants.iter() {
            let Some(scope) = manifest.scope_named(&grant.scope) else { continue };
            let privileges = grant.privileges.less(dropped);
            any = any.or(privileges);
            let mut add = |id| {
                let all = collections.entry(id).or_default();
                *all = all.or(privileges);
            };
            match &grant.collection {
                Some(name) => {
                    if let Some(one) = manifest.collection_named(scope.id, name) {
                        add(one.id);
                    }
                }
                None => {
                    manifest.collections_of(scope.id).for_each(|one| add(one.id));
                    let all = scopes.entry(scope.id).or_default();
                    *all = all.or(privileges);
                }
            }
        }
        let (collections, scopes) = (ById::new(collections), ById::new(scopes));
        NarrowRights { manifest: Arc::clone(manifest), grants, collections, scopes, any }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<u32> = const { Cell::new(0) };
    }

    /// Counts how often it is compared.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Counted) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Counted) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn a_look_among_fifty_collections_compares_seven_times_at_most() {
        let all = ById::new((0..50).map(|n| (Counted(2 * n), Privileges::all())).collect());
        for id in 0..101 {
            COMPARISONS.set(0);
            assert_eq!(all.get(Counted(id)).is_some(), id % 2 == 0 && id < 100);
            assert!(COMPARISONS.get() <= 7, "{} for {id}", COMPARISONS.get());
        }
    }
}
