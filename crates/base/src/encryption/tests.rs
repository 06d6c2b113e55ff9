//! Encrypted files against plain ones: any order of calls, changed bits, exchanged pages, lost power, keys that come and go.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::cipher::{Cipher, FileKey, Secret};
use super::layout::{HEAD, PAGE, PREFIX, STRIDE, content_len, stored_len};
use super::{DataKeys, EncryptedDisk, KeyError, KeyRing, WrappingKeys, key_of_file, keys_in_use};
use crate::env::sim::{SimHandles, Survival};
use crate::env::{Disk, Env, File, FolderAccess, OpenMode};

const PATH: &str = "/data/file";

fn world() -> (Env, SimHandles) {
    let (env, handles) = Env::sim(7);
    env.disk.create_dir_all_synced(Path::new("/data")).expect("a folder");
    (env, handles)
}

fn read_all(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().expect("a length") as usize + 10];
    let read = file.read_at(&mut bytes, 0).expect("it is read");
    bytes.truncate(read);
    bytes
}

fn raw(env: &Env, path: &str) -> Vec<u8> {
    read_all(&*env.disk.open(Path::new(path), OpenMode::Read).expect("it is there"))
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: usize, seed: u8 },
    SetLen(u64),
    Read { offset: u64, len: usize },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let offset = prop_oneof![0..20_000u64, (0..5u64).prop_map(|page| page * PAGE)];
    let len = prop_oneof![0..300usize, 0..9_000usize, Just(4096usize)];
    prop_oneof![
        4 => (offset.clone(), len.clone(), any::<u8>()).prop_map(|(offset, len, seed)| Step::Write { offset, len, seed }),
        1 => offset.clone().prop_map(Step::SetLen),
        3 => (offset, len).prop_map(|(offset, len)| Step::Read { offset, len }),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #[test]
    fn an_encrypted_file_is_as_a_plain_one(steps in proptest::collection::vec(step(), 1..40)) {
        let (env, _) = world();
        let keys = DataKeys::ephemeral(&env);
        let path = Path::new(PATH);
        let open = || EncryptedDisk::new(&env, keys.clone()).open(path, OpenMode::Create).expect("it opens");
        let mut file = open();
        let mut model: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Write { offset, len, seed } => {
                    let bytes = pattern(len, seed);
                    file.write_at(&bytes, offset).expect("a write");
                    let end = offset as usize + len;
                    if len > 0 {
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                Step::SetLen(len) => {
                    file.set_len(len).expect("another length");
                    model.resize(len as usize, 0);
                }
                Step::Read { offset, len } => {
                    let mut bytes = vec![0xee; len];
                    let read = file.read_at(&mut bytes, offset).expect("a read");
                    let from = model.len().min(offset as usize);
                    prop_assert_eq!(&bytes[..read], &model[from..model.len().min(from + len)]);
                }
                Step::Reopen => file = open(),
            }
            prop_assert_eq!(file.len().expect("a length"), model.len() as u64);
        }
        prop_assert_eq!(read_all(&*open()), model);
    }
}

#[test]
fn lengths_fit_together() {
    for content in [0, 1, 100, 4095, 4096, 4097, 8191, 8192, 8193, 1 << 20] {
        assert_eq!(content_len(stored_len(content)), content);
    }
    for stored in [0, 1, HEAD - 1, HEAD, HEAD + 1, HEAD + PREFIX as u64] {
        assert_eq!(content_len(stored), 0, "{stored}");
    }
}

/// A known answer, so that no later version derives other keys: HKDF-SHA-256 and both ciphers.
#[test]
fn what_is_written_can_be_read_by_later_versions() {
    let secret = Secret([1; 32]);
    for (cipher, expected) in [(Cipher::Aes256Gcm, KNOWN_AES), (Cipher::ChaCha20Poly1305, KNOWN_CHACHA)] {
        let key = FileKey::derive(&secret, &[2; 32], cipher).of_epoch(&[3; 16]);
        let mut content = *b"stave";
        let tag = key.seal(4, b"place", &mut content);
        let found = super::cipher::hex(&[&content[..], &tag].concat());
        assert_eq!(found, expected, "{cipher:?}");
        assert!(key.open(4, b"place", tag, &mut content));
        assert_eq!(&content, b"stave");
    }
}

