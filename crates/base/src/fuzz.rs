//! Bodies for fuzzers, what must hold for any bytes; and what replays a body without a fuzzer.

use std::path::Path;

use crate::encryption::{EncryptedDisk, KeyRing, WrappingKeys};
use crate::env::sim::SplitMix64;
use crate::env::{Env, File, OpenMode, SimHandles};
use crate::{DocKey, SmallFile};

const FOLDER: &str = "/fuzz";
const WRAPPING: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Calls a body with each of the seeds as it is, and `rounds` times with damage: the same bytes at each call.
///
/// # Panics
///
/// If the body does; then with the bytes, so that they can be tried again whatever else the body depends on.
pub fn replay(seed: u64, rounds: u32, seeds: &[Vec<u8>], body: fn(&[u8])) {
    let try_with = |bytes: &[u8]| {
        if std::panic::catch_unwind(|| body(bytes)).is_err() {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("the body panicked, as told above, at these {} bytes in hex: {hex}", bytes.len());
        }
    };
    seeds.iter().for_each(|bytes| try_with(bytes));
    let mut rng = SplitMix64::new(seed);
    for _ in 0..rounds {
        let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=rng.below(4) {
            damage(&mut rng, &mut bytes);
        }
        try_with(&bytes);
    }
}

fn damage(rng: &mut SplitMix64, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len().max(1) as u64) as usize;
    let byte =
        if rng.chance(1, 2) { rng.next_u64() as u8 } else { b"\0\xff{}[]\",:=-09"[rng.below(13) as usize] };
    match rng.below(5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at.min(bytes.len()), byte),
        2 if at < bytes.len() => drop(bytes.remove(at)),
        3 => bytes.extend_from_within(at.min(bytes.len())..),
        _ if at < bytes.len() => bytes[at] = byte,
        _ => bytes.push(byte),
    }
}

fn world() -> Env {
    let env = SimHandles::new(1).env();
    env.disk.create_dir_all(FOLDER.as_ref()).expect("a folder");
    env
}

fn put(env: &Env, path: &Path, bytes: &[u8]) {
    let file = env.disk.open(path, OpenMode::CreateNew).expect("a file");
    file.write_at(bytes, 0).expect("a write");
}

fn read_all(file: &dyn File) -> std::io::Result<Vec<u8>> {
    // Never more than there is on the disk.
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(1 << 20);
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Any bytes as a small file, as its copy, and as both: what is found is what is found again after it was mended.
pub fn fuzz_small_file(bytes: &[u8]) {
    let whole = |content: &[u8], _: u16| Ok::<_, String>(content.to_vec());
    for names in [&["f"][..], &["f.copy"], &["f", "f.copy"]] {
        let env = world();
        names.iter().for_each(|name| put(&env, &Path::new(FOLDER).join(name), bytes));
        let file = SmallFile::new(FOLDER.as_ref(), "f");
        if let Ok(Some(found)) = file.open(&*env.disk, whole, |_| ()) {
            let again = file.open(&*env.disk, whole, |what| panic!("{what} after it was mended"));
            assert_eq!(again.expect("it was mended"), Some(found));
        }
    }
}

/// Any bytes as wrapping keys, and as the keys of a folder.
pub fn fuzz_keys(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = WrappingKeys::parse(text, "the fuzzer");
    }
    let env = world();
    put(&env, &KeyRing::file(FOLDER.as_ref()).path(), bytes);
    let _ = KeyRing::fault(&*env.disk, FOLDER.as_ref());
    let _ = KeyRing::look(&env, FOLDER.as_ref(), "the fuzzer", Some(&wrapping()));
}

fn wrapping() -> WrappingKeys {
    WrappingKeys::parse(WRAPPING, "the fuzzer").expect("a key")
}

/// An environment that encrypts with a key that is the same at each call; the bare one is below it.
fn encrypting(env: &Env) -> Env {
    let ring = KeyRing::open(env, FOLDER.as_ref(), "the fuzzer", Some(&wrapping()), true, |_| ());
    let ring = ring.expect("an empty folder").expect("it encrypts");
    EncryptedDisk::env(env, ring.keys().clone())
}

