//! What happens to a file while no process has it open, and where.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use base::env::Disk;
use base::env::sim::{SimDisk, SplitMix64};

use super::world::{End, Keeper, World, put};

const BLOCK: usize = 4096;
/// The fixed part of a couchstore header: mark, length and checksum, then the body up to the roots' lengths.
const HEAD: usize = 9;
const ROOT_LENGTHS: usize = HEAD + 19;
const ROOTS: usize = HEAD + 25 + 8;

/// In which way a file is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Flip,
    Zero,
    Cut,
    /// As it was some time before; also if it was gone since.
    Stale,
    /// Another file of its kind.
    Swap,
    Remove,
    /// Both copies of a file that is kept twice are as they were some time before.
    BothStale,
    /// All small files of the folder are as they were at one moment before.
    SmallStale,
    /// The file of its name of another bucket, with the same keys and lengths.
    OfAnother,
    /// That of a copy of the folder that went on by itself.
    OfBranch,
}

impl Kind {
    /// What befalls one file.
    pub const ALL: [Kind; 6] = [Kind::Flip, Kind::Zero, Kind::Cut, Kind::Stale, Kind::Swap, Kind::Remove];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Flip => "flip",
            Kind::Zero => "zero",
            Kind::Cut => "cut",
            Kind::Stale => "stale",
            Kind::Swap => "swap",
            Kind::Remove => "remove",
            Kind::BothStale => "both stale",
            Kind::SmallStale => "all stale",
            Kind::OfAnother => "another's",
            Kind::OfBranch => "branch",
        }
    }
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Documents,
    Segment,
    Spare,
    Catalog,
    Manifest,
    Uuid,
    Mark,
    BucketList,
    Cursor,
    Position,
    /// What a member has seen of its cluster,
    Membership,
    /// and what a bucket's folder says of that.
    Vouched,
    /// Values of a log-structured store,
    LogSegment,
    /// its key index,
    LogRun,
    /// and what says which of them count.
    LogManifest,
    /// All small files of a bucket's folder together.
    Small,
    Other,
}

impl Class {
    pub fn of(path: &Path) -> Class {
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
        if folder == "cursors" {
            return Class::Cursor;
        }
        if folder == "positions" {
            return Class::Position;
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            _ if name.contains(".couch.") => Class::Documents,
            _ if name.ends_with(".seg") => Class::LogSegment,
            _ if name.ends_with(".run") => Class::LogRun,
            _ if name.contains(".manifest") => Class::LogManifest,
            _ if name.starts_with("journal.spare") => Class::Spare,
            _ if name.starts_with("journal.") => Class::Segment,
            _ if name.starts_with("catalog") => Class::Catalog,
            _ if name.starts_with("manifest") => Class::Manifest,
            _ if name.starts_with("uuid") => Class::Uuid,
            "clean" => Class::Mark,
            _ if name.starts_with("buckets.json") => Class::BucketList,
            "cluster-membership" => Class::Membership,
            "membership" => Class::Vouched,
            _ => Class::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Class::Documents => "documents",
            Class::Segment => "segment",
            Class::Spare => "spare segment",
            Class::Catalog => "catalog",
            Class::Manifest => "manifest",
            Class::Uuid => "uuid",
            Class::Mark => "clean mark",
            Class::BucketList => "bucket list",
            Class::Cursor => "cursor",
            Class::Position => "position",
            Class::Membership => "cluster membership",
            Class::Vouched => "bucket's membership",
            Class::LogSegment => "log segment",
            Class::LogRun => "log run",
            Class::LogManifest => "log manifest",
            Class::Small => "small files",
            Class::Other => "other",
        }
    }

    /// Whether it is of what keeps documents, or of the journal in front of that.
    pub fn is_of_store(self) -> bool {
        matches!(
            self,
            Class::Documents
                | Class::Segment
                | Class::Spare
                | Class::LogSegment
                | Class::LogRun
                | Class::LogManifest
        )
    }

    /// Whether two files hold the same content, so that damage of one of them costs nothing.
    pub fn is_kept_twice(self) -> bool {
        matches!(self, Class::Catalog | Class::Manifest | Class::Uuid | Class::BucketList | Class::Cursor)
    }
}

