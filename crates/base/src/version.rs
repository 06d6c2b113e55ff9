//! One immutable, shared version of a document: metadata, key and value in one allocation.
//!
//! The hash table points at the newest version of each document; checkpoints, streams and answers on their way out
//! hold the versions they carry.
//! A version is written by exactly one owner ([`NewVersion`]) and never again once shared ([`Version`]);
//! only its reference count and its access frequency change, atomically.
//! Both are read as [`VersionContents`], of which no second reference that counts can be made: what is still being
//! written is never shared.

use std::fmt;
use std::ops::Deref;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::datatype::Datatype;
use crate::doc_key::DocKey;
use crate::ids::{Cas, CollectionId, Moment, RevSeqno, Seqno};
use crate::memory::Heap;
use crate::sync_write::{DurabilityLevel, SyncWrite};

/// What kind of change a version is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// A document with a value.
    #[default]
    Mutation = 0,
    /// A tombstone left by a client's deletion.
    Deletion = 1,
    /// A tombstone left by an expiry time that passed.
    Expiration = 2,
    /// A change of the collections manifest.
    SystemEvent = 3,
}

impl ItemKind {
    /// Whether this is a tombstone.
    pub fn is_deleted(self) -> bool {
        matches!(self, ItemKind::Deletion | ItemKind::Expiration)
    }
}

/// Everything about a version that is not key or value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionMeta {
    /// Its compare-and-swap value.
    pub cas: Cas,
    /// Its position in the vBucket.
    pub by_seqno: Seqno,
    /// How often the document was changed.
    pub rev_seqno: RevSeqno,
    /// The client's flags, never interpreted.
    pub flags: u32,
    /// When it expires, seconds since 1970, 0 for never; for a tombstone, when it was deleted.
    pub expiry: u32,
    /// What the value is made of.
    pub datatype: Datatype,
    /// Document, tombstone or system event.
    pub kind: ItemKind,
    /// Its part in a sync write. Whether it has one is decided when the version is made, and never changes.
    pub sync_write: SyncWrite,
}

/// The highest seqno and revision: files have 48 bits for them (couchstore's file_format.md, by-id index).
pub const MAX_SEQNO: u64 = (1 << 48) - 1;

/// The bits of a header's `kind` that say what kind of change it is.
const KIND: u8 = 0x03;
/// The bits of a header's `kind` that say which part it plays in a sync write; the rest of that is in the trailer.
const SYNC_WRITE: u8 = 0x0c;
const SYNC_WRITE_SHIFT: u32 = 2;
/// Bytes between header and key of a version that plays a part in a sync write: the rest of [`SyncWrite::to_parts`].
const TRAILER: usize = size_of::<u64>();
/// The bit of a header's `kind` that says that the value is in memory.
const RESIDENT: u8 = 0x80;
/// The bit of a header's `kind` that says that the value is another version's: where it would be, there is a reference to
/// that version, which is counted (record 143).
const SHARED: u8 = 0x40;
/// The bit of a header's `kind` that says that a history of changes leaves the version out once it is replaced. It is in
/// memory only.
const FLEETING: u8 = 0x10;
/// What has the place of a shared value.
const REFERENCE: usize = size_of::<NonNull<Header>>();
/// Values from this length on are shared by versions that have the same one; shorter ones are copied, which costs less
/// than to keep the other version's header and key. Builds with debug assertions share short ones, so that simulators,
/// whose values are short, meet shared ones.
pub const SHARED_VALUE_BYTES: usize = if cfg!(debug_assertions) { 32 } else { 8 << 10 };

/// What is before key and value, packed: it decides the memory per item.
#[repr(C)]
struct Header {
    refs: AtomicU32,
    /// Length of the value, in the allocation or on disk.
    value_len: u32,
    cas: u64,
    /// Seqno and revision have 48 bits; the upper 16 of both are further down.
    by_seqno: u32,
    rev_seqno: u32,
    flags: u32,
    expiry: u32,
    by_seqno_high: u16,
    rev_seqno_high: u16,
    datatype: Datatype,
    kind: u8,
    key_len: u8,
    frequency: AtomicU8,
}

