//! The hash table of a vBucket: from a key to its newest version, eight bytes a slot, one cache line a bucket.
//!
//! Linear hashing: the table grows by one bucket at a time, splitting one old bucket, so there is never a second table
//! and no operation does more than one split.
//! A slot holds the address of a version and 16 bits of the key's hash, so a lookup that misses rarely touches a
//! version, and one that hits touches one.
//! A bucket with more than eight versions trades its last slot for a link to an overflow line.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use base::version::prefetch;
use base::{DocKey, Version};

use crate::bucket_context::BucketContext;
use crate::hash_seed::HashSeed;
use crate::lines::{Line, Lines};

#[cfg(test)]
mod tests;

/// Where the tag begins; below it an address of at most 48 bits.
const TAG_SHIFT: u32 = 48;
/// The bits of a slot that are an address; versions are aligned to 8, so the low three are free.
const ADDRESS: u64 = 0x0000_ffff_ffff_fff8;
/// Marks a last slot that links to an overflow line, and an overflow line on the free list.
const LINK: u64 = 1;
/// Slots of a line.
const SLOTS: usize = 8;
/// Versions per bucket, on average, beyond which the table grows.
const GROW_ABOVE: usize = 6;
/// Versions per bucket, on average, below which the table shrinks.
const SHRINK_BELOW: usize = 2;
/// Buckets that a search for a random version looks at.
const RANDOM_BUCKETS: usize = 64;

/// The versions of a vBucket by key.
pub struct HashTable {
    buckets: Lines,
    overflow: Lines,
    /// Head of the list of unused overflow lines, as a link; 0 if there is none.
    free: u64,
    len: usize,
    context: BucketContext,
}

/// A borrowed version of a table; dereferences to [`Version`], and `clone()` gives a counted one.
pub struct VersionRef<'a> {
    version: ManuallyDrop<Version>,
    table: PhantomData<&'a HashTable>,
}

impl Deref for VersionRef<'_> {
    type Target = Version;

    #[inline]
    fn deref(&self) -> &Version {
        &self.version
    }
}

/// Where a line is.
#[derive(Clone, Copy)]
enum At {
    Bucket(usize),
    Overflow(usize),
}

/// Where a slot is.
#[derive(Clone, Copy)]
struct Place {
    at: At,
    slot: usize,
}

/// The bucket of a hash, and how many bits of the hash its index uses.
#[derive(Clone, Copy)]
struct Home {
    index: usize,
    level: u32,
}

/// First hash bit of the tags in a bucket of this level.
///
/// The tag begins at or below the bit that the next split looks at, so a split reads the keys of the versions only
/// when the tags move on, at every eighth level.
#[inline]
fn tag_base(level: u32) -> u32 {
    level & !7
}

#[inline]
fn tag_of(hash: u64, level: u32) -> u64 {
    (hash >> tag_base(level)) & 0xffff
}

#[inline]
fn is_version(word: u64) -> bool {
    word & LINK == 0 && word != 0
}

#[inline]
fn link_of(line: &Line) -> Option<usize> {
    let last = line.0[SLOTS - 1];
    (last & LINK != 0).then_some((last >> 3) as usize)
}

#[inline]
fn link_to(index: usize) -> u64 {
    (index as u64) << 3 | LINK
}

/// Moves a version into a slot's word.
#[inline]
fn word_of(version: Version, tag: u64) -> u64 {
    let address = version.into_raw() as u64;
    assert_eq!(address & !ADDRESS, 0, "addresses have 48 bits and versions are aligned to 8");
    address | tag << TAG_SHIFT
}

/// Looks at the version of a slot.
///
/// # Safety
/// `word` must be a version's word, and stay in its slot for as long as `'a`.
#[inline]
unsafe fn view<'a>(word: u64) -> VersionRef<'a> {
    // SAFETY: the address came from `word_of`; `ManuallyDrop` leaves its count to the slot.
    let version = unsafe { Version::from_raw((word & ADDRESS) as usize) };
    VersionRef { version: ManuallyDrop::new(version), table: PhantomData }
}

