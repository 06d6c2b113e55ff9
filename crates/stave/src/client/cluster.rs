//! Requests about documents, each sent to the node that is active for it, and sent again while vBuckets move.
//!
//! Gives up when nothing was answered for as long as the target's patience, and says then what it waited for.
//! A request whose connection breaks is sent again only if that does no harm.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::env::Env;
use base::leb128::decode_leb128;
use base::limits::{MAX_COLLECTION_KEY_BYTES, MAX_KEY_BYTES};
use base::vbucket_map::vbucket_of;
use base::{CollectionId, DocKey, VbId};
use protocol::extras::StoreExtras;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};

use super::map::Map;
use super::{Answer, Client, ClientError, Document, Stored, Target, status_name};

/// Waits between two attempts: from the first, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// How long a node may take to say why it does not serve something.
const REASON_PATIENCE: Duration = Duration::from_secs(1);
/// One node that does not answer uses up this part of the patience, so that the others can be asked.
const ATTEMPTS: u32 = 3;

/// A request about one document.
#[derive(Clone, Debug, Default)]
pub struct DocRequest {
    /// What is asked.
    pub opcode: u8,
    /// Bits that describe the value.
    pub datatype: u8,
    /// Where the document belongs.
    pub vbucket: VbId,
    /// Fields of the command.
    pub extras: Vec<u8>,
    /// The key, with the prefix of its collection.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Whether it does no harm to send it again after its answer was lost.
    pub is_repeatable: bool,
}

impl DocRequest {
    fn parts(&self) -> RequestParts<'_> {
        RequestParts {
            opcode: self.opcode,
            datatype: self.datatype,
            vbucket: self.vbucket,
            extras: &self.extras,
            key: &self.key,
            value: &self.value,
            ..RequestParts::default()
        }
    }
}

/// A bucket of a cluster, or of a node that is alone.
pub struct Cluster<'e> {
    env: &'e Env,
    /// The node that was named.
    target: Target,
    more: Vec<Feature>,
    features: Features,
    vbuckets: u16,
    map: Map,
    /// By address; only nodes of the map, and the one that was named.
    connections: BTreeMap<String, Client>,
    collection: CollectionId,
    /// The collection is known to exist: a node that does not know it yet will hear of it.
    is_collection_known: bool,
}

impl std::fmt::Debug for Cluster<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("target", &self.target)
            .field("map", &self.map)
            .finish_non_exhaustive()
    }
}

/// What a round of requests came to.
#[derive(Default)]
struct Round {
    answered: usize,
    /// Why something was left: what is waited for.
    why: String,
    /// A node that does not serve a vBucket which the map gives it.
    unserved: Option<(String, VbId)>,
}

impl<'e> Cluster<'e> {
    /// Connects to the node that is named, and takes the map that it has.
    pub fn open(env: &'e Env, target: Target, more: &[Feature]) -> Result<Cluster<'e>, ClientError> {
        let mut client = Client::open_with(env, &target, more)?;
        let map = client.map()?.unwrap_or_default();
        let (features, vbuckets) = (client.features(), client.vbuckets());
        let connections = BTreeMap::from([(target.addr.clone(), client)]);
        let (collection, is_collection_known) = (CollectionId::DEFAULT, false);
        let more = more.to_vec();
        Ok(Cluster {
            env,
            target,
            more,
            features,
            vbuckets,
            map,
            connections,
            collection,
            is_collection_known,
        })
    }

    /// What the node that was named granted.
    pub fn features(&self) -> Features {
        self.features
    }

    /// vBuckets of the bucket.
    pub fn vbuckets(&self) -> u16 {
        self.vbuckets
    }

    /// The nodes that have vBuckets, each with what lets us in.
    pub fn members(&self) -> Vec<Target> {
        let nodes = self.map.reachable(&self.target.addr);
        nodes.into_iter().map(|addr| self.target.at(addr)).collect()
    }

    /// Collections that are asked for exist: a node of the cluster that does not know one yet is asked again.
    pub fn collections_are_known(&mut self) {
        self.is_collection_known = true;
    }

    /// From now on documents are those of the collection with this name or number.
    pub fn use_collection(&mut self, name: &str) -> Result<(), ClientError> {
        if let Some(id) = name.strip_prefix("0x").and_then(|id| u32::from_str_radix(id, 16).ok()) {
            self.collection = CollectionId(id);
        } else if name != "_default._default" {
            let client = self.connections.values_mut().next().expect("the named node's is there");
            self.collection = client.collection_id(name)?;
            self.is_collection_known = true;
        }
        Ok(())
    }

    /// Reads a document; nothing if there is none.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Document>, ClientError> {
        const OPERATION: &str = "get";
        let request =
            DocRequest { is_repeatable: true, ..self.on_key(OPERATION, opcode::GET, key, &[], &[])? };
        self.one(OPERATION, request)?.into_document(OPERATION)
    }