/// From an independent implementation (OpenSSL, through Python's `cryptography`).
const KNOWN_AES: &str = "731805c5260dd4b4bc13630292e5eae39ed7567959";
const KNOWN_CHACHA: &str = "40e103d570d68fb4f0df0930cdc9f3837f436d8a8e";

#[test]
fn every_changed_bit_reads_as_zeros_and_never_as_another_value() {
    let (env, handles) = world();
    let keys = DataKeys::ephemeral(&env);
    let disk = EncryptedDisk::new(&env, keys);
    let path = Path::new(PATH);
    let content = pattern(PAGE as usize + 300, 9);
    let file = disk.open(path, OpenMode::CreateNew).expect("a file");
    file.write_at(&content, 0).expect("a write");
    let len = raw(&env, PATH).len() as u64;
    let mut lost = 0;
    for at in (0..len).filter(|at| *at >= HEAD || *at < 80 || (2040..2140).contains(at)) {
        let mask = 1 << (at % 8);
        handles.disk.rot(path, at, mask).expect("it is there");
        let found = read_all(&*disk.open(path, OpenMode::Read).expect("it opens"));
        assert_eq!(found.len(), content.len(), "byte {at}");
        for (page, found) in found.chunks(PAGE as usize).enumerate() {
            let is_whole = found == &content[page * PAGE as usize..][..found.len()];
            assert!(is_whole || found.iter().all(|byte| *byte == 0), "byte {at} shows in page {page}");
            lost += usize::from(!is_whole);
        }
        handles.disk.rot(path, at, mask).expect("it is there");
    }
    // Each bit behind the head costs its page, none in the head does: there are two of it.
    assert_eq!(lost as u64, len - HEAD);
    assert_eq!(read_all(&*disk.open(path, OpenMode::Read).expect("it opens")), content);
}

#[test]
fn pages_of_other_places_and_files_are_refused() {
    let (env, _) = world();
    let disk = EncryptedDisk::new(&env, DataKeys::ephemeral(&env));
    let write = |path: &str, seed| {
        let file = disk.open(Path::new(path), OpenMode::CreateNew).expect("a file");
        file.write_at(&pattern(2 * PAGE as usize, seed), 0).expect("a write");
    };
    write(PATH, 1);
    write("/data/other", 2);
    let put = |path: &str, page: u64, bytes: &[u8]| {
        let file = env.disk.open(Path::new(path), OpenMode::ReadWrite).expect("it is there");
        file.write_at(bytes, HEAD + page * STRIDE).expect("a write");
    };
    let (one, two) = (raw(&env, PATH), raw(&env, "/data/other"));
    let page = |of: &[u8], page: u64| of[(HEAD + page * STRIDE) as usize..][..STRIDE as usize].to_vec();
    put(PATH, 0, &page(&one, 1));
    put(PATH, 1, &page(&two, 1));
    let found = read_all(&*disk.open(Path::new(PATH), OpenMode::Read).expect("it opens"));
    assert_eq!(found, vec![0; 2 * PAGE as usize]);
    put(PATH, 0, &page(&one, 0));
    let found = read_all(&*disk.open(Path::new(PATH), OpenMode::Read).expect("it opens"));
    assert_eq!(found[..PAGE as usize], pattern(2 * PAGE as usize, 1)[..PAGE as usize]);
}

#[test]
fn nothing_is_encrypted_twice_with_the_same_key_and_number() {
    let (env, _) = world();
    let disk = EncryptedDisk::new(&env, DataKeys::ephemeral(&env));
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let file = disk.open(Path::new(PATH), OpenMode::Create).expect("a file");
        for _ in 0..3 {
            file.write_at(&pattern(2 * PAGE as usize, 1), 0).expect("a write");
            let bytes = raw(&env, PATH);
            for page in bytes[HEAD as usize..].chunks(STRIDE as usize) {
                assert!(seen.insert(page[..20].to_vec()), "an epoch and a number came twice");
            }
        }
    }
    assert_eq!(seen.iter().map(|seen| seen[..16].to_vec()).collect::<BTreeSet<_>>().len(), 3);
}

