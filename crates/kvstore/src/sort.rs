//! Putting the changes of a vBucket into the order of their keys, only the newest of each.
//!
//! Changes come in the order in which they were made.
//! Keys that grow with time come in a few ascending runs, which are merged; others are sorted.
//! Either way works on eight bytes of each key, so that a version is looked at once and its key again only where these
//! do not tell.

mod merge;
mod part;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::cmp::Ordering;

use base::Version;
use merge::Merge;
use part::Parts;

/// More ascending runs than this are sorted, fewer are merged.
const MOST_RUNS: usize = 32;
/// Fewer changes are simply sorted.
const FEW: usize = 48;
/// So many versions ahead of the one that is looked at are asked for.
const AHEAD: usize = 12;

/// Sorts versions by stored key and keeps, of each key, the one with the highest seqno.
///
/// Takes at most 16 bytes of memory for each version while it works.
pub fn sort_newest<V: Borrow<Version>>(items: &mut Vec<V>) {
    sort_newest_from(items, 0);
}

/// Does the same with `items[from..]` alone.
pub fn sort_newest_from<V: Borrow<Version>>(items: &mut Vec<V>, from: usize) {
    let tail = &mut items[from..];
    if tail.len() < FEW {
        tail.sort_unstable_by(|a, b| key(a).cmp(key(b)).then_with(|| newest_first(a, b)));
        return keep_first(items, from, |a, b, _, _| key(a) == key(b));
    }
    let (parts, runs) = ascending_runs(tail);
    let Some((starts, numbers)) = runs else { return sort(items, from, parts) };
    // a single run has each key once
    if starts.len() > 1 {
        let order = Merge { items: tail, parts: &parts, numbers: &numbers }.run(&starts);
        drop(numbers);
        let tail = if from == 0 { std::mem::take(items) } else { items.split_off(from) };
        // the same memory again, as the option takes no room
        let mut tail: Vec<Option<V>> = tail.into_iter().map(Some).collect();
        items.reserve_exact(order.len());
        items.extend(order.iter().filter_map(|&i| tail[i as usize].take()));
    }
}

/// Sorts by stored key, and by seqno within a key. Of each key stay the newest version, and those that are
/// [`crate::in_history`].
pub fn sort_with_past(items: &mut Vec<Version>) {
    items.sort_unstable_by(|a, b| key(a).cmp(key(b)).then_with(|| newest_first(b, a)));
    items.dedup_by(|later, before| {
        let is_same = later.meta().by_seqno == before.meta().by_seqno && key(later) == key(before);
        let is_replaced = key(later) == key(before) && !crate::in_history(before);
        if is_replaced && !is_same {
            std::mem::swap(later, before);
        }
        is_same || is_replaced
    });
}

/// Adds to `to`, in the order of [`sort_with_past`], the versions that it keeps.
pub fn add_with_past_of<'a>(items: impl Iterator<Item = &'a Version>, to: &mut Vec<Version>) {
    let mut all = items.cloned().collect();
    sort_with_past(&mut all);
    to.append(&mut all);
}

/// The newest version of each key, in order, of versions that somebody else holds: only what stays is counted.
pub fn newest_of<'a>(items: impl Iterator<Item = &'a Version>) -> Vec<Version> {
    let mut newest: Vec<&Version> = items.collect();
    sort_newest(&mut newest);
    let take = |(i, version): (usize, &&Version)| {
        prefetch(&newest, i + AHEAD);
        Version::clone(version)
    };
    newest.iter().enumerate().map(take).collect()
}

/// Appends what [`newest_of`] says of `count` versions.
pub fn add_newest_of<'a>(items: impl Iterator<Item = &'a Version>, count: u64, out: &mut Vec<Version>) {
    if count < FEW as u64 {
        let from = out.len();
        out.extend(items.cloned());
        sort_newest_from(out, from);
    } else {
        out.extend(newest_of(items));
    }
}

