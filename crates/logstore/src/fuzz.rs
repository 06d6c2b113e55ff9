//! Bodies for fuzzers: what must hold for any bytes. Checksums are made to fit, otherwise a fuzzer never gets behind them.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::env::{Env, OpenMode, SimHandles};

use crate::block::{self, PREFIX, Packer, Span};
use crate::cache::BlockCache;
use crate::codec::{Encoder, u32_at};
use crate::edit_codec;
use crate::failure::Failure;
use crate::file::{FileKind, Files, LogFile, NewFile, file_name};
use crate::filter;
use crate::identity::{FileId, ID_HEADER_BYTES};
use crate::manifest::{manifest_name, of_content};
use crate::meta::{CommitEdit, Edit, Extent, Kill, Point, RunMeta, SegmentMeta, ShardMeta};
use crate::run::{self, Entry, Merged, Run, RunWriter, Stored, run_key};
use crate::segment::{self, ExtentReader, Item, Segment, SegmentWriter};
use crate::{Config, LogStore, Trust, check};

const FOLDER: &str = "/fuzz";
const OWNER: u128 = 7;

fn world() -> (Env, Arc<Files>) {
    let env = SimHandles::new(1).env();
    env.disk.create_dir_all(FOLDER.as_ref()).expect("a folder");
    let files = Arc::new(Files::new(&env, FOLDER.as_ref(), OWNER, 4));
    (env, files)
}

/// A file with a block and an index, written as the store writes them.
fn file_of(files: &Arc<Files>, kind: FileKind, [content, index]: [&[u8]; 2]) -> Result<LogFile, Failure> {
    // Of the call before.
    let _ = files.disk.remove_file(&files.path(&file_name(0, kind, 1)));
    let magic = if kind == FileKind::Run { run::MAGIC } else { segment::MAGIC };
    let mut new = NewFile::create(files, (0, kind, 1))?;
    let header = new.id.header(&segment::header(magic, segment::VERSION));
    new.pending.extend_from_slice(&header);
    new.block(content)?;
    let index = new.block(index)?;
    let trailer = segment::trailer(new.id.seed(), index, magic);
    new.pending.extend_from_slice(&trailer);
    new.flush()?;
    new.sync()?;
    Ok(LogFile::new(files, (0, kind, 1), new.id.nonce, new.len()))
}

/// Where a block with this content is in a file that begins with it.
fn first_span(content: &[u8]) -> Span {
    block::append(&mut Packer::default(), &mut Vec::new(), ID_HEADER_BYTES as u64, 0, content)
}

/// Any bytes as the items of a block of a segment, and as its index.
///
/// # Panics
///
/// If a reader does, or if two readers find different items.
pub fn fuzz_segment(bytes: &[u8]) {
    let (env, files) = world();
    let sound = items();
    let index = |span: Span| {
        let mut index = Encoder::default();
        [1, 3, 1, 5, span.offset, u64::from(span.len)].into_iter().for_each(|n| index.number(n));
        index.0
    };
    for (block, index) in [(bytes, index(first_span(bytes))), (&sound[..], bytes.to_vec())] {
        let file = file_of(&files, FileKind::Segment, [block, &index]).expect("the disk works");
        let segment = Arc::new(Segment::new(file, env.heap.account().clone()));
        for (vb, ordinal) in [(3, 0), (3, 1), (0, 0)] {
            read_extent(&segment, vb, ordinal);
        }
    }
}

fn read_extent(segment: &Arc<Segment>, vb: u16, ordinal: u32) {
    let (mut read, mut salvaged, mut lost) = (Vec::new(), Vec::new(), 0);
    let end = ExtentReader::new(segment, vb, ordinal, 0).and_then(|mut reader| {
        while let Some(item) = reader.next()? {
            read.push((item.seqno, item.key.to_vec(), item.value.to_vec()));
        }
        Ok(())
    });
    let visited: Result<(), Failure> = segment.salvage(
        (vb, ordinal),
        &mut |item| {
            salvaged.push((item.seqno, item.key.to_vec(), item.value.to_vec()));
            Ok(())
        },
        &mut |_, _, _| lost += 1,
    );
    visited.expect("the disk works");
    match end {
        // An index whose seqnos are not in order may hide blocks from a reader.
        Ok(()) => assert!(lost > 0 || salvaged.ends_with(&read), "both read the same"),
        Err(failure) => assert!(failure.is_damage(), "{failure}"),
    }
    for (seqno, ..) in read.iter().take(4) {
        let _ = segment.get((vb, ordinal), *seqno, |item| item.bytes());
    }
}

