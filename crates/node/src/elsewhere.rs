//! A request that takes long is handled as a whole on a thread for long work, with a session like that of its connection:
//! its worker goes on with others, and the connection is given the answers and keeps their order.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use base::Moment;
use engine::{FetchPin, StepTimes};
use protocol::opcode::STAT;
use protocol::{Limits, Parsed, Request, Status, parse};

use crate::close_reason::CloseReason;
use crate::command::find;
use crate::command_rules::{Leaves, Thread};
use crate::commands::vbucket::fills;
use crate::context::{Context, Outcome, Ready};
use crate::counters::WorkerCounters;
use crate::dispatch::{Desk, Handled, dispatch};
use crate::node::Node;
use crate::output::Output;
use crate::session::{Session, SharedSession};
use crate::sync_write::Prepared;

/// What came of a request elsewhere.
enum Done {
    Answered(Output, Option<Status>),
    Prepared(Prepared),
    Then(fn(&mut Context<'_>) -> Outcome),
    Close(Output, CloseReason),
    /// It waits for something, which its connection has to do.
    NotThere,
}

/// Begins to handle a request elsewhere. `looks`: how often it was handled before; `pin`: what must stay for it.
pub(crate) fn begin(
    session: &Session,
    node: &Arc<Node>,
    frame: Arc<Vec<u8>>,
    looks: u8,
    pin: Option<FetchPin>,
) -> Pin<Box<dyn Future<Output = Ready>>> {
    let client = session.peer;
    let Parsed::Request { request, .. } = parse(&frame, Limits::AUTHENTICATED) else {
        unreachable!("the frame was a whole request when it came");
    };
    let lane = match find(request.opcode).map(|row| row.leaves) {
        Some(Leaves::Overview) if !reads_files(&request) => &node.lanes().overviews,
        _ if fills(&request) => &node.lanes().fills,
        _ => &node.lanes().long_work,
    };
    let (session, its_node, began_ns) = (session.share(), Arc::clone(node), node.env().clock.monotonic_ns());
    let its_lane = Arc::clone(lane);
    let work = move || {
        let work_from_ns = its_node.env().clock.monotonic_ns();
        let done =
            its_lane.counting(|counters| handle(session, &its_node, &frame, looks, began_ns, counters));
        drop(pin);
        let work_until_ns = its_node.env().clock.monotonic_ns();
        (done, StepTimes { work_from_ns, work_until_ns, ..StepTimes::default() })
    };
    let Some(done) = lane.begin(node.env(), client, work) else {
        return Box::pin(std::future::ready(Ready::Failed(Status::Etmpfail)));
    };
    Box::pin(async move {
        match done.await {
            Some((Done::NotThere, _)) => Ready::Here,
            Some((done, times)) => Ready::Finish(Box::new(move |cx| tell(cx, done)), times),
            // It was not begun: others with less of the queue came.
            None => Ready::Failed(Status::Etmpfail),
        }
    })
}

/// Whether a request for stats looks into files, and so may wait for the disk: other overviews do not wait behind it.
fn reads_files(request: &Request<'_>) -> bool {
    let group = request.key.split(|byte| *byte == b' ').next().unwrap_or_default();
    request.opcode == STAT && [&b"diskinfo"[..], b"encryption", b"dcp-vbtakeover"].contains(&group)
}

fn handle(
    session: SharedSession,
    node: &Arc<Node>,
    frame: &[u8],
    looks: u8,
    began_ns: u64,
    counters: &WorkerCounters,
) -> Done {
    let Parsed::Request { request, .. } = parse(frame, Limits::AUTHENTICATED) else {
        unreachable!("the frame was a whole request when it came");
    };
    let clock = &node.env().clock;
    let mut session = session.into_session();
    let mut out = Output::reserving(Arc::clone(node.connection_memory()));
    let mut elapsed_us = || clock.monotonic_ns().saturating_sub(began_ns) / 1000;
    let mut work_bytes = 0;
    let desk = Desk {
        session: &mut session,
        node,
        out: &mut out,
        counters,
        now: Moment(clock.unix_ns()),
        looks,
        elapsed_us: &mut elapsed_us,
        finish: None,
        thread: Thread::Elsewhere,
        work_bytes: &mut work_bytes,
    };
    let Handled { outcome, answered, .. } = dispatch(desk, &request);
    match outcome {
        Outcome::Done => Done::Answered(out, answered),
        Outcome::Prepared(prepared) => Done::Prepared(prepared),
        Outcome::Close(reason) => Done::Close(out, reason),
        Outcome::Then(go_on) => Done::Then(go_on),
        Outcome::Later(_) | Outcome::Again(_) | Outcome::Elsewhere => Done::NotThere,
    }
}

fn tell(cx: &mut Context<'_>, done: Done) -> Outcome {
    match done {
        Done::Answered(out, status) => {
            cx.reply.append_output(out, status);
            Outcome::Done
        }
        Done::Close(out, reason) => {
            cx.reply.append_output(out, None);
            Outcome::Close(reason)
        }
        Done::Prepared(prepared) => Outcome::Prepared(prepared),
        Done::Then(go_on) => go_on(cx),
        Done::NotThere => unreachable!("its connection handles it"),
    }
}