/// Any bytes as a file in a folder whose files are encrypted: read, written at its end and in its middle, and read.
pub fn fuzz_encrypted_file(bytes: &[u8]) {
    let env = world();
    let path = Path::new(FOLDER).join("file");
    put(&env, &path, bytes);
    let encrypting = encrypting(&env);
    let Ok(file) = encrypting.disk.open(&path, OpenMode::ReadWrite) else { return };
    let Ok(before) = read_all(&*file) else { return };
    let end = before.len() as u64;
    if file.write_at(b"more", end).is_ok() {
        let after = read_all(&*file).expect("what was just written is read");
        assert_eq!(after, [&before[..], b"more"].concat());
    }
}

/// Seeds of [`fuzz_small_file`].
pub fn small_file_seeds() -> Vec<Vec<u8>> {
    let env = world();
    let file = SmallFile::new(FOLDER.as_ref(), "f");
    file.write(&*env.disk, b"content").expect("a write");
    let written = read_all(&*env.disk.open(&file.path(), OpenMode::Read).expect("it is there"));
    vec![b"content".to_vec(), written.expect("it is read")]
}

/// Seeds of [`fuzz_keys`].
pub fn key_seeds() -> Vec<Vec<u8>> {
    let env = world();
    encrypting(&env);
    let path = KeyRing::file(FOLDER.as_ref()).path();
    let written = read_all(&*env.disk.open(&path, OpenMode::Read).expect("it is there"));
    vec![WRAPPING.as_bytes().to_vec(), written.expect("it is read")]
}

/// Seeds of [`fuzz_encrypted_file`].
pub fn encrypted_file_seeds() -> Vec<Vec<u8>> {
    let env = world();
    let encrypting = encrypting(&env);
    let path = Path::new(FOLDER).join("file");
    let file = encrypting.disk.open(&path, OpenMode::CreateNew).expect("a file");
    file.write_at(&[7; 5000], 0).expect("a write");
    let written = read_all(&*env.disk.open(&path, OpenMode::Read).expect("it is there"));
    vec![b"plain".to_vec(), written.expect("it is read")]
}

/// Any bytes as a key with the number of its collection.
pub fn fuzz_doc_key(bytes: &[u8]) {
    let Some(key) = DocKey::parse(bytes) else { return };
    let (prefix, len) = key.prefix();
    let written = [&prefix[..len], key.key].concat();
    assert_eq!(DocKey::parse(&written), Some(key), "what was read is read again");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn damaged_files_never_panic() {
        replay(1, 3_000, &small_file_seeds(), fuzz_small_file);
        replay(2, 3_000, &key_seeds(), fuzz_keys);
        replay(3, 3_000, &encrypted_file_seeds(), fuzz_encrypted_file);
    }

    #[test]
    fn damaged_keys_never_panic() {
        replay(4, 20_000, &[b"\x08key".to_vec(), b"\xff\xff\x03k".to_vec()], fuzz_doc_key);
    }

    #[test]
    fn a_replay_tells_the_bytes_at_which_a_body_panics() {
        let picky = |bytes: &[u8]| assert!(bytes != [0xab, 1], "picky");
        let told = std::panic::catch_unwind(|| replay(5, 0, &[vec![1], vec![0xab, 1]], picky));
        let told = told.expect_err("it panics");
        let told = told.downcast_ref::<String>().expect("a text");
        assert!(told.ends_with("at these 2 bytes in hex: ab01"), "{told}");
    }

    #[test]
    fn a_replay_changes_bytes() {
        static CHANGED: AtomicU32 = AtomicU32::new(0);
        let note = |bytes: &[u8]| {
            if bytes != [0; 4] {
                CHANGED.fetch_add(1, Ordering::Relaxed);
            }
        };
        replay(5, 2_000, &[vec![0; 4]], note);
        assert!(CHANGED.load(Ordering::Relaxed) > 1_000);
    }
}
