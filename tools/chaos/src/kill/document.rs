//! What the writers store: a key and a version number say everything about a document.

use base::VbId;
use base::vbucket_map::vbucket_of;
use harness::rng::Rng;

/// As many as the server's default.
const VBUCKETS: u16 = 1024;
/// Few enough that one batch of the flusher carries changes of several writers.
const VBUCKETS_IN_USE: u16 = 128;
/// One document in so many is large.
const LARGE_ONE_IN: u64 = 200;

/// How a value goes on behind its number, unless it is shorter: text that is looked for in encrypted files.
pub const MARK: &[u8] = b"a body that is in clear";

/// How keys of a writer begin.
pub fn key_begin(writer: u32) -> String {
    format!("kill-{writer}-")
}

/// The key of a writer's document.
pub fn key(writer: u32, index: usize) -> Vec<u8> {
    // The last part is chosen so that the key falls into one of the first vBuckets.
    (0u32..)
        .map(|suffix| format!("{}{index}-{suffix}", key_begin(writer)).into_bytes())
        .find(|key| vbucket_of(key, VBUCKETS).0 < VBUCKETS_IN_USE)
        .expect("some suffix fits")
}

/// The key's vBucket.
pub fn vbucket(key: &[u8]) -> VbId {
    vbucket_of(key, VBUCKETS)
}

/// The value that a version has: its number and the mark, then bytes that only this version of this key has.
pub fn value(key: &[u8], version: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(hash(key)) << 32 | u64::from(version));
    let pad = if rng.below(LARGE_ONE_IN) == 0 { 100_000 } else { rng.below(1_500) as usize };
    let mut value = version.to_be_bytes().to_vec();
    value.extend_from_slice(MARK);
    while value.len() < 4 + pad {
        value.extend_from_slice(&rng.next().to_be_bytes());
    }
    value.truncate(4 + pad);
    value
}

/// The version that a value claims to be.
pub fn version_of(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
}

/// A small hash of a key, FNV-1a.
fn hash(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
