//! The format on a simulated disk: crashes, damage, chains.

use std::path::Path;

use base::encryption::{Sealer, WrappingKeys};
use base::env::sim::{SimDisk, SimHandles};
use base::env::{Env, OpenMode};
use base::{Datatype, DocKey, VbId};

use super::block::{BlockBuilder, BlockPlace, OpenBlock, Version};
use super::bucket_state::BucketState;
use super::lines::{LineSeal, line_of, lines_in};
use super::manifest::{BackupHead, VbucketLine};
use super::repository::Repository;
use super::writer::BackupWriter;
use super::{Backup, BackupError, ChainReader};
use crate::with_meta::Record;

const DIR: &str = "/backups";
const BUCKET: &str = "travel";

fn head(id: &str, number: u64, base: Option<&str>) -> BackupHead {
    BackupHead {
        id: id.to_owned(),
        number,
        base: base.map(str::to_owned),
        begun_s: 7,
        vbuckets: 2,
        snapshot: None,
        is_given: false,
    }
}

fn begin<'e>(env: &'e Env, head: BackupHead) -> BackupWriter<'e> {
    begin_with(env, head, None)
}

fn begin_with<'e>(env: &'e Env, head: BackupHead, sealer: Option<Sealer>) -> BackupWriter<'e> {
    let folder = Path::new(DIR).join(BUCKET).join(&head.id);
    BackupWriter::begin(&*env.disk, &folder, head, sealer).expect("begun")
}

/// A version of `key`; an empty value is a tombstone.
fn push(block: &mut BlockBuilder, seqno: u64, key: &str, value: &str) {
    let record = Record {
        key: DocKey::new(key.as_bytes()),
        deleted: value.is_empty(),
        expired: false,
        cas: seqno * 10,
        rev_seqno: seqno,
        expiry: 0,
        flags: 3,
        datatype: Datatype::RAW,
        value: value.as_bytes(),
    };
    block.push(&Version { seqno, record });
}

/// Writes blocks of a vBucket, each with its versions; its line.
fn vbucket(
    writer: &mut BackupWriter<'_>,
    vb: u16,
    from: u64,
    blocks: &[&[(u64, &str, &str)]],
) -> VbucketLine {
    let mut line =
        VbucketLine { vb, uuid: 1, from, to: from, blocks: Vec::new(), counts: Default::default() };
    for versions in blocks {
        let mut block = BlockBuilder::default();
        for (seqno, key, value) in *versions {
            push(&mut block, *seqno, key, value);
            let counts = line.counts.entry(0).or_default();
            *(if value.is_empty() { &mut counts.tombstones } else { &mut counts.documents }) += 1;
            line.to = *seqno;
        }
        line.blocks.push(writer.block(VbId(vb), &mut block).expect("written"));
    }
    line
}

fn finish(writer: BackupWriter<'_>) {
    writer.finish(BUCKET, 9, None, BucketState::default()).expect("complete");
}

/// A full backup and one that goes on from it, in which vBucket 1 begins from its start.
fn two_backups(env: &Env) {
    two_backups_with(env, None);
}

fn two_backups_with(env: &Env, sealer: Option<Sealer>) {
    two_backups_of(env, sealer.clone(), sealer);
}

fn two_backups_of(env: &Env, of_first: Option<Sealer>, of_second: Option<Sealer>) {
    let mut full = begin_with(env, head("20261127T000000Z", 11, None), of_first);
    let big = "v".repeat(5000);
    let first =
        vbucket(&mut full, 0, 0, &[&[(1, "a", "one"), (2, "b", &big)], &[(5, "a", "two"), (6, "c", "x")]]);
    let second = vbucket(&mut full, 1, 0, &[&[(3, "d", "old")]]);
    full.complete(&[first, second]).expect("written");
    finish(full);
    let mut later = begin_with(env, head("20261127T000001Z", 12, Some("20261127T000000Z")), of_second);
    let first = vbucket(&mut later, 0, 6, &[&[(7, "b", ""), (9, "e", "new")]]);
    let second = vbucket(&mut later, 1, 0, &[&[(2, "f", "other")]]);
    later.complete(&[first, second]).expect("written");
    finish(later);
}