/// Who appends where [`File::append_from`] says loses nothing that was durable, whatever reaches the disk of the rest.
#[test]
fn what_is_durable_survives_every_torn_append() {
    for seed in 0..200 {
        let (env, handles) = world();
        let keys = DataKeys::ephemeral(&env);
        let file = EncryptedDisk::new(&env, keys.clone())
            .open(Path::new(PATH), OpenMode::CreateNew)
            .expect("a file");
        env.disk.sync_dir(Path::new("/data")).expect("a sync");
        let (mut end, mut durable) = (0, Vec::new());
        for round in 0..4u8 {
            let at = file.append_from(end);
            let bytes = pattern(700 * usize::from(round + 1), round);
            file.write_at(&bytes, at).expect("a write");
            end = at + bytes.len() as u64;
            if round < 3 {
                file.sync_data().expect("a sync");
                durable.push((at, bytes));
            }
        }
        let after = handles.disk.image(Survival::Seeded(seed));
        let env = Env { disk: Arc::new(after), ..env };
        let file = EncryptedDisk::new(&env, keys).open(Path::new(PATH), OpenMode::Read).expect("it opens");
        for (at, bytes) in durable {
            let mut found = vec![0; bytes.len()];
            file.read_at(&mut found, at).expect("a read");
            assert_eq!(found, bytes, "seed {seed}, offset {at}");
        }
    }
}

#[test]
fn plain_files_stay_as_they_are_and_no_byte_of_others_shows() {
    let (env, _) = world();
    let plain = env.disk.open(Path::new(PATH), OpenMode::CreateNew).expect("a file");
    plain.write_at(b"a plain file", 0).expect("a write");
    let keys = DataKeys::ephemeral(&env);
    let disk = EncryptedDisk::new(&env, keys.clone());
    let file = disk.open(Path::new(PATH), OpenMode::ReadWrite).expect("it opens");
    assert!(!file.is_current());
    file.write_at(b"A", 0).expect("a write");
    assert_eq!(raw(&env, PATH), b"A plain file");
    file.set_len(0).expect("it is emptied");
    assert!(file.is_current());
    file.write_at(b"a secret", 0).expect("a write");
    assert!(file.is_current());
    assert_eq!(key_of_file(&*env.disk, Path::new(PATH)).expect("it is read"), keys.active());
    assert!(!raw(&env, PATH).windows(6).any(|window| window == b"secret"));
    assert_eq!(read_all(&*disk.open(Path::new(PATH), OpenMode::Read).expect("it opens")), b"a secret");
    // Without keys it is not taken for something else.
    let error = EncryptedDisk::new(&env, DataKeys::default()).open(Path::new(PATH), OpenMode::Read).err();
    assert!(error.expect("refused").to_string().contains("is encrypted with the key"));
}

#[test]
fn pages_that_are_not_wanted_cost_no_decryption() {
    let (env, _) = world();
    let disk = EncryptedDisk::new(&env, DataKeys::ephemeral(&env));
    let file = disk.open(Path::new(PATH), OpenMode::CreateNew).expect("a file");
    let content = pattern(10 * PAGE as usize + 100, 3);
    file.write_at(&content, 0).expect("written");
    let (offset, len) = (PAGE / 2, 9 * PAGE as usize);
    let mut read = vec![0; len];
    let wanted = [2, 5, 9];
    let is_wanted = |range: std::ops::Range<u64>| wanted.iter().any(|page| range.contains(&(page * PAGE)));
    assert_eq!(file.read_parts_at(&mut read, offset, &is_wanted).expect("it is read"), len);
    for page in 1..9 {
        let from = (page * PAGE - offset) as usize;
        let (came, is) = (&read[from..from + PAGE as usize], &content[(page * PAGE) as usize..]);
        assert_eq!(came == &is[..PAGE as usize], wanted.contains(&page), "page {page}");
    }
    assert_eq!(file.read_at(&mut read, offset).expect("it is read"), len);
    assert_eq!(read, content[offset as usize..offset as usize + len]);
}

