//! A sync write whose client waits: what answers it once it is committed, or once nobody knows.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use base::{Cas, Datatype, DurabilityLevel};
use engine::{Completion, SyncOutcome};
use protocol::Status;

use crate::mailbox;
use crate::reply::{Answer, Reply};

/// The answer to a change as it will be if the change is committed.
pub struct PreparedAnswer {
    /// How it went.
    pub status: Status,
    /// What the value is made of, as the client may see it.
    pub datatype: Datatype,
    /// The document's CAS.
    pub cas: Cas,
    /// Where the change is, if the client wants to know.
    pub token: Option<[u8; 16]>,
    /// The value.
    pub value: Box<[u8]>,
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
    pub fn poll(&mut self, letter: &Waker) -> Poll<SyncOutcome> {
        let outcome = Pin::new(&mut self.outcome).poll(&mut Context::from_waker(letter));
        // Whoever would decide is gone.
        outcome.map(|outcome| outcome.unwrap_or(SyncOutcome::GivenUp))
    }

    /// Answers what became of it.
    pub fn send(&self, outcome: SyncOutcome, reply: &mut Reply<'_>) {
        let PreparedAnswer { status, datatype, cas, token, value } = &self.answer;
        match outcome {
            SyncOutcome::Committed => {
                let extras: &[u8] = token.as_ref().map_or(&[], |token| token);
                let (status, datatype, cas) = (*status, *datatype, *cas);
                reply.send(&Answer { status, datatype, cas, extras, key: &[], value });
            }
            SyncOutcome::Aborted | SyncOutcome::GivenUp => reply.status(Status::SyncWriteAmbiguous),
        }
    }
}

/// A waker of a connection for other threads, made once and not for each wait.
#[derive(Default)]
pub struct Letters(Option<(Waker, Waker)>);

impl Letters {
    /// The waker that wakes `task`, the connection's.
    pub fn for_task(&mut self, task: &Waker) -> &Waker {
        if !self.0.as_ref().is_some_and(|(of, _)| of.will_wake(task)) {
            self.0 = Some((task.clone(), mailbox::through(task)));
        }
        &self.0.as_ref().expect("it was made").1
    }
}