/// Takes the version out of a slot's word.
///
/// # Safety
/// `word` must be a version's word that no slot holds any more, and must not be used again.
#[inline]
unsafe fn take_word(word: u64) -> Version {
    // SAFETY: the address came from `word_of`, and by the caller's promise its count is taken back only here.
    unsafe { Version::from_raw((word & ADDRESS) as usize) }
}

impl HashTable {
    /// An empty table; allocates nothing.
    pub fn new(context: &BucketContext) -> HashTable {
        let context = context.clone();
        let lines = || Lines::new(&context.tables);
        HashTable { buckets: lines(), overflow: lines(), free: 0, len: 0, context }
    }

    /// An empty table that `items` versions fit into before it has to split a bucket.
    pub fn with_room(context: &BucketContext, items: usize) -> HashTable {
        let mut table = HashTable::new(context);
        for _ in 0..items.div_ceil(GROW_ABOVE) {
            table.buckets.push();
        }
        table
    }

    /// What it shares with the other vBuckets of its bucket.
    pub fn context(&self) -> &BucketContext {
        &self.context
    }

    /// The hash of a key, which may be computed before the vBucket is locked.
    #[inline]
    pub fn hash(&self, key: DocKey<'_>) -> u64 {
        self.context.seed.hash(key)
    }

    /// The seed of this table's hashes.
    pub fn seed(&self) -> &HashSeed {
        &self.context.seed
    }

    /// How many versions it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated for slots, without the versions.
    pub fn allocated_bytes(&self) -> usize {
        self.buckets.allocated_bytes() + self.overflow.allocated_bytes()
    }

    /// Buckets, and overflow lines hanging off them.
    pub fn bucket_counts(&self) -> (usize, usize) {
        let mut free = 0;
        let mut next = self.free;
        while next != 0 {
            free += 1;
            next = self.overflow.get((next >> 3) as usize).0[0];
        }
        (self.buckets.len(), self.overflow.len() - free)
    }

    /// Puts an empty table in its place, so that the versions can be freed outside the vBucket lock.
    pub fn take(&mut self) -> HashTable {
        let empty = HashTable::new(&self.context);
        std::mem::replace(self, empty)
    }

    /// The version of `key`, whose hash is `hash`.
    #[inline]
    pub fn find(&self, hash: u64, key: DocKey<'_>) -> Option<VersionRef<'_>> {
        let place = self.find_place(hash, key)?;
        let word = self.line(place.at).0[place.slot];
        // SAFETY: `find_place` returns places of versions, and `&self` keeps the slot as it is.
        Some(unsafe { view(word) })
    }

    /// The slot of `key`, whose hash is `hash`: one probe for looking and then writing.
    #[inline]
    pub fn find_slot(&mut self, hash: u64, key: DocKey<'_>) -> Slot<'_> {
        let place = self.find_place(hash, key);
        Slot { table: self, hash, place }
    }

    /// Asks the processor to bring closer what leads to the bucket of `hash`.
    #[inline]
    pub fn prefetch_way(&self, hash: u64) {
        if let Some(home) = self.home(hash) {
            self.buckets.prefetch_way(home.index);
        }
    }

    /// Asks the processor to bring the bucket of `hash` closer.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(home) = self.home(hash) {
            prefetch(std::ptr::from_ref(self.buckets.get(home.index)).cast());
        }
    }

    /// Asks the processor to bring the version closer that a lookup of `hash` will probably read.
    #[inline]
    pub fn prefetch_version(&self, hash: u64) {
        let Some(home) = self.home(hash) else { return };
        let tag = tag_of(hash, home.level);
        for word in self.buckets.get(home.index).0 {
            if word >> TAG_SHIFT == tag {
                let version = (word & ADDRESS) as *const u8;
                prefetch(version);
                prefetch(version.wrapping_add(64));
            }
        }
    }

