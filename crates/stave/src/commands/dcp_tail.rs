//! `stave dcp-tail`: follows a bucket's changes in the terminal, as text or as lines of JSON.

mod line;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use base::env::Env;
use base::{CollectionId, ScopeId, Seqno, VbId};
use clap::Args;
use protocol::Status;
use protocol::dcp::{CollectionNames, EndReason, OpenFlags, What};

use crate::cli::{NodeFlags, Outcome, WrongArguments};
use crate::client::dcp::{
    Event, Position, Start, Watch, Wishes, ask_everywhere, follow_everywhere, high_seqnos, newest_histories,
};
use crate::client::{Client, ClientError, Dialect, Target};

/// Bytes on their way to a terminal, which reads slowly.
const BUFFER_BYTES: u32 = 1 << 20;
const NOOP_INTERVAL_S: u32 = 20;

/// Follow a bucket's changes in the terminal.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave dcp-tail default
  stave dcp-tail default --from start --count 10
  stave dcp-tail default --vbucket 115 --from 42
  stave dcp-tail default --json --keys-only | jq .key
  stave dcp-tail default --from start --history

Each line is one change: what happened, vBucket, seqno, key and value.
Ctrl-C ends it. A connection that breaks is made again, and the streams go on where they were.
In a cluster all of its nodes are followed, and vBuckets wherever they move: any of its nodes may be named.
--timeout counts until all vBuckets are found; from then on it follows until it is told to end.")]
pub struct DcpTailFlags {
    /// The bucket to follow
    #[arg(value_name = "BUCKET")]
    pub(crate) bucket: String,
    /// Where to begin: at what is changed from now on, at the start, or behind a seqno (with --vbucket)
    #[arg(long, value_name = "now|start|SEQNO", default_value = "now", value_parser = parse_from)]
    pub(crate) from: From,
    /// Only this vBucket
    #[arg(long, value_name = "N")]
    pub(crate) vbucket: Option<u16>,
    /// Only these collections, by name like `scope.collection` or by hexadecimal number like 0x8
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) collections: Vec<String>,
    /// Leave the values out; they are not sent at all
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Every version of a document that the bucket's history of changes has, not the newest one of a snapshot alone; for
    /// a bucket in a log-structured store (magma) with a history: see `stave bucket edit --history-seconds`
    #[arg(long)]
    pub(crate) history: bool,
    /// Stop after so many changes
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Print a JSON object for each change
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Now,
    Start,
    Seqno(u64),
}

fn parse_from(text: &str) -> Result<From, String> {
    match text {
        "now" => Ok(From::Now),
        "start" => Ok(From::Start),
        _ => text
            .parse()
            .map(From::Seqno)
            .map_err(|_| format!("`{text}` is no place to begin; write now, start or a seqno")),
    }
}

/// Runs the command.
pub fn run(env: &Env, flags: &DcpTailFlags) -> anyhow::Result<Outcome> {
    let interrupted = watch_interrupt(env)?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    tail(env, flags, &interrupted, &mut out, &mut |line| eprintln!("stave: {line}"))
}

/// Follows until it is told to end; `say` takes what is to be said beside the changes.
pub(crate) fn tail(
    env: &Env,
    flags: &DcpTailFlags,
    interrupted: &AtomicBool,
    out: &mut (dyn Write + Send),
    say: &mut (dyn FnMut(&str) + Send),
) -> anyhow::Result<Outcome> {
    let target = flags.node.target(&flags.bucket, Dialect::Couchbase)?;
    let (wishes, starts, mut tail) = begin(env, flags, &target, interrupted, out, say)?;
    if flags.count == Some(0) {
        return Ok(Outcome::Done);
    }
    let followed = follow_everywhere(env, &target, &wishes, starts, None, &mut tail);
    followed
        .map_err(|error| if flags.history { without_history(error, &flags.bucket) } else { error.into() })?;
    if let Some(error) = tail.failed {
        return Err(error.into());
    }
    tail.out.flush()?;
    Ok(Outcome::Done)
}

/// The error of a bucket that can keep no history.
fn without_history(error: ClientError, bucket: &str) -> anyhow::Error {
    match error {
        ClientError::Refused { status_code, .. } if status_code == Status::NotSupported.code() => {
            WrongArguments(format!(
                "bucket {bucket} can keep no history of changes, as it is not in a log-structured store (magma): leave \
                 --history out"
            ))
            .into()
        }
        error => error.into(),
    }
}

fn begin<'a>(
    env: &Env,
    flags: &'a DcpTailFlags,
    target: &Target,
    interrupted: &'a AtomicBool,
    out: &'a mut (dyn Write + Send),
    say: &'a mut (dyn FnMut(&str) + Send),
) -> anyhow::Result<(Wishes, Vec<Start>, Tail<'a>)> {
    if matches!(flags.from, From::Seqno(_)) && flags.vbucket.is_none() {
        bail!(WrongArguments("a seqno counts in one vBucket: give --vbucket N, too".to_owned()));
    }
    let mut client = Client::open(env, target)?;
    let starts = starts(env, target, flags)?;
    let wishes = Wishes {
        name: format!("stave-dcp-tail:{:016x}", env.random.next_u64()),
        flags: OpenFlags(if flags.keys_only { OpenFlags::NO_VALUE } else { 0 }),
        buffer_bytes: BUFFER_BYTES,
        noop_interval_s: NOOP_INTERVAL_S,
        filter: filter(&mut client, &flags.collections)?,
        sync_writes: false,
        history: flags.history,
    };
    let names = names(&mut client)?;
    Ok((
        wishes,
        starts,
        Tail { flags, names, interrupted, out, say, printed: 0, has_lost_right: false, failed: None },
    ))
}

