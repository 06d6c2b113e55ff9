//! One file of a bucket's folder, for tools that work while no node does.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::Env;
use base::{CollectionId, Seqno, VbId};
use parking_lot::Mutex;

use super::file::Recorded;
use super::promises::Promises;
use super::{Couch, CouchConfig, Slot, Vbucket, parse_name};
use crate::catalog::{Believe, Catalog, Listed};
use crate::collections::{Owner, collection_events, owner};
use crate::failure::Failure;

impl Couch {
    /// Opens one file, which must be the newest of its vBucket, and answers which vBucket that is. The other files of
    /// its folder are not looked at.
    pub fn open_file(env: Env, path: &Path, config: CouchConfig) -> Result<(Couch, VbId), Failure> {
        let failed = |source| Failure::Disk { operation: "open", path: path.to_owned(), source };
        let wrong = |what: &str| failed(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
        let name = path.file_name().and_then(|name| name.to_str()).and_then(parse_name);
        let (vb, revision) = name.ok_or_else(|| wrong("it is not named like 17.couch.3"))?;
        let dir = path.parent().ok_or_else(|| wrong("it is in no folder"))?;
        let names = env.disk.read_dir(dir).map_err(failed)?;
        let revisions = names.iter().filter_map(|name| parse_name(name)).filter(|(other, _)| *other == vb);
        let newest = revisions.map(|(_, revision)| revision).max();
        if newest > Some(revision) {
            return Err(wrong("there is a newer file of this vBucket, which is the one in use"));
        }
        let mut slot = Slot { revision: Some(revision), last_revision: revision, ..Slot::default() };
        let catalog = Catalog::open(&env, dir)?;
        let listed = catalog.files().get(&vb).copied();
        match catalog.believe() {
            Some(Believe::Journal { .. }) => {
                return Err(wrong("the catalog says that a journal goes with it"));
            }
            Some(Believe::Files) => {
                let is_listed = |listed: &Listed| listed.at.revision == revision;
                let listed = listed.filter(is_listed).ok_or_else(|| wrong("the catalog does not list it"))?;
                slot.recorded = Recorded::of(&listed);
            }
            Some(Believe::Headers) => slot.not_before = listed,
            None => {}
        }
        let vbucket = Vbucket { slot: Mutex::new(slot), ..Vbucket::default() };
        let mut couch = Couch::over(env, dir, config, BTreeMap::from([(vb, Arc::new(vbucket))]))?;
        // files of an earlier version's folder carry no identity
        couch.promises = catalog.believe().map(|_| Promises::new(Arc::new(catalog))).unwrap_or_default();
        Ok((couch, vb))
    }

    /// Where the file of a vBucket is that is in use.
    pub fn file_of(&self, vb: VbId) -> Option<PathBuf> {
        let revision = self.vbucket(vb).slot.lock().revision?;
        Some(self.folder.path(vb, revision))
    }

    /// Collections that were dropped and not created again, as the events in a vBucket's file have it, each with the
    /// seqno of the drop.
    pub fn dropped_collections(&self, vb: VbId) -> Result<BTreeMap<CollectionId, Seqno>, Failure> {
        let Some(snapshot) = self.ask(vb, &self.vbucket(vb), |file| Ok(file.snapshot()))? else {
            return Ok(BTreeMap::new());
        };
        let mut dropped = BTreeMap::new();
        let prefix = collection_events();
        let scanned = snapshot.scan_ids(&prefix, |info| {
            if !info.id.starts_with(&prefix) {
                return Ok(ControlFlow::Break(()));
            }
            if let (Owner::CollectionEvent(collection), true) = (owner(info.id), info.deleted) {
                dropped.insert(collection, Seqno(info.seqno));
            }
            Ok::<_, couchstore::Failure>(ControlFlow::Continue(()))
        });
        scanned.map_err(|source| Failure::File { vb, source })?;
        Ok(dropped)
    }
}