impl Header {
    fn is_resident(&self) -> bool {
        self.kind & RESIDENT != 0
    }

    fn is_shared_value(&self) -> bool {
        self.kind & SHARED != 0
    }

    /// Bytes behind the key: the value, if it is there, or the reference to the version that has it.
    fn bytes_behind_key(&self) -> usize {
        match (self.is_resident(), self.is_shared_value()) {
            (_, true) => REFERENCE,
            (true, false) => self.value_len as usize,
            (false, false) => 0,
        }
    }

    fn kind(&self) -> ItemKind {
        match self.kind & KIND {
            0 => ItemKind::Mutation,
            1 => ItemKind::Deletion,
            2 => ItemKind::Expiration,
            _ => ItemKind::SystemEvent,
        }
    }

    /// Bytes between header and key.
    fn trailer_bytes(&self) -> usize {
        if self.kind & SYNC_WRITE == 0 { 0 } else { TRAILER }
    }

    /// Bytes before the key.
    fn key_at(&self) -> usize {
        HEADER + self.trailer_bytes()
    }

    #[inline]
    fn set_meta(&mut self, meta: &VersionMeta) {
        let (sync_write, _) = meta.sync_write.to_parts();
        let is_same_part = sync_write == (self.kind & SYNC_WRITE) >> SYNC_WRITE_SHIFT;
        assert!(is_same_part, "a version's part in a sync write is decided when it is made");
        let (by_seqno, rev_seqno) = (meta.by_seqno.0, meta.rev_seqno.0);
        assert!(by_seqno <= MAX_SEQNO && rev_seqno <= MAX_SEQNO, "seqnos and revisions have 48 bits");
        self.cas = meta.cas.0;
        (self.by_seqno, self.by_seqno_high) = (by_seqno as u32, (by_seqno >> 32) as u16);
        (self.rev_seqno, self.rev_seqno_high) = (rev_seqno as u32, (rev_seqno >> 32) as u16);
        (self.flags, self.expiry, self.datatype) = (meta.flags, meta.expiry, meta.datatype);
        self.kind = self.kind & !KIND | meta.kind as u8;
    }
}

const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 40, "the header decides the memory per item");

/// The metadata of a version that is not shared yet; packed when it is dropped.
pub struct MetaMut<'a> {
    version: &'a mut NewVersion,
    meta: VersionMeta,
}

impl Deref for MetaMut<'_> {
    type Target = VersionMeta;

    fn deref(&self) -> &VersionMeta {
        &self.meta
    }
}

impl std::ops::DerefMut for MetaMut<'_> {
    fn deref_mut(&mut self) -> &mut VersionMeta {
        &mut self.meta
    }
}

impl Drop for MetaMut<'_> {
    fn drop(&mut self) {
        // SAFETY: a `NewVersion` is the only reference to its allocation.
        unsafe { self.version.0.0.0.as_mut() }.set_meta(&self.meta);
    }
}

/// A version that is still private to its creator and may be changed.
pub struct NewVersion(Version);

impl NewVersion {
    /// The prepare of a change of a document, kept under [`DocKey::to_prepared`]; else as [`NewVersion::new`].
    pub fn prepare(
        heap: &Heap,
        level: DurabilityLevel,
        meta: VersionMeta,
        document: DocKey<'_>,
        value: &[&[u8]],
    ) -> NewVersion {
        let (key, len) = document.to_prepared();
        let key = DocKey { collection: CollectionId::PREPARES, key: &key[..len] };
        NewVersion::new(heap, VersionMeta { sync_write: SyncWrite::Prepare(level), ..meta }, key, value)
    }

