//! The journal's files besides the one that is written to: which are needed, which wait for their next use.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::env::{File, OpenMode};

use super::layout::{BLOCK, linked, segment_path, spare_path};
use super::{Frame, Journal, count, on_disk};
use crate::failure::Failure;

/// The most that one step fills with zeros.
const STEP_BYTES: u64 = 4 << 20;
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A segment that is needed.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) generation: u64,
    /// Behind its last frame; none while it is written to.
    pub(super) end: Option<u64>,
    /// It is free when all frames below this are: its own, and those of a call that went on in the next segment.
    pub(super) free_at: Option<u64>,
    /// Bytes that are in use.
    pub(super) bytes: u64,
    /// Bytes of the file, at least.
    pub(super) len: u64,
}

/// A file that waits for its next use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) number: u64,
    pub(super) len: u64,
}

/// Never locked during disk operations.
#[derive(Debug, Default)]
pub(super) struct SegmentPool {
    /// Oldest first.
    kept: VecDeque<Kept>,
    spares: Vec<Spare>,
    /// Frames below this are not needed, says a frame that is durable.
    vouched: u64,
    last_generation: u64,
    /// The salt of the segment with that generation, if there is one and its header can be read.
    last_salt: Option<u64>,
    /// That of the generation before it.
    salt_before: Option<u64>,
    last_spare: u64,
}

impl SegmentPool {
    pub(super) fn new(
        kept: Vec<Kept>,
        spares: Vec<Spare>,
        (last_generation, last_salt): (u64, Option<u64>),
    ) -> SegmentPool {
        let last_spare = spares.iter().map(|spare| spare.number).max().unwrap_or(0);
        SegmentPool {
            kept: kept.into(),
            spares,
            vouched: 0,
            last_generation,
            last_salt,
            salt_before: None,
            last_spare,
        }
    }

    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn spares(&self) -> usize {
        self.spares.len()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }

    pub(super) fn last_generation(&self) -> u64 {
        self.last_generation
    }

    pub(super) fn vouched(&self) -> u64 {
        self.vouched
    }

    pub(super) fn is_ready(&self, segment_bytes: u64) -> bool {
        self.spares.iter().any(|spare| spare.len >= segment_bytes)
    }

    /// A salt for the segment that was begun last.
    pub(super) fn salt(&mut self, random: u64) -> u64 {
        let salt = linked(random, self.salt_before);
        self.last_salt = Some(salt);
        salt
    }

    /// A new segment begins: its generation, and the spare that it is to be made of.
    pub(super) fn begin(&mut self, first: u64, is_within_call: bool) -> (u64, Option<Spare>) {
        if let Some(last) = self.kept.back_mut().filter(|last| last.end.is_none()) {
            last.end = Some(first);
            last.free_at = if is_within_call { None } else { Some(first) };
        }
        let longest = (0..self.spares.len()).max_by_key(|i| self.spares[*i].len);
        let spare = longest.map(|i| self.spares.swap_remove(i));
        self.last_generation += 1;
        let (generation, len) = (self.last_generation, spare.map_or(0, |spare| spare.len));
        self.kept.push_back(Kept { generation, end: None, free_at: None, bytes: 0, len });
        self.salt_before = self.last_salt.take();
        (generation, spare)
    }

    /// The newest segment begins once more, after a failure. False if it is not this one.
    pub(super) fn begin_again(&mut self, generation: u64) -> bool {
        let newest = self.kept.back_mut().filter(|last| last.generation == generation);
        newest.is_some_and(|last| {
            (last.end, last.free_at) = (None, None);
            true
        })
    }

    /// The segment that is written to is durable up to `offset`, and in it that all below `vouched` may go.
    pub(super) fn synced(&mut self, offset: u64, vouched: u64) {
        if let Some(last) = self.kept.back_mut() {
            last.bytes = offset;
            last.len = last.len.max(offset);
        }
        self.vouched = self.vouched.max(vouched);
    }

    /// A call is done that ended before frame `next`.
    pub(super) fn called(&mut self, next: u64) {
        self.kept.iter_mut().filter(|kept| kept.end.is_some()).for_each(|kept| {
            kept.free_at.get_or_insert(next);
        });
    }

    /// The segment that is written to ends; `next` is to be in another.
    pub(super) fn give_up(&mut self, next: u64) {
        if let Some(last) = self.kept.back_mut() {
            last.end.get_or_insert(next);
        }
        self.called(next);
    }