/// Where each vBucket is followed from, of all nodes of the cluster.
fn starts(env: &Env, target: &Target, flags: &DcpTailFlags) -> anyhow::Result<Vec<Start>> {
    let vbuckets = Client::open(env, target)?.vbuckets();
    if let Some(wanted) = flags.vbucket.filter(|wanted| *wanted >= vbuckets) {
        bail!(WrongArguments(format!("there is no vBucket {wanted}: the last one is {}", vbuckets - 1)));
    }
    let ask = &mut |client: &mut Client| {
        let starts = starts_of(client, flags)?;
        Ok(starts.into_iter().map(|start| (start.vb, start)).collect())
    };
    Ok(ask_everywhere(env, target, flags.vbucket.map(VbId), ask)?.into_values().collect())
}

/// The same of one node.
fn starts_of(client: &mut Client, flags: &DcpTailFlags) -> Result<Vec<Start>, ClientError> {
    let mut all = high_seqnos(client)?;
    all.retain(|(vb, _)| flags.vbucket.is_none_or(|wanted| vb.0 == wanted));
    let vbuckets: Vec<VbId> = all.iter().map(|(vb, _)| *vb).collect();
    let histories = match flags.from {
        From::Start => vec![base::VbUuid(0); all.len()],
        From::Now | From::Seqno(_) => newest_histories(client, &vbuckets)?,
    };
    let start = |((vb, high), uuid): ((VbId, Seqno), _)| {
        let position = match flags.from {
            From::Start => Position::START,
            From::Now => Position::at(uuid, high),
            From::Seqno(seqno) => Position::at(uuid, Seqno(seqno)),
        };
        Start { vb, position, end: Start::FOR_EVER }
    };
    Ok(all.into_iter().zip(histories).map(start).collect())
}

/// The value of a stream request that asks for these collections.
fn filter(client: &mut Client, collections: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut ids = Vec::new();
    for name in collections {
        if let Some(id) = name.strip_prefix("0x") {
            u32::from_str_radix(id, 16).map_err(|_| WrongArguments(format!("`{name}` is no collection")))?;
            ids.push(id.to_owned());
            continue;
        }
        let id = client.collection_id(name)?;
        ids.push(format!("{:x}", id.0));
    }
    Ok(if ids.is_empty() {
        Vec::new()
    } else {
        serde_json::json!({ "collections": ids }).to_string().into_bytes()
    })
}

/// What collections are called now; a server without collections has the default one.
fn names(client: &mut Client) -> anyhow::Result<CollectionNames> {
    let mut names = CollectionNames::new();
    let Some(manifest) = client.collections_manifest()? else { return Ok(names) };
    let named = |one: &serde_json::Value| {
        let id = one["uid"].as_str().and_then(|id| u32::from_str_radix(id, 16).ok())?;
        Some((id, one["name"].as_str()?.to_owned()))
    };
    for scope in manifest["scopes"].as_array().into_iter().flatten() {
        let Some((scope_id, name)) = named(scope) else { continue };
        names.add_scope(ScopeId(scope_id), &name);
        for (id, name) in scope["collections"].as_array().into_iter().flatten().filter_map(named) {
            names.add_collection(CollectionId(id), ScopeId(scope_id), &name);
        }
    }
    Ok(names)
}

/// Prints what happens.
struct Tail<'a> {
    flags: &'a DcpTailFlags,
    names: CollectionNames,
    interrupted: &'a AtomicBool,
    out: &'a mut (dyn Write + Send),
    say: &'a mut (dyn FnMut(&str) + Send),
    printed: u64,
    /// The last stream that ended did so since the user has lost the right to it.
    has_lost_right: bool,
    failed: Option<std::io::Error>,
}

impl Tail<'_> {
    /// A right that is lost ends the streams of all vBuckets: that is said once.
    fn say_ended(&mut self, vb: VbId, reason: EndReason) {
        let is_known = std::mem::replace(&mut self.has_lost_right, reason == EndReason::LostPrivileges);
        match reason {
            EndReason::LostPrivileges if is_known => {}
            EndReason::LostPrivileges => (self.say)(&format!("streams end: {reason}")),
            reason => (self.say)(&format!("vBucket {vb}: the stream ended: {reason}")),
        }
    }

    fn write(&mut self, line: &str) -> ControlFlow<()> {
        if let Err(error) = writeln!(self.out, "{line}") {
            self.failed = Some(error);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Watch for Tail<'_> {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let is_change = match event {
            Event::Message(message) => matches!(
                message.what,
                What::Mutation(_) | What::Deletion(_) | What::Expiration(_) | What::SystemEvent(..)
            ),
            Event::Began(..) | Event::RolledBack(..) | Event::Ended(..) => false,
        };
        if let Some(line) = line::of(&event, &mut self.names, self.flags.json, self.flags.keys_only) {
            self.write(&line)?;
        }
        if let Event::Ended(vb, reason) = event
            && reason != EndReason::Ok
        {
            self.say_ended(vb, reason);
        }
        self.printed += u64::from(is_change);
        if self.flags.count.is_some_and(|count| self.printed >= count) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn idle(&mut self) -> ControlFlow<()> {
        if let Err(error) = self.out.flush() {
            self.failed = Some(error);
            return ControlFlow::Break(());
        }
        if self.interrupted.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn disconnected(&mut self, error: &ClientError) -> ControlFlow<()> {
        (self.say)(&format!("{error}; trying again"));
        ControlFlow::Continue(())
    }
}

/// Set once the process was told to end by Ctrl-C or SIGTERM.
pub(crate) fn watch_interrupt(env: &Env) -> anyhow::Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = interrupted.clone();
    // Ends with the process.
    let listen = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        told.store(true, Ordering::Relaxed);
    };
    env.spawn.spawn("signals", Box::new(listen))?;
    Ok(interrupted)
}