#[test]
fn what_a_failed_first_write_left_is_no_plain_file() {
    let (env, _) = world();
    let disk = EncryptedDisk::new(&env, DataKeys::ephemeral(&env));
    let file = disk.open(Path::new(PATH), OpenMode::CreateNew).expect("a file");
    file.write_at(b"a secret", 0).expect("a write");
    let whole = raw(&env, PATH);
    for len in [1, 7, 8, 100, 2047, HEAD as usize - 1] {
        let torn = env.disk.open(Path::new(PATH), OpenMode::ReadWrite).expect("it is there");
        torn.set_len(len as u64).expect("cut");
        let file = disk.open(Path::new(PATH), OpenMode::ReadWrite).expect("it opens");
        assert_eq!(file.len().expect("a length"), 0, "{len}");
        file.write_at(b"a secret", 0).expect("a write");
        assert_eq!(raw(&env, PATH).len(), whole.len());
        assert_eq!(read_all(&*file), b"a secret");
    }
    let torn = env.disk.open(Path::new(PATH), OpenMode::ReadWrite).expect("it is there");
    torn.write_at(b"x", 20).expect("a write");
    torn.write_at(b"x", 2068).expect("a write");
    let file = disk.open(Path::new(PATH), OpenMode::ReadWrite).expect("it opens");
    assert!(file.write_at(b"plain", 0).is_err(), "neither copy of the head is whole");
    assert!(!read_all(&*file).windows(6).any(|window| window == b"secret"));
}

fn wrapping(digit: char) -> WrappingKeys {
    WrappingKeys::parse(&digit.to_string().repeat(64), "the test").expect("a key")
}

fn open_ring(env: &Env, keys: Option<&WrappingKeys>, encrypts: bool) -> Result<Option<KeyRing>, KeyError> {
    KeyRing::open(env, Path::new("/data"), "bucket b", keys, encrypts, |fault| panic!("{fault}"))
}

#[test]
fn a_ring_opens_with_its_key_alone() {
    let (env, _) = world();
    assert!(open_ring(&env, None, false).expect("nothing is wanted").is_none());
    assert!(matches!(open_ring(&env, None, true), Err(KeyError::NotGiven(_))));
    let one = wrapping('1');
    let ring = open_ring(&env, Some(&one), true).expect("a new one").expect("it is wanted");
    let first = ring.keys().active().expect("a key");
    let disk = EncryptedDisk::new(&env, ring.keys().clone());
    disk.open(Path::new("/data/x"), OpenMode::CreateNew)
        .expect("a file")
        .write_at(b"secret", 0)
        .expect("a write");
    for encrypts in [false, true] {
        assert!(matches!(open_ring(&env, None, encrypts), Err(KeyError::NotGiven(_))));
        let error = open_ring(&env, Some(&wrapping('2')), encrypts).err().expect("another key").to_string();
        assert!(error.starts_with("bucket b is encrypted under the wrapping key "), "{error}");
        assert!(!error.contains("1111") && !error.contains("2222"), "{error}");
    }
    // The wrapping key is exchanged: the new one first, the old one behind it.
    let both =
        WrappingKeys::parse(&format!("# new\n{}\n\n{}\n", "2".repeat(64), "1".repeat(64)), "").expect("keys");
    let ring = open_ring(&env, Some(&both), true).expect("it opens").expect("it is there");
    assert_eq!(ring.keys().active(), Some(first));
    assert!(matches!(open_ring(&env, Some(&one), true), Err(KeyError::Other { .. })));
    let ring = open_ring(&env, Some(&wrapping('2')), false).expect("it opens").expect("it is there");
    assert_eq!((ring.keys().active(), ring.keys().ids()), (None, vec![first]));
    let file = EncryptedDisk::new(&env, ring.keys().clone())
        .open(Path::new("/data/x"), OpenMode::Read)
        .expect("it opens");
    assert_eq!(read_all(&*file), b"secret");
    let looked = KeyRing::look(&env, Path::new("/data"), "bucket b", Some(&wrapping('2'))).expect("it opens");
    assert_eq!(looked.expect("there are keys").ids(), vec![first]);
}