/// The newest versions of all vBuckets, as the chain of the newest backup has them.
fn read(env: &Env) -> Result<Vec<(u16, u64, String, String)>, BackupError> {
    read_with(env, None)
}

fn read_with(env: &Env, key: Option<WrappingKeys>) -> Result<Vec<(u16, u64, String, String)>, BackupError> {
    let repository = Repository::new(env, Path::new(DIR)).with_keys(key);
    let chain = repository.chain(BUCKET, None)?;
    let mut reader = ChainReader::open(&repository, &chain)?;
    let mut all = Vec::new();
    for vb in 0..2 {
        reader.newest::<BackupError>(VbId(vb), &mut |version| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
            let Record { key, value, deleted, cas, flags, .. } = version.record;
            assert_eq!((cas, flags), (version.seqno * 10, 3));
            let value = if deleted { "(deleted)".to_owned() } else { text(value) };
            all.push((vb, version.seqno, text(key.key), value.chars().take(5).collect()));
            Ok(())
        })?;
    }
    Ok(all)
}

/// Reads all of the chain.
fn verify(env: &Env) -> Result<u64, BackupError> {
    verify_with(env, None)
}

fn verify_with(env: &Env, key: Option<WrappingKeys>) -> Result<u64, BackupError> {
    let repository = Repository::new(env, Path::new(DIR)).with_keys(key);
    let chain = repository.chain(BUCKET, None)?;
    Ok(ChainReader::open(&repository, &chain)?.verify(&mut |_| {})?.versions)
}

fn expected() -> Vec<(u16, u64, String, String)> {
    [(0, 9, "e", "new"), (0, 7, "b", "(dele"), (0, 6, "c", "x"), (0, 5, "a", "two"), (1, 2, "f", "other")]
        .map(|(vb, seqno, key, value)| (vb, seqno, key.to_owned(), value.to_owned()))
        .to_vec()
}

#[test]
fn a_chain_gives_the_newest_version_of_each_document() {
    let (env, _) = Env::sim(1);
    two_backups(&env);
    assert_eq!(read(&env).expect("sound"), expected());
    assert_eq!(verify(&env).expect("sound"), 8);
    let buckets = |folder: &str| Repository::new(&env, Path::new(folder)).buckets();
    assert_eq!(buckets(DIR).expect("read"), [BUCKET]);
    let said = buckets("/").expect_err("folders without backups").to_string();
    assert!(said.starts_with("/ holds no backups"), "{said}");
    let newest = |folder: &str| Repository::new(&env, Path::new(folder)).chain(BUCKET, None).map(drop);
    let said = newest("/nosuch").expect_err("no folder").to_string();
    assert!(said.starts_with("/nosuch holds no backups"), "{said}");
}

#[test]
fn every_flipped_bit_and_missing_byte_is_noticed() {
    let (env, handles) = Env::sim(1);
    two_backups(&env);
    let files = handles.disk.contents();
    let mut noticed = 0;
    for (path, bytes) in &files {
        let is_manifest = path.to_string_lossy().contains("manifest");
        for offset in 0..bytes.len() {
            let mask = 1 << (offset % 8);
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
            // Some blocks are not needed for the newest state; a restore may pass over those, and is right then.
            match read(&env) {
                Ok(all) => assert!(all == expected(), "{path:?} at {offset}: {all:?}"),
                Err(error) => assert!(!is_manifest && error.is_damage(), "{path:?} at {offset}: {error}"),
            }
            // Of a manifest there is a copy.
            if let Err(error) = verify(&env) {
                let (said, name) = (error.to_string(), path.file_name().expect("a name").to_string_lossy());
                assert!(error.is_damage() && said.contains(&*name), "{path:?}: {said}");
                noticed += 1;
            } else {
                assert!(is_manifest, "{path:?} at {offset}");
            }
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
        }
        if !is_manifest {
            let file = env.disk.open(path, OpenMode::ReadWrite).expect("it is there");
            file.set_len(bytes.len() as u64 - 1).expect("cut");
            assert!(verify(&env).expect_err("a missing byte").is_damage());
            file.write_at(bytes, 0).expect("mended");
        }
    }
    assert!(noticed > 500, "{noticed}");
    assert_eq!(read(&env).expect("all is mended"), expected());
}