/// Files of a bucket, each as often as it is tried.
const OF_BUCKET: [Class; 10] = [
    Class::Documents,
    Class::Documents,
    Class::Segment,
    Class::Segment,
    Class::Catalog,
    Class::Manifest,
    Class::Uuid,
    Class::Mark,
    Class::Spare,
    Class::Other,
];

/// The same of one in a log-structured store.
const OF_LOG: [Class; 11] = [
    Class::LogSegment,
    Class::LogSegment,
    Class::LogRun,
    Class::LogRun,
    Class::LogManifest,
    Class::LogManifest,
    Class::LogManifest,
    Class::Segment,
    Class::Catalog,
    Class::Mark,
    Class::Other,
];

/// Files beside the documents.
const OF_NODE: [Class; 5] =
    [Class::BucketList, Class::Cursor, Class::Position, Class::Membership, Class::Vouched];

/// Whether a file is one of those beside the documents.
pub fn is_of_node(path: &Path) -> bool {
    OF_NODE.contains(&Class::of(path))
}

/// What is done to one file, or to some together.
pub struct Damage {
    pub kind: Kind,
    pub class: Class,
    /// Whether it is such that a crash may leave it: nothing vouches for the journal's end then.
    pub is_unvouched: bool,
    path: PathBuf,
    place: String,
    /// What it holds afterwards; `None` if it is gone.
    bytes: Option<Vec<u8>>,
    /// The same of others.
    others: Changes,
}

/// What files hold afterwards; `None` if one is gone.
pub type Changes = Vec<(PathBuf, Option<Vec<u8>>)>;

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.kind.name(), self.path.display(), self.place)
    }
}

impl Damage {
    /// Some damage that changes something; `None` if this choice does not.
    pub fn choose(world: &World, rng: &mut SplitMix64, only: Option<Kind>) -> Option<Damage> {
        let classes: &[Class] = if world.keeper == Keeper::Log { &OF_LOG } else { &OF_BUCKET };
        Damage::choose_among(classes, world, rng, only)
    }

    /// The same of the files beside the documents.
    pub fn choose_of_node(world: &World, rng: &mut SplitMix64, only: Option<Kind>) -> Option<Damage> {
        Damage::choose_among(&OF_NODE, world, rng, only)
    }

    fn choose_among(
        classes: &[Class],
        world: &World,
        rng: &mut SplitMix64,
        only: Option<Kind>,
    ) -> Option<Damage> {
        let kind = only.unwrap_or(Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize]);
        let path = choose_path(classes, world, rng, kind)?;
        let (before, class) = (world.files.get(&path), Class::of(&path));
        let empty = Vec::new();
        let old = before.unwrap_or(&empty);
        let (place, bytes) = match kind {
            Kind::Remove => ("all of it".to_owned(), None),
            Kind::Stale => {
                let older = world.older.iter().filter_map(|older| older.get(&path));
                let older: Vec<&Vec<u8>> = older.filter(|bytes| Some(*bytes) != before).collect();
                let which = any(rng, &older)?;
                (format!("{} of {} older ones", which + 1, older.len()), Some(older[which].clone()))
            }
            Kind::Swap => {
                let is_like = |other: &Path| Class::of(other) == class && *other != path;
                let others: Vec<_> = world.files.iter().filter(|(other, _)| is_like(other)).collect();
                let which = any(rng, &others)?;
                (others[which].0.display().to_string(), Some(others[which].1.clone()))
            }
            Kind::BothStale | Kind::SmallStale | Kind::OfAnother | Kind::OfBranch => return None,
            Kind::Flip | Kind::Zero | Kind::Cut => {
                let (name, range) = place_in(rng, class, old)?;
                (format!("{name}, {range:?}"), Some(change(rng, kind, old, range)))
            }
        };
        // The catalog names the segment, so that it is missed.
        let is_torn = !matches!(kind, Kind::Remove | Kind::Swap);
        let is_unvouched =
            is_torn && world.end == End::Killed && class == Class::Segment && is_last_segment(world, &path);
        let others = Changes::new();
        (bytes.as_ref() != before).then_some(Damage { kind, class, is_unvouched, path, place, bytes, others })
    }

    /// The same to some files together.
    pub fn of_many(kind: Kind, class: Class, place: String, mut changes: Changes) -> Option<Damage> {
        let (path, bytes) = changes.pop()?;
        Some(Damage { kind, class, is_unvouched: false, path, place, bytes, others: changes })
    }

    /// Another file in the place of one.
    pub fn of_one(kind: Kind, path: &Path, place: String, bytes: &[u8]) -> Damage {
        let (path, bytes, others) = (path.to_owned(), Some(bytes.to_vec()), Changes::new());
        Damage { kind, class: Class::of(&path), is_unvouched: false, path, place, bytes, others }
    }

    pub fn apply(&self, disk: &SimDisk) {
        let one = (&self.path, &self.bytes);
        for (path, bytes) in self.others.iter().map(|(path, bytes)| (path, bytes)).chain([one]) {
            match bytes {
                Some(bytes) => put(disk, path, bytes),
                None => disk.remove_file(path).expect("no fault is planned"),
            }
        }
        let folder = self.path.parent().expect("it is in a folder");
        disk.sync_dir(folder).expect("no fault is planned");
    }
}