    /// How much must be durably unneeded so that all that may go can go; none if there is nothing.
    fn wanted(&self, needed: u64) -> Option<u64> {
        let free = self.kept.iter().map_while(|kept| kept.free_at.filter(|at| *at <= needed));
        free.max()
    }

    /// The oldest segment if it may go.
    fn oldest_free(&self) -> Option<(u64, u64)> {
        let oldest = self.kept.front()?;
        oldest.free_at.filter(|at| *at <= self.vouched).map(|_| (oldest.generation, oldest.len))
    }

    fn oldest(&self) -> Option<u64> {
        self.kept.front().map(|oldest| oldest.generation)
    }

    fn next_spare(&mut self) -> u64 {
        self.last_spare += 1;
        self.last_spare
    }

    fn take_spares(&mut self) -> Vec<Spare> {
        std::mem::take(&mut self.spares)
    }

    /// A spare that is too short to be ready.
    fn take_short(&mut self, segment_bytes: u64) -> Option<Spare> {
        let at = self.spares.iter().position(|spare| spare.len < segment_bytes)?;
        Some(self.spares.swap_remove(at))
    }
}

/// What only one thread at a time may do to the names of segments.
#[derive(Default)]
pub(super) struct Releasing {
    /// One name may be changed and not synced, and only that of the oldest segment: so what is there after a crash
    /// goes on without a gap.
    is_unsynced: bool,
}

/// A spare that is being filled.
pub(super) struct Preparing {
    file: Arc<dyn File>,
    path: PathBuf,
    spare: Spare,
}

impl Journal {
    /// All frames below `needed` may go: segments all of whose frames are below it become spares or are removed.
    pub fn release(&self, needed: Frame) -> Result<(), Failure> {
        if self.pinned_bytes() > 0 {
            return Ok(());
        }
        let mut releasing = self.releasing.lock();
        let needed = needed.0.min(self.next.load(Ordering::Acquire));
        let needed = self.needed.fetch_max(needed, Ordering::AcqRel).max(needed);
        let Some(wanted) = self.pool.lock().wanted(needed) else {
            return self.sync_names(&mut releasing);
        };
        if self.pool.lock().vouched < wanted && !self.mark(needed, false)? {
            return Ok(());
        }
        loop {
            self.sync_names(&mut releasing)?;
            let free = self.pool.lock().oldest_free();
            let Some((generation, len)) = free else { return Ok(()) };
            self.let_go(&mut releasing, generation, len)?;
        }
    }

