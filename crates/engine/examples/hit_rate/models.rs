//! What others would keep in the same memory: least recently used, the best set that never changes, the optimum.

use std::collections::{BTreeSet, HashMap};

use crate::traces::Trace;

const NEVER: usize = usize::MAX;

fn share(hits: usize, trace: &Trace) -> f64 {
    hits as f64 / (trace.reads.len() - trace.unmeasured) as f64
}

/// The share of measured reads that hit when the documents read last are kept.
pub fn lru(trace: &Trace, room: usize) -> f64 {
    let (mut by_age, mut read_at) = (BTreeSet::new(), HashMap::new());
    let mut hits = 0;
    for (now, document) in trace.reads.iter().enumerate() {
        match read_at.insert(*document, now) {
            Some(before) => {
                by_age.remove(&(before, *document));
                hits += usize::from(now >= trace.unmeasured);
            }
            None if read_at.len() > room => {
                let (_, oldest) = by_age.pop_first().expect("there is one, or there is no room at all");
                read_at.remove(&oldest);
            }
            None => {}
        }
        by_age.insert((now, *document));
    }
    share(hits, trace)
}

/// The same when those that are read most in the measured part are kept all the time.
pub fn best_unchanging(trace: &Trace, room: usize) -> f64 {
    let mut reads = vec![0_usize; trace.documents as usize];
    trace.reads[trace.unmeasured..].iter().for_each(|document| reads[*document as usize] += 1);
    reads.sort_unstable_by(|a, b| b.cmp(a));
    share(reads.iter().take(room).sum(), trace)
}

/// The same for one who knows the future and keeps what is read soonest (Belady 1966), or does not keep what is read.
pub fn optimum(trace: &Trace, room: usize) -> f64 {
    let mut next_of = vec![NEVER; trace.documents as usize];
    let mut next_reads = vec![NEVER; trace.reads.len()];
    for (now, document) in trace.reads.iter().enumerate().rev() {
        next_reads[now] = std::mem::replace(&mut next_of[*document as usize], now);
    }
    // What is kept, by when it is read next; each read is of one document, so that says which.
    let mut kept = BTreeSet::new();
    let mut hits = 0;
    for (now, next) in next_reads.iter().enumerate() {
        if kept.remove(&now) {
            hits += usize::from(now >= trace.unmeasured);
        }
        if *next != NEVER {
            kept.insert(*next);
            if kept.len() > room {
                kept.pop_last();
            }
        }
    }
    share(hits, trace)
}