    /// As [`NewVersion::prepare`], with the value of `like`; see [`NewVersion::like`].
    pub fn prepare_like(
        heap: &Heap,
        level: DurabilityLevel,
        meta: VersionMeta,
        document: DocKey<'_>,
        like: &Version,
    ) -> NewVersion {
        let (key, len) = document.to_prepared();
        let key = DocKey { collection: CollectionId::PREPARES, key: &key[..len] };
        NewVersion::like(heap, VersionMeta { sync_write: SyncWrite::Prepare(level), ..meta }, key, like)
    }

    /// Allocates a version in `heap`, once, and copies key and value parts (in order) into it.
    ///
    /// The key with its prefix must be at most 251 bytes and the value below 4 GiB; callers check the protocol's
    /// limits before.
    pub fn new(heap: &Heap, meta: VersionMeta, key: DocKey<'_>, value: &[&[u8]]) -> NewVersion {
        let value_len: usize = value.iter().map(|part| part.len()).sum();
        let value_len = u32::try_from(value_len).expect("callers check the value length");
        NewVersion::allocate(heap, meta, key, Value::Parts(value), value_len)
    }

    /// Allocates a version in `heap` with the value of `like`, which must be in memory. A long value is not copied: both
    /// versions have it, and it stays until both are gone. So this costs the same for any length.
    pub fn like(heap: &Heap, meta: VersionMeta, key: DocKey<'_>, like: &Version) -> NewVersion {
        assert!(like.is_resident(), "only what is in memory can be shared");
        if like.value_bytes() as usize >= SHARED_VALUE_BYTES {
            NewVersion::allocate(heap, meta, key, Value::Of(like.holder()), like.value_bytes())
        } else {
            NewVersion::new(heap, meta, key, &[like.value()])
        }
    }

    /// Allocates a version whose value of `value_len` bytes stays on disk: its metadata and key alone.
    pub fn without_value(heap: &Heap, meta: VersionMeta, key: DocKey<'_>, value_len: u32) -> NewVersion {
        NewVersion::allocate(heap, meta, key, Value::OnDisk, value_len)
    }

    fn allocate(
        heap: &Heap,
        meta: VersionMeta,
        key: DocKey<'_>,
        value: Value<'_>,
        value_len: u32,
    ) -> NewVersion {
        let (prefix, prefix_len) = key.prefix();
        let key_len = prefix_len + key.key.len();
        let key_byte = u8::try_from(key_len).expect("callers check the key length");
        let (parts, owner, place) = match value {
            Value::Parts(parts) => (parts, None, RESIDENT),
            Value::Of(owner) => (&[][..], Some(owner), RESIDENT | SHARED),
            Value::OnDisk => (&[][..], None, 0),
        };
        let (sync_write, rest) = meta.sync_write.to_parts();
        let trailer = if sync_write == 0 { 0 } else { TRAILER };
        let mut header = Header {
            refs: AtomicU32::new(1),
            value_len,
            cas: 0,
            by_seqno: 0,
            rev_seqno: 0,
            flags: 0,
            expiry: 0,
            by_seqno_high: 0,
            rev_seqno_high: 0,
            datatype: Datatype::default(),
            kind: sync_write << SYNC_WRITE_SHIFT | place,
            key_len: key_byte,
            frequency: AtomicU8::new(crate::frequency::INITIAL_FREQUENCY),
        };
        header.set_meta(&meta);
        let raw = heap.allocate(HEADER + trailer + key_len + header.bytes_behind_key());
        let ptr = raw.cast::<Header>();
        // SAFETY: `raw` points at fresh bytes for header, trailer, key and what is behind it, aligned for `Header` and so
        // for the trailer behind it; the copies write prefix, key and parts one after the other, and their lengths, or
        // that of the reference, add up to that size. A reference is written without regard to alignment.
        unsafe {
            ptr.write(header);
            if trailer > 0 {
                raw.add(HEADER).cast::<u64>().write(rest);
            }
            let mut at = raw.add(HEADER + trailer);
            for part in [&prefix[..prefix_len], key.key].into_iter().chain(parts.iter().copied()) {
                at.as_ptr().copy_from_nonoverlapping(part.as_ptr(), part.len());
                at = at.add(part.len());
            }
            if let Some(owner) = owner {
                at.cast::<NonNull<Header>>().write_unaligned(owner.into_header());
            }
        }
        NewVersion(Version(VersionContents(ptr)))
    }

