//! Positions that the server keeps, in the bucket's folder, so that tokens can be short.
//!
//! A token of a bucket with many vBuckets takes kilobytes: each vBucket's history has a random number. A kept position
//! is such a token in a file, under a name that is made of its content; a short token names the file and says what has
//! changed since (record 0070).

use std::io;
use std::path::{Path, PathBuf};

use base::env::{Disk, OpenMode};
use engine::Bucket;

use super::token::{AnchorId, Token};
use crate::sasl::digest::Mechanism;

/// Kept positions of a bucket; beyond it the oldest goes.
const MOST: usize = 2048;
/// Kept positions of a reader, which goes by the same number when it comes back with one of them.
pub const MOST_OF_READER: usize = 32;
/// One that is older may go.
const LONGEST_US: u64 = 30 * 24 * 3600 * 1_000_000;
/// More than the longest token takes.
const MOST_BYTES: usize = 64 << 10;
const UNFINISHED: &str = ".new";

/// A kept position.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// Its name.
    pub id: AnchorId,
    /// What it holds.
    pub token: Token,
}

fn folder(bucket: &Bucket) -> PathBuf {
    folder_in(&bucket.config().dir)
}

fn folder_in(bucket: &Path) -> PathBuf {
    bucket.join("positions")
}

/// The name of a text that is kept at this moment for a reader: when, for which, and what.
fn id_of(text: &str, made_us: u64, reader: u32) -> AnchorId {
    let digest = Mechanism::Sha256.hash(text.as_bytes());
    let mut id = [0; 20];
    id[..8].copy_from_slice(&made_us.to_be_bytes());
    id[8..12].copy_from_slice(&reader.to_be_bytes());
    id[12..].copy_from_slice(&digest.bytes()[..8]);
    AnchorId(id)
}

impl Anchor {
    /// Keeps a position durably, and lets old ones go. Blocks on the disk.
    pub fn keep(bucket: &Bucket, token: Token, reader: u32) -> io::Result<Anchor> {
        let (folder, disk) = (folder(bucket), &bucket.env().disk);
        disk.create_dir_all_synced(&folder)?;
        let now_us = bucket.now().0 / 1_000;
        make_room(bucket, now_us, reader)?;
        let text = token.encode();
        let id = id_of(&text, now_us, reader);
        let path = folder.join(id.name());
        let unfinished = folder.join(format!("{}{UNFINISHED}", id.name()));
        let file = disk.open(&unfinished, OpenMode::Create)?;
        file.set_len(text.len() as u64)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync_data()?;
        disk.rename(&unfinished, &path)?;
        disk.sync_dir(&folder)?;
        Ok(Anchor { id, token })
    }

    /// Reads a kept position; `None` if it is not kept any more, or never was.
    pub fn read(bucket: &Bucket, id: &AnchorId) -> io::Result<Option<Token>> {
        let text = match read_text(&*bucket.env().disk, &folder(bucket), id) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let token = text.and_then(|text| Token::decode(&text, bucket.vbuckets()));
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", id.name()));
        token.map(Some).ok_or_else(damaged)
    }
}

/// The text of a kept position; `None` if its name is not the one of this content.
fn read_text(disk: &dyn Disk, folder: &Path, id: &AnchorId) -> io::Result<Option<String>> {
    let file = disk.open(&folder.join(id.name()), OpenMode::Read)?;
    let mut bytes = vec![0; MOST_BYTES];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    let text = String::from_utf8(bytes).ok();
    Ok(text.filter(|text| id_of(text, id.made_us(), id.reader()) == *id))
}

/// Faults of the positions that are kept in a bucket's folder: the file, and what is wrong with it. Changes nothing.
/// Nothing lists the positions, so that a missing one is none.
pub fn faults(disk: &dyn Disk, bucket: &Path) -> Vec<(PathBuf, String)> {
    let folder = folder_in(bucket);
    let mut names = disk.read_dir(&folder).unwrap_or_default();
    names.sort_unstable();
    // One that was being written when the node died was never referred to.
    names.retain(|name| !name.ends_with(UNFINISHED));
    let fault = |name: String| {
        let Some(id) = AnchorId::of_name(&name).filter(|id| id.name() == name) else {
            return Some((folder.join(name), "it is not named like a kept position".to_owned()));
        };
        let what = match read_text(disk, &folder, &id) {
            Ok(Some(_)) => return None,
            Ok(None) => "its content is not the one that its name says".to_owned(),
            Err(error) => format!("it cannot be read: {error}"),
        };
        Some((folder.join(name), what))
    };
    names.into_iter().filter_map(fault).collect()
}

/// Removes those that are too old, and the oldest of the reader or of the bucket if there are too many. Names begin with
/// the moment and the reader.
fn make_room(bucket: &Bucket, now_us: u64, reader: u32) -> io::Result<()> {
    let (folder, disk) = (folder(bucket), &bucket.env().disk);
    let mut names = disk.read_dir(&folder)?;
    names.sort_unstable();
    let id = |name: &String| AnchorId::of_name(name);
    let of_reader = |name: &&String| id(name).is_some_and(|id| id.reader() == reader);
    let mut excess = (names.len() + 1).saturating_sub(MOST);
    let mut excess_of_reader = (names.iter().filter(of_reader).count() + 1).saturating_sub(MOST_OF_READER);
    for name in &names {
        let is_old = id(name).is_none_or(|id| id.made_us() < now_us.saturating_sub(LONGEST_US));
        let is_too_much = excess > 0 || (excess_of_reader > 0 && of_reader(&name));
        if !is_old && !is_too_much {
            continue;
        }
        excess = excess.saturating_sub(1);
        excess_of_reader = excess_of_reader.saturating_sub(usize::from(of_reader(&name)));
        match disk.remove_file(&folder.join(name)) {
            // Another reader's thread was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::env::Env;

    use super::*;

    #[test]
    fn each_changed_bit_and_each_cut_of_a_kept_position_is_told() {
        let (env, bucket) = (Env::sim(1).0, Path::new("/data/buckets/b"));
        let (disk, folder) = (&*env.disk, folder_in(bucket));
        disk.create_dir_all(&folder).expect("the disk works");
        let text = Token::start(8).encode();
        let id = id_of(&text, 1 << 50, 7);
        let put = |name: &str, bytes: &[u8]| {
            let file = disk.open(&folder.join(name), OpenMode::Create).expect("the disk works");
            file.set_len(0).and_then(|()| file.write_at(bytes, 0)).expect("the disk works");
        };
        put(&id.name(), text.as_bytes());
        put(&format!("{}{UNFINISHED}", id.name()), b"half");
        assert_eq!(faults(disk, bucket), []);
        let told = |bytes: &[u8]| {
            put(&id.name(), bytes);
            let faults = faults(disk, bucket);
            assert_eq!(faults.len(), 1, "{bytes:?}");
            assert_eq!(faults[0].0, folder.join(id.name()));
            assert!(faults[0].1.contains("not the one that its name says"), "{}", faults[0].1);
        };
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            told(&bytes);
        }
        (0..text.len()).for_each(|len| told(&text.as_bytes()[..len]));
        put(&id.name(), text.as_bytes());
        put("notes", b"");
        let faults = faults(disk, bucket);
        assert_eq!(faults, [(folder.join("notes"), "it is not named like a kept position".to_owned())]);
    }
}
