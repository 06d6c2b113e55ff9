//! Keys of files, as the original has made them.

use std::path::Path;

use base::env::{Disk, OpenMode, RealDisk};

use super::*;

/// The first block of a file that the original has encrypted.
fn first_block(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-14").join(name);
    let mut block = vec![0; 4096];
    let file = RealDisk.open(&path, OpenMode::Read).expect("the file");
    let read = file.read_at(&mut block, 0).expect("a read");
    block.truncate(read);
    block
}

/// The key `k-1` of the golden files.
fn key() -> [u8; KEY] {
    std::array::from_fn(|at| 0x10 + at as u8)
}

/// The file's key as the original's library has derived it.
#[test]
fn the_key_of_a_file_is_derived_as_the_original_does() {
    let block = first_block("3.couch.1");
    let metadata = Metadata::decode(&block).expect("it is sound");
    assert_eq!((metadata.version, metadata.key_id), (1, &b"k-1"[..]));
    let derived: String = derive(&key(), metadata.context).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(derived, "ea018f140071c644bdf6e62c1f12590193e9f1ac548ae6962cae292ae557e2a0");
}

#[test]
fn a_wrapped_key_opens_with_its_own_key_and_identifier_alone() {
    let block = first_block("6.couch.1");
    let metadata = Metadata::decode(&block).expect("it is sound");
    assert_eq!((metadata.version, metadata.context.len()), (0, NONCE_LEN + KEY + TAG));
    assert!(unwrap(&key(), &metadata).is_some());
    assert!(unwrap(&[0; KEY], &metadata).is_none());
    assert!(unwrap(&key(), &Metadata { key_id: b"k-2", ..metadata }).is_none());
    for len in 0..metadata.context.len() {
        assert!(unwrap(&key(), &Metadata { context: &metadata.context[..len], ..metadata }).is_none());
    }
}

#[test]
fn a_metadata_header_that_is_cut_or_changed_is_none() {
    let block = first_block("3.couch.1");
    let end = 1 + 4 + 4 + 1 + 1 + 3 + 1 + KEY;
    assert!(Metadata::decode(&block[..end]).is_some());
    for len in 0..end {
        assert!(Metadata::decode(&block[..len]).is_none(), "{len} bytes");
    }
    for at in 0..end {
        let mut changed = block.clone();
        changed[at] ^= 1;
        assert!(Metadata::decode(&changed).is_none(), "byte {at}");
    }
}
