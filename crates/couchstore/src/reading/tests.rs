//! What is read in large pieces is what is read one by one, in few reads, in whatever order bodies lie in the file.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::File;
use base::env::sim::SimDisk;
use proptest::prelude::*;

use super::*;
use crate::chunk::Source;
use crate::fuzz::read_in_large_pieces;
use crate::{Batch, Body, CONTENT_OPAQUE, CouchFile, DocUpdate, RecordSummary, RevMeta};

/// Puts numbers in another order when they are multiplied by it.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Documents in order of id.
struct Docs(Vec<(Vec<u8>, u64, Vec<u8>)>);

impl Docs {
    /// Documents with seqnos from `first` on and bodies of these lengths, whose ids are in the order of `seed`: 0 is that
    /// of seqnos.
    fn new(first: u64, seed: u64, lengths: &[usize]) -> Docs {
        let doc = |(at, len): (usize, &usize)| {
            let seqno = first + at as u64;
            let order = if seed == 0 { seqno } else { seqno.wrapping_mul(SCATTER << (seed * 2) | 1) };
            (format!("{order:020}").into_bytes(), seqno, vec![at as u8; *len])
        };
        let mut docs: Vec<_> = lengths.iter().enumerate().map(doc).collect();
        docs.sort();
        Docs(docs)
    }
}

impl Batch for Docs {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let (id, seqno, body) = &self.0[i];
        let deleted = body.is_empty();
        let body = if deleted { Body::None } else { Body::Plain(body) };
        DocUpdate { id, seqno: *seqno, rev_seqno: 1, deleted, content_meta: CONTENT_OPAQUE, body }
    }

    fn rev_meta(&self, _: usize, out: &mut Vec<u8>) {
        let (bytes, len) = RevMeta { datatype: Some(0), ..RevMeta::default() }.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, _: usize, _: RecordSummary, _: Option<RecordSummary>) {}
}

fn file_of(batches: Vec<Docs>) -> Snapshot {
    let (disk, path) = (SimDisk::new(), Path::new("/0.couch.1"));
    let mut file = CouchFile::create(&disk, path).expect("an empty disk takes a file");
    for mut batch in batches {
        file.save(&mut batch).expect("a disk that works");
        file.commit(1).expect("a disk that works");
    }
    file.snapshot()
}

/// A file of which blocks that are not wanted come damaged.
struct Spoilt(Arc<dyn File>);

impl File for Spoilt {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn read_parts_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_wanted: &dyn Fn(Range<u64>) -> bool,
    ) -> io::Result<usize> {
        let read = self.0.read_at(buf, offset)?;
        let mut at = 0;
        while at < read {
            let within = (offset + at as u64) % BLOCK;
            let end = (at + (BLOCK - within) as usize).min(read);
            let block = offset + at as u64 - within;
            if !is_wanted(block..block + BLOCK) {
                buf[at..end].fill(0xa5);
            }
            at = end;
        }
        Ok(read)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }

    fn sync_data(&self) -> io::Result<()> {
        unreachable!("nothing is written")
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }
}

fn spoilt(snapshot: &Snapshot) -> Snapshot {
    let file = Arc::new(Spoilt(snapshot.source.file.clone()));
    Snapshot { source: Source { file, ..snapshot.source.clone() }, ..snapshot.clone() }
}

/// A file whose reads are counted.
struct Counted(Arc<dyn File>, Arc<AtomicU64>);

impl File for Counted {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }

    fn sync_data(&self) -> io::Result<()> {
        unreachable!("nothing is written")
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }
}

