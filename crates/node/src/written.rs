//! Which small files of the data directory have ever been written: a file that is named here, and of which both copies are
//! missing, is lost, and was not never written.
//!
//! *Guarantee:* a file is named after it was written, durably, so that a write that was cut off is never taken for a lost
//! file. A start names a file that it finds and that is not named.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use base::env::Disk;
use base::{Slots, SmallFile, SmallFileError, TwoSlots};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::missing::missing;

const FILE: &str = "written-files";
const FORMAT: u32 = 1;
/// Held while the file is changed: files of one node are written by several threads.
static CHANGING: Mutex<()> = Mutex::new(());

#[derive(Default, Serialize, Deserialize)]
struct WrittenNames {
    format: u32,
    /// Rises with every write.
    write: u64,
    files: BTreeSet<String>,
}

impl WrittenNames {
    fn parse(text: &str) -> Option<WrittenNames> {
        serde_json::from_str(text).ok().filter(|slot: &WrittenNames| slot.format == FORMAT)
    }
}

fn file(folder: &Path) -> TwoSlots {
    TwoSlots::new(folder, FILE)
}

/// What is wrong with the file, if there is one. Changes nothing.
pub(crate) fn fault(disk: &dyn Disk, folder: &Path) -> Option<(PathBuf, String)> {
    file(folder).fault(disk, WrittenNames::parse).map(|what| (file(folder).path(), what))
}

fn read(disk: &dyn Disk, folder: &Path) -> io::Result<Option<WrittenNames>> {
    Ok(newest(file(folder).read(disk, WrittenNames::parse)?))
}

fn newest(slots: Option<Slots<WrittenNames>>) -> Option<WrittenNames> {
    slots.and_then(|slots| slots.whole.into_iter().max_by_key(|slot| slot.write))
}

fn name_of(written: &SmallFile) -> String {
    written.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn change(
    disk: &dyn Disk,
    folder: &Path,
    change: impl FnOnce(&mut BTreeSet<String>) -> bool,
) -> io::Result<()> {
    let _changing = CHANGING.lock();
    let slots = file(folder).read(disk, WrittenNames::parse)?;
    let is_there = slots.is_some();
    let found = newest(slots);
    let is_new = found.is_none();
    let mut slot = found.unwrap_or(WrittenNames { format: FORMAT, ..WrittenNames::default() });
    if !change(&mut slot.files) {
        return Ok(());
    }
    slot.write += 1;
    file(folder).write(disk, &serde_json::to_string(&slot)?, slot.write, is_new)?;
    if is_there && is_new {
        let (path, files) = (file(folder).path(), &slot.files);
        let path = path.display();
        tracing::error!(
            event = "written_list_damaged", %path, ?files,
            "the list of written files was damaged and is begun again: what else it named is not known to have been \
             written, until a start finds it"
        );
    }
    Ok(())
}

/// Notes a file that was just written, or found. If that fails, the next start does it.
pub(crate) fn note(disk: &dyn Disk, folder: &Path, written: &SmallFile) {
    let name = name_of(written);
    if let Err(error) = change(disk, folder, |files| files.insert(name.clone())) {
        tracing::warn!(
            event = "written_list_not_noted", file = name, %error,
            "it is not noted that the file was written: if it were lost before the next start, that would not be told"
        );
    }
}

/// A file is not there any more, and that is as it should be.
pub(crate) fn forget(disk: &dyn Disk, folder: &Path, removed: &SmallFile) -> io::Result<()> {
    let name = name_of(removed);
    change(disk, folder, |files| files.remove(&name))
}

/// Whether it is noted that a file was written.
pub(crate) fn says(disk: &dyn Disk, folder: &Path, written: &SmallFile) -> bool {
    let name = name_of(written);
    read(disk, folder).is_ok_and(|slot| slot.is_some_and(|slot| slot.files.contains(&name)))
}

/// A file of which it was noted that it was written.
pub(crate) fn written(disk: &dyn Disk, data: &Path, file: &SmallFile) -> Option<SmallFileError> {
    let what = || "it was written before".to_owned();
    missing(disk, file, || says(disk, data, file).then(what))
}

/// Reads a small file of the data directory. One that was written before, and is missing, is damage.
pub(crate) fn open<T>(
    disk: &dyn Disk,
    folder: &Path,
    wanted: &SmallFile,
    parse: impl Fn(&[u8], u16) -> Result<T, String>,
    say: impl FnMut(&str),
) -> Result<Option<T>, SmallFileError> {
    let found = wanted.open(disk, parse, say)?;
    if found.is_some() {
        note(disk, folder, wanted);
        return Ok(found);
    }
    written(disk, folder, wanted).map_or(Ok(None), Err)
}

/// Writes a small file of the data directory.
pub(crate) fn write(
    disk: &dyn Disk,
    folder: &Path,
    wanted: &SmallFile,
    content: &[u8],
) -> Result<(), SmallFileError> {
    wanted.write(disk, content)?;
    note(disk, folder, wanted);
    Ok(())
}
