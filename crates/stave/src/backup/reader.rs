//! Reads a backup together with those that it goes on from.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use base::VbId;
use base::encryption::Sealer;
use base::env::{File, OpenMode};

use super::BackupError;
use super::block::{BlockPlace, OpenBlock, Version};
use super::manifest::{VbucketLine, VersionCounts};
use super::repository::{Backup, Chain, Repository, changes_path};

/// Reads a chain of backups, the newest first.
pub(crate) struct ChainReader<'e> {
    repository: &'e Repository<'e>,
    links: Vec<Link>,
    block: OpenBlock,
    bytes: Vec<u8>,
}

/// One backup of the chain.
struct Link {
    backup: Backup,
    lines: BTreeMap<u16, VbucketLine>,
    sealer: Option<Sealer>,
    /// The file that was read last.
    open: Option<(u32, Arc<dyn File>)>,
}

/// What was found to be whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) blocks: u64,
    pub(crate) versions: u64,
    pub(crate) bytes: u64,
}

impl Link {
    /// Reads a block into `block`.
    fn read(
        &mut self,
        repository: &Repository<'_>,
        vb: VbId,
        place: &BlockPlace,
        bytes: &mut Vec<u8>,
        block: &mut OpenBlock,
    ) -> Result<(), BackupError> {
        let path = changes_path(&self.backup.folder, place.0);
        let failed = |source| BackupError::Io { operation: "read", path: path.clone(), source };
        let file = match &self.open {
            Some((number, file)) if *number == place.0 => file.clone(),
            _ => repository.env.disk.open(&path, OpenMode::Read).map_err(failed)?,
        };
        bytes.resize(place.len(), 0);
        let read = file.read_at(bytes, place.1).map_err(failed)?;
        self.open = Some((place.0, file));
        if read < bytes.len() {
            return Err(BackupError::damaged(&path, "it is too short"));
        }
        let number = self.backup.manifest.number;
        block.open(bytes, number, vb, place, self.sealer.as_ref()).map_err(|what| {
            BackupError::damaged(&path, format!("{what}, at byte {} (vBucket {vb})", place.1))
        })
    }
}

impl<'e> ChainReader<'e> {
    /// Opens all backups of a chain, whose lists of vBuckets must be whole and go on from each other.
    pub(crate) fn open(
        repository: &'e Repository<'e>,
        chain: &Chain,
    ) -> Result<ChainReader<'e>, BackupError> {
        let mut links: Vec<Link> = Vec::with_capacity(chain.0.len());
        for backup in &chain.0 {
            let lines = repository.lines(backup)?;
            if let Some(later) = links.last() {
                later.goes_on_from(&lines)?;
            }
            let sealer = repository.sealer_of(backup)?;
            links.push(Link { backup: backup.clone(), lines, sealer, open: None });
        }
        if let Some(oldest) = links.last() {
            oldest.goes_on_from(&BTreeMap::new())?;
        }
        Ok(ChainReader { repository, links, block: OpenBlock::default(), bytes: Vec::new() })
    }

    /// The newest version of each document and tombstone of a vBucket, the latest change first.
    /// What is visited is whole: a damaged block ends the visit.
    pub(crate) fn newest<E: From<BackupError>>(
        &mut self,
        vb: VbId,
        visit: &mut dyn FnMut(&Version<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.newest_unseen(vb, &mut HashSet::default(), visit)
    }

    /// The same of keys, with the prefixes of their collections, that were not seen before.
    pub(in crate::backup) fn newest_unseen<E: From<BackupError>>(
        &mut self,
        vb: VbId,
        seen: &mut HashSet<Box<[u8]>>,
        visit: &mut dyn FnMut(&Version<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for link in &mut self.links {
            let Some(line) = link.lines.get(&vb.0).cloned() else { break };
            for place in line.blocks.iter().rev() {
                link.read(self.repository, vb, place, &mut self.bytes, &mut self.block)?;
                for at in (0..self.block.len()).rev() {
                    let Some(version) = self.block.get(at) else { continue };
                    if seen.insert(version.stored_key()) {
                        visit(&version)?;
                    }
                }
            }
            if line.from == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads every block of every backup of the chain. `done` is told how many vBuckets were read, of all backups.
    pub(crate) fn verify(&mut self, done: &mut dyn FnMut(u64)) -> Result<Verified, BackupError> {
        let (mut verified, mut count) = (Verified::default(), 0);
        for link in &mut self.links {
            let mut counts: BTreeMap<u32, VersionCounts> = BTreeMap::new();
            let lines: Vec<VbucketLine> = link.lines.values().cloned().collect();
            for line in lines {
                let mut last = line.from;
                for place in &line.blocks {
                    link.read(self.repository, VbId(line.vb), place, &mut self.bytes, &mut self.block)?;
                    if place.4 <= last || place.5 > line.to {
                        let path = changes_path(&link.backup.folder, place.0);
                        return Err(BackupError::damaged(&path, "a block is not where its vBucket goes on"));
                    }
                    last = place.5;
                    verified.blocks += 1;
                    verified.versions += u64::from(place.3);
                    verified.bytes += u64::from(place.2);
                }
                for (collection, of_vbucket) in &line.counts {
                    counts.entry(*collection).or_default().add(*of_vbucket);
                }
                count += 1;
                done(count);
            }
            if counts != link.backup.manifest.counts {
                return Err(BackupError::damaged(
                    &link.backup.folder,
                    "its counts are not those of its vBuckets",
                ));
            }
        }
        Ok(verified)
    }
}

impl Link {
    /// An error if a vBucket goes on from a place that the earlier backup does not end at.
    fn goes_on_from(&self, earlier: &BTreeMap<u16, VbucketLine>) -> Result<(), BackupError> {
        let broken = self.lines.values().find(|line| {
            line.from != 0 && earlier.get(&line.vb).is_none_or(|earlier| earlier.to != line.from)
        });
        broken.map_or(Ok(()), |line| {
            let what = format!(
                "vBucket {} goes on from seqno {}, where the backup before does not end",
                line.vb, line.from
            );
            Err(BackupError::damaged(&self.backup.folder, what))
        })
    }
}
