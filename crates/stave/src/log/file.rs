//! A file that the log goes to: earlier ones are kept beside it, and what cannot be written goes to standard error.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Disk, File, OpenMode};
use node::config::LogFile;

/// The file, open, with the place of the next line.
pub(super) struct OpenLog {
    disk: Arc<dyn Disk>,
    wanted: LogFile,
    file: Arc<dyn File>,
    end: u64,
    /// Whether the last line could not be written: it is said once, and every line tries again.
    failing: bool,
}

impl OpenLog {
    /// Opens it, to go on behind what is there.
    pub(super) fn open(disk: Arc<dyn Disk>, wanted: LogFile) -> io::Result<OpenLog> {
        if let Some(folder) = wanted.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            disk.create_dir_all(folder)?;
        }
        let file = disk.open(&wanted.path, OpenMode::Create)?;
        // What an earlier process wrote is not encrypted again with what comes.
        let end = file.append_from(file.len()?);
        Ok(OpenLog { disk, wanted, file, end, failing: false })
    }

    /// Writes whole lines. A line is never in two files.
    pub(super) fn write(&mut self, lines: &[u8]) {
        match self.try_write(lines) {
            Ok(()) => self.failing = false,
            Err(error) => {
                let mut stderr = io::stderr().lock();
                if !std::mem::replace(&mut self.failing, true) {
                    let path = self.wanted.path.display();
                    let _ = writeln!(
                        stderr,
                        "{path}: {error}: the log goes to standard error until it can be written"
                    );
                }
                let _ = stderr.write_all(lines);
            }
        }
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.end > 0 && self.end + lines.len() as u64 > self.wanted.bytes {
            self.begin_anew()?;
        }
        self.file.write_at(lines, self.end)?;
        self.end += lines.len() as u64;
        Ok(())
    }

    /// Moves every file one further, drops the last, and begins an empty one.
    fn begin_anew(&mut self) -> io::Result<()> {
        if self.wanted.kept == 0 {
            self.file.set_len(0)?;
            self.end = 0;
            return Ok(());
        }
        for number in (1..self.wanted.kept).rev() {
            missing_is_fine(self.disk.rename(&self.earlier(number), &self.earlier(number + 1)))?;
        }
        missing_is_fine(self.disk.rename(&self.wanted.path, &self.earlier(1)))?;
        self.file = self.disk.open(&self.wanted.path, OpenMode::Create)?;
        self.end = self.file.len()?;
        Ok(())
    }

    fn earlier(&self, number: u32) -> PathBuf {
        earlier(&self.wanted.path, number)
    }
}

/// The name of a full file; 1 is the newest.
fn earlier(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn missing_is_fine(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use base::encryption::{EncryptedDisk, KeyRing, WrappingKeys};
    use base::env::Env;

    use super::*;

    fn read(disk: &dyn Disk, path: &Path) -> Option<String> {
        let file = disk.open(path, OpenMode::Read).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().ok()?).ok()?];
        let read = file.read_at(&mut bytes, 0).ok()?;
        String::from_utf8(bytes[..read].to_vec()).ok()
    }

    fn log(folder: &Path, bytes: u64, kept: u32) -> OpenLog {
        let disk = Env::real().disk;
        OpenLog::open(disk, LogFile { path: folder.join("logs/stave.log"), bytes, kept }).expect("opens")
    }

    #[test]
    fn full_files_are_kept_and_the_oldest_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut open = log(folder.path(), 12, 2);
        for line in ["one one\n", "two\n", "three\n", "four four\n", "five\n"] {
            open.write(line.as_bytes());
        }
        let path = folder.path().join("logs/stave.log");
        let disk = Env::real().disk;
        assert_eq!(read(&*disk, &path).as_deref(), Some("five\n"));
        assert_eq!(read(&*disk, &earlier(&path, 1)).as_deref(), Some("four four\n"));
        assert_eq!(read(&*disk, &earlier(&path, 2)).as_deref(), Some("three\n"));
        assert_eq!(read(&*disk, &earlier(&path, 3)), None, "the first two lines were the oldest");
    }

    #[test]
    fn a_log_goes_on_behind_what_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        log(folder.path(), 1_000, 1).write(b"before\n");
        log(folder.path(), 1_000, 1).write(b"after\n");
        let path = folder.path().join("logs/stave.log");
        assert_eq!(read(&*Env::real().disk, &path).as_deref(), Some("before\nafter\n"));
    }

    #[test]
    fn an_encrypted_log_is_rotated_and_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, path) = (Env::real(), folder.path().join("stave.log"));
        let wrapping = WrappingKeys::parse(&"7".repeat(64), "the test").expect("a key");
        let ring = KeyRing::open(&real, folder.path(), "it", Some(&wrapping), true, |_| ());
        let keys = ring.expect("it opens").expect("it is wanted").keys().clone();
        let disk = EncryptedDisk::env(&real, keys).disk;
        let open = || {
            let wanted = LogFile { path: path.clone(), bytes: 10_000, kept: 1 };
            OpenLog::open(Arc::clone(&disk), wanted).expect("opens")
        };
        open().write(b"before\n");
        let mut log = open();
        log.write(b"after\n");
        let text = read(&*disk, &path).expect("it is there");
        assert_eq!(text.replace('\0', ""), "before\nafter\n");
        log.write(format!("{}\n", "long".repeat(2_000)).as_bytes());
        let [now, earlier] =
            [path.clone(), earlier(&path, 1)].map(|path| read(&*disk, &path).expect("it is there"));
        assert!(now.starts_with("longlong") && earlier.starts_with("before\n"), "{earlier}");
        for path in [path.clone(), super::earlier(&path, 1)] {
            let file = real.disk.open(&path, OpenMode::Read).expect("it is there");
            let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("short")];
            file.read_at(&mut bytes, 0).expect("it is read");
            let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
            assert!(!has(b"before") && !has(b"after") && !has(b"longlong"), "{}", path.display());
        }
    }

    #[test]
    fn with_no_earlier_files_a_full_one_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut open = log(folder.path(), 10, 0);
        open.write(b"one two\n");
        open.write(b"three\n");
        let path = folder.path().join("logs/stave.log");
        assert_eq!(read(&*Env::real().disk, &path).as_deref(), Some("three\n"));
    }
}
