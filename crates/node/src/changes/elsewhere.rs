//! Which node each vBucket's changes come from while a reader follows a whole cluster, and the connections to the others.
//!
//! The node that is asked has checked the reader's rights. What other nodes send is taken only as far as it was asked
//! for: the vBucket, the stream and the kind of message. A vBucket is asked for where the map says, again and again while
//! it moves, and always from where the reader stands (record 0076).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Datatype, Seqno, VbId, VbState, VbUuid};
use engine::Bucket;
use protocol::dcp::{EndReason, FailoverLog, Message, StreamFlags, StreamRequest, What};
use protocol::extras::ConfigVersion;
use protocol::reader::Reader as Fields;
use protocol::{
    Limits, Parsed, ParsedResponse, RequestParts, ResponseView, Status, magic, opcode, parse, parse_response,
};

use super::bell::Bell;
use super::exchange::{ReaderExchange, ReaderTarget, about};
use super::feed::{Wishes, seqno_of};
use super::token::Place;
use crate::doors::ReaderLinks;
use crate::node::Node;

/// A vBucket that no node has streamed for this long ends the reader's stream.
pub(super) const MOST_WAITED: Duration = Duration::from_secs(60);
/// Between two tries for a vBucket that no node streams.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after a connection failed or could not be made.
const PAUSE_OF_PEER: Duration = Duration::from_millis(500);

/// How long a vBucket has not been streamed, and why.
#[derive(Clone)]
struct Wait {
    since: Duration,
    again_at: Duration,
    why: Arc<str>,
}

/// What another node was asked about a vBucket last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Which history it has, since the reader begins at its present end.
    History,
    /// Where that ends.
    End(VbUuid),
    /// To stream it.
    Stream,
}

/// Where a vBucket's changes come from.
enum Stand {
    /// Nothing more comes.
    Done,
    /// From nowhere at the moment.
    Waiting(Wait),
    /// From this node's own producer.
    Here,
    /// Another node was asked.
    Asked { node: Arc<str>, opaque: u32, step: Step, wait: Wait },
    /// From another node.
    There { node: Arc<str>, opaque: u32 },
}

/// A connection to another node.
struct Peer {
    exchange: Arc<ReaderExchange>,
    /// Closes the connection when it is dropped.
    _connection: Box<dyn Send>,
}

/// What comes from other nodes.
pub(super) enum Arrival<'a> {
    /// A stream begins, in this history.
    Accepted(VbId, VbUuid),
    /// The reader has to forget what came after this; then the vBucket is asked for again.
    RollBack(VbId, Seqno),
    /// The reader begins here.
    Now(VbId, Place),
    /// A message of a stream.
    Message(&'a Message<'a>),
    /// Nothing more comes of a vBucket.
    Ended(VbId, EndReason),
}

/// The reader that these are for.
pub(super) trait Reads {
    /// How far it is in a vBucket.
    fn place(&self, vb: VbId) -> Place;