#[test]
fn old_keys_go_when_no_file_needs_them() {
    let (env, _) = world();
    let one = wrapping('1');
    let ring = open_ring(&env, Some(&one), true).expect("it opens").expect("it is wanted");
    let disk = EncryptedDisk::new(&env, ring.keys().clone());
    let file = disk.open(Path::new("/data/x"), OpenMode::CreateNew).expect("a file");
    file.write_at(b"secret", 0).expect("a write");
    let first = ring.keys().active().expect("a key");
    let second = ring.rotate(&env).expect("another key");
    assert!(first != second && !file.is_current());
    let in_use = || keys_in_use(&*env.disk, Path::new("/data")).expect("it is read");
    assert_eq!(in_use(), BTreeSet::from([first]));
    assert_eq!(ring.retain(&env, &in_use()).expect("nothing to drop"), 0);
    file.set_len(0).expect("it begins again");
    file.write_at(b"secret", 0).expect("a write");
    assert_eq!(in_use(), BTreeSet::from([second]));
    assert_eq!(ring.retain(&env, &in_use()).expect("it is dropped"), 1);
    let ring = open_ring(&env, Some(&one), true).expect("it opens").expect("it is there");
    assert_eq!((ring.keys().active(), ring.keys().ids()), (Some(second), vec![second]));
    assert_eq!(read_all(&*disk.open(Path::new("/data/x"), OpenMode::Read).expect("it opens")), b"secret");
}

#[test]
fn keys_are_digits() {
    for text in
        ["", "\n", "# only\n", "12", &"g".repeat(64), &"1".repeat(63), &format!("{}\nx", "1".repeat(64))]
    {
        assert!(matches!(WrappingKeys::parse(text, "F"), Err(KeyError::Malformed(_))), "{text:?}");
    }
    let shown = format!("{:?}", wrapping('a'));
    assert!(!shown.contains("aaaa"), "{shown}");
}

#[test]
fn keys_are_found_in_the_folders_around_a_file() {
    let (env, _) = world();
    env.disk.create_dir_all(Path::new("/data/buckets/b")).expect("a folder");
    let (outer, one) = (open_ring(&env, Some(&wrapping('1')), true), wrapping('1'));
    let outer = outer.expect("it opens").expect("it is wanted");
    let inner = KeyRing::open(&env, Path::new("/data/buckets/b"), "b", Some(&one), true, |_| ());
    let inner = inner.expect("it opens").expect("it is wanted");
    let write = |ring: &KeyRing, path: &str| {
        let disk = EncryptedDisk::new(&env, ring.keys().clone());
        let file = disk.open(Path::new(path), OpenMode::CreateNew).expect("a file");
        file.write_at(b"secret", 0).expect("a write");
    };
    let paths = ["/data/state", "/data/buckets/b/described", "/data/buckets/b/file"];
    write(&outer, paths[0]);
    write(&outer, paths[1]);
    write(&inner, paths[2]);
    let disk = EncryptedDisk::finding(&env, Some(one), "described");
    for path in paths {
        let file = disk.open(Path::new(path), OpenMode::Read).expect("its key is found");
        assert_eq!(read_all(&*file), b"secret");
    }
    for (path, ring) in [("/data/buckets/b/new", &inner), ("/data/buckets/b/described.new", &outer)] {
        let file = disk.open(Path::new(path), OpenMode::CreateNew).expect("a file");
        file.write_at(b"secret", 0).expect("a write");
        let key = key_of_file(&*env.disk, Path::new(path)).expect("it is read");
        assert_eq!(key, ring.keys().active(), "{path}");
    }
    let without = EncryptedDisk::finding(&env, None, "described");
    let error =
        without.open(Path::new(paths[2]), OpenMode::Read).err().expect("no key was given").to_string();
    assert!(error.contains("--encryption-key-file"), "{error}");
    assert!(without.open(Path::new("/data/encryption-keys"), OpenMode::Read).is_ok(), "it is not encrypted");
}

#[test]
fn a_folder_that_is_not_encrypted_is_one_of_the_file_system() {
    let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
    let found = |wrapping| {
        let disk = EncryptedDisk::finding(&env, wrapping, "described");
        matches!(disk.on_file_system(folder.path()), Some(FolderAccess::Whole(path)) if path == folder.path())
    };
    assert!(found(None), "it has no keys");
    let given = EncryptedDisk::new(&env, DataKeys::default());
    assert!(given.on_file_system(folder.path()).is_none(), "a disk with keys of its own");
    let ring = KeyRing::open(&env, folder.path(), "here", Some(&wrapping('1')), true, |_| ());
    ring.expect("it opens").expect("it is wanted");
    assert!(!found(None) && !found(Some(wrapping('1'))), "its new files are encrypted");
}