fn key(digit: &str) -> Option<WrappingKeys> {
    Some(WrappingKeys::parse(&digit.repeat(64), "the test").expect("a key"))
}

/// Two backups, encrypted with the key of fives.
fn two_encrypted_backups(env: &Env) {
    two_backups_with(env, Some(sealer(env)));
}

#[test]
fn encrypted_backups_are_read_with_their_key_alone() {
    let (env, handles) = Env::sim(1);
    two_encrypted_backups(&env);
    assert_eq!(read_with(&env, key("5")).expect("sound"), expected());
    assert_eq!(verify_with(&env, key("5")).expect("sound"), 8);
    let missing = read_with(&env, None).expect_err("no key");
    assert!(
        matches!(missing, BackupError::Key(_)) && missing.to_string().contains("--key-file"),
        "{missing}"
    );
    let other = read_with(&env, key("6")).expect_err("another key").to_string();
    assert!(other.contains("encrypted under the key") && other.contains("/backups/travel"), "{other}");
    let repository = Repository::new(&env, Path::new(DIR)).with_keys(key("6"));
    assert!(matches!(repository.sealer_to_write(BUCKET), Err(BackupError::Key(_))));
    // The first key of two wraps, the second one still unwraps.
    let both = WrappingKeys::parse(&format!("{}\n{}", "6".repeat(64), "5".repeat(64)), "the test").ok();
    let repository = Repository::new(&env, Path::new(DIR)).with_keys(both);
    repository.sealer_to_write(BUCKET).expect("wrapped again");
    assert_eq!(read_with(&env, key("6")).expect("the new key"), expected());
    let lost = read_with(&env, key("5")).expect_err("the earlier key").to_string();
    assert!(lost.contains("encrypted under the key"), "{lost}");
    // Without the file of keys nothing is read, and nothing is taken for damage or for an older format.
    for name in ["encryption-keys", "encryption-keys.copy"] {
        env.disk.remove_file(&Path::new(DIR).join(BUCKET).join(name)).expect("removed");
    }
    let gone = read_with(&env, key("6")).expect_err("no keys");
    assert!(matches!(gone, BackupError::Key(_)) && gone.to_string().contains("encryption-keys"), "{gone}");
    // New keys in their place would keep old and new backups from being read together.
    let refused = Repository::new(&env, Path::new(DIR))
        .with_keys(key("6"))
        .sealer_to_write(BUCKET)
        .map(drop)
        .expect_err("refused");
    assert!(refused.to_string().contains("put that file back"), "{refused}");
    drop(handles);
}

#[test]
fn every_flipped_bit_of_an_encrypted_backup_is_noticed_and_nothing_is_in_clear() {
    let (env, handles) = Env::sim(1);
    two_encrypted_backups(&env);
    let (mut noticed, files) = (0, handles.disk.contents());
    for (path, bytes) in &files {
        for known in [&b"vvvv"[..], b"old", b"other", b"\"documents\"", BUCKET.as_bytes()] {
            let in_clear = bytes.windows(known.len()).any(|part| part == known);
            assert!(!in_clear, "{path:?} has {}", known.escape_ascii());
        }
        // Of small files there is a copy.
        let is_small =
            ["manifest", "encryption-keys"].iter().any(|name| path.to_string_lossy().contains(name));
        for offset in 0..bytes.len() {
            let mask = 1 << (offset % 8);
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
            match verify_with(&env, key("5")) {
                Ok(_) => assert!(is_small, "{path:?} at {offset}"),
                Err(error) => {
                    let (said, name) =
                        (error.to_string(), path.file_name().expect("a name").to_string_lossy());
                    assert!(!is_small && error.is_damage() && said.contains(&*name), "{path:?}: {said}");
                    noticed += 1;
                }
            }
            handles.disk.rot(path, offset as u64, mask).expect("it is there");
        }
    }
    assert!(noticed > 500, "{noticed}");
    assert_eq!(read_with(&env, key("5")).expect("all is mended"), expected());
}

