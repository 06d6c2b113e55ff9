//! From changes that a backfill reads to messages of its stream, in the thread that reads.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine::{Refusal, WriteChanges};
use kvstore::Change;
use protocol::dcp::Message;

use crate::agreement::Agreement;
use crate::content::{Features, write_change};
use crate::interest::{Interest, look};
use crate::turn::is_shown;

/// Makes messages of changes as was agreed on when the backfill began.
pub(crate) struct FrameWriter {
    /// What all messages of the stream have in common.
    pub(crate) head: Message<'static>,
    pub(crate) agreed: Agreement,
    pub(crate) features: Features,
    /// What the stream is about, as far as the changes have come; nothing if it is about everything.
    pub(crate) interest: Option<Arc<Interest>>,
    /// Whether deletions are left out: the consumer has none of the documents.
    pub(crate) skips_deletions: bool,
}

impl WriteChanges for FrameWriter {
    fn write(&mut self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<ControlFlow<()>, Refusal> {
        let verdict = look(self.interest.as_mut(), change, &self.agreed)?;
        let is_skipped =
            self.skips_deletions && change.meta.kind.is_deleted() && !change.meta.sync_write.is_hidden();
        if verdict.is_wanted() && !is_skipped && is_shown(&change.meta, &self.agreed) {
            write_change(out, self.head, change, &self.agreed, self.features)?;
        }
        Ok(if verdict.is_final() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }
}
