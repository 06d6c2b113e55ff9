//! The answer to a change: at once, or when it is as safe as the client asked for.

use std::time::Duration;

use base::{Datatype, DurabilityLevel};
use engine::settings::Key;
use engine::{Durable, Mutated, Refusal, Whole};
use protocol::Status;
use protocol::extras::MutationToken;
use protocol::feature::Feature;

use crate::context::{Context, Outcome};
use crate::reply::Answer;
use crate::sync_write::{Prepared, PreparedAnswer, PreparedValue, ShortExtras};

/// How long a sync write may take if the client does not say, in milliseconds.
const DEFAULT_TIMEOUT_MS: u16 = 30_000;

/// How safe the client wants its change to be.
pub fn durable(cx: &Context<'_>) -> Option<Durable> {
    cx.infos.durability.map(|durability| {
        let timeout_ms = durability.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
        Durable { level: durability.level, timeout: Duration::from_millis(timeout_ms.into()) }
    })
}

/// How safe the change is to be: as the client asks, or as the bucket does for all.
fn level(cx: &Context<'_>) -> Option<DurabilityLevel> {
    let least = cx.bucket().settings().get(Key::DurabilityMinLevel);
    let least = u8::try_from(least).ok().and_then(DurabilityLevel::from_wire);
    cx.infos.durability.map(|durability| durability.level).max(least)
}

/// Answers a change that was applied or refused.
pub fn answer(cx: &mut Context<'_>, outcome: Result<Mutated, Refusal>, value: &[u8]) -> Outcome {
    match outcome {
        Ok(mutated) => done(cx, mutated, Status::Success, Datatype::RAW, value),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Answers a change that was applied, with its token if the client wants tokens; if it is prepared only, when it is
/// committed.
pub fn done(
    cx: &mut Context<'_>,
    mutated: Mutated,
    status: Status,
    datatype: Datatype,
    value: &[u8],
) -> Outcome {
    let token = || MutationToken { uuid: mutated.uuid, seqno: mutated.seqno }.encode();
    let token = cx.session.has(Feature::MutationSeqno).then(token);
    let extras: &[u8] = token.as_ref().map_or(&[], |token| token);
    let answer = Answer { status, datatype, cas: mutated.cas, extras, value, ..Answer::default() };
    tell(cx, mutated, &answer, None)
}

/// Answers a change that was applied with what its command says, if it is prepared only, when it is committed. Nothing
/// else may answer a change: a success that leaves before the commit is a promise that a crash breaks.
///
/// The answer has no key. Its value is that of the version from the byte on, if there is a version.
pub fn tell(
    cx: &mut Context<'_>,
    mutated: Mutated,
    answer: &Answer<'_>,
    version: Option<(&Whole, usize)>,
) -> Outcome {
    if let Some(outcome) = mutated.pending {
        let value = match version {
            Some((version, from)) => PreparedValue::Version(version.clone(), from),
            None => PreparedValue::Bytes(answer.value.into()),
        };
        let Answer { status, datatype, cas, extras, .. } = *answer;
        let answer = PreparedAnswer { status, datatype, cas, extras: ShortExtras::of(extras), value };
        return Outcome::Prepared(Prepared { level: level(cx), outcome, answer });
    }
    if let Some(level) = level(cx) {
        let times = cx.session.times(cx.node).of_worker(cx.reply.worker());
        times.sync_writes.count_at_once(level);
    }
    match version {
        Some((version, from)) => cx.reply.send_version(answer, version, from),
        None => cx.reply.send(answer),
    }
    Outcome::Done
}