    /// The metadata, to be completed under the vBucket lock.
    #[inline]
    pub fn meta_mut(&mut self) -> MetaMut<'_> {
        MetaMut { meta: self.meta(), version: self }
    }

    /// The value, for filling in what is known only under the vBucket lock. It must not be another version's.
    pub fn value_mut(&mut self) -> &mut [u8] {
        assert!(!self.shares_value(), "what others read is never changed");
        let key_len = usize::from(self.0.header().key_len);
        let value_len = self.0.header().bytes_behind_key();
        let key_at = self.0.header().key_at();
        // SAFETY: a `NewVersion` is the only reference to its allocation, and the value lies behind header and key.
        unsafe {
            let at = self.0.0.0.as_ptr().cast::<u8>().add(key_at + key_len);
            std::slice::from_raw_parts_mut(at, value_len)
        }
    }

    /// Has a history of changes leave it out once it is replaced.
    pub fn leave_out_of_history(&mut self) {
        // SAFETY: a `NewVersion` is the only reference to its allocation, which begins with a header.
        unsafe { self.0.0.0.as_mut().kind |= FLEETING };
    }

    /// From now on immutable and shared.
    pub fn publish(self) -> Version {
        self.0
    }
}

impl Deref for NewVersion {
    type Target = VersionContents;

    #[inline]
    fn deref(&self) -> &VersionContents {
        &self.0
    }
}

/// Where the value of a new version comes from.
enum Value<'a> {
    /// It is copied, part by part.
    Parts(&'a [&'a [u8]]),
    /// It is that of another version.
    Of(Version),
    /// It stays on disk.
    OnDisk,
}

/// A shared reference to an immutable version. Cloning counts, nothing is copied.
#[repr(transparent)]
pub struct Version(VersionContents);

impl Deref for Version {
    type Target = VersionContents;

    #[inline]
    fn deref(&self) -> &VersionContents {
        &self.0
    }
}

/// What a version consists of, for reading, whether it is shared or not yet.
///
/// It is only ever borrowed from a [`Version`] or a [`NewVersion`], which hold the count that keeps it in memory.
#[repr(transparent)]
pub struct VersionContents(NonNull<Header>);

// SAFETY: everything behind the pointer is immutable or atomic while it can be reached from several threads: a
// `NewVersion` changes it through an exclusive borrow alone. The count is atomic.
unsafe impl Send for VersionContents {}
// SAFETY: as above.
unsafe impl Sync for VersionContents {}

impl VersionContents {
    fn header(&self) -> &Header {
        // SAFETY: who lends `self` keeps the allocation alive, and `NewVersion` initialised it.
        unsafe { self.0.as_ref() }
    }