    /// Takes what comes.
    fn arrived(&mut self, arrival: Arrival<'_>);
}

/// What a peer sent that it must not send.
struct Violation(&'static str);

/// The vBuckets of a reader that follows a cluster.
pub struct Elsewhere {
    node: Arc<Node>,
    bucket: Arc<Bucket>,
    bell: Arc<Bell>,
    /// Connections that readers of this node may have to others.
    links: Arc<dyn ReaderLinks>,
    with_values: bool,
    with_history: bool,
    follow: bool,
    filter: Vec<u8>,
    stands: Vec<Stand>,
    /// vBuckets of which the reader wants what comes from now on, and whose present end is not known yet.
    from_now: BTreeSet<VbId>,
    peers: BTreeMap<Arc<str>, Peer>,
    opaque: u32,
    /// The map that was looked at last.
    version: Option<ConfigVersion>,
    /// The peer whose turn it was last.
    turn: Option<Arc<str>>,
}

impl Elsewhere {
    /// For a reader with these wishes; every vBucket waits. `None` if `links` has no places for all other nodes.
    pub fn new(
        node: Arc<Node>,
        bucket: &Arc<Bucket>,
        links: Arc<dyn ReaderLinks>,
        wishes: &Wishes,
    ) -> Option<Elsewhere> {
        let others = node.cluster_map().layout().nodes.len().saturating_sub(1);
        if links.free_places() < others {
            return None;
        }
        let now = bucket.env().clock.monotonic();
        let wait = Wait { since: now, again_at: now, why: "it was not asked for yet".into() };
        let vbuckets = || (0..bucket.vbuckets()).map(VbId);
        let from_now = vbuckets().filter(|vb| wishes.from_now && wishes.is_in(*vb));
        let stand = |vb| if wishes.is_in(vb) { Stand::Waiting(wait.clone()) } else { Stand::Done };
        Some(Elsewhere {
            node,
            bucket: Arc::clone(bucket),
            bell: Arc::default(),
            links,
            with_values: wishes.writer.values,
            with_history: wishes.with_history,
            follow: wishes.follow,
            filter: wishes.filter.clone(),
            stands: vbuckets().map(stand).collect(),
            from_now: from_now.collect(),
            peers: BTreeMap::new(),
            opaque: 0,
            version: None,
            turn: None,
        })
    }

    /// What is rung when something comes.
    pub(super) fn ring(&mut self, bell: &Arc<Bell>) {
        self.bell = Arc::clone(bell);
    }

    /// Whether the position of some vBucket is not known yet.
    pub(super) fn is_unplaced(&self) -> bool {
        !self.from_now.is_empty()
    }

    /// Whether the reader begins at the present end of a vBucket that this node streams.
    pub(super) fn begins_now(&mut self, vb: VbId) -> bool {
        self.from_now.remove(&vb)
    }

    fn set(&mut self, vb: VbId, stand: Stand) {
        if let Some(there) = self.stands.get_mut(usize::from(vb.0)) {
            *there = stand;
        }
    }

    /// This node streams the vBucket.
    pub(super) fn is_here(&mut self, vb: VbId) {
        self.set(vb, Stand::Here);
    }

    /// Nothing more comes of the vBucket.
    pub(super) fn is_done(&mut self, vb: VbId) {
        self.set(vb, Stand::Done);
    }

    /// No node streams the vBucket: it is asked for again, after a pause.
    pub(super) fn waits(&mut self, vb: VbId, why: &str, now: Duration, pause: Duration) {
        let since = match self.stands.get(usize::from(vb.0)) {
            Some(Stand::Waiting(wait) | Stand::Asked { wait, .. }) => wait.since,
            _ => now,
        };
        self.set(vb, Stand::Waiting(Wait { since, again_at: now + pause, why: why.into() }));
    }

    /// The same after the usual pause.
    pub(super) fn waits_a_little(&mut self, vb: VbId, why: &str, now: Duration) {
        self.waits(vb, why, now, PAUSE);
    }

    /// A vBucket that has waited for too long, and why.
    pub(super) fn overdue(&self, now: Duration) -> Option<(VbId, Arc<str>)> {
        self.stands.iter().enumerate().find_map(|(vb, stand)| match stand {
            Stand::Waiting(wait) | Stand::Asked { wait, .. }
                if now.saturating_sub(wait.since) >= MOST_WAITED =>
            {
                Some((VbId(vb as u16), Arc::clone(&wait.why)))
            }
            _ => None,
        })
    }

    /// For how long there is nothing to look at; `None` if nothing waits.
    pub(super) fn next_look(&self, now: Duration) -> Option<Duration> {
        let due = self.stands.iter().filter_map(|stand| match stand {
            Stand::Waiting(wait) => Some(wait.again_at.min(wait.since + MOST_WAITED)),
            Stand::Asked { wait, .. } => Some(wait.since + MOST_WAITED),
            _ => None,
        });
        due.min().map(|at| at.saturating_sub(now))
    }

    /// Asks for what waits and is due, where the map says. Returns what this node is to stream itself.
    pub(super) fn look(&mut self, now: Duration, reads: &dyn Reads) -> Vec<VbId> {
        self.drop_lost(now);
        let map = self.node.cluster_map();
        let layout = map.layout();
        let row = |vb: usize| {
            let bucket = layout.buckets.iter().find(|bucket| bucket.name == self.bucket.name())?;
            bucket.rows.get(vb)?.first().copied().flatten()
        };
        let is_news = self.version.replace(layout.version) != Some(layout.version);
        let mut here = Vec::new();
        let mut asks = Vec::new();
        for (vb, stand) in self.stands.iter_mut().enumerate() {
            let active = match stand {
                Stand::Waiting(wait) if wait.again_at <= now => row(vb),
                Stand::Asked { .. } | Stand::There { .. } if is_news => row(vb),
                _ => continue,
            };
            let id = VbId(vb as u16);
            match (active, &mut *stand) {
                (Some(place), _) if Some(place) == layout.this_node => here.push(id),
                (Some(place), stand) => {
                    let is_encrypted = self.node.doors().links.is_encrypted();
                    let address = layout.nodes[usize::from(place)].address.kv_by(is_encrypted);
                    match stand {
                        Stand::Asked { node, .. } | Stand::There { node, .. } if **node == *address => {}
                        _ => asks.push((id, address)),
                    }
                }
                (None, Stand::Waiting(wait)) => {
                    *wait = Wait { again_at: now + PAUSE, why: "no node serves it".into(), ..wait.clone() };
                }
                // The map knows no better: as long as something comes it is taken.
                (None, _) => {}
            }
        }
        asks.into_iter().for_each(|(vb, address)| self.ask(vb, &address, now, reads));
        if is_news {
            self.drop_idle();
        }
        here.retain(|vb| self.is_ready_here(*vb, now));
        here
    }

    fn is_ready_here(&mut self, vb: VbId, now: Duration) -> bool {
        let is_active = self.bucket.state_of(vb) == Some(VbState::Active);
        if !is_active {
            self.waits_a_little(vb, "this node is to serve it and does not yet", now);
        }
        is_active
    }

    /// Gives up connections that broke; what they streamed waits.
    fn drop_lost(&mut self, now: Duration) {
        let lost =
            self.peers.iter().filter_map(|(node, peer)| Some((Arc::clone(node), peer.exchange.why_over()?)));
        for (node, why) in lost.collect::<Vec<_>>() {
            // What came before it broke is taken first.
            if self.peers.get(&node).is_some_and(|peer| !peer.exchange.has_more()) {
                self.lose(&node, &why, now);
            }
        }
    }

    fn lose(&mut self, lost: &Arc<str>, why: &str, now: Duration) {
        self.peers.remove(lost);
        let why = format!("{lost}: {why}");
        for vb in (0..self.stands.len()).map(|vb| VbId(vb as u16)) {
            let stand = &self.stands[usize::from(vb.0)];
            if matches!(stand, Stand::Asked { node, .. } | Stand::There { node, .. } if node == lost) {
                self.waits(vb, &why, now, PAUSE_OF_PEER);
            }
        }
    }

    /// Closes connections that nothing comes from.
    fn drop_idle(&mut self) {
        let used: BTreeSet<Arc<str>> = self
            .stands
            .iter()
            .filter_map(|stand| match stand {
                Stand::Asked { node, .. } | Stand::There { node, .. } => Some(Arc::clone(node)),
                _ => None,
            })
            .collect();
        self.peers.retain(|node, _| used.contains(node));
    }

    /// Asks another node for a vBucket.
    fn ask(&mut self, vb: VbId, address: &str, now: Duration, reads: &dyn Reads) {
        let node: Arc<str> = address.into();
        if !self.peers.contains_key(&node) {
            let Some(peer) = self.connect(&node) else {
                let why = "this node has as many connections for readers of changes as it may have";
                return self.waits(vb, why, now, PAUSE_OF_PEER);
            };
            self.peers.insert(Arc::clone(&node), peer);
        }
        let step = if self.from_now.contains(&vb) { Step::History } else { Step::Stream };
        self.request(vb, node, step, now, reads.place(vb));
    }

    fn connect(&self, node: &Arc<str>) -> Option<Peer> {
        let (username, password) = self.node.accounts().node_logins().at(node);
        let reading = ReaderTarget {
            env: self.node.env().clone(),
            memory: Arc::clone(self.node.connection_memory()),
            hearing: self.node.announcer().hearing(),
            node: node.to_string(),
            username,
            password,
            bucket: self.bucket.name().to_owned(),
            vbuckets: self.bucket.vbuckets(),
            name: format!(
                "changes:{}:{:016x}",
                self.node.address().name(),
                self.node.env().random.next_u64()
            ),
            with_values: self.with_values,
            with_history: self.with_history,
        };
        let bell = Arc::clone(&self.bell);
        let exchange = Arc::new(ReaderExchange::new(move || bell.ring()));
        let connection = self.links.connect(reading, &exchange)?;
        Some(Peer { exchange, _connection: connection })
    }

    fn request(&mut self, vb: VbId, node: Arc<str>, step: Step, now: Duration, place: Place) {
        let Some(peer) = self.peers.get(&node) else { return };
        self.opaque = self.opaque.wrapping_add(1);
        let opaque = self.opaque;
        match step {
            Step::History => peer.exchange.request(&about(opcode::DCP_GET_FAILOVER_LOG, vb, opaque)),
            Step::End(uuid) => {
                let value = uuid.0.to_be_bytes();
                let parts = RequestParts { value: &value, ..about(opcode::OBSERVE_SEQNO, vb, opaque) };
                peer.exchange.request(&parts);
            }
            Step::Stream => {
                let to_latest = if self.follow { 0 } else { StreamFlags::TO_LATEST };
                let request = StreamRequest {
                    flags: StreamFlags(StreamFlags::ACTIVE_ONLY | to_latest),
                    start: place.seqno,
                    end: Seqno(u64::MAX),
                    uuid: place.uuid,
                    snapshot_start: place.snapshot_start,
                    snapshot_end: place.snapshot_end,
                };
                peer.exchange.request(&RequestParts {
                    extras: &request.encode(),
                    value: &self.filter,
                    ..about(opcode::DCP_STREAM_REQ, vb, opaque)
                });
            }
        }
        let wait = match self.stands.get(usize::from(vb.0)) {
            Some(Stand::Waiting(wait) | Stand::Asked { wait, .. }) => wait.clone(),
            _ => Wait { since: now, again_at: now, why: "it moves".into() },
        };
        let why = format!("{node} has not answered").into();
        self.set(vb, Stand::Asked { node, opaque, step, wait: Wait { why, ..wait } });
    }

    /// Works on what one of the other nodes sent; whether there was anything.
    pub(super) fn receive(&mut self, now: Duration, reads: &mut dyn Reads) -> bool {
        let behind = self.turn.take();
        let is_behind = |node: &&Arc<str>| behind.as_ref().is_none_or(|last| *node > last);
        let has_more = |node: &&Arc<str>| self.peers.get(*node).is_some_and(|peer| peer.exchange.has_more());
        let next = self.peers.keys().filter(is_behind).find(has_more);
        let Some(node) = next.or_else(|| self.peers.keys().find(has_more)).cloned() else { return false };
        self.turn = Some(Arc::clone(&node));
        let bytes = self.peers[&node].exchange.take();
        match self.sort(&node, &bytes, now, reads) {
            Ok(worked) => {
                if let Some(peer) = self.peers.get(&node) {
                    peer.exchange.worked(worked);
                }
            }
            Err(Violation(what)) => {
                if let Some(left_out) = engine::admit_log(&self.bucket, "violation of another node") {
                    tracing::warn!(
                        event = "changes_source_misbehaved",
                        bucket = self.bucket.name(),
                        node = &*node,
                        what,
                        left_out,
                        "another node sends a reader of changes what was not asked for; the connection is closed"
                    );
                }
                self.lose(&node, what, now);
            }
        }
        true
    }

    /// Whole messages and answers of a peer; bytes of messages that are done with.
    fn sort(
        &mut self,
        node: &Arc<str>,
        bytes: &[u8],
        now: Duration,
        reads: &mut dyn Reads,
    ) -> Result<usize, Violation> {
        let (mut rest, mut worked) = (bytes, 0);
        while let Some(&first) = rest.first() {
            let len = if matches!(first, magic::REQUEST | magic::ALT_REQUEST) {
                let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else {
                    break;
                };
                let message = Message::read(&request).ok_or(Violation("a message that cannot be read"))?;
                self.on_message(node, &message, now, reads)?;
                worked += total_len;
                total_len
            } else {
                let ParsedResponse::Response { response, total_len } =
                    parse_response(rest, base::limits::MAX_FRAME_BODY_BYTES)
                else {
                    break;
                };
                self.on_answer(node, &response, now, reads)?;
                total_len
            };
            rest = &rest[len..];
        }
        Ok(worked)
    }

    fn on_message(
        &mut self,
        from: &Arc<str>,
        message: &Message<'_>,
        now: Duration,
        reads: &mut dyn Reads,
    ) -> Result<(), Violation> {
        let vb = message.vb;
        let stand = self.stands.get(usize::from(vb.0));
        let is_ours = matches!(
            stand, Some(Stand::There { node, opaque }) if node == from && *opaque == message.opaque
        );
        if !is_ours {
            // Of a stream that was given up for another node's.
            return Ok(());
        }
        check(message, reads.place(vb).seqno)?;
        let What::End(reason) = message.what else {
            reads.arrived(Arrival::Message(message));
            return Ok(());
        };
        match reason {
            EndReason::StateChanged | EndReason::Disconnected => {
                self.waits_a_little(vb, "it moves", now);
            }
            EndReason::Rollback | EndReason::TooSlow => {
                self.waits(vb, "its stream broke off", now, Duration::ZERO)
            }
            _ => {
                self.is_done(vb);
                reads.arrived(Arrival::Ended(vb, reason));
            }
        }
        Ok(())
    }

    fn on_answer(
        &mut self,
        from: &Arc<str>,
        response: &ResponseView<'_>,
        now: Duration,
        reads: &mut dyn Reads,
    ) -> Result<(), Violation> {
        let asked = self.stands.iter().enumerate().find_map(|(vb, stand)| match stand {
            Stand::Asked { node, opaque, step, .. } if node == from && *opaque == response.opaque => {
                Some((VbId(vb as u16), *step))
            }
            _ => None,
        });
        let Some((vb, step)) = asked else { return Ok(()) };
        let unreadable = Violation("an answer that cannot be read");
        match (response.status(), step) {
            (Some(Status::Success), Step::Stream) => {
                let log = FailoverLog::decode(response.value).ok_or(unreadable)?;
                let uuid = log.first().map(|(uuid, _)| *uuid).ok_or(Violation("no history"))?;
                self.set(vb, Stand::There { node: Arc::clone(from), opaque: response.opaque });
                reads.arrived(Arrival::Accepted(vb, uuid));
            }
            (Some(Status::Success), Step::History) => {
                let log = FailoverLog::decode(response.value).ok_or(unreadable)?;
                let uuid = log.first().map(|(uuid, _)| *uuid).ok_or(Violation("no history"))?;
                self.request(vb, Arc::clone(from), Step::End(uuid), now, Place::default());
            }
            (Some(Status::Success), Step::End(uuid)) => {
                let end = end_of(response.value, uuid).ok_or(unreadable)?;
                self.from_now.remove(&vb);
                self.waits(vb, "it was not asked for yet", now, Duration::ZERO);
                reads.arrived(Arrival::Now(vb, Place::at(uuid, end)));
            }
            (Some(Status::Rollback), Step::Stream) => {
                let to = response.value.try_into().map(u64::from_be_bytes).map_err(|_| unreadable)?;
                if Seqno(to) > reads.place(vb).seqno {
                    return Err(Violation("a rollback forward"));
                }
                self.waits(vb, "it is rolled back", now, Duration::ZERO);
                reads.arrived(Arrival::RollBack(vb, Seqno(to)));
            }
            _ => {
                let why = format!("{from} refuses it with status 0x{:02x}", response.status_code);
                self.waits_a_little(vb, &why, now);
            }
        }
        Ok(())
    }
}

/// Whether a message of a stream is one that was asked for.
fn check(message: &Message<'_>, at: Seqno) -> Result<(), Violation> {
    match message.what {
        What::Marker(_) | What::End(_) | What::SystemEvent(..) | What::SeqnoAdvanced(_) => {}
        What::Mutation(_) | What::Deletion(_) | What::Expiration(_) => {
            let datatype = Datatype(message.datatype);
            if datatype.is_xattr() || datatype.is_snappy() {
                return Err(Violation("attributes or a compressed value"));
            }
        }
        _ => return Err(Violation("a message of another kind")),
    }
    match seqno_of(&message.what) {
        Some(seqno) if seqno <= at => Err(Violation("a change that the reader has")),
        _ => Ok(()),
    }
}

/// The last seqno in the answer to observe-seqno, if it is about this history.
fn end_of(value: &[u8], uuid: VbUuid) -> Option<Seqno> {
    let mut fields = Fields(value);
    let _format = fields.u8()?;
    let _vb = fields.u16()?;
    let told = VbUuid(fields.u64()?);
    let _persisted = fields.u64()?;
    let end = Seqno(fields.u64()?);
    (told == uuid).then_some(end)
}

#[cfg(test)]
mod tests {
    use base::Cas;
    use protocol::dcp::Mutation;

    use super::*;

    fn message(what: What, datatype: u8) -> Message<'static> {
        let (key, value) = (&b"\0k"[..], &b"v"[..]);
        Message { vb: VbId(1), opaque: 1, stream_id: None, cas: Cas(1), datatype, key, value, what }
    }

    #[test]
    fn nothing_is_taken_that_was_not_asked_for() {
        let mutation = || What::Mutation(Mutation { by_seqno: Seqno(5), ..Mutation::default() });
        let is_taken = |what, datatype, at| check(&message(what, datatype), Seqno(at)).is_ok();
        assert!(is_taken(mutation(), 1, 4));
        assert!(!is_taken(mutation(), 1, 5), "the reader has it");
        assert!(!is_taken(mutation(), 4, 4), "with attributes");
        assert!(!is_taken(mutation(), 2, 4), "compressed");
        assert!(!is_taken(What::Commit(Seqno(4), Seqno(5)), 0, 0), "of a prepare");
        assert!(!is_taken(What::SetVbucketState(VbState::Active), 0, 0), "a role");
        assert!(is_taken(What::End(EndReason::Ok), 0, 9));
    }

    #[test]
    fn the_end_of_a_history_is_that_of_the_one_that_was_asked_for() {
        let mut value = vec![0, 0, 1];
        [7_u64, 40, 42].iter().for_each(|number| value.extend_from_slice(&number.to_be_bytes()));
        assert_eq!(end_of(&value, VbUuid(7)), Some(Seqno(42)));
        assert_eq!(end_of(&value, VbUuid(8)), None);
        assert_eq!(end_of(&value[..20], VbUuid(7)), None);
    }
}
