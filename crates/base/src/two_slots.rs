//! A small file of two slots of fixed size, which are written in turn.
//!
//! # Guarantees
//!
//! - A write that is cut off leaves the slot before, and a damaged slot is noticed.
//! - A file that is there is written in place: a full disk does not keep it from being written. An encrypted one is
//!   replaced as a whole, because both slots are one page of it.

use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Disk, OpenMode};

/// A slot: eight hexadecimal digits of a checksum, a space, text, spaces up to the last byte, which ends the line.
const SLOT: usize = 512;

/// The file: where it is.
#[derive(Clone, Debug)]
pub struct TwoSlots {
    folder: PathBuf,
    name: &'static str,
}

/// What was read.
#[derive(Debug)]
pub struct Slots<T> {
    /// What the owner's function made of each slot that is whole.
    pub whole: Vec<T>,
    /// What is wrong with the file, in words.
    pub fault: Option<String>,
}

impl TwoSlots {
    /// A file of this name in a folder.
    pub fn new(folder: &Path, name: &'static str) -> TwoSlots {
        TwoSlots { folder: folder.to_owned(), name }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    /// Reads both slots; `None` if there is no file. A slot that `parse` does not understand counts as damaged.
    pub fn read<T>(
        &self,
        disk: &dyn Disk,
        parse: impl Fn(&str) -> Option<T>,
    ) -> io::Result<Option<Slots<T>>> {
        let file = match disk.open(&self.path(), OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; 2 * SLOT];
        let read = file.read_at(&mut bytes, 0)?;
        let slots = bytes[..read].chunks(SLOT).map(|slot| text_of(slot).and_then(&parse));
        let (whole, damaged): (Vec<_>, Vec<_>) = slots.partition(Option::is_some);
        let is_whole = damaged.is_empty() && read == bytes.len();
        let damaged = damaged.len();
        let fault = (!is_whole).then(|| format!("{damaged} of its slots are damaged, or it is cut off"));
        Ok(Some(Slots { whole: whole.into_iter().flatten().collect(), fault }))
    }

    /// What is wrong with the file, if there is one. Changes nothing.
    pub fn fault<T>(&self, disk: &dyn Disk, parse: impl Fn(&str) -> Option<T>) -> Option<String> {
        match self.read(disk, parse) {
            Err(error) => Some(format!("it cannot be read: {error}")),
            Ok(found) => found?.fault,
        }
    }

    /// Writes a slot durably: `nth` rises with every write. `is_new`: the whole file is written, and takes the place of
    /// what was there.
    pub fn write(&self, disk: &dyn Disk, text: &str, nth: u64, is_new: bool) -> io::Result<()> {
        let slot = slot_of(text)?;
        // Of an encrypted file both slots are one page, which a power failure within a write would take.
        if is_new || disk.beneath().is_some() {
            // Whole from the start: an empty file is damage.
            let new = self.folder.join(format!("{}.next", self.name));
            let file = disk.open(&new, OpenMode::Create)?;
            file.set_len(0)?;
            file.write_at(&[slot.clone(), slot].concat(), 0)?;
            file.sync_data()?;
            disk.rename(&new, &self.path())?;
            return disk.sync_dir(&self.folder);
        }
        let file = disk.open(&self.path(), OpenMode::Create)?;
        file.write_at(&slot, if nth.is_multiple_of(2) { 0 } else { SLOT as u64 })?;
        file.sync_data()
    }
}

fn slot_of(text: &str) -> io::Result<Vec<u8>> {
    let mut line = format!("{:08x} {text}", crc32fast::hash(text.as_bytes())).into_bytes();
    if line.len() >= SLOT {
        return Err(io::Error::other(format!("{} bytes are too long for a slot", line.len())));
    }
    line.resize(SLOT - 1, b' ');
    line.push(b'\n');
    Ok(line)
}

/// `None` if it is damaged.
fn text_of(slot: &[u8]) -> Option<&str> {
    let (sum, text) = std::str::from_utf8(slot).ok()?.trim_end().split_once(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}