    /// Bytes behind header and trailer.
    ///
    /// # Safety
    /// The range must be inside the key and the held bytes of the value.
    unsafe fn bytes(&self, from: usize, len: usize) -> &[u8] {
        // SAFETY: by the caller's promise the range is inside the allocation, which `NewVersion` filled.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(self.header().key_at() + from), len)
        }
    }

    /// Its part in a sync write.
    #[inline]
    fn sync_write(&self) -> SyncWrite {
        let bits = (self.header().kind & SYNC_WRITE) >> SYNC_WRITE_SHIFT;
        if bits == 0 {
            return SyncWrite::No;
        }
        // SAFETY: with these bits the allocation has a trailer right behind the header, filled when it was made; the
        // pointer is that of the whole allocation.
        let rest = unsafe { self.0.add(1).cast::<u64>().read() };
        SyncWrite::from_parts(bits, rest).expect("it was made from one")
    }

    /// Its metadata.
    #[inline]
    pub fn meta(&self) -> VersionMeta {
        let header = self.header();
        VersionMeta {
            cas: Cas(header.cas),
            by_seqno: Seqno(u64::from(header.by_seqno) | u64::from(header.by_seqno_high) << 32),
            rev_seqno: RevSeqno(u64::from(header.rev_seqno) | u64::from(header.rev_seqno_high) << 32),
            flags: header.flags,
            expiry: header.expiry,
            datatype: header.datatype,
            kind: header.kind(),
            sync_write: self.sync_write(),
        }
    }

    /// Collection prefix and key.
    pub fn stored_key(&self) -> &[u8] {
        // SAFETY: this is the key.
        unsafe { self.bytes(0, usize::from(self.header().key_len)) }
    }

    /// The key, split into collection and bytes.
    pub fn key(&self) -> DocKey<'_> {
        DocKey::parse(self.stored_key()).expect("the key was encoded when the version was made")
    }

    /// The document's key, also of a prepare or an abort.
    pub fn document_key(&self) -> DocKey<'_> {
        let key = self.key();
        if key.collection != CollectionId::PREPARES {
            return key;
        }
        DocKey::parse(key.key).expect("a prepare is kept under its document's key")
    }

    /// The stored value: a Snappy block if the datatype says so, starting with xattrs if it says so.
    /// Empty if the value is not resident.
    #[inline]
    pub fn value(&self) -> &[u8] {
        let holder = VersionContents(self.owner().unwrap_or(self.0));
        let header = holder.header();
        let at = header.key_at() + usize::from(header.key_len);
        // SAFETY: what is behind the key of a version that shares no other's value is its value, which stays as long as
        // `self`: it is in the same allocation, or in that of a version that `self` holds a count of.
        unsafe {
            std::slice::from_raw_parts(holder.0.as_ptr().cast::<u8>().add(at), header.bytes_behind_key())
        }
    }

    /// The version whose value this one has, if that is another one. It stays as long as this one does.
    #[inline]
    fn owner(&self) -> Option<NonNull<Header>> {
        let header = self.header();
        if !header.is_shared_value() {
            return None;
        }
        // SAFETY: with this bit there is a reference right behind the key, written when the version was made.
        Some(unsafe {
            let at = self.0.cast::<u8>().add(header.key_at() + usize::from(header.key_len));
            at.cast::<NonNull<Header>>().read_unaligned()
        })
    }

    /// Whether the value is another version's.
    pub fn shares_value(&self) -> bool {
        self.header().is_shared_value()
    }

    /// Whether the value is in memory. A version without it carries metadata and key, and stands for one that a store
    /// can give back whole.
    pub fn is_resident(&self) -> bool {
        self.header().is_resident()
    }

    /// Length of the stored value, in memory or not. Of a value on disk that the file itself compressed this is the
    /// compressed length.
    pub fn value_bytes(&self) -> u32 {
        self.header().value_len
    }

    /// Whether a history of changes leaves it out once it is replaced. Copies of a version do not know.
    pub fn is_left_out_of_history(&self) -> bool {
        self.header().kind & FLEETING != 0
    }

    /// Whether it is a tombstone.
    pub fn is_deleted(&self) -> bool {
        self.header().kind().is_deleted()
    }

    /// Whether it is a document whose expiry time has passed.
    pub fn is_expired(&self, now: Moment) -> bool {
        let meta = self.meta();
        meta.kind == ItemKind::Mutation && meta.expiry != 0 && meta.expiry < now.unix_s()
    }

    /// Whether it is a document that a reader may see now: neither tombstone nor expired.
    pub fn is_live(&self, now: Moment) -> bool {
        self.meta().kind == ItemKind::Mutation && !self.is_expired(now)
    }

    /// Whether this is the only reference to it. Another thread may make it more, if it can reach a reference.
    pub fn is_unique(&self) -> bool {
        self.header().refs.load(Ordering::Acquire) == 1
    }

    /// Whether both are references to one and the same version.
    pub fn is_same(&self, other: &VersionContents) -> bool {
        self.0 == other.0
    }

    /// Whether it lies in a slab of its heap of which less than `percent` is used, so that moving it helps to empty
    /// the slab.
    pub fn is_sparse(&self, percent: u32) -> bool {
        // SAFETY: the allocation is in use, and was made with this very size.
        unsafe { Heap::is_sparse(self.0.cast(), self.unrounded_bytes(), percent) }
    }

    /// Bytes that its account is charged with; if it has another version's value, those for that one are among them,
    /// whether or not somebody else holds it too.
    pub fn allocated_bytes(&self) -> usize {
        let owned = self.owner().map_or(0, |owner| VersionContents(owner).allocated_bytes());
        Heap::charged_bytes(self.unrounded_bytes()) + owned
    }

    /// Bytes of its own allocation.
    fn unrounded_bytes(&self) -> usize {
        let header = self.header();
        header.key_at() + usize::from(header.key_len) + header.bytes_behind_key()
    }

    /// Whether anybody else holds it too, at this moment.
    pub fn is_shared(&self) -> bool {
        self.header().refs.load(Ordering::Relaxed) > 1
    }

    /// How often it was read lately: a small saturating counter for choosing what to evict.
    pub fn frequency(&self) -> &AtomicU8 {
        &self.header().frequency
    }

    /// Asks the processor to bring metadata and key closer.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// Asks the processor to bring the value closer, for somebody who is about to copy it: its lines then arrive side
    /// by side instead of one after the other. Only the first kilobyte; from there on the processor sees the pattern.
    pub fn prefetch_value(&self) {
        let value = self.value();
        for at in (0..value.len().min(1024)).step_by(64) {
            prefetch(&raw const value[at]);
        }
    }
}

