//! One connection to one node: opening it, and one request after the other.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use ::client::kv::{self, Pipeline};
use base::env::Env;
use base::limits::{DEFAULT_VBUCKETS, MAX_FRAME_BODY_BYTES, MAX_KEY_BYTES};
use base::vbucket_map::vbucket_of;
use base::{Cas, CollectionId, DocKey, VbId};
use node::sasl::client::{self as scram, Exchange};
use protocol::extras::{MutationToken, StoreExtras};
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};

use super::error::context_of;
use super::{Channel, ClientError, Dialect, Map, Target, Trust};

/// No answer is larger: stats and documents stay below what a request may hold.
const MAX_ANSWER_BODY_BYTES: usize = MAX_FRAME_BODY_BYTES;

/// What this client can do, and so what it asks for.
/// Neither Snappy nor xattrs are among it: the server inflates and strips values for us.
const WANTED: Features = Features::of(&[
    Feature::TcpNoDelay,
    Feature::MutationSeqno,
    Feature::Xerror,
    Feature::SelectBucket,
    Feature::Json,
    Feature::AltRequestSupport,
    Feature::SyncReplication,
    Feature::Collections,
]);

/// An answer of the server, whatever its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status on the wire.
    pub status_code: u16,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The document's CAS.
    pub cas: Cas,
    /// Fields of the command.
    pub extras: Vec<u8>,
    /// The key, if the command answers with one.
    pub key: Vec<u8>,
    /// The value, or what is to be said about an error.
    pub value: Vec<u8>,
}

impl From<kv::Answer> for Answer {
    fn from(answer: kv::Answer) -> Answer {
        let kv::Answer { status_code, datatype, cas, extras, key, value, .. } = answer;
        Answer { status_code, datatype, cas, extras, key, value }
    }
}

impl Answer {
    /// Whether it has this status.
    pub fn is(&self, status: Status) -> bool {
        self.status_code == status.code()
    }

    /// The text in the JSON error context, if there is one.
    fn context(&self) -> String {
        context_of(&self.value)
    }

    /// The document that was read; nothing if there is none.
    pub fn into_document(self, operation: &'static str) -> Result<Option<Document>, ClientError> {
        if self.is(Status::KeyEnoent) {
            return Ok(None);
        }
        if !self.is(Status::Success) {
            return Err(self.refused(operation));
        }
        let what = "it lacks the flags";
        let flags =
            protocol::extras::decode_u32(&self.extras).ok_or(ClientError::Answer { operation, what })?;
        Ok(Some(Document { value: self.value, cas: self.cas, flags, datatype: self.datatype }))
    }

    /// What became of a change of a document of this vBucket; nothing if there is no such document.
    pub fn stored(&self, operation: &'static str, vbucket: VbId) -> Result<Option<Stored>, ClientError> {
        match Status::from_code(self.status_code) {
            Some(Status::Success) => {
                let token = MutationToken::decode(&self.extras);
                Ok(Some(Stored { cas: self.cas, vbucket, token }))
            }
            Some(Status::KeyEnoent) => Ok(None),
            _ => Err(self.refused(operation)),
        }
    }

    /// The answer as an error.
    pub fn refused(&self, operation: &'static str) -> ClientError {
        ClientError::Refused { operation, status_code: self.status_code, context: self.context() }
    }
}

/// A document as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its value.
    pub value: Vec<u8>,
    /// Its version.
    pub cas: Cas,
    /// The flags that its writer gave it.
    pub flags: u32,
    /// Bits that describe the value.
    pub datatype: u8,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The new version.
    pub cas: Cas,
    /// The document's vBucket.
    pub vbucket: VbId,
    /// Where the change stands in its vBucket's history, if the server says so.
    pub token: Option<MutationToken>,
}

/// A connection that has logged in and selected its bucket.
#[derive(Debug)]
pub struct Client {
    pipeline: Pipeline<Channel>,
    /// Where the server was reached.
    addr: String,
    /// How long an answer is waited for, and until when the present one is.
    patience: Duration,
    deadline: Instant,
    features: Features,
    vbuckets: u16,
    /// Where documents are.
    collection: CollectionId,
    opaque: u32,
}

