//! Putting the changes of a vBucket into the order of their keys, only the newest of each.
//!
//! Changes come in the order in which they were made.
//! Keys that grow with time come in a few ascending runs, which are merged; others are sorted by eight bytes of the key
//! that are kept at hand, so that keys themselves are looked at only where these are the same.

mod merge;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use base::Version;

/// More ascending runs than this are sorted, fewer are merged.
const MOST_RUNS: usize = 32;
/// Fewer changes are simply sorted.
const FEW: usize = 48;
/// So many versions ahead of the one that is looked at are asked for.
const AHEAD: usize = 12;
/// So many keys are looked at to guess what all of them begin with.
const SAMPLES: usize = 64;

/// Sorts versions by stored key and keeps, of each key, the one with the highest seqno.
///
/// Takes at most 16 bytes of memory for each version while it works.
pub fn sort_newest(items: &mut Vec<Version>) {
    sort_newest_from(items, 0);
}

/// Does the same with `items[from..]` alone.
pub fn sort_newest_from(items: &mut Vec<Version>, from: usize) {
    let tail = &mut items[from..];
    if tail.len() < FEW {
        tail.sort_unstable_by(by_key_newest_first);
        return keep_first(items, from, |_, _| true);
    }
    match ascending_runs(tail) {
        Some(starts) if starts.len() == 1 => keep_newest(items, from),
        Some(starts) => {
            let mut merged = merge::merge(items.drain(from..).map(Some).collect(), &starts);
            if from == 0 { *items = merged } else { items.append(&mut merged) }
        }
        None => {
            let keys = sort_by_parts(tail);
            keep_first(items, from, |a, b| keys[a - from].part == keys[b - from].part);
        }
    }
}

fn by_key_newest_first(a: &Version, b: &Version) -> Ordering {
    a.stored_key().cmp(b.stored_key()).then_with(|| b.meta().by_seqno.cmp(&a.meta().by_seqno))
}

/// Where ascending runs start; nothing if there are too many.
fn ascending_runs(items: &[Version]) -> Option<Vec<usize>> {
    let mut starts = vec![0];
    let mut before = items[0].stored_key();
    for (i, item) in items.iter().enumerate().skip(1) {
        if let Some(soon) = items.get(i + AHEAD) {
            soon.prefetch();
        }
        let key = item.stored_key();
        if key < before {
            if starts.len() == MOST_RUNS {
                return None;
            }
            starts.push(i);
        }
        before = key;
    }
    Some(starts)
}

/// Of neighbours with the same key in `items[from..]` keeps the first. Keys are compared only where `may_be_same`.
fn keep_first(items: &mut Vec<Version>, from: usize, may_be_same: impl Fn(usize, usize) -> bool) {
    let (mut kept, mut last) = (from, from);
    for i in from + 1..items.len() {
        if may_be_same(last, i) && items[kept].stored_key() == items[i].stored_key() {
            continue;
        }
        kept += 1;
        last = i;
        items.swap(kept, i);
    }
    items.truncate(kept + 1);
}

/// Of neighbours with the same key in `items[from..]`, which is in order, keeps the newest.
fn keep_newest(items: &mut Vec<Version>, from: usize) {
    let mut kept = from;
    for i in from + 1..items.len() {
        if items[kept].stored_key() != items[i].stored_key() {
            kept += 1;
            items.swap(kept, i);
        } else if items[kept].meta().by_seqno < items[i].meta().by_seqno {
            items.swap(kept, i);
        }
    }
    items.truncate(kept + 1);
}

/// Eight bytes of a key, and where its version stands.
#[derive(Clone, Copy)]
struct Part {
    part: u64,
    index: u32,
}

/// How many bytes all of `keys` begin with in common.
fn common_prefix<'a>(mut keys: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(first) = keys.next() else { return 0 };
    keys.fold(first.len(), |len, key| first[..len].iter().zip(key).take_while(|(a, b)| a == b).count())
}

/// The eight bytes of a key from `at` on, as a number that compares as they do; behind its end come zeros.
fn part_of(key: &[u8], at: usize) -> u64 {
    let rest = key.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// Sorts versions by key, newest first, and returns the parts of their keys in the same order.
fn sort_by_parts(items: &mut [Version]) -> Vec<Part> {
    let step = items.len().div_ceil(SAMPLES);
    let mut shared = common_prefix(items.iter().step_by(step).map(Version::stored_key));
    let mut parts = loop {
        match parts_of(items, shared) {
            Ok(parts) => break parts,
            Err(less) => shared = less,
        }
    };
    // keys whose parts are the same are compared whole: some may be longer, and zeros may be part of a key
    parts.sort_unstable_by(|a, b| {
        a.part
            .cmp(&b.part)
            .then_with(|| by_key_newest_first(&items[a.index as usize], &items[b.index as usize]))
    });
    permute(items, &mut parts);
    parts
}

/// The parts of all keys behind the first `shared` bytes; if a key does not begin as the first one does, how many
/// bytes they have in common.
fn parts_of(items: &[Version], shared: usize) -> Result<Vec<Part>, usize> {
    let prefix = &items[0].stored_key()[..shared];
    let mut parts = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if let Some(soon) = items.get(index + AHEAD) {
            soon.prefetch();
        }
        let key = item.stored_key();
        if !key.starts_with(prefix) {
            return Err(common_prefix([prefix, key].into_iter()));
        }
        let index = u32::try_from(index).expect("a batch has fewer versions");
        parts.push(Part { part: part_of(key, shared), index });
    }
    Ok(parts)
}

/// Moves each version to the place of the part that names it.
fn permute(items: &mut [Version], parts: &mut [Part]) {
    for start in 0..parts.len() {
        let mut place = start;
        loop {
            let from = std::mem::replace(&mut parts[place].index, place as u32) as usize;
            if from == start {
                break;
            }
            items.swap(place, from);
            place = from;
        }
    }
}
