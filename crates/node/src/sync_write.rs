//! A sync write whose client waits: what answers it once it is committed, or once nobody knows.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use base::planted::{self, Bug};
use base::{Cas, Datatype, DurabilityLevel};
use engine::{Completion, SyncOutcome, Whole};
use protocol::Status;

use crate::reply::{Answer, Reply};
use crate::wake_queue;

/// The value of such an answer.
pub enum PreparedValue {
    /// Bytes.
    Bytes(Box<[u8]>),
    /// The value of a version from a byte on.
    Version(Whole, usize),
}

/// The answer to a change as it will be if the change is committed.
pub struct PreparedAnswer {
    /// How it went.
    pub status: Status,
    /// What the value is made of, as the client may see it.
    pub datatype: Datatype,
    /// The document's CAS.
    pub cas: Cas,
    /// Fields of the command, such as where the change is.
    pub extras: ShortExtras,
    /// The value.
    pub value: PreparedValue,
}

/// Up to sixteen bytes of fields, kept without an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortExtras {
    bytes: [u8; 16],
    len: u8,
}

impl ShortExtras {
    /// Keeps `extras`, of which no command that changes documents answers more than sixteen bytes.
    pub fn of(extras: &[u8]) -> ShortExtras {
        let mut bytes = [0; 16];
        bytes[..extras.len()].copy_from_slice(extras);
        ShortExtras { bytes, len: extras.len() as u8 }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A sync write that is prepared and neither committed nor given up.
pub struct Prepared {
    /// How safe the client wants it to be; nothing: as the bucket says.
    pub level: Option<DurabilityLevel>,
    /// What becomes of it.
    pub outcome: Completion<SyncOutcome>,
    /// What is answered then.
    pub answer: PreparedAnswer,
}

impl Prepared {
    /// Looks whether it is decided; if not, the connection is woken when it is.
    pub fn poll(&mut self, waker: &Waker) -> Poll<SyncOutcome> {
        let outcome = Pin::new(&mut self.outcome).poll(&mut Context::from_waker(waker));
        // Whoever would decide is gone.
        outcome.map(|outcome| outcome.unwrap_or(SyncOutcome::GivenUp))
    }

    /// Answers what became of it.
    pub fn send(&self, outcome: SyncOutcome, reply: &mut Reply<'_>) {
        let is_taken_for_committed = outcome == SyncOutcome::GivenUp && planted::is(Bug::GivenUpIsSuccess);
        match outcome {
            _ if outcome == SyncOutcome::Committed || is_taken_for_committed => {
                let PreparedAnswer { status, datatype, cas, extras, value } = &self.answer;
                let (status, datatype, cas) = (*status, *datatype, *cas);
                let answer = Answer { status, datatype, cas, extras: extras.as_slice(), ..Answer::default() };
                match value {
                    PreparedValue::Bytes(value) => reply.send(&Answer { value, ..answer }),
                    PreparedValue::Version(version, from) => reply.send_version(&answer, version, *from),
                }
            }
            _ if planted::is(Bug::AmbiguousIsRefused) => reply.status(Status::Etmpfail),
            _ => reply.status(Status::SyncWriteAmbiguous),
        }
    }
}

/// A waker of a connection for other threads, made once and not for each wait.
#[derive(Default)]
pub struct SharedWaker(Option<(Waker, Waker)>);

impl SharedWaker {
    /// The waker that wakes `task`, the connection's.
    pub fn for_task(&mut self, task: &Waker) -> &Waker {
        if !self.0.as_ref().is_some_and(|(of, _)| of.will_wake(task)) {
            self.0 = Some((task.clone(), wake_queue::through(task)));
        }
        &self.0.as_ref().expect("it was made").1
    }
}