impl Client {
    /// Connects, says hello, logs in and selects the bucket.
    pub fn open(env: &Env, target: &Target) -> Result<Client, ClientError> {
        Client::open_with(env, target, &[])
    }

    /// The same for who can do more, and so asks for more.
    pub fn open_with(env: &Env, target: &Target, more: &[Feature]) -> Result<Client, ClientError> {
        Client::open_at(env, target, &target.addr, target.patience.0, more)
    }

    /// The same at another address, with another patience.
    pub fn open_at(
        env: &Env,
        target: &Target,
        addr: &str,
        patience: Duration,
        more: &[Feature],
    ) -> Result<Client, ClientError> {
        let deadline = Instant::now() + patience;
        let mut client = Client {
            pipeline: Pipeline::new(connect(addr, patience, target.tls.as_ref())?),
            addr: addr.to_owned(),
            patience,
            deadline,
            features: Features::NONE,
            vbuckets: 1,
            collection: CollectionId::DEFAULT,
            opaque: 0,
        };
        if target.dialect == Dialect::Couchbase {
            let mut wanted = WANTED;
            more.iter().for_each(|feature| wanted.insert(*feature));
            client.hello(env, wanted)?;
            if !target.is_by_certificate() {
                client.log_in(env, target)?;
            }
            client.select_bucket(target)?;
            client.vbuckets = client.ask_vbuckets()?;
        }
        Ok(client)
    }

    /// From now on an answer is waited for so long.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// What the server granted.
    pub fn features(&self) -> Features {
        self.features
    }

    /// vBuckets in the bucket; 1 for plain memcached.
    pub fn vbuckets(&self) -> u16 {
        self.vbuckets
    }

