//! A vBucket at one moment: what is in the journal only, over what is in its file.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use base::{DocKey, Seqno, Version};

use super::charged::Charged;
use super::runs::find;
use crate::change::{Change, ChangesWanted, Reading};
use crate::collections::PREPARES;
use crate::failure::Failure;
use crate::state::VbStateDoc;
use crate::store::{Snapshot, Values};

/// Versions that are not filed, and a snapshot of the file, which may hold some of them already.
pub(super) struct Overlay {
    /// By key, one for each.
    pub(super) unfiled: Charged,
    /// The state that goes with them, if there is any that the file may not have.
    pub(super) state: Option<VbStateDoc>,
    pub(super) file: Option<Box<dyn Snapshot>>,
}

fn is_prepare(version: &Version) -> bool {
    version.key().collection == PREPARES
}

impl Overlay {
    /// Visits what the file has and the overlay does not replace; says whether the visitor broke off.
    fn filed(
        &self,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
        scan: impl FnOnce(&dyn Snapshot, &mut dyn FnMut(Version) -> ControlFlow<()>) -> Result<(), Failure>,
    ) -> Result<ControlFlow<()>, Failure> {
        let mut flow = ControlFlow::Continue(());
        if let Some(file) = &self.file {
            scan(&**file, &mut |version| {
                if find(&self.unfiled, version.stored_key()).is_none() {
                    flow = visit(version);
                }
                flow
            })?;
        }
        Ok(flow)
    }

    /// Visits what is not filed yet in order of seqno: it came after everything that is.
    fn unfiled_from(
        &self,
        from: Seqno,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
        wants: impl Fn(&Version) -> bool,
    ) {
        let unfiled = self.unfiled.iter().filter(|v| v.meta().by_seqno >= from && wants(v));
        let by_seqno: BTreeMap<Seqno, &Version> = unfiled.map(|v| (v.meta().by_seqno, v)).collect();
        for version in by_seqno.into_values() {
            if visit(version.clone()).is_break() {
                break;
            }
        }
    }
}

impl Snapshot for Overlay {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        match (&self.state, &self.file) {
            (Some(state), _) => Ok(state.clone()),
            (None, Some(file)) => file.state(),
            (None, None) => Ok(VbStateDoc::default()),
        }
    }

    fn high_seqno(&self) -> Seqno {
        let unfiled = self.unfiled.iter().map(|version| version.meta().by_seqno).max();
        unfiled.max(self.file.as_ref().map(|file| file.high_seqno())).unwrap_or_default()
    }

    fn purge_seqno(&self) -> Seqno {
        self.file.as_ref().map(|file| file.purge_seqno()).unwrap_or_default()
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        match (find(&self.unfiled, &key.to_stored().0), &self.file) {
            (Some(version), _) => Ok(Some(version.clone())),
            (None, Some(file)) => file.get(key),
            (None, None) => Ok(None),
        }
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        if self.filed(visit, |file, each| file.scan(from, values, each))?.is_continue() {
            self.unfiled_from(from, visit, |version| !is_prepare(version));
        }
        Ok(())
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        if self.filed(visit, |file, each| file.scan_all(from, values, each))?.is_continue() {
            self.unfiled_from(from, visit, |_| true);
        }
        Ok(())
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        let mut flow = ControlFlow::Continue(());
        let mut bytes = 0;
        if let Some(file) = &self.file {
            let next = file.changes(wanted, reading, &mut |change| {
                if self.unfiled.is_empty() || find(&self.unfiled, change.stored_key).is_none() {
                    bytes += change.bytes();
                    flow = visit(change);
                }
                flow
            })?;
            // From the first change that is not filed on, the file has nothing that is visited from there.
            let seqnos = self.unfiled.iter().map(|version| version.meta().by_seqno);
            let first = seqnos.filter(|seqno| *seqno >= wanted.from).min();
            let has_more = next.is_some_and(|next| first.is_none_or(|first| next <= first));
            if has_more || flow.is_break() {
                return Ok(next);
            }
        }
        let mut next = None;
        let wants = |version: &Version| wanted.prepares || !is_prepare(version);
        let mut each = |version: Version| {
            let change = Change::of(&version);
            if bytes >= wanted.max_bytes.max(1) {
                next = Some(change.meta.by_seqno);
                return ControlFlow::Break(());
            }
            bytes += change.bytes();
            visit(&change)
        };
        self.unfiled_from(wanted.from, &mut each, wants);
        Ok(next)
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        self.file.as_ref().map_or(Ok(0), |file| file.prepare_bytes())
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let start = self.unfiled.partition_point(|version| version.stored_key() < from);
        let mut unfiled = self.unfiled[start..].iter().filter(|version| !is_prepare(version)).peekable();
        let flow = {
            let mut both = |version: Version| {
                while let Some(before) = unfiled.next_if(|next| next.stored_key() < version.stored_key()) {
                    if visit(before.clone()).is_break() {
                        return ControlFlow::Break(());
                    }
                }
                visit(version)
            };
            self.filed(&mut both, |file, each| file.scan_keys(from, values, each))?
        };
        if flow.is_continue() {
            for version in unfiled {
                if visit(version.clone()).is_break() {
                    break;
                }
            }
        }
        Ok(())
    }
}
