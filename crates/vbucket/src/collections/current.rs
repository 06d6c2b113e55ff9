//! Which collections a vBucket has at this moment, what each of them holds, and which are dropped and not erased yet.
//!
//! What the default collection holds is what all hold together but for the others: it costs nothing to count.

use base::planted::{self, Bug};
use base::{CollectionId, DocKey, ScopeId, Seqno, Version};

use super::event::SystemEvent;
use super::manifest::{Manifest, ManifestUid};

/// What clients did with the documents of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionOps {
    /// Reads, of documents that were there or not.
    pub gets: u64,
    /// Documents stored.
    pub stores: u64,
    /// Documents deleted.
    pub deletes: u64,
}

impl CollectionOps {
    /// Adds another set of counts.
    pub fn add(&mut self, other: &CollectionOps) {
        self.gets += other.gets;
        self.stores += other.stores;
        self.deletes += other.deletes;
    }
}

/// What a collection holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Documents of which at least the metadata are in memory; no tombstones.
    pub in_memory: u64,
    /// Documents that are on disk alone.
    pub evicted: u64,
    /// Bytes of the versions in memory, tombstones among them.
    pub bytes: u64,
}

impl Held {
    /// Documents, wherever they are.
    pub fn documents(&self) -> u64 {
        self.in_memory + self.evicted
    }

    /// What is left of this without the others.
    fn without(self, others: impl Iterator<Item = Held>) -> Held {
        others.fold(self, |rest, other| Held {
            in_memory: rest.in_memory - other.in_memory,
            evicted: rest.evicted - other.evicted,
            bytes: rest.bytes - other.bytes,
        })
    }
}

/// A scope of a vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenScope {
    /// Which one.
    pub id: ScopeId,
    /// Seqno of the event that made it; 0 if it has always been there.
    pub start: Seqno,
}

/// A collection that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCollection {
    /// Which one.
    pub id: CollectionId,
    /// The scope that it is in.
    pub scope: ScopeId,
    /// What comes before the bucket's max TTL, in seconds; 0: documents need not expire.
    pub max_ttl_s: Option<u32>,
    /// Whether it has a part in the history of changes; `None`, which was never said, means yes.
    pub history: Option<bool>,
    /// Seqno of the event that made it; 0 if it has always been there.
    pub start: Seqno,
    /// The last change of it or in it.
    pub high_seqno: Seqno,
    /// What it holds. Of the default collection: nothing, see [`Collections::held`].
    held: Held,
    /// What clients did.
    ops: CollectionOps,
    /// Whether something may have been written to it of which nothing is known yet, before it is loaded.
    is_unsure: bool,
    /// Seqno of the event that changed it last.
    changed: Option<Seqno>,
}

/// A collection that is dropped, and of which something may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedCollection {
    /// Which one.
    pub id: CollectionId,
    /// Seqno of the event that dropped it: whatever it held has this or a lower one.
    pub end: Seqno,
    /// The scope that it was in, if it was dropped since the start: files do not say.
    pub scope: Option<ScopeId>,
    /// What is left of it.
    held: Held,
    is_out_of_memory: bool,
    is_off_disk: bool,
}

/// A walk over the table, to erase what is dropped.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Where it goes on.
    cursor: u64,
    /// It erases all of what was dropped up to here.
    through: Seqno,
}

/// The collections of one vBucket.
#[derive(Clone, Debug)]
pub struct Collections {
    uid: ManifestUid,
    /// Whether they were compared with the bucket's manifest of that uid. Events of another node do not count: its
    /// manifest may be another one under the same uid.
    is_compared: bool,
    scopes: Vec<OpenScope>,
    /// The default collection, if it is there.
    default: Option<OpenCollection>,
    /// The others, by id.
    named: Vec<OpenCollection>,
    dropped: Vec<DroppedCollection>,
    pass: Option<Pass>,
}

impl Default for Collections {
    /// What a new vBucket has.
    fn default() -> Collections {
        let scope = OpenScope { id: ScopeId(0), start: Seqno(0) };
        let default = OpenCollection::new(CollectionId::DEFAULT, scope.id, None, Seqno(0));
        Collections::new(ManifestUid(0), vec![scope], vec![default], Vec::new())
    }
}

impl OpenCollection {
    /// One that was made at a seqno and holds nothing yet.
    pub fn new(id: CollectionId, scope: ScopeId, max_ttl_s: Option<u32>, start: Seqno) -> OpenCollection {
        OpenCollection {
            id,
            scope,
            max_ttl_s,
            history: None,
            start,
            high_seqno: start,
            held: Held::default(),
            ops: CollectionOps::default(),
            is_unsure: false,
            changed: None,
        }
    }