/// How many reads it takes to read all documents with their bodies.
fn reads_of(snapshot: &Snapshot) -> u64 {
    let reads = Arc::new(AtomicU64::new(0));
    let file = Arc::new(Counted(snapshot.source.file.clone(), reads.clone()));
    let counted = Snapshot { source: Source { file, ..snapshot.source.clone() }, ..snapshot.clone() };
    let (mut reading, mut bodies) = (Reading::default(), 0);
    let mut next = Some(0);
    while let Some(from) = next {
        let read = counted.read_since(
            from,
            usize::MAX,
            &mut reading,
            |_| Want::Body,
            |_, body| {
                bodies += usize::from(!body.is_empty());
                Ok::<_, Failure>(ControlFlow::Continue(()))
            },
        );
        next = read.expect("a sound file");
    }
    assert!(bodies > 0);
    reads.load(Ordering::Relaxed)
}

#[test]
fn bodies_in_any_order_are_read_in_few_pieces() {
    let lengths = vec![500; 1_000];
    for seed in [0, 3] {
        let snapshot = file_of(vec![Docs::new(1, seed, &lengths)]);
        read_in_large_pieces(&snapshot);
        let reads = reads_of(&snapshot);
        assert!(reads < 40, "{reads} reads of 1,000 bodies in order {seed}");
    }
}

#[test]
fn bodies_far_apart_are_read_one_by_one() {
    // A document of each batch stays, the others are replaced by the last one.
    let batches = (0..20).map(|at| Docs::new(1 + at * 10_000, 0, &vec![1_000; 200])).collect();
    let snapshot = file_of(batches);
    let mut reading = Reading::default();
    let mut visited = 0;
    let wanted = |info: &DocInfo<'_>| if info.seqno % 200 == 7 { Want::Body } else { Want::Nothing };
    let read = snapshot.read_since(0, usize::MAX, &mut reading, wanted, |info, body| {
        visited += 1;
        assert_eq!((info.seqno % 200, body.len()), (7, 1_000));
        Ok::<_, Failure>(ControlFlow::Continue(()))
    });
    assert_eq!((read.expect("a sound file"), visited), (None, 20));
    assert!(reading.bodies.piece.capacity() < 64 << 10, "nothing is read that is not wanted");
}

#[test]
fn records_come_without_bodies_and_a_visitor_may_break_off() {
    let snapshot = file_of(vec![Docs::new(1, 3, &[10, 5_000, 0, 20])]);
    let mut reading = Reading::default();
    let mut seen = Vec::new();
    let wanted = |info: &DocInfo<'_>| if info.seqno == 2 { Want::Record } else { Want::Body };
    let mut read = |most: usize, from, max_bytes| {
        seen.clear();
        let next = snapshot.read_since(from, max_bytes, &mut reading, wanted, |info, body| {
            seen.push((info.seqno, body.len()));
            let is_enough = seen.len() >= most;
            Ok::<_, Failure>(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        (next.expect("a sound file"), seen.clone())
    };
    assert_eq!(read(9, 0, usize::MAX), (None, vec![(1, 10), (2, 0), (3, 0), (4, 20)]));
    assert_eq!(read(2, 0, usize::MAX), (None, vec![(1, 10), (2, 0)]));
    assert_eq!(read(9, 2, 1), (Some(3), vec![(2, 0)]));
    assert_eq!(read(9, 5, usize::MAX), (None, vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_is_what_is_read_one_by_one(
        batches in proptest::collection::vec(
            (0u64..4, 1usize..80, prop_oneof![Just(300usize), Just(4_088), 0usize..9_000]), 1..6,
        ),
        large in prop_oneof![Just(0usize), Just(300_000), Just(3 << 20)],
    ) {
        let mut first = 1;
        let batches = batches.into_iter().map(|(seed, n, bytes)| {
            let mut lengths: Vec<usize> = (0..n).map(|at| bytes.saturating_sub(at % 7)).collect();
            lengths.push(large);
            let docs = Docs::new(first, seed, &lengths);
            first += lengths.len() as u64;
            docs
        });
        let snapshot = file_of(batches.collect());
        read_in_large_pieces(&snapshot);
        read_in_large_pieces(&spoilt(&snapshot));
    }
}