    /// Every version, in no order.
    pub fn iter(&self) -> impl Iterator<Item = VersionRef<'_>> {
        let words = self.buckets.iter().chain(self.overflow.iter()).flat_map(|line| line.0);
        // SAFETY: only versions pass the filter, and `&self` keeps the slots as they are.
        words.filter(|word| is_version(*word)).map(|word| unsafe { view(word) })
    }

    /// Shows whole buckets to `see` until it saw at least `max` versions or as many buckets.
    ///
    /// Begin with cursor 0 and go on with what is returned, until nothing is.
    /// Whatever is in the table all the time is seen at least once, even if the table grows or shrinks in between, and
    /// exactly once if it does not shrink.
    pub fn visit(&self, cursor: u64, max: usize, mut see: impl FnMut(&Version)) -> Option<u64> {
        let (mut at, mut seen) = (cursor, 0);
        for _ in 0..max.max(1) {
            let home = self.home(at.reverse_bits())?;
            self.each_in_bucket(home.index, |version| {
                seen += 1;
                see(version);
            });
            at = next_bucket(at, home.level)?;
            if seen >= max {
                break;
            }
        }
        Some(at)
    }

    /// A version that satisfies `pred`, chosen by the random number `r`; gives up after some buckets.
    pub fn random(&self, r: u64, pred: impl Fn(&Version) -> bool) -> Option<VersionRef<'_>> {
        let mut at = r;
        for _ in 0..RANDOM_BUCKETS.min(self.buckets.len()) {
            let home = self.home(at.reverse_bits())?;
            let mut fitting = 0;
            self.each_in_bucket(home.index, |version| fitting += u64::from(pred(version)));
            if fitting > 0 {
                // the low bits of `r` are the last to choose among buckets
                return self.nth_in_bucket(home.index, r % fitting, pred);
            }
            at = next_bucket(at, home.level).unwrap_or(0);
        }
        None
    }

    #[inline]
    fn home(&self, hash: u64) -> Option<Home> {
        let count = self.buckets.len();
        let level = count.checked_ilog2()?;
        let split = count - (1 << level);
        let low = hash as usize & ((1 << level) - 1);
        let level = level + u32::from(low < split);
        Some(Home { index: hash as usize & ((1 << level) - 1), level })
    }

    #[inline]
    fn line(&self, at: At) -> &Line {
        match at {
            At::Bucket(index) => self.buckets.get(index),
            At::Overflow(index) => self.overflow.get(index),
        }
    }

    #[inline]
    fn line_mut(&mut self, at: At) -> &mut Line {
        match at {
            At::Bucket(index) => self.buckets.get_mut(index),
            At::Overflow(index) => self.overflow.get_mut(index),
        }
    }

    #[inline]
    fn find_place(&self, hash: u64, key: DocKey<'_>) -> Option<Place> {
        let home = self.home(hash)?;
        let tag = tag_of(hash, home.level);
        let mut at = At::Bucket(home.index);
        loop {
            let line = self.line(at);
            for (slot, &word) in line.0.iter().enumerate() {
                if word >> TAG_SHIFT != tag || !is_version(word) {
                    continue;
                }
                // The tag is as good as sure, and the key may begin in one line and end in the next.
                prefetch(((word & ADDRESS) as *const u8).wrapping_add(64));
                // SAFETY: the word is a version's, and `&self` keeps the slot as it is.
                if key.matches(unsafe { view(word) }.stored_key()) {
                    return Some(Place { at, slot });
                }
            }
            at = At::Overflow(link_of(line)?);
        }
    }

    fn each_in_bucket(&self, index: usize, mut see: impl FnMut(&Version)) {
        let mut line = self.buckets.get(index);
        loop {
            for word in line.0.into_iter().filter(|word| is_version(*word)) {
                // SAFETY: the word is a version's, and `&self` keeps the slot as it is.
                let version = unsafe { view(word) };
                see(&version);
            }
            let Some(next) = link_of(line) else { return };
            line = self.overflow.get(next);
        }
    }

    fn nth_in_bucket(
        &self,
        index: usize,
        mut n: u64,
        pred: impl Fn(&Version) -> bool,
    ) -> Option<VersionRef<'_>> {
        let mut line = self.buckets.get(index);
        loop {
            for word in line.0.into_iter().filter(|word| is_version(*word)) {
                // SAFETY: the word is a version's, and `&self` keeps the slot as it is.
                let version = unsafe { view(word) };
                if pred(&version) {
                    if n == 0 {
                        return Some(version);
                    }
                    n -= 1;
                }
            }
            line = self.overflow.get(link_of(line)?);
        }
    }

    /// The last line of a bucket: the only one that is not full.
    fn last_line(&self, index: usize) -> (Option<At>, At) {
        let (mut before, mut at) = (None, At::Bucket(index));
        while let Some(next) = link_of(self.line(at)) {
            before = Some(at);
            at = At::Overflow(next);
        }
        (before, at)
    }

    /// Adds a word to a bucket.
    fn push(&mut self, index: usize, word: u64) {
        let (_, at) = self.last_line(index);
        let line = self.line_mut(at);
        if let Some(empty) = line.0.iter_mut().find(|word| **word == 0) {
            *empty = word;
            return;
        }
        let moved = line.0[SLOTS - 1];
        let next = self.new_overflow();
        self.overflow.get_mut(next).0[..2].copy_from_slice(&[moved, word]);
        self.line_mut(at).0[SLOTS - 1] = link_to(next);
    }

    /// Removes a slot from its bucket and fills the hole with the bucket's last version.
    fn remove_place(&mut self, index: usize, place: Place) -> u64 {
        let (before, at) = self.last_line(index);
        let line = self.line_mut(at);
        let used = line.0.iter().position(|word| *word == 0).unwrap_or(SLOTS);
        let filler = std::mem::take(&mut line.0[used - 1]);
        let removed = if is_same(place, at, used - 1) {
            filler
        } else {
            std::mem::replace(&mut self.line_mut(place.at).0[place.slot], filler)
        };
        if let (Some(before), At::Overflow(line), 2) = (before, at, used) {
            // one version is left in the overflow line: it fits where the link was
            let last = self.overflow.get(line).0[0];
            self.line_mut(before).0[SLOTS - 1] = last;
            self.free_overflow(line);
        }
        removed
    }

    fn new_overflow(&mut self) -> usize {
        if self.free == 0 {
            return self.overflow.push();
        }
        let index = (self.free >> 3) as usize;
        let line = self.overflow.get_mut(index);
        self.free = line.0[0];
        *line = Line::ZERO;
        index
    }

    fn free_overflow(&mut self, index: usize) {
        let line = self.overflow.get_mut(index);
        *line = Line::ZERO;
        line.0[0] = self.free;
        self.free = link_to(index);
    }

    fn insert_word(&mut self, hash: u64, version: Version) {
        debug_assert_eq!(self.hash(version.key()), hash, "the version belongs to another key");
        if self.buckets.len() == 0 {
            self.buckets.push();
        }
        let home = self.home(hash).expect("there is a bucket now");
        self.push(home.index, word_of(version, tag_of(hash, home.level)));
        self.len += 1;
        if self.len > self.buckets.len() * GROW_ABOVE {
            self.split();
        }
    }

    fn remove_word(&mut self, hash: u64, place: Place) -> u64 {
        let home = self.home(hash).expect("a place was found");
        let word = self.remove_place(home.index, place);
        self.len -= 1;
        if self.len < self.buckets.len() * SHRINK_BELOW && self.buckets.len() > 1 {
            self.merge();
        }
        word
    }

    /// Adds one bucket and moves its share of one old bucket there.
    fn split(&mut self) {
        let new = self.buckets.push();
        let level = new.ilog2();
        let old = new - (1 << level);
        let rehash = tag_base(level) != tag_base(level + 1);
        self.scatter(old, rehash, |table, word| {
            if rehash {
                let hash = table.hash_of(word);
                let home = if hash >> level & 1 == 1 { new } else { old };
                (home, word & ADDRESS | tag_of(hash, level + 1) << TAG_SHIFT)
            } else {
                let bit = TAG_SHIFT + level - tag_base(level);
                (if word >> bit & 1 == 1 { new } else { old }, word)
            }
        });
    }

    /// Moves the versions of the last bucket to where they came from, and drops it.
    fn merge(&mut self) {
        let last = self.buckets.len() - 1;
        let level = last.ilog2();
        let into = last - (1 << level);
        let rehash = tag_base(level) != tag_base(level + 1);
        let back = |table: &HashTable, word: u64| {
            let tag = if rehash { tag_of(table.hash_of(word), level) } else { word >> TAG_SHIFT };
            (into, word & ADDRESS | tag << TAG_SHIFT)
        };
        if rehash {
            self.scatter(into, rehash, back);
        }
        self.scatter(last, rehash, back);
        self.buckets.pop();
    }

    /// Empties a bucket and adds each of its words, as `place` says, to a bucket again.
    fn scatter(&mut self, index: usize, reads_keys: bool, place: impl Fn(&HashTable, u64) -> (usize, u64)) {
        let mut line = std::mem::replace(self.buckets.get_mut(index), Line::ZERO);
        loop {
            if reads_keys {
                line.0.iter().for_each(|word| prefetch((word & ADDRESS) as *const u8));
            }
            for word in line.0.into_iter().filter(|word| is_version(*word)) {
                let (to, word) = place(self, word);
                self.push(to, word);
            }
            let Some(next) = link_of(&line) else { return };
            line = *self.overflow.get(next);
            self.free_overflow(next);
        }
    }

    fn hash_of(&self, word: u64) -> u64 {
        // SAFETY: callers pass words of versions that are on their way from one slot to another.
        self.hash(unsafe { view(word) }.key())
    }
}