    /// The same, of which this was said of the history of changes.
    #[must_use]
    pub fn with_history(self, history: Option<bool>) -> OpenCollection {
        OpenCollection { history, ..self }
    }

    /// What clients did with it.
    pub fn ops(&self) -> CollectionOps {
        self.ops
    }

    /// Whether a history of changes leaves out its replaced versions.
    pub(crate) fn is_left_out_of_history(&self) -> bool {
        self.history == Some(false)
    }

    /// One that is on disk, whose last change is `high_seqno` or a later one: loading will tell.
    pub fn on_disk(self, high_seqno: Seqno) -> OpenCollection {
        OpenCollection { high_seqno: self.high_seqno.max(high_seqno), is_unsure: true, ..self }
    }
}

impl DroppedCollection {
    /// One that was dropped at a seqno, of which nothing is in memory.
    pub fn on_disk(id: CollectionId, end: Seqno) -> DroppedCollection {
        let held = Held::default();
        DroppedCollection { id, end, scope: None, held, is_out_of_memory: true, is_off_disk: false }
    }

    /// Whether nothing of it is in memory any more.
    pub fn is_out_of_memory(&self) -> bool {
        self.is_out_of_memory
    }

    /// Whether the disk still may have something of it.
    pub fn is_on_disk(&self) -> bool {
        !self.is_off_disk
    }

    fn held_at(&self, id: CollectionId, seqno: Seqno) -> bool {
        self.id == id && seqno <= self.end
    }
}