impl Version {
    /// The version that has this one's value: itself, or the one that it shares with.
    fn holder(&self) -> Version {
        match self.owner() {
            None => self.clone(),
            Some(owner) => std::mem::ManuallyDrop::new(Version(VersionContents(owner))).deref().clone(),
        }
    }

    /// The reference without the count, which moves to the caller.
    fn into_header(self) -> NonNull<Header> {
        let header = self.0.0;
        std::mem::forget(self);
        header
    }

    /// The address as a number, for tagged slots of the hash table. The count moves into the number.
    pub fn into_raw(self) -> usize {
        self.into_header().as_ptr().expose_provenance()
    }

    /// The version behind an address from [`Version::into_raw`].
    ///
    /// # Safety
    /// `address` must come from `into_raw`, and its count must not have been taken back yet.
    pub unsafe fn from_raw(address: usize) -> Version {
        // SAFETY: by the caller's promise this is the non-null address of a live header, exposed by `into_raw`.
        Version(VersionContents(unsafe { NonNull::new_unchecked(with_exposed_provenance_mut(address)) }))
    }
}

/// Asks the processor to bring the cache line at `at` closer.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks the processor to bring all of something closer, or its first 1,536 bytes.
#[inline]
pub fn prefetch_all<T>(it: *const T) {
    for at in (0..size_of::<T>().min(1536)).step_by(64) {
        prefetch(it.cast::<u8>().wrapping_add(at));
    }
}

impl Clone for Version {
    fn clone(&self) -> Version {
        let before = self.header().refs.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "reference count of a version overflows");
        Version(VersionContents(self.0.0))
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // Who holds the only reference needs no exchange to find that out: nobody else can make another.
        if !self.is_unique() {
            if self.header().refs.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            // Behind the releases of all others. A fence would do as well, but ThreadSanitizer does not know fences.
            self.header().refs.load(Ordering::Acquire);
        }
        let (bytes, owner) = (self.unrounded_bytes(), self.owner());
        // SAFETY: this was the last reference, and the allocation was made with this very size.
        unsafe { Heap::free(self.0.0.cast(), bytes) }
        // The count that this version had of it. Who has a value of its own shares no other's, so this goes one deep.
        drop(owner.map(|owner| Version(VersionContents(owner))));
    }
}

