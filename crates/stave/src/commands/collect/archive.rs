//! The archive: a tar file, compressed with gzip, which is made once and never read here.

use std::io;
use std::path::Path;

use base::env::{Env, OpenMode};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::new_file::NewFile;

/// An archive in the making.
pub(super) struct Archive {
    builder: tar::Builder<GzEncoder<NewFile>>,
    /// All files are in it, so that unpacking it makes one folder, and not many.
    folder: String,
    files: usize,
    made_at_s: u64,
}

impl Archive {
    /// Makes a new file, for its owner alone, whose files are all in `folder`.
    pub(super) fn create(env: &Env, path: &Path, folder: String) -> anyhow::Result<Archive> {
        let compressed = GzEncoder::new(NewFile::create(env, path)?, Compression::default());
        let made_at_s = env.clock.unix_ns() / 1_000_000_000;
        Ok(Archive { builder: tar::Builder::new(compressed), folder, files: 0, made_at_s })
    }

    /// Adds a file.
    pub(super) fn put(&mut self, name: &str, text: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.made_at_s);
        self.builder.append_data(&mut header, format!("{}/{name}", self.folder), text)?;
        self.files += 1;
        Ok(())
    }

    /// Ends it: how many files it has, and how large it is, in bytes.
    pub(super) fn finish(self) -> anyhow::Result<(usize, u64)> {
        let file = self.builder.into_inner()?.finish()?;
        Ok((self.files, file.keep()?))
    }
}

/// The last bytes of a file, at most `most`.
pub(super) fn read_end(env: &Env, path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = env.disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    let from = len.saturating_sub(most);
    let mut text = vec![0; usize::try_from(len - from).map_err(io::Error::other)?];
    let mut read = 0;
    while read < text.len() {
        match file.read_at(&mut text[read..], from + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    text.truncate(read);
    Ok(text)
}
