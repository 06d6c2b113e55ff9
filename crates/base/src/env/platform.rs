//! What the systems that Stave is built for do differently with files and clocks.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is part of the door itself")]

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
    use std::path::Path;
    use std::{fs, io};

    use rustix::time::ClockId;

    use super::super::disk::Room;

    /// Has files that are made carry these rights.
    pub fn set_file_mode(options: &mut fs::OpenOptions, mode: u32) {
        options.mode(mode);
    }

    /// Has folders that are made carry these rights.
    pub fn set_folder_mode(builder: &mut fs::DirBuilder, mode: u32) {
        builder.mode(mode);
    }

    pub fn read_at(file: &fs::File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buf, offset)
    }

    pub fn write_all_at(file: &fs::File, buf: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(buf, offset)
    }

    pub fn sync_dir(path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    pub fn room(folder: &Path) -> Option<Room> {
        let found = rustix::fs::statvfs(folder).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Room {
            total_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bavail),
            used_bytes: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        })
    }

    /// CLOCK_MONOTONIC, which is what `Instant` reads, stands still while a guest is suspended.
    #[cfg(target_os = "linux")]
    pub const BOOT: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    pub const BOOT: ClockId = ClockId::Monotonic;

    /// Nanoseconds since the machine was started, with those in which it was suspended if they are to count.
    pub fn since_boot_ns(counts_suspension: bool) -> u64 {
        let time = rustix::time::clock_gettime(if counts_suspension { BOOT } else { ClockId::Monotonic });
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }
}

#[cfg(unix)]
pub use unix::*;

#[cfg(windows)]
mod windows {
    use std::os::windows::fs::FileExt;
    use std::path::Path;
    use std::sync::OnceLock;
    use std::time::Instant;
    use std::{fs, io};

    use super::super::disk::Room;

    /// Files have the rights of their folder.
    pub fn set_file_mode(_: &mut fs::OpenOptions, _: u32) {}

    /// Folders have the rights of the one that they are in.
    pub fn set_folder_mode(_: &mut fs::DirBuilder, _: u32) {}

    pub fn read_at(file: &fs::File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buf, offset)
    }

    pub fn write_all_at(file: &fs::File, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let done = match file.seek_write(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(done) => done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            buf = &buf[done..];
            offset += done as u64;
        }
        Ok(())
    }

    /// There is no call for it: NTFS has a log of its own for names.
    pub fn sync_dir(_: &Path) -> io::Result<()> {
        Ok(())
    }

    /// The standard library has no call for it.
    pub fn room(_: &Path) -> Option<Room> {
        None
    }

    /// Nanoseconds since this was first asked.
    pub fn since_boot_ns(_: bool) -> u64 {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

#[cfg(windows)]
pub use windows::*;
