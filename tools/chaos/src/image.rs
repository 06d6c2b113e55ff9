//! A file system in a file: mounted, shut down as by a power cut, filled up, brought to a standstill.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use harness::child::output;
use rustix::fs::FallocateFlags;

/// A mounted image; unmounted when it is dropped.
pub struct Image {
    image: PathBuf,
    at: PathBuf,
    is_frozen: Cell<bool>,
}

/// What takes the room of a full file system.
const FILLER: &str = "filler";

impl Image {
    /// Makes a sparse file of so many bytes and a file system in it with a program like `mkfs.ext4`, and mounts that.
    pub fn make(image: PathBuf, bytes: u64, make: &str, arguments: &[&str], at: PathBuf) -> Result<Image> {
        File::create(&image)?.set_len(bytes)?;
        output(Command::new(make).args(arguments).arg(&image))?;
        std::fs::create_dir_all(&at)?;
        let mounted = Image { image, at, is_frozen: Cell::new(false) };
        mounted.mount()?;
        Ok(mounted)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }

    fn mount(&self) -> Result<()> {
        output(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.at))?;
        Ok(())
    }

    /// From now on nothing reaches the image, not even what the file system's journal holds in memory.
    pub fn power_off(&self) -> Result<()> {
        /// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN`: `_IOR('X', 125, u32)` (Linux, fs/ext4/ext4.h, xfs_fs.h).
        const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
        /// `EXT4_GOING_FLAGS_NOLOGFLUSH` and `XFS_FSOP_GOING_FLAGS_NOLOGFLUSH`.
        const WITHOUT_LOG: u32 = 2;
        let folder = File::open(&self.at)?;
        // SAFETY: both file systems define this number as an ioctl that reads one u32 through its argument.
        let done = unsafe {
            rustix::ioctl::ioctl(&folder, rustix::ioctl::Setter::<SHUTDOWN, u32>::new(WITHOUT_LOG))
        };
        done.context("the file system cannot be shut down")
    }

    /// After a power cut, when nobody uses it any more.
    pub fn mount_again(&self) -> Result<()> {
        output(Command::new("umount").arg(&self.at))?;
        self.mount()
    }

    /// Leaves no room to others.
    pub fn fill(&self) -> Result<()> {
        let free = rustix::fs::statvfs(&self.at)?;
        let filler = File::create(self.at.join(FILLER))?;
        let mut left = free.f_bavail * free.f_frsize;
        // What the file system needs for itself is not known beforehand.
        while left >= free.f_frsize {
            match rustix::fs::fallocate(&filler, FallocateFlags::empty(), filler.metadata()?.len(), left) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::NOSPC) => left /= 2,
                Err(error) => return Err(error).context("the file system cannot be filled"),
            }
        }
        Ok(())
    }

    /// Gives the room back.
    pub fn empty(&self) -> Result<()> {
        std::fs::remove_file(self.at.join(FILLER)).context("the room cannot be given back")
    }

    /// Whoever writes or syncs waits from now on.
    pub fn freeze(&self) -> Result<()> {
        output(Command::new("fsfreeze").arg("--freeze").arg(&self.at))?;
        self.is_frozen.set(true);
        Ok(())
    }

    /// Nobody waits any more.
    pub fn thaw(&self) -> Result<()> {
        if self.is_frozen.replace(false) {
            output(Command::new("fsfreeze").arg("--unfreeze").arg(&self.at))?;
        }
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A server that did not end yet would keep it busy: lazily, it goes with the last user.
        let gone = Command::new("umount").arg("-l").arg(&self.at).status();
        if !gone.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.at.display());
        }
    }
}