#[test]
fn an_encrypted_block_with_the_right_checksum_is_not_one_that_was_changed() {
    let (env, _) = Env::sim(1);
    two_encrypted_backups(&env);
    let path = Path::new(DIR).join(BUCKET).join("20261127T000001Z").join("changes-00001");
    let file = env.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
    let mut block = vec![0; file.len().expect("a length") as usize];
    file.read_at(&mut block, 0).expect("read");
    let stored = u32::from_be_bytes(block[40..44].try_into().expect("four bytes")) as usize;
    // What is claimed to be the length of the inflated body, and one byte of the stored one.
    for at in [39, 48 + stored - 20] {
        let mut forged = block[..48 + stored].to_vec();
        forged[at] ^= 1;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&forged[..44]), &forged[48..]);
        forged[44..48].copy_from_slice(&checksum.to_be_bytes());
        file.write_at(&forged, 0).expect("written");
        let error = read_with(&env, key("5")).expect_err("forged");
        assert!(error.is_damage() && error.to_string().contains("changes-00001"), "{error}");
    }
    file.write_at(&block, 0).expect("mended");
    assert_eq!(read_with(&env, key("5")).expect("all is back"), expected());
}

/// Keys in the folder of the bucket; what encrypts with them.
fn sealer(env: &Env) -> Sealer {
    env.disk.create_dir_all_synced(&Path::new(DIR).join(BUCKET)).expect("made");
    let repository = Repository::new(env, Path::new(DIR)).with_keys(key("5"));
    repository.sealer_to_write(BUCKET).expect("keys are made").expect("a key was given")
}

#[test]
fn keys_for_the_log_are_made_under_the_lock_on_the_backups() {
    let (env, dir) = (Env::real(), tempfile::tempdir().expect("a folder"));
    let repository = || Repository::new(&env, dir.path()).with_keys(key("5"));
    let (of_backup, of_log) = (repository(), repository());
    // Another command makes a backup, and has made no keys yet.
    let lock = of_backup.lock(BUCKET).expect("free");
    let said = of_log.sealer_to_log(BUCKET).map(drop).expect_err("held").to_string();
    assert!(said.contains("another process works on the backups"), "{said}");
    let made = of_backup.sealer_to_write(BUCKET).expect("made").expect("a key was given");
    // With keys the lock is not needed, and they are the same ones.
    let found = repository().sealer_to_log(BUCKET).expect("read").expect("they are there");
    let mut piece = Vec::new();
    found.seal(b"here", b"content", &mut piece);
    assert_eq!(made.open(b"here", &piece).as_deref(), Ok(&b"content"[..]));
    drop(lock);
    of_log.sealer_to_log(BUCKET).expect("read").expect("they are there");
    // Without a key nothing is made, and no lock is taken.
    let lock = of_backup.lock("other").expect("free");
    let plain = Repository::new(&env, dir.path());
    assert!(plain.sealer_to_log("other").expect("plain").is_none());
    drop(lock);
}

#[test]
fn a_plain_piece_of_an_encrypted_backup_is_refused() {
    let (env, _) = Env::sim(1);
    let sealer = sealer(&env);
    let mut encoder = snap::raw::Encoder::new();
    for (form, is_taken) in [(None, false), (Some(&sealer), true)] {
        let (mut builder, mut block) = (BlockBuilder::default(), Vec::new());
        push(&mut builder, 1, "a", "one");
        builder.seal(11, VbId(0), form, &mut encoder, &mut block);
        let place = BlockPlace(1, 0, block.len() as u32, 1, 1, 1);
        let opened = OpenBlock::default().open(&block, 11, VbId(0), &place, Some(&sealer));
        assert_eq!(opened.is_ok(), is_taken, "{opened:?}");
        if let Err(what) = opened {
            assert!(what.contains("of an encrypted backup is not encrypted"), "{what}");
        }
        let id = "20261127T000000Z";
        let line = line_of(&head(id, 11, None), LineSeal { sealer: form, id });
        let read = |sealer| lines_in::<BackupHead>(line.as_bytes(), LineSeal { sealer, id }).0.len();
        assert_eq!(read(Some(&sealer)), usize::from(is_taken));
        assert_eq!(read(None), usize::from(!is_taken));
    }
}

