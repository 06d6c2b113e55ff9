//! The answer to a change: at once, or when it is as safe as the client asked for.

use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use base::{Cas, Datatype};
use engine::{Completion, Mutated, Refusal};
use protocol::extras::MutationToken;
use protocol::feature::Feature;
use protocol::{Durability, DurabilityLevel, Request, Status};

use crate::context::{Context, LaterReply, LaterValue, Outcome};
use crate::mailbox;
use crate::reply::Answer;

/// How long a durable write may take if the client does not say, in milliseconds.
const DEFAULT_DURABILITY_TIMEOUT_MS: u16 = 30_000;

/// Answers a change that was applied or refused.
pub fn answer(
    cx: &mut Context<'_>,
    request: &Request<'_>,
    outcome: Result<Mutated, Refusal>,
    value: &[u8],
) -> Outcome {
    match outcome {
        Ok(mutated) => done(cx, request, mutated, Status::Success, Datatype::RAW, value),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Answers a change that was applied, with its token if the client wants tokens.
pub fn done(
    cx: &mut Context<'_>,
    request: &Request<'_>,
    mutated: Mutated,
    status: Status,
    datatype: Datatype,
    value: &[u8],
) -> Outcome {
    let token = MutationToken { uuid: mutated.uuid, seqno: mutated.seqno }.encode();
    let extras: &[u8] = if cx.session.has(Feature::MutationSeqno) { &token } else { &[] };
    let answer = Answer { status, datatype, cas: mutated.cas, extras, key: &[], value };
    match cx.infos.durability {
        Some(durability) if durability.level != DurabilityLevel::Majority => {
            let waiting = cx.bucket().persisted(request.vbucket, mutated.seqno);
            match waiting {
                Ok(None) => {}
                Ok(Some(waiting)) => return later(cx, &answer, waiting, durability),
                // It is applied, but nobody can wait for it: its fate is unknown to the client.
                Err(_) => return cx.status(Status::SyncWriteAmbiguous),
            }
        }
        _ => {}
    }
    cx.reply.send(&answer);
    Outcome::Done
}

fn later(cx: &Context<'_>, answer: &Answer<'_>, waiting: Completion<()>, durability: Durability) -> Outcome {
    let reply = LaterReply {
        status: answer.status,
        datatype: answer.datatype,
        cas: answer.cas,
        extras: answer.extras.to_vec(),
        key: Vec::new(),
        value: LaterValue::Bytes(answer.value.to_vec()),
    };
    let timeout_ms = durability.timeout_ms.unwrap_or(DEFAULT_DURABILITY_TIMEOUT_MS);
    let timeout = cx.timeout(u64::from(timeout_ms));
    Outcome::Later(Box::pin(async move {
        match first_of(waiting, timeout).await {
            Some(()) => reply,
            None => LaterReply { cas: Cas(0), ..LaterReply::status(Status::SyncWriteAmbiguous) },
        }
    }))
}

/// What is waited for, or nothing if it was given up or the time is over.
pub async fn first_of<T>(waiting: Completion<T>, timeout: Pin<Box<dyn Future<Output = ()>>>) -> Option<T> {
    let (mut waiting, mut timeout) = (waiting, timeout);
    std::future::poll_fn(move |cx| {
        let waker = mailbox::through(cx.waker());
        if let Poll::Ready(value) = Pin::new(&mut waiting).poll(&mut task::Context::from_waker(&waker)) {
            return Poll::Ready(value);
        }
        timeout.as_mut().poll(cx).map(|()| None)
    })
    .await
}