fn is_same(place: Place, at: At, slot: usize) -> bool {
    let same_line = match (place.at, at) {
        (At::Bucket(a), At::Bucket(b)) | (At::Overflow(a), At::Overflow(b)) => a == b,
        _ => false,
    };
    same_line && place.slot == slot
}

/// The cursor of the bucket after the one at `at`, in the order of the reversed hash.
#[inline]
fn next_bucket(at: u64, level: u32) -> Option<u64> {
    if level == 0 {
        return None;
    }
    let step = 1_u64 << (64 - level);
    (at & !(step - 1)).checked_add(step)
}

impl Drop for HashTable {
    fn drop(&mut self) {
        for line in self.buckets.iter().chain(self.overflow.iter()) {
            for word in line.0.into_iter().filter(|word| is_version(*word)) {
                // SAFETY: the slots go away with the table, and each is looked at once.
                drop(unsafe { take_word(word) });
            }
        }
    }
}

/// The place of one key in a table, for looking and then writing with a single probe.
pub struct Slot<'a> {
    table: &'a mut HashTable,
    hash: u64,
    place: Option<Place>,
}

impl Slot<'_> {
    /// The version that is there.
    #[inline]
    pub fn get(&self) -> Option<VersionRef<'_>> {
        let place = self.place?;
        let word = self.table.line(place.at).0[place.slot];
        // SAFETY: the place was found with a version in it, and only `self` can change the table.
        Some(unsafe { view(word) })
    }

    /// Replaces the version that is there by one of the same key, and returns the old one.
    #[inline]
    pub fn replace(self, version: Version) -> Version {
        let place = self.place.expect("only a version that is there can be replaced");
        let word = &mut self.table.line_mut(place.at).0[place.slot];
        let new = word_of(version, *word >> TAG_SHIFT);
        // SAFETY: the place was found with a version in it, which the new word pushes out.
        unsafe { take_word(std::mem::replace(word, new)) }
    }

    /// Adds the first version of the key.
    #[inline]
    pub fn insert(self, version: Version) {
        assert!(self.place.is_none(), "a version that is there is replaced, not inserted");
        self.table.insert_word(self.hash, version);
    }

    /// Replaces or inserts, and returns the old version if there was one.
    #[inline]
    pub fn set(self, version: Version) -> Option<Version> {
        if self.place.is_some() {
            return Some(self.replace(version));
        }
        self.insert(version);
        None
    }

    /// Removes the version that is there and returns it.
    pub fn remove(self) -> Version {
        let place = self.place.expect("only a version that is there can be removed");
        let word = self.table.remove_word(self.hash, place);
        // SAFETY: the word was removed from its slot just now.
        unsafe { take_word(word) }
    }
}
