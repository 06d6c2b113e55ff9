//! Keys of a collection from one on, without a scan that goes on later.

use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use base::{DocKey, Moment, VbId, Version};
use kvstore::Values;

use super::{LOOK_AT_CLOCK, RangeScanRefusal, RangeScanWanted, RangeScans, StoredRange};
use crate::refusal::Refusal;

impl RangeScans<'_> {
    /// Shows the stored documents of `from`'s collection from that key on, without their values, to `visit` until it
    /// breaks off. Tombstones and expired documents are left out. Ends at `until` on the monotonic clock, too, but not
    /// before one document was shown. Reads the disk.
    pub fn keys(
        &self,
        vb: VbId,
        from: DocKey<'_>,
        until: Duration,
        visit: &mut dyn FnMut(&Version) -> ControlFlow<()>,
    ) -> Result<(), RangeScanRefusal> {
        let wanted = RangeScanWanted {
            collection: from.collection,
            start: Bound::Included(from.key.to_vec()),
            end: Bound::Unbounded,
            is_key_only: true,
            with_xattrs: false,
            sampling: None,
            requirement: None,
            name: String::new(),
        };
        let before = self.look(vb, &wanted)?;
        let snapshot = self.store.snapshot(vb).map_err(|failure| self.failed(vb, &failure))?;
        // A snapshot of another history is not what was asked for.
        if self.look(vb, &wanted)?.uuid != before.uuid {
            return Err(RangeScanRefusal::Refused(Refusal::NotMyVbucket));
        }
        let Some(snapshot) = snapshot else { return Ok(()) };
        let (clock, now) = (&self.env.clock, Moment(self.env.clock.unix_ns()));
        let range = StoredRange::of(&wanted);
        let (mut seen, mut is_any_shown) = (0_u32, false);
        let read = snapshot.scan_keys(&range.from, Values::Leave, &mut |version| {
            if !range.has(version.stored_key()) {
                return ControlFlow::Break(());
            }
            if version.is_live(now) {
                is_any_shown = true;
                visit(&version)?;
            }
            seen = seen.wrapping_add(1);
            let is_late = is_any_shown && seen.is_multiple_of(LOOK_AT_CLOCK) && clock.monotonic() >= until;
            if is_late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        read.map_err(|failure| self.failed(vb, &failure))
    }
}