impl fmt::Debug for VersionContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version")
            .field("key", &self.stored_key().escape_ascii().to_string())
            .field("meta", &self.meta())
            .field("value_len", &self.value_bytes())
            .field("resident", &self.is_resident())
            .finish()
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_it_was_given() {
        let meta = VersionMeta { cas: Cas(7), flags: 9, ..VersionMeta::default() };
        let mut new = NewVersion::new(&Heap::default(), meta, DocKey::new(b"key"), &[b"va", b"", b"lue"]);
        new.meta_mut().by_seqno = Seqno(3);
        new.value_mut()[0] = b'V';
        let version = new.publish();
        let other = version.clone();
        drop(version);
        assert_eq!(other.stored_key(), b"\0key");
        assert_eq!(other.key(), DocKey::new(b"key"));
        assert_eq!(other.value(), b"Value");
        assert_eq!(other.meta().by_seqno, Seqno(3));
        assert_eq!(other.meta().flags, 9);
    }

    #[test]
    fn a_sync_write_takes_eight_bytes_more_and_nobody_else_does() {
        let heap = Heap::default();
        let made = |sync_write| {
            let meta = VersionMeta { sync_write, flags: 9, ..VersionMeta::default() };
            NewVersion::new(&heap, meta, DocKey::new(b"key"), &[b"value"]).publish()
        };
        let plain = made(SyncWrite::No);
        for sync_write in [
            SyncWrite::Prepare(DurabilityLevel::PersistToMajority),
            SyncWrite::Commit { prepared: Seqno(MAX_SEQNO) },
            SyncWrite::Abort { prepared: Seqno(1) },
        ] {
            let version = made(sync_write);
            assert_eq!(version.meta(), VersionMeta { sync_write, ..plain.meta() });
            assert_eq!((version.stored_key(), version.value()), (&b"\0key"[..], &b"value"[..]));
            assert_eq!(version.unrounded_bytes(), plain.unrounded_bytes() + TRAILER);
        }
    }

    #[test]
    fn a_prepare_knows_its_document() {
        let document = DocKey { collection: CollectionId(0x89), key: b"key" };
        let (prepared, len) = document.to_prepared();
        let key = DocKey { collection: CollectionId::PREPARES, key: &prepared[..len] };
        let sync_write = SyncWrite::Prepare(DurabilityLevel::Majority);
        let meta = VersionMeta { sync_write, ..VersionMeta::default() };
        let version = NewVersion::new(&Heap::default(), meta, key, &[]).publish();
        assert_eq!((version.key(), version.document_key()), (key, document));
    }

    #[test]
    fn metadata_survive_being_packed() {
        let most = VersionMeta {
            cas: Cas(u64::MAX - 1),
            by_seqno: Seqno(MAX_SEQNO),
            rev_seqno: RevSeqno(MAX_SEQNO),
            flags: u32::MAX,
            expiry: u32::MAX,
            datatype: Datatype::SNAPPY,
            kind: ItemKind::SystemEvent,
            sync_write: SyncWrite::No,
        };
        let odd =
            VersionMeta { by_seqno: Seqno(0x1234_5678_9abc), rev_seqno: RevSeqno(0x8001_0000_0002), ..most };
        for meta in [most, odd, VersionMeta::default()] {
            for kind in [ItemKind::Mutation, ItemKind::Deletion, ItemKind::Expiration, ItemKind::SystemEvent]
            {
                let meta = VersionMeta { kind, ..meta };
                let heap = Heap::default();
                let version = NewVersion::new(&heap, meta, DocKey::new(b"key"), &[b"v"]);
                assert_eq!((version.meta(), version.is_resident()), (meta, true));
                let mut hollow =
                    NewVersion::without_value(&heap, VersionMeta::default(), DocKey::new(b"key"), 1);
                *hollow.meta_mut() = meta;
                assert_eq!((hollow.meta(), hollow.is_resident()), (meta, false));
            }
        }
    }

    #[test]
    fn a_version_knows_whether_it_is_shared() {
        let version =
            NewVersion::new(&Heap::default(), VersionMeta::default(), DocKey::new(b"k"), &[b"v"]).publish();
        assert!(version.is_unique());
        let other = version.clone();
        assert!(!version.is_unique());
        drop(version);
        assert!(other.is_unique());
    }

    #[test]
    fn a_value_may_stay_on_disk() {
        let version = NewVersion::without_value(
            &Heap::default(),
            VersionMeta::default(),
            DocKey::new(b"key"),
            u32::MAX,
        )
        .publish();
        assert!(!version.is_resident());
        assert_eq!((version.value(), version.value_bytes()), (&b""[..], u32::MAX));
        assert_eq!(version.key(), DocKey::new(b"key"));
        assert!(version.allocated_bytes() < 72);
    }

    #[test]
    fn a_long_value_is_shared_and_a_short_one_copied() {
        let heap = Heap::default();
        let long = vec![7; SHARED_VALUE_BYTES];
        let first = NewVersion::new(&heap, VersionMeta::default(), DocKey::new(b"key"), &[&long]).publish();
        let meta =
            VersionMeta { sync_write: SyncWrite::Commit { prepared: Seqno(4) }, ..VersionMeta::default() };
        let second = NewVersion::like(&heap, meta, DocKey::new(b"another key"), &first).publish();
        // What shares is shared on without a chain.
        let third = NewVersion::like(&heap, VersionMeta::default(), DocKey::new(b"k"), &second).publish();
        assert!(!first.shares_value() && second.shares_value() && third.shares_value());
        assert!([&second, &third].iter().all(|version| version.value().as_ptr() == first.value().as_ptr()));
        assert_eq!((second.meta(), second.stored_key()), (meta, &b"\0another key"[..]));
        assert!(second.allocated_bytes() > first.allocated_bytes());
        drop(second);
        drop(first);
        assert_eq!((third.value(), third.value_bytes()), (&long[..], SHARED_VALUE_BYTES as u32));
        let short = NewVersion::new(&heap, meta, DocKey::new(b"key"), &[&long[1..]]).publish();
        let copy = NewVersion::like(&heap, meta, DocKey::new(b"key"), &short).publish();
        assert!(!copy.shares_value());
        assert_eq!(copy.value(), short.value());
    }

    #[test]
    fn what_shared_a_value_is_freed_with_the_last_that_has_it() {
        let heap = Heap::default();
        let used = || heap.usage().used_bytes;
        let (nothing, key) = (used(), DocKey::new(b"key"));
        let long = vec![7; SHARED_VALUE_BYTES];
        for first_goes_first in [true, false] {
            let first = NewVersion::new(&heap, VersionMeta::default(), key, &[&long]).publish();
            let alone = used();
            let prepare = NewVersion::prepare_like(
                &heap,
                DurabilityLevel::Majority,
                VersionMeta::default(),
                key,
                &first,
            );
            assert_eq!(prepare.document_key(), key);
            let second = prepare.publish();
            // A header, a trailer, a key and a reference, and not the value once more.
            assert!(used() - alone <= 96, "{} bytes", used() - alone);
            let (gone, left) = if first_goes_first { (first, second) } else { (second, first) };
            drop(gone);
            assert_eq!(left.value(), long);
            assert!(used() >= alone);
            drop(left);
            assert_eq!(used(), nothing);
        }
    }

    #[test]
    fn survives_the_way_through_a_number() {
        let version =
            NewVersion::new(&Heap::default(), VersionMeta::default(), DocKey::new(b"k"), &[b"v"]).publish();
        let raw = version.clone().into_raw();
        // SAFETY: `raw` came from `into_raw` just above and is taken back once.
        let back = unsafe { Version::from_raw(raw) };
        drop(version);
        assert_eq!(back.value(), b"v");
    }
}
