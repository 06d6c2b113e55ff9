//! Batches of random keys: one file that grows large, and many small files.

use std::collections::BTreeSet;
use std::path::Path;

use base::{VbId, Version};
use kvstore::{Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};

use crate::shape::{Queue, flush, open};
use crate::{Clocks, process_cpu};

/// A key that says nothing of its number's order.
fn scattered(i: usize) -> String {
    format!("{:020}", (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn batches(store: &Couch, queue: &mut Queue, name: &str, order: &[usize], batch: usize) {
    let vb = VbId(0);
    let (mut wall, mut cpu) = (0.0, 0.0);
    let before = store.counts(vb).expect("counts").file_bytes;
    for keys in order.chunks(batch) {
        let items: Vec<Version> = keys.iter().map(|&i| queue.version(&scattered(i))).collect();
        let clocks = Clocks::start();
        flush(store, vb, &items);
        let (more_wall, more_cpu) = clocks.stop();
        wall += more_wall;
        cpu += more_cpu;
    }
    let n = order.len() as f64;
    let written = (store.counts(vb).expect("counts").file_bytes - before) as f64;
    println!(
        "{name}: {:>8.0} items/s {:>8.0} items/CPU s {:>6.0} B written/item",
        n / wall,
        n / cpu,
        written / n
    );
}

/// Inserts `documents` documents in batches, keys of 20 random digits and values of 512 bytes, then replaces each in another order.
pub fn run(dir: &Path, config: CouchConfig, documents: usize, batch: usize) {
    let store = open(&dir.join("bucket"), config);
    store.save_state(VbId(0), &VbStateDoc::default()).expect("a vBucket");
    let mut queue = Queue::new(512);
    let mut order: Vec<usize> = (0..documents).collect();
    println!("{config:?}");
    batches(&store, &mut queue, "insert ", &order, batch);
    for i in (1..order.len()).rev() {
        order.swap(i, (queue.numbers.next() % (i as u64 + 1)) as usize);
    }
    batches(&store, &mut queue, "replace", &order, batch);
}

/// Random batches in 64 files at a time, committed as a group.
pub fn small(dir: &Path, config: CouchConfig) {
    println!("{config:?}");
    for (documents, batch) in
        [(1_000, 30), (1_000, 100), (1_000, 300), (10_000, 30), (10_000, 100), (10_000, 300), (10_000, 1_000)]
    {
        let store = open(&dir.join(format!("{documents}-{batch}")), config);
        let mut queue = Queue::new(256);
        let vbs: Vec<VbId> = (0..64).map(VbId).collect();
        for &vb in &vbs {
            let items: Vec<_> = (0..documents).map(|i| queue.version(&scattered(i))).collect();
            flush(&store, vb, &items);
        }
        measure_small(&store, &mut queue, &vbs, documents, batch);
    }
}

fn measure_small(store: &Couch, queue: &mut Queue, vbs: &[VbId], documents: usize, batch: usize) {
    let file_bytes = || vbs.iter().map(|vb| store.counts(*vb).expect("counts").file_bytes).sum::<u64>();
    let state = VbStateDoc::default();
    let before = file_bytes();
    let (mut cpu, mut items) = (0.0, 0);
    for _ in 0..(40_000 / (batch * vbs.len())).max(4) {
        let batches: Vec<Vec<Version>> = vbs
            .iter()
            .map(|_| {
                let mut keys = BTreeSet::new();
                while keys.len() < batch {
                    keys.insert(scattered(queue.numbers.next() as usize % documents));
                }
                keys.iter().map(|key| queue.version(key)).collect()
            })
            .collect();
        let group: Vec<_> =
            vbs.iter().zip(&batches).map(|(vb, items)| (*vb, SaveBatch { items, state: &state })).collect();
        items += batch * vbs.len();
        let start = process_cpu();
        store.save_group(&group).into_iter().for_each(|saved| {
            saved.expect("a save");
        });
        cpu += process_cpu() - start;
    }
    println!(
        "{batch:>5} of {documents:>6} in each of {} files: {:>6.2} us CPU/item {:>6} B written/item",
        vbs.len(),
        cpu * 1e6 / items as f64,
        (file_bytes() - before) / items as u64,
    );
}