#[test]
fn a_chain_is_encrypted_as_a_whole_or_not_at_all() {
    for (first, second) in [(false, true), (true, false)] {
        let (env, _) = Env::sim(1);
        let sealer = sealer(&env);
        let of = |is: bool| is.then(|| sealer.clone());
        two_backups_of(&env, of(first), of(second));
        let error = read_with(&env, key("5")).expect_err("half of it is in clear");
        let said = error.to_string();
        assert!(error.is_damage() && said.contains("unlike backup 20261127T000001Z"), "{said}");
    }
}

#[test]
fn a_plain_backup_is_told_of_if_a_key_was_given() {
    let (env, _) = Env::sim(1);
    two_backups(&env);
    let told = |key| {
        let repository = Repository::new(&env, Path::new(DIR)).with_keys(key);
        let chain = repository.chain(BUCKET, None).expect("sound");
        repository.clear_warning(Some(&chain), 2)
    };
    let said = told(key("5")).expect("it is in clear");
    assert!(said.contains("backup 20261127T000001Z and 2 segments of the log"), "{said}");
    assert_eq!(told(None), None);
    let (env, _) = Env::sim(1);
    two_encrypted_backups(&env);
    let repository = Repository::new(&env, Path::new(DIR)).with_keys(key("5"));
    assert_eq!(repository.clear_warning(Some(&repository.chain(BUCKET, None).expect("sound")), 0), None);
}

#[test]
fn files_of_another_backup_are_noticed() {
    let (env, _) = Env::sim(1);
    two_backups(&env);
    let folder = |id: &str| Path::new(DIR).join(BUCKET).join(id);
    let (first, second) = (folder("20261127T000000Z"), folder("20261127T000001Z"));
    for name in ["changes-00001", "vbuckets"] {
        let read_all = |path: &Path| {
            let file = env.disk.open(path, OpenMode::Read).expect("it is there");
            let mut bytes = vec![0; file.len().expect("a length") as usize];
            file.read_at(&mut bytes, 0).expect("read");
            bytes
        };
        let write_all = |path: &Path, bytes: &[u8]| {
            let file = env.disk.open(path, OpenMode::ReadWrite).expect("it is there");
            file.set_len(0).and_then(|()| file.write_at(bytes, 0)).expect("written");
        };
        let (one, other) = (first.join(name), second.join(name));
        let (bytes, others) = (read_all(&one), read_all(&other));
        write_all(&one, &others);
        assert!(read(&env).expect_err("another file").is_damage(), "{name}");
        write_all(&one, &bytes);
    }
    assert_eq!(read(&env).expect("all is back"), expected());
}

/// A full backup that is broken off behind vBucket 0, and then gone on with.
fn begin_and_break_off(env: &Env) {
    let mut writer = begin(env, head("20261127T000000Z", 11, None));
    let first = vbucket(&mut writer, 0, 0, &[&[(1, "a", "one")], &[(2, "b", "two")]]);
    writer.complete(&[first]).expect("written");
    vbucket(&mut writer, 1, 0, &[&[(1, "c", "lost")]]);
}

#[test]
fn a_backup_that_was_broken_off_goes_on() {
    for seed in 0..200 {
        let (env, handles) = Env::sim(seed);
        begin_and_break_off(&env);
        let crashed = handles.with_disk(handles.disk.crash(seed));
        let env = crashed.env();
        let repository = Repository::new(&env, Path::new(DIR));
        assert!(repository.chain(BUCKET, None).is_err(), "it is not complete");
        let unfinished = repository.unfinished(BUCKET).expect("read").expect("it was begun");
        let done: Vec<u16> = unfinished.done.iter().map(|line| line.vb).collect();
        assert_eq!(done, [0], "what was durable is kept, and no more, with seed {seed}");
        let mut writer = BackupWriter::go_on(&*env.disk, &unfinished, None).expect("it goes on");
        let second = vbucket(&mut writer, 1, 0, &[&[(4, "c", "three")]]);
        writer.complete(&[second]).expect("written");
        finish(writer);
        let keys: Vec<_> =
            read(&env).expect("sound").into_iter().map(|(_, seqno, key, _)| (seqno, key)).collect();
        assert_eq!(keys, [(2, "b".to_owned()), (1, "a".to_owned()), (4, "c".to_owned())], "seed {seed}");
    }
}