/// Lets go of versions that lie scattered in memory: counting each down would otherwise wait for it.
pub fn release(items: &mut Vec<Version>) {
    while let Some(last) = items.pop() {
        prefetch(items, items.len().wrapping_sub(AHEAD));
        drop(last);
    }
}

fn key<V: Borrow<Version>>(item: &V) -> &[u8] {
    item.borrow().stored_key()
}

fn newest_first<V: Borrow<Version>>(a: &V, b: &V) -> Ordering {
    b.borrow().meta().by_seqno.cmp(&a.borrow().meta().by_seqno)
}

fn prefetch<V: Borrow<Version>>(items: &[V], i: usize) {
    if let Some(item) = items.get(i) {
        item.borrow().prefetch();
    }
}

/// Where ascending runs start, and the parts of all keys.
type Runs = (Vec<u32>, Vec<u64>);

/// Ascending runs, each key once in each of them; nothing if there are too many.
fn ascending_runs<V: Borrow<Version>>(items: &[V]) -> (Parts, Option<Runs>) {
    let mut parts = Parts::guess(items);
    loop {
        let mut starts = vec![0];
        let mut numbers: Vec<u64> = Vec::with_capacity(items.len());
        let looked = parts.each(items, |parts, i, part| {
            if let Some(&before) = numbers.last()
                && parts.compare((part, key(&items[i])), (before, key(&items[i - 1]))).is_le()
            {
                starts.push(u32::try_from(i).expect("a batch has fewer versions"));
            }
            numbers.push(part);
            starts.len() <= MOST_RUNS
        });
        match looked {
            Ok(true) => return (parts, Some((starts, numbers))),
            Ok(false) => return (parts, None),
            Err(weaker) => parts = weaker,
        }
    }
}

/// Of neighbours with the same key in `items[from..]` keeps the first.
fn keep_first<V>(items: &mut Vec<V>, from: usize, same: impl Fn(&V, &V, usize, usize) -> bool) {
    let (mut kept, mut last) = (from, from);
    for i in from + 1..items.len() {
        if same(&items[kept], &items[i], last - from, i - from) {
            continue;
        }
        kept += 1;
        last = i;
        items.swap(kept, i);
    }
    items.truncate(kept + 1);
}

/// A part of a key, in two halves as that takes less room, and where its version stands.
#[derive(Clone, Copy)]
struct Place {
    high: u32,
    low: u32,
    index: u32,
}

impl Place {
    fn part(&self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// Sorts `items[from..]` and keeps the newest version of each key.
fn sort<V: Borrow<Version>>(items: &mut Vec<V>, from: usize, mut parts: Parts) {
    let tail = &mut items[from..];
    let mut places = loop {
        let mut places = Vec::with_capacity(tail.len());
        let looked = parts.each(tail, |_, i, part| {
            let index = u32::try_from(i).expect("a batch has fewer versions");
            places.push(Place { high: (part >> 32) as u32, low: part as u32, index });
            true
        });
        match looked {
            Ok(_) => break places,
            Err(weaker) => parts = weaker,
        }
    };
    if parts.exact && parts.in_order {
        places.sort_unstable_by_key(|place| u128::from(place.part()) << 32 | u128::from(!place.index));
    } else {
        places.sort_unstable_by(|a, b| {
            a.part().cmp(&b.part()).then_with(|| {
                let (a, b) = (&tail[a.index as usize], &tail[b.index as usize]);
                let order = if parts.exact { Ordering::Equal } else { parts.behind(key(a), key(b)) };
                order.then_with(|| newest_first(a, b))
            })
        });
    }
    permute(tail, &mut places);
    keep_first(items, from, |a, b, i, j| {
        places[i].part() == places[j].part() && (parts.exact || parts.behind(key(a), key(b)).is_eq())
    });
}

/// Moves each version to the place that names it.
fn permute<V>(items: &mut [V], places: &mut [Place]) {
    for start in 0..places.len() {
        let mut at = start;
        loop {
            let from = std::mem::replace(&mut places[at].index, at as u32) as usize;
            if from == start {
                break;
            }
            items.swap(at, from);
            at = from;
        }
    }
}
