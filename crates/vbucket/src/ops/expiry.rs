//! When the next document expires, as far as it is known without looking at all of them.

use base::Moment;

use crate::vbucket::{Contents, History};

impl Contents {
    /// Whether a document may have expired. If not, there is nothing to look for.
    pub fn may_have_expired(&self, now: Moment) -> bool {
        (1..now.unix_s()).contains(&self.counts().earliest_expiry)
    }
}

impl History {
    /// From now on somebody looks at all documents, so only those that come in meanwhile have to be noted.
    pub fn begin_expiry_pass(&mut self) {
        self.counts.earliest_expiry = 0;
    }

    /// The pass is over: of all that were there when it began and still are, none expires before `earliest`; 0: none
    /// expires at all.
    pub fn end_expiry_pass(&mut self, earliest: u32) {
        self.counts.note_expiry(earliest);
    }
}