#[test]
fn a_crash_at_any_change_leaves_a_whole_backup_or_none() {
    let run = |env: &Env| -> Result<(), BackupError> {
        let folder = Path::new(DIR).join(BUCKET).join("20261127T000000Z");
        let mut writer = BackupWriter::begin(&*env.disk, &folder, head("20261127T000000Z", 11, None), None)?;
        for vb in 0..2 {
            let mut block = BlockBuilder::default();
            push(&mut block, 1, "a", "one");
            let counts = [(0, super::manifest::VersionCounts { documents: 1, ..Default::default() })].into();
            let blocks = vec![writer.block(VbId(vb), &mut block)?];
            writer.complete(&[VbucketLine { vb, uuid: 1, from: 0, to: 1, blocks, counts }])?;
        }
        writer.finish(BUCKET, 9, None, BucketState::default()).map(drop)
    };
    let (env, handles) = Env::sim(1);
    run(&env).expect("no fault");
    let changes = handles.disk.changes();
    let (mut whole, mut none) = (0, 0);
    for nth in 0..=changes {
        for seed in 0..8 {
            let disk = SimDisk::new();
            disk.plan(base::env::sim::Fault::power_off_at(nth));
            let _ = run(&handles_with(&handles, &disk));
            let after = disk.crash(seed);
            let env = handles_with(&handles, &after);
            let repository = Repository::new(&env, Path::new(DIR));
            match repository.chain(BUCKET, None) {
                Ok(chain) => {
                    let mut reader = ChainReader::open(&repository, &chain).expect("a whole list");
                    let verified = reader.verify(&mut |_| {}).expect("sound");
                    assert_eq!(verified.versions, 2, "cut at {nth} with seed {seed}");
                    whole += 1;
                }
                Err(BackupError::Missing(_)) => none += 1,
                Err(error) => panic!("cut at {nth} with seed {seed}: {error}"),
            }
        }
    }
    assert!(whole > 0 && none > 50, "{whole} {none}");
}

fn handles_with(handles: &SimHandles, disk: &SimDisk) -> Env {
    handles.with_disk(disk.clone()).env()
}

#[test]
fn a_backup_whose_manifest_is_damaged_is_not_taken_for_one_that_was_broken_off() {
    let (env, handles) = Env::sim(1);
    two_backups(&env);
    let folder = Path::new(DIR).join(BUCKET).join("20261127T000001Z");
    for name in ["manifest", "manifest.copy"] {
        handles.disk.rot(&folder.join(name), 200, 4).expect("it is there");
    }
    let repository = Repository::new(&env, Path::new(DIR));
    assert!(repository.unfinished(BUCKET).expect("read").is_none());
    assert!(repository.backups(BUCKET).expect("read")[1].is_err());
    assert!(repository.new_id(BUCKET).expect("a name").as_str() > "20261127T000001Z");
}

#[test]
fn a_chain_with_a_gap_is_refused() {
    let (env, _) = Env::sim(1);
    let mut full = begin(&env, head("20261127T000000Z", 11, None));
    let lines = [vbucket(&mut full, 0, 0, &[&[(1, "a", "one")]]), vbucket(&mut full, 1, 0, &[])];
    full.complete(&lines).expect("written");
    finish(full);
    let mut later = begin(&env, head("20261127T000001Z", 12, Some("20261127T000000Z")));
    // The earlier one ends at 1.
    let lines = [vbucket(&mut later, 0, 3, &[&[(4, "a", "two")]]), vbucket(&mut later, 1, 0, &[])];
    later.complete(&lines).expect("written");
    finish(later);
    let said = read(&env).expect_err("a gap").to_string();
    assert!(said.contains("vBucket 0 goes on from seqno 3"), "{said}");
    let repository = Repository::new(&env, Path::new(DIR));
    let all: Vec<Backup> =
        repository.backups(BUCKET).expect("read").into_iter().map(|one| one.expect("sound")).collect();
    repository.remove(&all[0].folder).expect("removed");
    let said = repository.chain(BUCKET, None).expect_err("the first is gone").to_string();
    assert!(said.contains("20261127T000000Z, which a later one goes on from"), "{said}");
}
