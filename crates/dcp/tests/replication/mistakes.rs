//! Mistakes that are planted between producer and consumer, or in what the nodes do, to see that they are found.

use std::collections::BTreeSet;

use base::VbId;
use engine::Bucket;
use protocol::dcp::{Message, Mutation, StreamRequest, What};
use protocol::{Request, opcode};

use crate::link::encode_log;
use crate::served::Between;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Nothing.
    None,
    /// A replica says that it rolled back, and did not.
    NoRollback,
    /// A change is lost on the way.
    SkipMessage,
    /// A change comes a second time.
    ReplayMessage,
    /// The replica keeps its failover table.
    KeepFailover,
    /// The flags of a document get lost.
    LoseFlags,
    /// A deletion arrives as an advance of the seqno.
    LoseDeletion,
    /// A power loss takes what was synced.
    ForgetSync,
}

pub const MISTAKES: [Mistake; 7] = [
    Mistake::NoRollback,
    Mistake::SkipMessage,
    Mistake::ReplayMessage,
    Mistake::KeepFailover,
    Mistake::LoseFlags,
    Mistake::LoseDeletion,
    Mistake::ForgetSync,
];

/// Makes a mistake now and then.
pub struct Tamper {
    pub mistake: Mistake,
    /// vBuckets that did not roll back.
    pub pretends: BTreeSet<VbId>,
    messages: u64,
    last: Vec<u8>,
}

/// One message in so many is treated wrongly.
const ONE_IN: u64 = 20;

impl Tamper {
    pub fn new(mistake: Mistake) -> Tamper {
        Tamper { mistake, pretends: BTreeSet::new(), messages: 0, last: Vec::new() }
    }

    /// Hands a message of the producer on.
    pub fn message(&mut self, bytes: &[u8], request: &Request<'_>, out: &mut Vec<u8>) {
        let is_change =
            matches!(request.opcode, opcode::DCP_MUTATION | opcode::DCP_DELETION | opcode::DCP_EXPIRATION);
        self.messages += u64::from(is_change);
        let is_wrong = is_change && self.messages % ONE_IN == ONE_IN / 2;
        let message = Message::read(request);
        match (self.mistake, message) {
            (Mistake::SkipMessage, _) if is_wrong => {}
            (Mistake::ReplayMessage, _) if is_wrong => {
                out.extend_from_slice(bytes);
                out.extend_from_slice(&self.last);
            }
            (Mistake::LoseFlags, Some(message)) => match message.what {
                What::Mutation(mutation) => {
                    let what = What::Mutation(Mutation { flags: 0, ..mutation });
                    Message { what, ..message }.write(out);
                }
                _ => out.extend_from_slice(bytes),
            },
            (Mistake::LoseDeletion, Some(message)) => match message.what {
                What::Deletion(deletion) if self.messages.is_multiple_of(3) => {
                    let what = What::SeqnoAdvanced(deletion.by_seqno);
                    Message { what, key: b"", value: b"", cas: base::Cas(0), datatype: 0, ..message }
                        .write(out);
                }
                _ => out.extend_from_slice(bytes),
            },
            _ => out.extend_from_slice(bytes),
        }
        if is_change {
            self.last = bytes.to_vec();
        }
    }
}

/// A connection whose requests and answers may be wrong.
pub struct Tampered<'a> {
    pub tamper: &'a mut Tamper,
    pub source: &'a Bucket,
    pub target: &'a Bucket,
}

impl Between for Tampered<'_> {
    /// What the producer hears of a request.
    fn asked(&mut self, vb: VbId, asked: &mut StreamRequest) {
        if self.tamper.pretends.remove(&vb)
            && let Some((_, _, uuid, high)) = self.source.streams().stream_state(vb)
        {
            let start = asked.start.min(high);
            *asked = StreamRequest { start, uuid, snapshot_start: start, snapshot_end: start, ..*asked };
        }
    }

    /// What the consumer hears of the producer's histories.
    fn log(&mut self, vb: VbId, log: Vec<u8>) -> Vec<u8> {
        let own = self.target.with_vbucket(vb, |vb| vb.failover().to_entries());
        match (self.tamper.mistake, own) {
            (Mistake::KeepFailover, Some(own)) => encode_log(&own),
            _ => log,
        }
    }
}