impl Collections {
    /// The collections of a vBucket as something else tells of them, without what they hold.
    pub fn new(
        uid: ManifestUid,
        mut scopes: Vec<OpenScope>,
        open: Vec<OpenCollection>,
        dropped: Vec<DroppedCollection>,
    ) -> Collections {
        scopes.sort_unstable_by_key(|scope| scope.id);
        let (default, mut named): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|one| one.id == CollectionId::DEFAULT);
        named.sort_unstable_by_key(|one| one.id);
        let default = default.first().copied();
        Collections { uid, is_compared: false, scopes, default, named, dropped, pass: None }
    }

    /// Bytes that their lists take.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.scopes.capacity() * size_of::<OpenScope>()
            + self.named.capacity() * size_of::<OpenCollection>()
            + self.dropped.capacity() * size_of::<DroppedCollection>()
    }

    /// The manifest that it has taken over last.
    pub fn uid(&self) -> ManifestUid {
        self.uid
    }

    /// The scopes, by id.
    pub fn scopes(&self) -> &[OpenScope] {
        &self.scopes
    }

    /// Whether there is such a scope.
    pub fn has_scope(&self, id: ScopeId) -> bool {
        self.scopes.binary_search_by_key(&id, |scope| scope.id).is_ok()
    }

    /// The collections, by id.
    pub fn open(&self) -> impl Iterator<Item = &OpenCollection> {
        self.default.iter().chain(&self.named)
    }

    /// How many collections there are.
    pub fn open_len(&self) -> usize {
        self.named.len() + usize::from(self.default.is_some())
    }

    /// What is dropped and not forgotten yet.
    pub fn dropped(&self) -> &[DroppedCollection] {
        &self.dropped
    }

    /// A collection, if clients may use it.
    #[inline]
    pub fn get(&self, id: CollectionId) -> Option<&OpenCollection> {
        if id == CollectionId::DEFAULT {
            return self.default.as_ref();
        }
        self.named.binary_search_by_key(&id, |one| one.id).ok().map(|at| &self.named[at])
    }

    /// Whether clients may use it.
    #[inline]
    pub fn is_open(&self, id: CollectionId) -> bool {
        self.get(id).is_some()
    }

    /// Whether what a collection held at a seqno is dropped. Prepares are asked about by the collection of their
    /// documents.
    #[inline]
    pub fn is_dropped(&self, id: CollectionId, seqno: Seqno) -> bool {
        self.dropped.iter().any(|dropped| dropped.held_at(id, seqno))
    }

    /// Whether a version belongs to something that is dropped.
    #[inline]
    pub fn hides(&self, version: &Version) -> bool {
        !self.dropped.is_empty()
            && !planted::is(Bug::DroppedNotHidden)
            && self.is_dropped(version.document_key().collection, version.meta().by_seqno)
    }

    /// Whether a version's collection was dropped after it, perhaps to begin anew, however much of that is erased.
    pub fn has_dropped(&self, version: &Version) -> bool {
        let collection = self.get(version.document_key().collection);
        collection.is_none_or(|one| version.meta().by_seqno < one.start)
    }

    /// What clients did with a collection.
    pub fn ops(&self, id: CollectionId) -> CollectionOps {
        self.get(id).map(|one| one.ops).unwrap_or_default()
    }

    /// Counts what a client does with a collection.
    #[inline]
    pub fn count_op(&mut self, id: CollectionId, count: impl FnOnce(&mut CollectionOps)) {
        if let Some(one) = self.open_mut(id) {
            count(&mut one.ops);
        }
    }

    /// What a collection holds, of `all` that the vBucket does.
    pub fn held(&self, id: CollectionId, all: Held) -> Held {
        match self.get(id) {
            None => Held::default(),
            Some(_) if id == CollectionId::DEFAULT => all.without(self.counted()),
            Some(one) => one.held,
        }
    }

    /// Tells of each collection what it holds, of `all` that the vBucket does; the default one comes last. In one pass:
    /// asking for each with [`Collections::held`] looks each up, and counts all others for the default one.
    pub fn each_held(&self, all: Held, mut tell: impl FnMut(&OpenCollection, Held)) {
        self.named.iter().for_each(|one| tell(one, one.held));
        if let Some(default) = &self.default {
            tell(default, all.without(self.counted()));
        }
    }

    /// What is left of all that is dropped.
    pub fn remains(&self) -> Held {
        self.dropped.iter().fold(Held::default(), |sum, one| Held {
            in_memory: sum.in_memory + one.held.in_memory,
            evicted: sum.evicted + one.held.evicted,
            bytes: sum.bytes + one.held.bytes,
        })
    }

    /// What is counted by itself: everything but the default collection.
    fn counted(&self) -> impl Iterator<Item = Held> {
        let named = self.named.iter().map(|one| one.held);
        named.chain(self.dropped.iter().map(|one| one.held))
    }

    fn named_mut(&mut self, id: CollectionId) -> Option<&mut OpenCollection> {
        let at = self.named.binary_search_by_key(&id, |one| one.id).ok()?;
        Some(&mut self.named[at])
    }

    fn open_mut(&mut self, id: CollectionId) -> Option<&mut OpenCollection> {
        if id == CollectionId::DEFAULT { self.default.as_mut() } else { self.named_mut(id) }
    }

    /// Where a version is counted; nothing if it is in the default collection.
    fn place(&mut self, version: &Version) -> Option<&mut Held> {
        let is_of_default = version.stored_key().first() == Some(&0);
        if is_of_default && self.dropped.is_empty() {
            return None;
        }
        let (id, seqno) = (version.key().collection, version.meta().by_seqno);
        match self.dropped.iter().position(|dropped| dropped.held_at(id, seqno)) {
            Some(at) => Some(&mut self.dropped[at].held),
            None => self.named_mut(id).map(|one| &mut one.held),
        }
    }

    /// A version comes into the table.
    #[inline]
    pub(crate) fn enter(&mut self, version: &Version) {
        if let Some(held) = self.place(version) {
            held.in_memory += u64::from(!version.is_deleted());
            held.bytes += version.allocated_bytes() as u64;
        }
    }

    /// A version leaves the table.
    #[inline]
    pub(crate) fn leave(&mut self, version: &Version) {
        if let Some(held) = self.place(version) {
            held.in_memory -= u64::from(!version.is_deleted());
            held.bytes -= version.allocated_bytes() as u64;
        }
    }

    /// A version is on disk alone from now on.
    pub(crate) fn evict(&mut self, version: &Version) {
        if let Some(held) = self.place(version) {
            held.evicted += u64::from(!version.is_deleted());
        }
    }

    /// A version is not on disk alone any more.
    pub(crate) fn bring_back(&mut self, version: &Version) {
        if let Some(held) = self.place(version) {
            held.evicted -= u64::from(!version.is_deleted());
        }
    }

    /// Notes that a document of a collection changed. Says whether a history of changes leaves out what is replaced in it.
    #[inline]
    pub(crate) fn changed(&mut self, key: DocKey<'_>, seqno: Seqno) -> bool {
        let Some(one) = self.open_mut(key.collection) else { return false };
        one.high_seqno = seqno;
        one.is_left_out_of_history()
    }

    /// What loading found of collections, and what of it was left on disk.
    pub(crate) fn found(&mut self, found: &Collections) {
        self.named.iter_mut().chain(&mut self.default).for_each(|one| one.is_unsure = false);
        for one in &found.named {
            let Held { in_memory, evicted, bytes } = one.held;
            let held = match self.named_mut(one.id) {
                Some(open) => {
                    open.high_seqno = open.high_seqno.max(one.high_seqno);
                    &mut open.held
                }
                None => {
                    let Some(dropped) = self.dropped.iter_mut().find(|dropped| dropped.id == one.id) else {
                        continue;
                    };
                    // It was dropped while it was loaded.
                    dropped.is_out_of_memory = false;
                    &mut dropped.held
                }
            };
            held.in_memory += in_memory;
            held.evicted += evicted;
            held.bytes += bytes;
        }
        if let (Some(default), Some(found)) = (&mut self.default, &found.default) {
            default.high_seqno = default.high_seqno.max(found.high_seqno);
        }
    }

    /// For loading: counts whatever comes, in collections that are made up as they are met.
    pub(crate) fn meet(&mut self, key: DocKey<'_>, seqno: Seqno) {
        let id = key.collection;
        if id != CollectionId::DEFAULT
            && let Err(at) = self.named.binary_search_by_key(&id, |one| one.id)
        {
            self.named.insert(at, OpenCollection::new(id, ScopeId(0), None, Seqno(0)));
        }
        if let Some(one) = self.open_mut(id) {
            one.high_seqno = one.high_seqno.max(seqno);
        }
    }

    /// The events that lead from here to a manifest, in order: what is dropped comes before what is made, a scope
    /// before its collections and, dropped, after them.
    ///
    /// The last one has the manifest's uid, those before it have the present one: with the last one it is complete.
    pub fn difference(&self, new: &Manifest) -> Vec<SystemEvent> {
        let manifest = self.uid;
        let mut events = Vec::new();
        let ended = self.open().filter(|one| new.collection(one.id).is_none());
        events.extend(ended.map(|one| SystemEvent::CollectionEnd { manifest, scope: one.scope, id: one.id }));
        let ended = self.scopes.iter().filter(|scope| new.scope(scope.id).is_none());
        events.extend(ended.map(|scope| SystemEvent::ScopeEnd { manifest, id: scope.id }));
        let begun = new.scopes().filter(|scope| !self.has_scope(scope.id));
        events.extend(begun.map(|scope| SystemEvent::ScopeBegin { manifest, scope: scope.clone() }));
        for collection in new.collections() {
            match self.get(collection.id) {
                None => {
                    events.push(SystemEvent::CollectionBegin { manifest, collection: collection.clone() });
                }
                Some(there) if collection.differs(there.max_ttl_s, there.history) => {
                    events.push(SystemEvent::CollectionChanged { manifest, collection: collection.clone() });
                }
                Some(_) => {}
            }
        }
        if let Some(last) = events.last_mut() {
            last.set_manifest(new.uid());
        }
        events
    }

    /// Takes over what an event says; `all` is what the vBucket holds. Returns seqnos of earlier events that it makes
    /// superfluous.
    pub(crate) fn take(&mut self, event: &SystemEvent, seqno: Seqno, all: Held) -> [Option<Seqno>; 2] {
        self.uid = self.uid.max(event.manifest());
        self.is_compared = false;
        match event {
            SystemEvent::ScopeBegin { scope, .. } => {
                if let Err(at) = self.scopes.binary_search_by_key(&scope.id, |scope| scope.id) {
                    make_room(&mut self.scopes);
                    self.scopes.insert(at, OpenScope { id: scope.id, start: seqno });
                }
                [None; 2]
            }
            SystemEvent::ScopeEnd { id, .. } => {
                match self.scopes.binary_search_by_key(id, |scope| scope.id) {
                    Ok(at) => {
                        let ended = self.scopes.remove(at);
                        give_back(&mut self.scopes);
                        [past(ended.start), None]
                    }
                    Err(_) => [None; 2],
                }
            }
            SystemEvent::CollectionBegin { collection, .. } => {
                let new = OpenCollection::new(collection.id, collection.scope, collection.max_ttl_s, seqno)
                    .with_history(collection.history);
                // One that is there already has missed its end.
                let superfluous = self.end(collection.id, seqno, all);
                make_room(&mut self.named);
                match self.named.last() {
                    _ if collection.id == CollectionId::DEFAULT => self.default = Some(new),
                    Some(last) if last.id > collection.id => {
                        let at = self.named.partition_point(|one| one.id < collection.id);
                        self.named.insert(at, new);
                    }
                    _ => self.named.push(new),
                }
                superfluous
            }
            SystemEvent::CollectionChanged { collection, .. } => {
                let Some(one) = self.open_mut(collection.id) else { return [None; 2] };
                (one.max_ttl_s, one.history) = (collection.max_ttl_s, collection.history);
                one.high_seqno = seqno;
                [one.changed.replace(seqno), None]
            }
            SystemEvent::CollectionEnd { id, .. } => self.end(*id, seqno, all),
        }
    }

    fn end(&mut self, id: CollectionId, end: Seqno, all: Held) -> [Option<Seqno>; 2] {
        // A new one has a higher id than all others: only the last place is looked at, however many there are.
        let is_new = id != CollectionId::DEFAULT && self.named.last().is_none_or(|last| last.id < id);
        if is_new || self.get(id).is_none() {
            return [None; 2];
        }
        let held = self.held(id, all);
        let ended = if id == CollectionId::DEFAULT {
            self.default.take()
        } else {
            let at = self.named.binary_search_by_key(&id, |one| one.id).ok();
            at.map(|at| self.named.remove(at))
        };
        let Some(ended) = ended else { return [None; 2] };
        give_back(&mut self.named);
        // Of one that nobody has ever written to, nothing is anywhere.
        let is_written = ended.high_seqno > ended.changed.unwrap_or_default().max(ended.start);
        if is_written || ended.is_unsure || held != Held::default() {
            let (is_out_of_memory, is_off_disk) = (false, false);
            let scope = Some(ended.scope);
            make_room(&mut self.dropped);
            self.dropped.push(DroppedCollection { id, end, scope, held, is_out_of_memory, is_off_disk });
        }
        [past(ended.start), ended.changed]
    }

    /// All that leads to the bucket's manifest of this uid was taken, if anything.
    pub(crate) fn set_taken_over(&mut self, uid: ManifestUid) {
        self.uid = uid;
        self.is_compared = true;
    }

    /// The manifest of the bucket that they are surely the same as.
    pub(crate) fn taken_over(&self) -> Option<ManifestUid> {
        self.is_compared.then_some(self.uid)
    }

    /// Whether something that is dropped may be in memory.
    pub fn wants_erasing(&self) -> bool {
        self.dropped.iter().any(|dropped| !dropped.is_out_of_memory)
    }

    /// Where the walk over the table goes on, or a new one begins; nothing if none is needed.
    pub(crate) fn pass_at(&mut self, high_seqno: Seqno) -> Option<u64> {
        if !self.wants_erasing() {
            self.pass = None;
            return None;
        }
        Some(self.pass.get_or_insert(Pass { cursor: 0, through: high_seqno }).cursor)
    }

    /// The walk goes on there, or, with nothing, is over. Then says how many documents are on disk alone that nobody
    /// will ask for any more.
    pub(crate) fn end_slice(&mut self, next: Option<u64>, has_disk: bool) -> u64 {
        let Some(pass) = &mut self.pass else { return 0 };
        if let Some(cursor) = next {
            pass.cursor = cursor;
            return 0;
        }
        let through = pass.through;
        self.pass = None;
        let mut evicted = 0;
        for dropped in self.dropped.iter_mut().filter(|dropped| dropped.end <= through) {
            assert_eq!(dropped.held.in_memory, 0, "the walk has met all that is in memory");
            evicted += std::mem::take(&mut dropped.held).evicted;
            dropped.is_out_of_memory = true;
            dropped.is_off_disk |= !has_disk;
        }
        self.forget();
        evicted
    }

    /// The disk has nothing any more of what was dropped up to these seqnos.
    pub(crate) fn off_disk(&mut self, erased: &[(CollectionId, Seqno)]) {
        for dropped in &mut self.dropped {
            dropped.is_off_disk |= erased.contains(&(dropped.id, dropped.end));
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.dropped.retain(|dropped| !(dropped.is_out_of_memory && dropped.is_off_disk));
        give_back(&mut self.dropped);
    }
}

/// Makes room for one more, and for few others: a bucket has this list a thousand times.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 8 + 4);
    }
}

/// Gives back what a list keeps for entries that it had once.
fn give_back<T>(list: &mut Vec<T>) {
    if list.is_empty() {
        *list = Vec::new();
    } else if list.capacity() > 2 * list.len() + 8 {
        list.shrink_to(list.len() + list.len() / 8);
    }
}

/// A seqno, unless it stands for the time before everything.
fn past(seqno: Seqno) -> Option<Seqno> {
    (seqno > Seqno(0)).then_some(seqno)
}