impl Damage {
    /// Whether the file may be again what it was, as one that a disk has read wrong for a while.
    pub fn may_heal(&self) -> bool {
        self.class == Class::Segment && matches!(self.kind, Kind::Flip | Kind::Zero) && !self.is_unvouched
    }

    /// The file is again what it was, unless it has another use meanwhile; whether it is.
    pub fn heal(&self, world: &World, disk: &SimDisk) -> bool {
        let is_as_damaged =
            |(path, bytes): &(PathBuf, Vec<u8>)| *path == self.path && Some(bytes) == self.bytes.as_ref();
        let is_there = disk.contents().iter().any(is_as_damaged);
        if is_there {
            put(disk, &self.path, &world.files[&self.path]);
        }
        is_there
    }
}

fn any<T>(rng: &mut SplitMix64, all: &[T]) -> Option<usize> {
    (!all.is_empty()).then(|| rng.below(all.len() as u64) as usize)
}

/// A file; for stale ones also one that was there some time before. Each kind of file is as likely as another.
fn choose_path(classes: &[Class], world: &World, rng: &mut SplitMix64, kind: Kind) -> Option<PathBuf> {
    let mut paths: Vec<&PathBuf> = world.files.keys().collect();
    if kind == Kind::Stale {
        paths.extend(world.older.iter().flat_map(|older| older.keys()));
        paths.sort_unstable();
        paths.dedup();
    }
    let class = classes[rng.below(classes.len() as u64) as usize];
    let of_class: Vec<&&PathBuf> = paths.iter().filter(|path| Class::of(path) == class).collect();
    any(rng, &of_class).map(|which| of_class[which].to_path_buf())
}

/// The generation of a segment of the journal, by its name.
pub fn generation(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("journal.")?.parse().ok()
}

/// Whether no segment follows this one: what it ends with is vouched for by nothing after a crash.
fn is_last_segment(world: &World, path: &Path) -> bool {
    let last = world.files.keys().filter_map(|path| generation(path)).max();
    generation(path) >= last
}

fn change(rng: &mut SplitMix64, kind: Kind, old: &[u8], range: Range<usize>) -> Vec<u8> {
    let mut new = old.to_vec();
    match kind {
        Kind::Flip => new[range.start + rng.below(range.len() as u64) as usize] ^= 1 << rng.below(8),
        Kind::Zero => new[range].fill(0),
        _ => new.truncate(range.start),
    }
    new
}

/// Some place of a file that has a name; never empty.
fn place_in(rng: &mut SplitMix64, class: Class, bytes: &[u8]) -> Option<(&'static str, Range<usize>)> {
    let places = match class {
        Class::Documents => places_of_documents(bytes),
        Class::Segment | Class::Spare => places_of_segment(bytes),
        Class::LogSegment | Class::LogRun => places_of_log_file(bytes),
        Class::LogManifest => places_of_log_manifest(bytes),
        _ => places_of_text(bytes),
    };
    let mut places: Vec<(&str, Range<usize>)> =
        places.into_iter().filter(|(_, range)| !range.is_empty() && range.end <= bytes.len()).collect();
    let at = rng.below(bytes.len().max(1) as u64) as usize;
    places.push(("anywhere", at..bytes.len().min(at + 1)));
    places.retain(|(_, range)| !range.is_empty());
    any(rng, &places).map(|which| places.swap_remove(which))
}