fn items() -> Vec<u8> {
    let mut block = Vec::new();
    for seqno in [5, 6, 900] {
        let key = format!("key{seqno}");
        let value = [seqno as u8; 20];
        let item = Item { key: key.as_bytes(), seqno, flags: 1, time: 77, meta: b"meta", value: &value };
        item.put(&mut block);
    }
    block
}

/// Seeds of [`fuzz_segment`]: a block, and an index.
pub fn segment_seeds() -> Vec<Vec<u8>> {
    let (_, files) = world();
    let of = (0, FileKind::Segment, 2);
    let mut writer = SegmentWriter::new(NewFile::create(&files, of).expect("a file"));
    writer.begin(3);
    for seqno in 1..200 {
        let value = [seqno as u8; 60];
        let item = Item { key: b"k", seqno, flags: 0, time: 0, meta: b"", value: &value };
        writer.add(&item).expect("the disk works");
    }
    let ended = writer.end().expect("the disk works");
    assert!(ended.is_some(), "it has items");
    writer.finish().and_then(|()| writer.file.sync()).expect("the disk works");
    let file = LogFile::new(&files, of, writer.file.id.nonce, writer.file.len());
    vec![items(), segment::read_index(&file, segment::MAGIC).expect("it is sound")]
}

/// Any bytes as the entries of a block of a run, and as its index.
///
/// # Panics
///
/// If a reader does.
pub fn fuzz_run(bytes: &[u8]) {
    let (env, files) = world();
    let index = |span: Span| {
        let mut index = Encoder::default();
        index.number(1);
        index.bytes(b"\0\0");
        index.number(span.offset);
        index.number(u64::from(span.len));
        index.bytes(&[]);
        index.0
    };
    let [sound, _] = run_parts();
    for (block, index) in [(bytes, index(first_span(bytes))), (&sound[..], bytes.to_vec())] {
        let file = file_of(&files, FileKind::Run, [block, &index]).expect("the disk works");
        let run = Arc::new(Run::new(file, (1, 2), vec![3], env.heap.account().clone()));
        read_run(&env, &run);
    }
}

fn read_run(env: &Env, run: &Arc<Run>) {
    let cache = BlockCache::new(1 << 20, env.heap.account().clone());
    let mut keys = BTreeSet::new();
    let walked = Merged::new(std::iter::once(run), &[]).and_then(|mut merged| {
        while merged.current().is_some() {
            keys.extend(merged.current().map(|(key, _)| key.to_vec()));
            merged.advance()?;
        }
        Ok(())
    });
    match walked {
        Ok(()) => assert!(keys.iter().all(|key| key.len() >= 2), "each key has a vBucket"),
        Err(failure) => assert!(failure.is_damage(), "{failure}"),
    }
    for key in keys.iter().take(4) {
        // In a block that is not in order a key may be passed over.
        let _ = run.versions(&cache, key, filter::hash(key), &mut |_| true);
    }
}

/// A block of a run, and the index of a run with several.
fn run_parts() -> [Vec<u8>; 2] {
    let (_, files) = world();
    let of = (0, FileKind::Run, 2);
    let mut writer = RunWriter::new(NewFile::create(&files, of).expect("a file"));
    for n in 0..400_u64 {
        let key = run_key(3, format!("key{n:04}").as_bytes());
        let entry = Entry { seqno: n, flags: 2, time: 9, bytes: 30 };
        writer.add(&key, &Stored { epoch: 1, entry, is_erased: n == 3 }).expect("the disk works");
    }
    writer.finish().and_then(|()| writer.file.sync()).expect("the disk works");
    let file = LogFile::new(&files, of, writer.file.id.nonce, writer.file.len());
    let index = segment::read_index(&file, run::MAGIC).expect("it is sound");
    let first = ID_HEADER_BYTES as u64;
    let head = file.read_exact(first, PREFIX).expect("it is there");
    let span = Span { offset: first, len: u32_at(&head, 4) + PREFIX as u32 };
    [block::read(&file, span).expect("it is sound"), index]
}