    /// Bytes of segments that stay because of what is missing in them.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Acquire)
    }

    /// What is missing is missed no more: segments may go.
    pub(crate) fn let_go_of_gaps(&self) {
        self.pinned_bytes.store(0, Ordering::Release);
    }

    fn sync_names(&self, releasing: &mut Releasing) -> Result<(), Failure> {
        if releasing.is_unsynced {
            on_disk("sync folder", &self.dir, self.env.disk.sync_dir(&self.dir))?;
            releasing.is_unsynced = false;
        }
        Ok(())
    }

    /// The oldest segment becomes a spare if one is wanted and it is fit for it.
    fn let_go(&self, releasing: &mut Releasing, generation: u64, len: u64) -> Result<(), Failure> {
        let path = segment_path(&self.dir, generation);
        let is_fit =
            (BLOCK as u64 + 1..=self.config.segment_bytes * 2).contains(&len) && self.is_current(&path);
        let spare = {
            let mut pool = self.pool.lock();
            let is_wanted = is_fit && pool.spares.len() < self.config.spare_segments;
            is_wanted.then(|| Spare { number: pool.next_spare(), len })
        };
        releasing.is_unsynced = true;
        let is_there = match spare {
            Some(spare) => {
                let to = spare_path(&self.dir, spare.number);
                is_there("rename", &path, self.env.disk.rename(&path, &to))?
            }
            None => is_there("remove", &path, self.env.disk.remove_file(&path))?,
        };
        let mut pool = self.pool.lock();
        pool.kept.pop_front();
        pool.spares.extend(spare.filter(|_| is_there));
        Ok(())
    }

    /// Whether a file may be used again: it is encrypted as a new one would be, or nothing is encrypted here.
    fn is_current(&self, path: &Path) -> bool {
        let disk = &self.env.disk;
        disk.beneath().is_none() || disk.open(path, OpenMode::ReadWrite).is_ok_and(|file| file.is_current())
    }

    /// Once the keys have changed, removes spares that are not encrypted as new files are: what was in them stays there
    /// otherwise until they are used.
    fn review_spares(&self) -> Result<(), Failure> {
        let changes = self.env.disk.key_changes();
        if self.spares_as_of.load(Ordering::Relaxed) == changes {
            return Ok(());
        }
        let mut failed = Ok(());
        let spares = self.pool.lock().take_spares();
        for spare in spares {
            let path = spare_path(&self.dir, spare.number);
            if self.is_current(&path) {
                self.pool.lock().spares.push(spare);
            } else if let Err(failure) = is_there("remove", &path, self.env.disk.remove_file(&path)) {
                self.pool.lock().spares.push(spare);
                failed = Err(failure);
            }
        }
        failed?;
        self.spares_as_of.store(changes, Ordering::Relaxed);
        Ok(())
    }

    /// Fills a spare segment with zeros and syncs it, while commits are small: a few megabytes with each call.
    /// Says whether there is more to do.
    pub fn prepare_step(&self) -> Result<bool, Failure> {
        let mut preparing = self.preparing.lock();
        self.review_spares()?;
        let segment_bytes = self.config.segment_bytes;
        let is_wanted = self.config.spare_segments > 0 && self.is_small();
        if !is_wanted || self.pool.lock().is_ready(segment_bytes) {
            return Ok(false);
        }
        let mut filling = match preparing.take() {
            Some(filling) => filling,
            None => self.begin_spare()?,
        };
        let until = segment_bytes.min(filling.spare.len.saturating_add(STEP_BYTES));
        while filling.spare.len < until {
            let bytes = (until - filling.spare.len).min(ZEROS.len() as u64);
            let written = filling.file.write_at(&ZEROS[..bytes as usize], filling.spare.len);
            on_disk("write", &filling.path, written).inspect_err(|_| self.discard(&filling))?;
            filling.spare.len += bytes;
            count(&self.counters.prewritten_bytes, bytes);
        }
        on_disk("sync", &filling.path, filling.file.sync_data()).inspect_err(|_| self.discard(&filling))?;
        if filling.spare.len < segment_bytes {
            *preparing = Some(filling);
            return Ok(true);
        }
        self.pool.lock().spares.push(filling.spare);
        Ok(false)
    }

    fn begin_spare(&self) -> Result<Preparing, Failure> {
        let short = self.pool.lock().take_short(self.config.segment_bytes);
        let (spare, mode) = match short {
            Some(spare) => (spare, OpenMode::ReadWrite),
            None => (Spare { number: self.pool.lock().next_spare(), len: 0 }, OpenMode::CreateNew),
        };
        let path = spare_path(&self.dir, spare.number);
        let file = on_disk("open", &path, self.env.disk.open(&path, mode))?;
        if file.is_current() {
            return Ok(Preparing { file, path, spare });
        }
        on_disk("cut", &path, file.set_len(0))?;
        Ok(Preparing { file, path, spare: Spare { len: 0, ..spare } })
    }

    /// Gives the room back that a disk may just have run out of.
    fn discard(&self, filling: &Preparing) {
        let _ = self.env.disk.remove_file(&filling.path);
    }

    /// Everything is filed: removes the journal's files, durably. If that fails, what is left is void, if the catalog
    /// says so, and nothing more is appended to it.
    pub fn remove(&self) -> Result<(), Failure> {
        self.remove_all().inspect_err(|_| self.end_segment())
    }

    fn remove_all(&self) -> Result<(), Failure> {
        let disk = &*self.env.disk;
        let mut releasing = self.releasing.lock();
        if !self.anchor.makes_void && self.durable() > 0 && !self.mark(0, true)? {
            let source = io::Error::other("its last segment was given up");
            return Err(Failure::Disk { operation: "remove the journal in", path: self.dir.clone(), source });
        }
        self.sync_names(&mut releasing)?;
        for spare in super::read::find(disk, &self.dir)?.spares {
            let path = spare_path(&self.dir, spare);
            is_there("remove", &path, disk.remove_file(&path))?;
        }
        // oldest first, one by one: what is left after a crash has the last table and all that followed
        while let Some(generation) = { self.pool.lock().oldest() } {
            let path = segment_path(&self.dir, generation);
            is_there("remove", &path, disk.remove_file(&path))?;
            on_disk("sync folder", &self.dir, disk.sync_dir(&self.dir))?;
            self.pool.lock().kept.pop_front();
        }
        Ok(())
    }
}

/// Whether a file was there; a segment whose making failed may not be.
fn is_there(operation: &'static str, path: &Path, result: io::Result<()>) -> Result<bool, Failure> {
    match result {
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => Ok(false),
        other => on_disk(operation, path, other).map(|()| true),
    }
}
