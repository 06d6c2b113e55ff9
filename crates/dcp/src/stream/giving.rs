//! Handing a vBucket over with its stream, step by step.

use base::VbState;
use base::planted::{self, Bug};
use engine::Bucket;
use protocol::dcp::{EndReason, What};

use super::{More, Phase, Stream};
use crate::handover::Handover;
use crate::sink::Sink;
use crate::turn::{Allowance, Common};

impl Stream {
    /// The consumer has given the vBucket the role that it was sent.
    pub(crate) fn state_acknowledged(&mut self, bucket: &Bucket) {
        match self.handover {
            Handover::PendingSent => {
                // From here on nothing is written any more: what is left is soon sent.
                if bucket.roles().give_away(self.vb, self.incarnation) {
                    let still = planted::is(Bug::TakeoverLeavesActive);
                    self.state = if still { VbState::Active } else { VbState::Dead };
                    self.handover = Handover::SendingRest;
                }
            }
            Handover::ActiveSent => {
                bucket.roles().given_away(self.vb, self.incarnation);
                self.handover = Handover::Done;
            }
            Handover::None | Handover::Sending | Handover::SendingRest | Handover::Done => {}
        }
    }

    /// Everything is sent: the next step of handing over the vBucket.
    pub(super) fn hand_over(
        &mut self,
        common: &Common<'_>,
        allowance: &mut Allowance,
        out: &mut dyn Sink,
    ) -> More {
        // What comes last may be visible only once it is on disk.
        let is_last = self.handover == Handover::SendingRest;
        if self.unacknowledged > 0 || is_last && common.bucket.streams().holds_back(self.place()) {
            return More::Nothing;
        }
        match self.handover {
            Handover::Sending => {
                self.send(What::SetVbucketState(VbState::Pending), allowance, out);
                self.handover = Handover::PendingSent;
            }
            Handover::SendingRest => {
                self.send(What::SetVbucketState(VbState::Active), allowance, out);
                self.handover = Handover::ActiveSent;
            }
            Handover::Done => {
                self.leave(common, Phase::Done(EndReason::Ok));
                return More::Some;
            }
            Handover::None | Handover::PendingSent | Handover::ActiveSent => {}
        }
        More::Nothing
    }
}