    /// The number of a collection that is named like `scope.collection`, or `collection` for one of the scope
    /// `_default`.
    pub fn collection_id(&mut self, name: &str) -> Result<CollectionId, ClientError> {
        const OPERATION: &str = "get collection id";
        let path = if name.contains('.') { name.to_owned() } else { format!("_default.{name}") };
        let value = path.as_bytes();
        let parts = RequestParts { opcode: opcode::GET_COLLECTION_ID, value, ..RequestParts::default() };
        let answer = self.request(OPERATION, parts)?;
        if answer.is(Status::UnknownCollection) || answer.is(Status::UnknownScope) {
            return Err(ClientError::Collection { name: name.to_owned() });
        }
        if !answer.is(Status::Success) {
            return Err(answer.refused(OPERATION));
        }
        // The manifest's number, then the collection's (`docs/Collections.md`, Get Collection ID).
        let id = answer.extras.get(8..12).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes);
        let what = "it lacks the collection's number";
        id.map(CollectionId).ok_or(ClientError::Answer { operation: OPERATION, what })
    }

    /// Scopes and collections of the bucket, as the server's JSON; `None` from a server without collections.
    pub fn collections_manifest(&mut self) -> Result<Option<serde_json::Value>, ClientError> {
        const OPERATION: &str = "collections manifest";
        let parts = RequestParts { opcode: opcode::GET_COLLECTIONS_MANIFEST, ..RequestParts::default() };
        let answer = self.request(OPERATION, parts)?;
        if answer.is(Status::UnknownCommand) {
            return Ok(None);
        }
        if !answer.is(Status::Success) {
            return Err(answer.refused(OPERATION));
        }
        let what = "it is no JSON";
        let manifest = serde_json::from_slice(&answer.value);
        manifest.map(Some).map_err(|_| ClientError::Answer { operation: OPERATION, what })
    }

    /// From now on documents are those of this collection.
    pub fn use_collection(&mut self, id: CollectionId) {
        self.collection = id;
    }

    /// Whether it speaks TLS.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.pipeline.stream(), Channel::Encrypted(_))
    }

    /// Gives up the client for its connection, on which nothing is outstanding.
    pub fn into_stream(self) -> Channel {
        self.pipeline.into_parts().0
    }

    /// Reads a document; nothing if there is none.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Document>, ClientError> {
        const OPERATION: &str = "get";
        self.on_key(OPERATION, opcode::GET, key, &[], &[])?.into_document(OPERATION)
    }

    /// Writes a document, whether it exists or not. `expiry`: 0 never, up to 30 days relative, else seconds since 1970.
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry: u32) -> Result<Stored, ClientError> {
        const OPERATION: &str = "set";
        let extras = StoreExtras { flags: 0, expiry }.encode();
        let answer = self.on_key(OPERATION, opcode::SET, key, &extras, value)?;
        let stored = answer.stored(OPERATION, vbucket_of(key, self.vbuckets))?;
        stored.ok_or_else(|| answer.refused(OPERATION))
    }

    /// Deletes a document; nothing if there is none.
    pub fn delete(&mut self, key: &[u8]) -> Result<Option<Stored>, ClientError> {
        const OPERATION: &str = "delete";
        let answer = self.on_key(OPERATION, opcode::DELETE, key, &[], &[])?;
        answer.stored(OPERATION, vbucket_of(key, self.vbuckets))
    }

    /// The server's figures; an empty group is the general one.
    pub fn stats(&mut self, group: &str) -> Result<Vec<(String, String)>, ClientError> {
        const OPERATION: &str = "stats";
        let parts = RequestParts { opcode: opcode::STAT, key: group.as_bytes(), ..RequestParts::default() };
        let opaque = self.send(OPERATION, parts)?;
        let mut figures = Vec::new();
        loop {
            let answer = self.receive(OPERATION, opaque)?;
            if !answer.is(Status::Success) {
                return Err(answer.refused(OPERATION));
            }
            if answer.key.is_empty() {
                return Ok(figures);
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            figures.push((text(&answer.key), text(&answer.value)));
        }
    }

    /// Changes a setting of the bucket until the node stops.
    pub fn set_param(&mut self, name: &str, value: &str) -> Result<(), ClientError> {
        const OPERATION: &str = "set-param";
        // All settings are found as those of the flusher (kv_engine's `cbepctl`, flush_param).
        let (opcode, extras) = (opcode::SET_PARAM, 1_u32.to_be_bytes());
        let (key, value) = (name.as_bytes(), value.as_bytes());
        let parts = RequestParts { opcode, extras: &extras, key, value, ..RequestParts::default() };
        let answer = self.request(OPERATION, parts)?;
        if answer.is(Status::Success) { Ok(()) } else { Err(answer.refused(OPERATION)) }
    }

    /// Any request; its opaque is filled in. The answer may have any status.
    pub fn request(
        &mut self,
        operation: &'static str,
        parts: RequestParts<'_>,
    ) -> Result<Answer, ClientError> {
        let opaque = self.send(operation, parts)?;
        self.receive(operation, opaque)
    }

    /// Takes a request without sending it; returns its opaque. Many of them go out together with [`Client::flush`].
    pub fn queue(
        &mut self,
        operation: &'static str,
        mut parts: RequestParts<'_>,
    ) -> Result<u32, ClientError> {
        self.opaque = self.opaque.wrapping_add(1);
        parts.opaque = self.opaque;
        if self.pipeline.queue(&parts) { Ok(self.opaque) } else { Err(ClientError::TooLong { operation }) }
    }

    /// Sends what was queued.
    pub fn flush(&mut self, operation: &'static str) -> Result<(), ClientError> {
        self.deadline = Instant::now() + self.patience;
        let sent = self.pipeline.stream().set_write_timeout(Some(self.patience));
        let sent = sent.and_then(|()| self.pipeline.flush());
        sent.map_err(|source| self.failed(operation, source))
    }

    fn failed(&self, operation: &'static str, source: std::io::Error) -> ClientError {
        match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let what = format!("no answer from {}", self.addr);
                ClientError::Waited { operation, waited: self.patience, what }
            }
            _ => ClientError::Io { operation, source },
        }
    }

    /// Waits for the answer to a queued request. Answers come in the order of the requests.
    pub fn answer(&mut self, operation: &'static str, opaque: u32) -> Result<Answer, ClientError> {
        self.receive(operation, opaque)
    }

    fn on_key(
        &mut self,
        operation: &'static str,
        opcode: u8,
        key: &[u8],
        extras: &[u8],
        value: &[u8],
    ) -> Result<Answer, ClientError> {
        if key.len() > MAX_KEY_BYTES {
            return Err(ClientError::TooLong { operation });
        }
        let (prefix, len) = DocKey { collection: self.collection, key }.prefix();
        let prefix = if self.features.has(Feature::Collections) { &prefix[..len] } else { &[] };
        let prefixed = [prefix, key].concat();
        let vbucket = vbucket_of(key, self.vbuckets);
        let parts =
            RequestParts { opcode, vbucket, key: &prefixed, extras, value, ..RequestParts::default() };
        self.request(operation, parts)
    }

    fn hello(&mut self, env: &Env, wanted: Features) -> Result<(), ClientError> {
        const OPERATION: &str = "hello";
        // The agent's form is the one that servers show in their list of connections (BinaryProtocol.md, Hello).
        let agent = format!(
            r#"{{"a":"stave/{}","i":"{:016X}/{:016X}"}}"#,
            env!("CARGO_PKG_VERSION"),
            env.random.next_u64(),
            env.random.next_u64()
        );
        let value = wanted.encode();
        let parts = RequestParts {
            opcode: opcode::HELLO,
            key: agent.as_bytes(),
            value: &value,
            ..RequestParts::default()
        };
        let answer = self.request(OPERATION, parts)?;
        if !answer.is(Status::Success) {
            return Err(answer.refused(OPERATION));
        }
        let what = "its list of features has an odd length";
        let granted =
            Features::decode(&answer.value).ok_or(ClientError::Answer { operation: OPERATION, what })?;
        self.features = granted.and(wanted);
        Ok(())
    }

    fn log_in(&mut self, env: &Env, target: &Target) -> Result<(), ClientError> {
        let parts = RequestParts { opcode: opcode::SASL_LIST_MECHS, ..RequestParts::default() };
        let answer = self.request("log-in", parts)?;
        let offered = String::from_utf8_lossy(&answer.value).into_owned();
        let offers = |mechanism: &str| offered.split_ascii_whitespace().any(|name| name == mechanism);
        if offers(scram::MECHANISM) {
            self.log_in_by_scram(env, target)
        } else if offers("PLAIN") && target.is_of_map && target.tls.is_none() {
            // Perhaps a stranger at the address of a node that is dead.
            Err(ClientError::InClear { addr: target.addr.clone() })
        } else if offers("PLAIN") {
            let payload = format!("\0{}\0{}", target.username, target.password.0);
            let answer = self.sasl(opcode::SASL_AUTH, "PLAIN", &payload)?;
            self.expect_login(&answer, Status::Success, target)
        } else {
            Err(ClientError::Mechanism { addr: self.addr.clone(), offered })
        }
    }

    fn log_in_by_scram(&mut self, env: &Env, target: &Target) -> Result<(), ClientError> {
        let nonce = format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64());
        let mut exchange = Exchange::new(&target.username, &nonce);
        let challenge = self.sasl(opcode::SASL_AUTH, scram::MECHANISM, &exchange.first())?;
        self.expect_login(&challenge, Status::AuthContinue, target)?;
        let challenge = String::from_utf8_lossy(&challenge.value).into_owned();
        let (addr, username) = (self.addr.clone(), target.username.clone());
        let impostor = |_| ClientError::Impostor { addr: addr.clone(), username: username.clone() };
        let answer = {
            let mut known = target.known.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            exchange.answer(&challenge, &target.password.0, &mut known).map_err(impostor)?
        };
        let last = self.sasl(opcode::SASL_STEP, scram::MECHANISM, &answer)?;
        self.expect_login(&last, Status::Success, target)?;
        exchange.verify(&String::from_utf8_lossy(&last.value)).map_err(impostor)
    }

    fn expect_login(&self, answer: &Answer, expected: Status, target: &Target) -> Result<(), ClientError> {
        if answer.is(expected) {
            Ok(())
        } else if answer.is(Status::AuthError) {
            Err(ClientError::Login { addr: self.addr.clone(), username: target.username.clone() })
        } else {
            Err(answer.refused("log-in"))
        }
    }

    fn sasl(&mut self, opcode: u8, mechanism: &str, payload: &str) -> Result<Answer, ClientError> {
        let parts = RequestParts {
            opcode,
            key: mechanism.as_bytes(),
            value: payload.as_bytes(),
            ..RequestParts::default()
        };
        self.request("log-in", parts)
    }

    fn select_bucket(&mut self, target: &Target) -> Result<(), ClientError> {
        const OPERATION: &str = "select bucket";
        let key = target.bucket.as_bytes();
        let parts = RequestParts { opcode: opcode::SELECT_BUCKET, key, ..RequestParts::default() };
        let answer = self.request(OPERATION, parts)?;
        match Status::from_code(answer.status_code) {
            Some(Status::Success) => Ok(()),
            // Of a certificate that names no user, for example: the bucket may well be there.
            Some(Status::Eaccess) if !answer.context().is_empty() => Err(answer.refused(OPERATION)),
            Some(Status::Eaccess | Status::KeyEnoent) => {
                let by_certificate = "the user of the certificate in --tls-cert".to_owned();
                let username =
                    if target.is_by_certificate() { by_certificate } else { target.username.clone() };
                Err(ClientError::Bucket { addr: self.addr.clone(), bucket: target.bucket.clone(), username })
            }
            _ => Err(answer.refused(OPERATION)),
        }
    }

    /// The bucket's cluster map; nothing if the server has none.
    pub fn map(&mut self) -> Result<Option<Map>, ClientError> {
        const OPERATION: &str = "cluster map";
        let parts = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, ..RequestParts::default() };
        let answer = self.request(OPERATION, parts)?;
        if !answer.is(Status::Success) {
            return Ok(None);
        }
        let what = "it names no vBuckets: the server has lost the bucket, or this is none that it serves";
        let map = Map::read(&answer.value, &self.addr, self.is_encrypted());
        map.ok_or(ClientError::Answer { operation: OPERATION, what }).map(Some)
    }

    /// The number of vBuckets, which is the length of the cluster map; the usual number if the server has no map.
    fn ask_vbuckets(&mut self) -> Result<u16, ClientError> {
        let Some(map) = self.map()? else { return Ok(DEFAULT_VBUCKETS) };
        let what = "the number of vBuckets is not a power of two";
        map.vbuckets().ok_or(ClientError::Answer { operation: "cluster map", what })
    }

    fn send(&mut self, operation: &'static str, parts: RequestParts<'_>) -> Result<u32, ClientError> {
        let opaque = self.queue(operation, parts)?;
        self.flush(operation)?;
        Ok(opaque)
    }

    /// The next answer with this opaque; what else the server sends (its own requests) is passed over.
    fn receive(&mut self, operation: &'static str, opaque: u32) -> Result<Answer, ClientError> {
        loop {
            match self.pipeline.next_answer(MAX_ANSWER_BODY_BYTES).map_err(ClientError::Frame)? {
                Some(answer) if answer.is_to(opaque) => return Ok(answer.into()),
                Some(_) => {}
                None => self.read_more(operation)?,
            }
        }
    }

    fn read_more(&mut self, operation: &'static str) -> Result<(), ClientError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) };
        let read = limit.and_then(|left| self.pipeline.stream().set_read_timeout(left));
        match read.and_then(|()| self.pipeline.read_more()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ClientError::Closed { operation }),
            Err(source) => Err(self.failed(operation, source)),
        }
    }
}

/// Tries every address of the host.
fn connect(addr: &str, patience: Duration, trust: Option<&Trust>) -> Result<Channel, ClientError> {
    let deadline = Instant::now() + patience;
    let failed = |source| ClientError::Connect { addr: addr.to_owned(), source };
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the host has no address");
    for one in addr.to_socket_addrs().map_err(failed)? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&one, left).and_then(|socket| {
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(left))?;
            socket.set_write_timeout(Some(left))?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => {
                return Channel::open(socket, trust, addr, deadline).map_err(|source| match source.kind() {
                    ErrorKind::InvalidData => ClientError::Tls { addr: addr.to_owned(), source },
                    ErrorKind::TimedOut => {
                        let what = format!("no answer from {addr} in the TLS handshake");
                        ClientError::Waited { operation: "connect", waited: patience, what }
                    }
                    _ => failed(source),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}