fn places_of_documents(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let blocks = (0..bytes.len()).step_by(BLOCK);
    let headers: Vec<usize> = blocks.filter(|at| bytes[*at] == 1).collect();
    let mut places = vec![("first block", 0..BLOCK), ("end", bytes.len().saturating_sub(200)..bytes.len())];
    for (at, is_last) in headers.iter().rev().take(2).zip([true, false]) {
        let name = |last, before| if is_last { last } else { before };
        places.push((name("last header's mark", "earlier header's mark"), *at..at + 1));
        places.push((name("last header's length", "earlier header's length"), at + 1..at + 5));
        places.push((name("last header's checksum", "earlier header's checksum"), at + 5..at + HEAD));
        places.push((name("last header", "earlier header"), at + HEAD..at + ROOTS));
        for (root, name) in roots(bytes, *at).into_iter().zip(["root by seqno", "root by id", "local root"]) {
            if root > 0 && is_last {
                places.push((name, root..root + 24));
            }
        }
    }
    if let Some(last) = headers.last() {
        let body = last / 2;
        places.push(("a node or body", body..body + 16));
        places.push(("a block's mark", body / BLOCK * BLOCK..body / BLOCK * BLOCK + 1));
    }
    places
}

/// Where the roots of a header are; 0 where there is none.
fn roots(bytes: &[u8], header: usize) -> Vec<usize> {
    let number = |at: usize, len: usize| {
        let bytes = bytes.get(at..at + len).unwrap_or_default();
        bytes.iter().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let mut at = header + ROOTS;
    let root = |which: usize| {
        let len = number(header + ROOT_LENGTHS + 2 * which, 2);
        let root = if len == 0 { 0 } else { number(at, 6) };
        at += len;
        root
    };
    (0..3).map(root).collect()
}

fn places_of_segment(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let mut places = vec![("header", 0..44), ("second header", 2048..2092), ("both headers", 0..BLOCK)];
    let is_frame = |at: &usize| bytes[*at..].starts_with(b"SJfr");
    let frames: Vec<usize> = (BLOCK..bytes.len()).step_by(BLOCK).filter(is_frame).collect();
    let mut name = |names: [&'static str; 3], frame: usize| {
        places.push((names[0], frame..frame + 56));
        places.push((names[1], frame + 56..frame + 120));
        places.push((names[2], frame..(frame + BLOCK).min(bytes.len())));
    };
    if let (Some(first), Some(last)) = (frames.first(), frames.last()) {
        name(["first frame's header", "first frame's records", "first frame"], *first);
        name(["last frame's header", "last frame's records", "last frame"], *last);
        let middle = frames[frames.len() / 2];
        name(["a frame's header", "a frame's records", "a frame"], middle);
    }
    places
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    u32::from_le_bytes(four.unwrap_or_default()) as usize
}

/// Header, first and last block, block with the index, trailer (docs/log_format.md).
fn places_of_log_file(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let len = bytes.len();
    let trailer = len.saturating_sub(24);
    let mut places =
        vec![("header", 0..16), ("trailer", trailer..len), ("place of the index", trailer..trailer + 12)];
    let index = u32_at(bytes, trailer);
    let mut at = 16;
    while at < index && at + 13 < len {
        let end = at + 13 + u32_at(bytes, at + 4);
        places.push(("head of a block", at..at + 13));
        places.push(("a block", at + 13..end.min(len)));
        at = end;
    }
    places.push(("the index", index..trailer));
    places
}

/// Header, first, middle and last records.
fn places_of_log_manifest(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let mut places = vec![("header", 0..28)];
    let (mut records, mut at) = (Vec::new(), 28);
    while at + 21 <= bytes.len() {
        let end = (at + 21 + u32_at(bytes, at)).min(bytes.len());
        records.push(at..end);
        at = end;
    }
    if let (Some(first), Some(last)) = (records.first(), records.last()) {
        let middle = &records[records.len() / 2];
        for (name, record) in [("first record", first), ("a record", middle), ("last record", last)] {
            places.push((name, record.clone()));
            places.push(("head of a record", record.start..record.start + 21));
        }
    }
    places
}

fn places_of_text(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let len = bytes.len();
    let line = bytes.iter().position(|byte| *byte == b'\n').map_or(len, |at| at + 1);
    vec![
        ("first line", 0..line),
        ("behind the first line", line..len),
        ("end", len.saturating_sub(12)..len),
        ("all of it", 0..len),
        ("middle", len / 2..len.min(len / 2 + 4)),
    ]
}
