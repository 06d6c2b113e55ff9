//! Cursors: positions that the server keeps for readers under names, each a small file in the bucket's folder (record 57).
//!
//! No two calls for one cursor may run at the same time; all of them block on the disk.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use base::SmallFile;
use base::env::Disk;
use engine::Bucket;

use super::token::Token;

/// The folder in a bucket's folder.
const CURSORS: &str = "cursors";
const MOST_NAME_BYTES: usize = 64;
/// A bucket has no more of them.
pub const MOST: usize = 1024;
/// More than the longest token takes.
const MOST_BYTES: u64 = 64 << 10;

fn folder(bucket: &Bucket) -> PathBuf {
    bucket.config().dir.join(CURSORS)
}

/// Whether a cursor can have this name: up to 64 letters, digits, `-` and `_`.
pub fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MOST_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The names of cursors among those of files, each of which may have a copy.
fn names_in(files: Vec<String>) -> BTreeSet<String> {
    let name = |file: String| file.strip_suffix(".copy").map(str::to_owned).unwrap_or(file);
    files.into_iter().map(name).filter(|name| is_name(name)).collect()
}

/// The names of a bucket's cursors.
pub fn names(bucket: &Bucket) -> io::Result<BTreeSet<String>> {
    match bucket.env().disk.read_dir(&folder(bucket)) {
        Ok(files) => Ok(names_in(files)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

/// The file of a cursor.
fn file(bucket: &Bucket, name: &str) -> SmallFile {
    SmallFile::new(&folder(bucket), name).owned_by(bucket.uuid()).at_most(MOST_BYTES)
}

/// Understands a cursor's file.
fn parse(bytes: &[u8], _version: u16, vbuckets: u16) -> Result<Token, String> {
    let token = str::from_utf8(bytes).ok().and_then(|text| Token::decode(text, vbuckets));
    token.ok_or_else(|| "it holds no position of this bucket".to_owned())
}

/// The stored position; `None` if there is no such cursor.
pub fn read(bucket: &Bucket, name: &str) -> io::Result<Option<Token>> {
    let parse = |bytes: &[u8], version: u16| parse(bytes, version, bucket.vbuckets());
    let found = file(bucket, name).open(&*bucket.env().disk, parse, |fault| {
        if let Some(left_out) = engine::admit_log(bucket, "cursor with a fault") {
            tracing::error!(event = "file_copy_damaged", left_out, "{fault}");
        }
    });
    found.map_err(io::Error::other)
}

/// Stores a position durably.
pub fn write(bucket: &Bucket, name: &str, token: &Token) -> io::Result<()> {
    let disk = &bucket.env().disk;
    disk.create_dir_all_synced(&folder(bucket))?;
    file(bucket, name).write(&**disk, token.encode().as_bytes()).map_err(io::Error::other)
}

/// Removes a cursor, also one that is damaged. Answers whether there was one.
pub fn remove(bucket: &Bucket, name: &str) -> io::Result<bool> {
    let (file, disk) = (file(bucket, name), &*bucket.env().disk);
    if matches!(file.look(disk, |_, _| Ok(())), Ok(None)) {
        return Ok(false);
    }
    file.remove(disk).map(|()| true).map_err(io::Error::other)
}

/// Faults of the cursors in a bucket's folder: the file, and what is wrong with it or its copy. Changes nothing.
pub fn faults(disk: &dyn Disk, bucket: &Path) -> Vec<(PathBuf, String)> {
    let folder = bucket.join(CURSORS);
    // A file without checksum is text, which is all that can be said without the bucket.
    let parse = |bytes: &[u8], _| str::from_utf8(bytes).map(drop).map_err(|error| error.to_string());
    let names = names_in(disk.read_dir(&folder).unwrap_or_default());
    let one = |name: &String| SmallFile::new(&folder, name).at_most(MOST_BYTES);
    let fault = |name| Some((folder.join(name), one(name).fault(disk, parse)?));
    names.iter().filter_map(fault).collect()
}
