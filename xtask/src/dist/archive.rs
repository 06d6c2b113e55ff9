//! Archives whose bytes depend on nothing but what is in them.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use harness::tree;

/// A file of an archive.
pub struct Entry {
    /// Its path there.
    pub path: String,
    pub bytes: Vec<u8>,
    pub mode: u32,
    /// The number of its user and of its group.
    pub owner: u32,
    pub is_folder: bool,
}

impl Entry {
    pub fn new(path: impl Into<String>, bytes: Vec<u8>, mode: u32) -> Entry {
        Entry { path: path.into(), bytes, mode, owner: 0, is_folder: false }
    }

    /// An empty folder.
    pub fn folder(path: impl Into<String>, mode: u32, owner: u32) -> Entry {
        Entry { path: path.into(), bytes: Vec::new(), mode, owner, is_folder: true }
    }

    /// One that stands in the tree as `source`.
    pub fn read(path: impl Into<String>, source: &str, mode: u32) -> Result<Entry> {
        let bytes = std::fs::read(tree::root().join(source)).with_context(|| source.to_owned())?;
        Ok(Entry::new(path, bytes, mode))
    }
}

/// A tar archive of these files and the folders that they stand in, all as old as `time`, as gzip.
pub fn make(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    gzip(&tar(entries, time)?)
}

/// The same as it is.
pub fn tar(entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut folders: Vec<String> = Vec::new();
    for entry in entries {
        let parents: Vec<&Path> = Path::new(&entry.path).ancestors().skip(1).collect();
        for folder in parents.into_iter().rev() {
            let name = format!("{}/", folder.display());
            if name == "/" || name == "./" || folders.contains(&name) {
                continue;
            }
            append(&mut tar, &Entry::folder(name.clone(), 0o755, 0), time)?;
            folders.push(name);
        }
        if entry.is_folder {
            folders.push(entry.path.clone());
        }
        append(&mut tar, entry, time)?;
    }
    Ok(tar.into_inner()?)
}

/// The path as it is written: the library would take a leading `./` away.
fn append(tar: &mut tar::Builder<Vec<u8>>, entry: &Entry, time: u64) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    let Entry { path, bytes, mode, owner, is_folder } = entry;
    let name = &mut header.as_old_mut().name;
    let room = name.get_mut(..path.len()).with_context(|| format!("{path} is too long for an archive"))?;
    room.copy_from_slice(path.as_bytes());
    header.set_entry_type(if *is_folder { tar::EntryType::Directory } else { tar::EntryType::Regular });
    header.set_size(bytes.len() as u64);
    header.set_mode(*mode);
    header.set_mtime(time);
    header.set_uid(u64::from(*owner));
    header.set_gid(u64::from(*owner));
    if *owner == 0 {
        header.set_username("root")?;
        header.set_groupname("root")?;
    }
    header.set_cksum();
    tar.append(&header, &bytes[..])?;
    Ok(())
}

/// As gzip without name and time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// The paths of an archive, as they are written there.
#[cfg(test)]
pub fn names(archive: &[u8]) -> Result<Vec<String>> {
    use std::io::Read;

    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(archive).read_to_end(&mut bytes)?;
    let mut archive = tar::Archive::new(&bytes[..]);
    let name = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        Ok(String::from_utf8_lossy(&entry?.path_bytes()).into_owned())
    };
    archive.entries()?.map(name).collect()
}