    /// Writes a document, whether it exists or not. `expiry`: 0 never, up to 30 days relative, else seconds since 1970.
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry: u32) -> Result<Stored, ClientError> {
        const OPERATION: &str = "set";
        let extras = StoreExtras { flags: 0, expiry }.encode();
        let request = self.on_key(OPERATION, opcode::SET, key, &extras, value)?;
        let answer = self.one(OPERATION, request)?;
        answer.stored(OPERATION, vbucket_of(key, self.vbuckets))?.ok_or_else(|| answer.refused(OPERATION))
    }

    /// Deletes a document; nothing if there is none.
    pub fn delete(&mut self, key: &[u8]) -> Result<Option<Stored>, ClientError> {
        const OPERATION: &str = "delete";
        let request = self.on_key(OPERATION, opcode::DELETE, key, &[], &[])?;
        self.one(OPERATION, request)?.stored(OPERATION, vbucket_of(key, self.vbuckets))
    }

    /// Keys of the collection that are on disk, of each vBucket from a key on: `most` or fewer, and none only if there are
    /// no more.
    pub fn keys(&mut self, from: &[(VbId, Vec<u8>)], most: u32) -> Result<Vec<Vec<Vec<u8>>>, ClientError> {
        const OPERATION: &str = "get keys";
        let request = |(vbucket, key): &(VbId, Vec<u8>)| -> Result<DocRequest, ClientError> {
            let request = self.on_key(OPERATION, opcode::GET_KEYS, key, &most.to_be_bytes(), &[])?;
            Ok(DocRequest { vbucket: *vbucket, is_repeatable: true, ..request })
        };
        let requests = from.iter().map(request).collect::<Result<Vec<_>, _>>()?;
        let is_prefixed = self.features.has(Feature::Collections);
        let keys = |answer: Answer| {
            if !answer.is(Status::Success) {
                return Err(answer.refused(OPERATION));
            }
            let what = "its keys do not have the lengths that it says";
            let keys = keys_in(&answer.value, is_prefixed);
            keys.ok_or(ClientError::Answer { operation: OPERATION, what })
        };
        self.exchange(OPERATION, &requests)?.into_iter().map(keys).collect()
    }

    /// The least key that the collection can have behind this one; `None` if it is the last one.
    pub fn behind(&self, key: &[u8]) -> Option<Vec<u8>> {
        let is_default = self.collection == CollectionId::DEFAULT;
        let most_bytes = if is_default { MAX_KEY_BYTES } else { MAX_COLLECTION_KEY_BYTES };
        let mut next = key.to_vec();
        if next.len() < most_bytes {
            next.push(0);
            return Some(next);
        }
        while next.last() == Some(&u8::MAX) {
            next.pop();
        }
        *next.last_mut()? += 1;
        Some(next)
    }

    fn on_key(
        &self,
        operation: &'static str,
        opcode: u8,
        key: &[u8],
        extras: &[u8],
        value: &[u8],
    ) -> Result<DocRequest, ClientError> {
        if key.len() > MAX_KEY_BYTES {
            return Err(ClientError::TooLong { operation });
        }
        let (prefix, len) = DocKey { collection: self.collection, key }.prefix();
        let prefix = if self.features.has(Feature::Collections) { &prefix[..len] } else { &[] };
        Ok(DocRequest {
            opcode,
            vbucket: vbucket_of(key, self.vbuckets),
            extras: extras.to_vec(),
            key: [prefix, key].concat(),
            value: value.to_vec(),
            ..DocRequest::default()
        })
    }

    fn one(&mut self, operation: &'static str, request: DocRequest) -> Result<Answer, ClientError> {
        let answers = self.exchange(operation, &[request])?;
        Ok(answers.into_iter().next().expect("one request has one answer"))
    }

    /// Sends all requests and returns their answers, in the same order. Requests of one vBucket reach its node in their
    /// order, unless some of them have to be sent again.
    pub fn exchange(
        &mut self,
        operation: &'static str,
        requests: &[DocRequest],
    ) -> Result<Vec<Answer>, ClientError> {
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        let (mut begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let known = self.map.version;
            let end = begun + self.target.patience.0;
            let round = self.round(operation, requests, &mut answers, end)?;
            if answers.iter().all(Option::is_some) {
                return Ok(answers.into_iter().flatten().collect());
            }
            let now = Instant::now();
            // A node alone does not serve a vBucket later whose files it cannot read.
            let asks = now >= end || self.map.nodes.len() < 2;
            let reason = round.unserved.filter(|_| asks).and_then(|(addr, vb)| self.reason(&addr, vb));
            if now >= end || reason.is_some() {
                let what = reason.map_or(round.why.clone(), |reason| format!("{}: {reason}", round.why));
                return Err(ClientError::Waited { operation, waited: now - begun, what });
            }
            if round.answered > 0 {
                (begun, pause) = (now, FIRST_PAUSE);
            }
            // An answer brought a newer map: it is followed at once.
            if self.map.version == known {
                std::thread::sleep(pause.min(end - now));
                pause = (pause * 2).min(LAST_PAUSE);
                self.look_again(end);
            }
        }
    }

    /// Sends what has no answer yet to the nodes that the map names, and takes the answers.
    fn round(
        &mut self,
        operation: &'static str,
        requests: &[DocRequest],
        answers: &mut [Option<Answer>],
        end: Instant,
    ) -> Result<Round, ClientError> {
        let mut round = Round::default();
        let mut shares: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate().filter(|(at, _)| answers[*at].is_none()) {
            match self.map.active(request.vbucket, &self.target.addr) {
                Some(addr) => shares.entry(addr.to_owned()).or_default().push(at),
                None => round.why = format!("no node is active for vBucket {}", request.vbucket),
            }
        }
        let mut sent = Vec::new();
        for (addr, share) in shares {
            let is_repeatable = share.iter().all(|at| requests[*at].is_repeatable);
            match self.send(operation, &addr, share.iter().map(|at| &requests[*at]), end) {
                Ok(opaques) => sent.push((addr, share, opaques)),
                Err((error, was_sent)) => {
                    self.broke(operation, &addr, error, is_repeatable || !was_sent, &mut round)?;
                }
            }
        }
        for (addr, share, opaques) in sent {
            let is_repeatable = share.iter().all(|at| requests[*at].is_repeatable);
            for (at, opaque) in share.into_iter().zip(opaques) {
                let Some(client) = self.connections.get_mut(&addr) else { break };
                match client.answer(operation, opaque) {
                    Ok(answer) => {
                        let vb = requests[at].vbucket;
                        if let Some(why) = self.not_now(&addr, vb, &answer) {
                            round.why = why;
                            let is_unserved = answer.is(Status::NotMyVbucket);
                            round.unserved =
                                is_unserved.then(|| (addr.clone(), vb)).or(round.unserved.take());
                        } else {
                            answers[at] = Some(answer);
                            round.answered += 1;
                        }
                    }
                    Err(error) => {
                        self.broke(operation, &addr, error, is_repeatable, &mut round)?;
                    }
                }
            }
        }
        Ok(round)
    }

    /// Sends a share to a node; an error comes with whether any of it may have reached the node.
    fn send<'r>(
        &mut self,
        operation: &'static str,
        addr: &str,
        share: impl Iterator<Item = &'r DocRequest>,
        end: Instant,
    ) -> Result<Vec<u32>, (ClientError, bool)> {
        let share: Vec<_> = share.collect();
        let is_repeatable = share.iter().all(|request| request.is_repeatable);
        let attempt = self.attempt(end);
        let client = self.client(addr, attempt).map_err(|error| (error, false))?;
        client.set_patience(if is_repeatable { attempt } else { left(end) });
        let queue = |request: &&DocRequest| client.queue(operation, request.parts());
        let opaques = share.iter().map(queue).collect::<Result<_, _>>().map_err(|error| (error, false))?;
        client.flush(operation).map_err(|error| (error, true))?;
        Ok(opaques)
    }

    /// The connection to a node is of no more use. An error if the same would come again, or if it is not known whether
    /// something was done.
    fn broke(
        &mut self,
        operation: &'static str,
        addr: &str,
        error: ClientError,
        is_harmless: bool,
        round: &mut Round,
    ) -> Result<(), ClientError> {
        self.connections.remove(addr);
        // The named node let us in: a node that lacks the bucket will hear of it.
        if !error.may_pass() && !matches!(error, ClientError::Bucket { .. }) {
            return Err(error);
        }
        if !is_harmless {
            // For how long the last attempt has waited says nothing of the time that all of them had.
            return Err(ClientError::Unknown { operation, why: error.reason() });
        }
        let names_it = matches!(error, ClientError::Bucket { .. } | ClientError::Connect { .. });
        round.why = if names_it { error.reason() } else { format!("{addr}: {}", error.reason()) };
        Ok(())
    }

    /// Why an answer means "ask again", if it does.
    fn not_now(&mut self, addr: &str, vb: VbId, answer: &Answer) -> Option<String> {
        let status = Status::from_code(answer.status_code)?;
        let is_temporary = match status {
            Status::NotMyVbucket | Status::ConfigOnly => {
                self.take(Map::read(&answer.value, addr, self.target.tls.is_some()));
                true
            }
            Status::UnknownCollection => self.is_collection_known && self.map.nodes.len() > 1,
            Status::SyncWriteInProgress | Status::SyncWriteReCommitInProgress => true,
            status => status.attributes().contains(&"temp"),
        };
        let said = status_name(answer.status_code);
        let look = match status {
            Status::NotMyVbucket => {
                ": `stave cluster status`, and /readyz of that node, say what is not served"
            }
            Status::Etmpfail => ": /healthz of that node says if its disk is full",
            _ => "",
        };
        is_temporary.then(|| format!("{addr} answers {said} for vBucket {vb}{look}"))
    }

    /// Why a node does not serve a vBucket, as its stats say it to users who may read them.
    fn reason(&mut self, addr: &str, vb: VbId) -> Option<String> {
        let client = self.connections.get_mut(addr)?;
        client.set_patience(REASON_PATIENCE);
        let Ok(figures) = client.stats(&format!("vbucket-details {vb}")) else {
            // Its answer may come yet.
            self.connections.remove(addr);
            return None;
        };
        let name = format!("vb_{vb}:unreadable");
        figures.into_iter().find(|(found, _)| *found == name).map(|(_, reason)| reason)
    }

    /// Takes a map if it is newer than the one that is followed.
    fn take(&mut self, map: Option<Map>) {
        let Some(map) = map.filter(|map| map.version > self.map.version) else { return };
        self.map = map;
        let (map, named) = (&self.map, &self.target.addr);
        self.connections.retain(|addr, _| addr == named || map.nodes.contains(addr));
    }

    /// Asks the nodes for a newer map, one after the other, until one answers. A failure is told by what needs the map.
    fn look_again(&mut self, end: Instant) {
        let mut nodes = self.map.reachable(&self.target.addr);
        nodes.push(self.target.addr.clone());
        // Those that are connected already answer soonest.
        nodes.sort_by_key(|addr| !self.connections.contains_key(addr));
        for addr in nodes {
            if Instant::now() >= end {
                return;
            }
            let attempt = self.attempt(end);
            let asked = self.client(&addr, attempt).and_then(|client| {
                client.set_patience(attempt);
                client.map()
            });
            match asked {
                Ok(map) => return self.take(map),
                Err(_) => drop(self.connections.remove(&addr)),
            }
        }
    }

    /// How long one node is waited for.
    fn attempt(&self, end: Instant) -> Duration {
        if self.map.nodes.len() < 2 { left(end) } else { left(end).min(self.target.patience.0 / ATTEMPTS) }
    }

    fn client(&mut self, addr: &str, patience: Duration) -> Result<&mut Client, ClientError> {
        if !self.connections.contains_key(addr) {
            let client = Client::open_at(self.env, &self.target, addr, patience, &self.more)?;
            self.connections.insert(addr.to_owned(), client);
        }
        Ok(self.connections.get_mut(addr).expect("it was just put there"))
    }
}

/// The keys of an answer, each behind its length, without their collections.
fn keys_in(mut rest: &[u8], is_prefixed: bool) -> Option<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (key, behind) = behind.split_at_checked(u16::from_be_bytes(*len).into())?;
        let prefix = if is_prefixed { decode_leb128(key)?.1 } else { 0 };
        keys.push(key[prefix..].to_vec());
        rest = behind;
    }
    rest.is_empty().then_some(keys)
}

/// What is left until then; a moment, so that sockets have a time limit.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests;
