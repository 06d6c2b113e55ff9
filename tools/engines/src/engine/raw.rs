//! What the machine can do: sorted records with a checksum each, appended to a file, and one sync. No index.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{Engine, sort};
use crate::work::Item;

/// Written at once, so that the buffer stays in the cache.
const CHUNK_BYTES: usize = 1 << 20;
/// CRC32C, length of the key, length of the value.
const HEAD_BYTES: usize = 12;

/// A file that grows.
pub struct Raw {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    staged: Vec<Item>,
}

impl Raw {
    /// In an empty folder.
    pub fn open(dir: &Path) -> Result<Raw> {
        let path = dir.join("records");
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        Ok(Raw { path, file, buffer: Vec::with_capacity(2 * CHUNK_BYTES), staged: Vec::new() })
    }
}

impl Engine for Raw {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items;
    }

    fn save(&mut self) -> Result<()> {
        sort(&mut self.staged);
        for item in &self.staged {
            let start = self.buffer.len();
            self.buffer.extend_from_slice(&[0; 4]);
            self.buffer.extend_from_slice(&u32::try_from(item.key.len())?.to_le_bytes());
            self.buffer.extend_from_slice(&u32::try_from(item.value.len())?.to_le_bytes());
            self.buffer.extend_from_slice(&item.key);
            self.buffer.extend_from_slice(&item.value);
            let checksum = crc32c::crc32c(&self.buffer[start + 4..]);
            self.buffer[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
            if self.buffer.len() >= CHUNK_BYTES {
                self.file.write_all(&self.buffer)?;
                self.buffer.clear();
            }
        }
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        self.file.sync_data()?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reads the whole file: nobody asks twice.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        File::open(&self.path)?.read_to_end(&mut bytes)?;
        let (mut rest, mut found) = (&bytes[..], None);
        while let Some((head, body)) = rest.split_at_checked(HEAD_BYTES) {
            let word = |at: usize| {
                let bytes = head[at..at + 4].try_into().expect("four bytes");
                u32::from_le_bytes(bytes) as usize
            };
            let end = HEAD_BYTES + word(4) + word(8);
            ensure!(end <= rest.len(), "a record is cut off");
            ensure!(word(0) == crc32c::crc32c(&rest[4..end]) as usize, "a record is damaged");
            if &body[..word(4)] == key {
                found = Some(rest[HEAD_BYTES + word(4)..end].to_vec());
            }
            rest = &rest[end..];
        }
        Ok(found)
    }
}
