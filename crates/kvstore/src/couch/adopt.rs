//! A file that came from another node becomes the next revision of a vBucket's file.
//!
//! *Guarantee:* it is in use once it is durable under its name, says whose it is now, and is on record. Its earlier commits say
//! that they are of another file, so that no rollback goes back to one of them.

use std::path::Path;
use std::sync::atomic::Ordering;

use base::VbId;
use couchstore::{CouchFile, LocalUpdate};

use super::file::{VbFile, load_tally};
use super::identity::IDENTITY_ID;
use super::{Couch, Slot, Vbucket};
use crate::failure::Failure;
use crate::files::BeforeSwitch;
use crate::state::{STATE_ID, VbStateDoc};
use crate::store::StoredVb;

impl Couch {
    /// Does what [`crate::KvStore::adopt_file`] does, and calls `before` with the commit that is
    /// about to be in force.
    pub(crate) fn adopt_with(
        &self,
        vb: VbId,
        from: &Path,
        state: &VbStateDoc,
        before: &BeforeSwitch<'_>,
    ) -> Result<StoredVb, Failure> {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        let adopted = adopt(self, (vb, &vbucket), &mut slot, (from, state), before);
        self.note(vb, &vbucket, &mut slot, adopted)
    }
}

fn adopt(
    couch: &Couch,
    (vb, vbucket): (VbId, &Vbucket),
    slot: &mut Slot,
    (from, state): (&Path, &VbStateDoc),
    before: &BeforeSwitch<'_>,
) -> Result<StoredVb, Failure> {
    if let Some(refused) = &slot.refused {
        return Err(refused.failure(vb, couch.folder.path(vb, slot.revision.unwrap_or_default())));
    }
    couch.promises.begin_writing()?;
    slot.remove_strays(vb, &couch.folder)?;
    let revision = slot.last_revision + 1;
    slot.last_revision = revision;
    let file = make_own(couch, vb, revision, from, state)?;
    // Nothing fails behind the switch.
    let (at, stored) = (file.at(revision), file.stored(vb)?);
    let named = couch.folder.rename(from, &couch.folder.path(vb, revision));
    if let Err(failure) = named.and_then(|()| couch.folder.sync()) {
        // Whichever of the two names it has.
        slot.strays.push(revision);
        return Err(failure);
    }
    if let Err(failure) = before(at) {
        slot.undecided.push(revision);
        couch.is_undecided();
        return Err(failure);
    }
    vbucket.generation.fetch_add(1, Ordering::Relaxed);
    if vbucket.close(slot, false) {
        couch.open_files.forget(vb);
    }
    // What was not decided before is by the record that names this one.
    let undecided = std::mem::take(&mut slot.undecided);
    slot.strays.extend(undecided.into_iter().chain(slot.revision.replace(revision)));
    (slot.recorded, slot.not_before, slot.keeps_tail) = (None, None, false);
    // Closed for now, as its messages would go on naming the file as it was called first.
    slot.known = file.into_known(false);
    couch.note_changed(vb);
    // If the old one cannot be removed now, later will do.
    slot.remove_strays(vb, &couch.folder).ok();
    Ok(stored)
}

/// A commit that says whose file it is now, and what its vBucket is, durable; with the counts of the file.
fn make_own(
    couch: &Couch,
    vb: VbId,
    revision: u64,
    from: &Path,
    state: &VbStateDoc,
) -> Result<VbFile, Failure> {
    let failed = |source| Failure::File { vb, source };
    let mut file = CouchFile::open(&*couch.env.disk, from).map_err(failed)?;
    file.set_tuning(couch.config.tuning);
    let tally = load_tally(&file.snapshot()).map_err(failed)?;
    let (identity, state) = (couch.promises.identity(vb, revision).to_json(), state.to_json());
    let locals = [
        LocalUpdate { id: IDENTITY_ID, value: identity.as_deref() },
        LocalUpdate { id: STATE_ID, value: Some(&state) },
    ];
    file.save_locals(&locals).and_then(|()| file.commit(couch.env.clock.unix_ns())).map_err(failed)?;
    Ok(VbFile::of_own(file, tally))
}
