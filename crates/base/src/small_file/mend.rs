//! Making both files of a small file whole again, for who knows neither its owner nor what it holds.

use super::{One, SmallFile, SmallFileError, UNFINISHED, Unusable};
use crate::encryption::is_unknown_key;
use crate::env::{Disk, OpenMode};

impl SmallFile {
    /// Whether one of the two files is whole and the other is not the same.
    pub fn is_half_damaged(&self, disk: &dyn Disk) -> bool {
        self.better(disk).is_some()
    }

    /// Puts the whole one of the two files into the place of the other, durably. Answers whether that was needed and
    /// possible.
    pub fn mend(&self, disk: &dyn Disk) -> Result<bool, SmallFileError> {
        let Some(is_first) = self.better(disk) else { return Ok(false) };
        let (from, to) =
            if is_first { (self.path(), self.copy_path()) } else { (self.copy_path(), self.path()) };
        let unfinished = to.with_file_name(format!(
            "{}{UNFINISHED}",
            to.file_name().unwrap_or(to.as_os_str()).to_string_lossy()
        ));
        let copy = || {
            let source = disk.open(&from, OpenMode::Read)?;
            let mut bytes = vec![0; usize::try_from(source.len()?).unwrap_or_default()];
            source.read_at(&mut bytes, 0)?;
            let target = disk.open(&unfinished, OpenMode::Create)?;
            target.set_len(0)?;
            target.write_at(&bytes, 0)?;
            target.sync_data()?;
            disk.rename(&unfinished, &to)?;
            disk.sync_dir(&self.folder)
        };
        copy().map_err(|source| self.failed("write", to.clone(), source))?;
        Ok(true)
    }

    /// Whether the first file is the one to go by, if one of the two is whole and the other is not the same.
    fn better(&self, disk: &dyn Disk) -> Option<bool> {
        let any = SmallFile { owner: String::new(), version: u16::MAX, ..self.clone() };
        let one = |path: std::path::PathBuf| any.read_one(disk, &path, &|_, _| Ok(()));
        let is_void = |unusable: &Unusable| match unusable {
            Unusable::Missing | Unusable::Fault(_) => true,
            Unusable::Unreadable(error) => is_unknown_key(error),
            Unusable::Newer(_) => false,
        };
        match (one(any.path()), one(any.copy_path())) {
            // One without header has no checksum, and says nothing.
            (Ok(One { generation: 1.., .. }), Err(other)) if is_void(&other) => Some(true),
            (Err(other), Ok(One { generation: 1.., .. })) if is_void(&other) => Some(false),
            (Ok(first), Ok(copy)) if first.generation != copy.generation => {
                Some(first.generation > copy.generation)
            }
            _ => None,
        }
    }
}