/// Seeds of [`fuzz_run`]: a block, and an index.
pub fn run_seeds() -> Vec<Vec<u8>> {
    run_parts().into()
}

/// Any bytes as the edits of a manifest: what they come to, written as edits, comes to the same; and a folder with such a
/// manifest opens, or says why not.
///
/// # Panics
///
/// If it is another, or a reader panics.
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Some(edits) = edit_codec::decode(bytes) {
        let again = edit_codec::decode(&edit_codec::encode(&edits)).expect("what was written");
        assert_eq!(again.len(), edits.len());
    }
    let (env, files) = world();
    let id = FileId { owner: OWNER, shard: 0, number: 1, nonce: 11 };
    let path = files.path(&manifest_name(0));
    let file = files.disk.open(&path, OpenMode::Create).expect("a file");
    file.write_at(&of_content(&id, bytes), 0).and_then(|()| file.sync_data()).expect("the disk works");
    let _ = check(&env, FOLDER.as_ref(), OWNER, &mut |_| (), &mut |_| ());
    let config = Config { shards: 1, owner: OWNER, ..Config::default() };
    let Ok(store) = LogStore::open(&env, FOLDER.as_ref(), config, &Trust::Last) else { return };
    for vb in store.known().into_iter().take(4) {
        let _ = store.stored(vb).map(|stored| stored.map(|stored| stored.usage));
        let Ok(Some(view)) = store.view(vb) else { continue };
        let _ = view.scan::<Failure>(0, |_| Ok(std::ops::ControlFlow::Continue(())));
    }
    let _ = store.stats();
}

/// Seeds of [`fuzz_manifest`].
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let commit = |vb: u16, number: u64, begins: bool| {
        let first = number * 10;
        let point =
            Point { commit: number, epoch: 1, high: first + 1, purge: 0, state: Arc::from(&b"{}"[..]) };
        let (ordinal, last, items, bytes) = (number as u32, first + 1, 2, 60);
        let extent = Extent { segment: 1, ordinal, first, last, items, bytes, dead_bytes: 0 };
        let kills = if begins { Vec::new() } else { vec![Kill { seqno: first - 10, bytes: 30 }] };
        let (forgets, extent) = (Vec::new(), Some(extent));
        Edit::Commit(CommitEdit { vb, begins, point, extent, kills, forgets, is_purge: false, history: None })
    };
    let vbs = vec![0, 3];
    let run = RunMeta { number: 2, nonce: 6, bytes: 300, low: 1, high: 2, entries: 4, vbs };
    let edits = vec![
        Edit::Counters { file: 3, epoch: 2, commit: 4 },
        Edit::AddSegment { number: 1, segment: SegmentMeta { len: 400, bytes: 240, nonce: 5 } },
        Edit::AddRun(run),
        commit(0, 1, true),
        commit(3, 2, true),
        commit(0, 3, false),
        Edit::Damage { vb: 9, what: "lost".into() },
        Edit::Beside { number: 4 },
    ];
    let mut meta = ShardMeta::new();
    edits.iter().for_each(|edit| meta.apply(edit));
    vec![edit_codec::encode(&edits), edit_codec::encode(&meta.as_edits())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_segments_never_panic() {
        base::fuzz::replay(1, 2_000, &segment_seeds(), fuzz_segment);
    }

    #[test]
    fn damaged_runs_never_panic() {
        base::fuzz::replay(2, 1_000, &run_seeds(), fuzz_run);
    }

    #[test]
    fn damaged_manifests_never_panic() {
        base::fuzz::replay(3, 2_000, &manifest_seeds(), fuzz_manifest);
    }
}
