//! etcd as the coordination store, over the JSON form of its v3 API (etcd documentation, "gRPC gateway").
//!
//! Each request has a connection of its own: there are a few of them a second, and none can wait behind another.

mod access;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::cluster::store::{Commit, Entry, LeaseId, Put, Snapshot, Store, StoreFailure, Swap, Swapped, Version};
use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::http_client::{self, Answer, Ask};
use ::node::cluster::names::Resolver;
pub use access::{EtcdAccess, EtcdTls, EtcdTlsError, EtcdUser};
use access::{LOGIN_REFUSED, NOT_PERMITTED, Way, fault_of};

/// Where a cluster's state is: `etcd://HOST:PORT[,HOST:PORT...]/CLUSTER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// The nodes of etcd.
    pub endpoints: Vec<String>,
    /// The cluster's name.
    pub cluster: String,
}

/// An address that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not etcd://HOST:PORT[,HOST:PORT...]/CLUSTER")]
pub struct AddressError(String);

impl EtcdAddress {
    /// Reads an address.
    pub fn parse(text: &str) -> Result<EtcdAddress, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let (endpoints, cluster) =
            text.strip_prefix("etcd://").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        let has_port = |endpoint: &String| {
            endpoint
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if cluster.is_empty() || !cluster.bytes().all(is_name) || !endpoints.iter().all(has_port) {
            return Err(wrong());
        }
        Ok(EtcdAddress { endpoints, cluster: cluster.to_owned() })
    }
}

/// A longer answer is refused: the document and some soft state.
const MAX_ANSWER_BYTES: usize = 96 << 20;
/// Where changes are asked for.
const CHANGE: &str = "/v3/kv/txn";
/// What etcd does to a client without TLS where it speaks nothing else.
const NO_WORD: &str = "it ended the connection without a word; if it speaks TLS, give --etcd-ca";
/// The most entries that are read at once: each of them may be as large as etcd takes.
const PAGE: usize = 32;
/// In less time no watch begins.
const SHORTEST_WATCH: Duration = Duration::from_millis(20);
/// A watch that begins in the past has what came since within this: etcd brings such watches up to date every 100 ms
/// (`syncWatchersLoop` of its `mvcc`).
const SYNCED_WITHIN: Duration = Duration::from_millis(250);
/// How long a request may take, and how long it may take to begin a watch.
const TIMEOUT: Duration = Duration::from_secs(1);
/// What etcd says of a lease that it does not have (rpctypes, ErrGRPCLeaseNotFound; gRPC code NotFound).
const NOT_FOUND: i64 = 5;
/// What it says of a token that it does not know (any more): ErrGRPCInvalidAuthToken; gRPC code Unauthenticated.
const UNAUTHENTICATED: i64 = 16;
/// What it says to whoever shows no token where clients have certificates: it takes its own gateway's for theirs
/// (ErrGRPCPermissionDenied).
const PERMISSION_DENIED: i64 = 7;
/// What it says to whoever shows no token, or one from before users or roles changed (ErrGRPCUserEmpty,
/// ErrGRPCAuthOldRevision), under a code that says nothing.
const SHOWS_TOO_LITTLE: [&str; 2] = ["user name is empty", "revision of auth store is old"];
/// What it says to whoever logs in where nobody has to (ErrGRPCAuthNotEnabled).
const ASKS_NOBODY: &str = "authentication is not enabled";

/// A cluster's state in etcd.
pub struct EtcdStore {
    env: Env,
    endpoints: Vec<String>,
    names: Resolver,
    prefix: String,
    /// Shared with the stores beside this one.
    way: Arc<Way>,
    /// The one that answered last.
    current: AtomicUsize,
    /// What etcd calls itself, once it has answered: others have clusters of the same name.
    id: OnceLock<String>,
    /// [`TIMEOUT`], but in tests.
    timeout: Duration,
}

/// Why a request was not answered as it should be.
enum Trouble {
    /// The other end did not answer, or not in time.
    Io(String),
    /// It refused, with this gRPC code.
    Refused(i64, String),
}

impl EtcdStore {
    /// The store of a cluster; nothing is asked yet.
    pub fn new(env: Env, address: &EtcdAddress, access: EtcdAccess) -> EtcdStore {
        let prefix = format!("/stave/{}/", address.cluster);
        EtcdStore::below(env, address.endpoints.clone(), prefix, Arc::new(Way::new(access)))
    }

    /// Has requests from now on made with another user, password or certificates, here and in the stores beside this one.
    pub fn change_access(&self, access: EtcdAccess) {
        self.way.change(access);
    }

    fn below(env: Env, endpoints: Vec<String>, prefix: String, way: Arc<Way>) -> EtcdStore {
        let current = AtomicUsize::new(0);
        let names = Resolver::new(env.clone());
        EtcdStore { env, endpoints, names, prefix, way, current, id: OnceLock::new(), timeout: TIMEOUT }
    }

    /// Asks one node of etcd after the other until one answers.
    fn ask(&self, operation: &'static str, path: &str, body: &Value) -> Result<Value, StoreFailure> {
        match self.try_ask(path, body) {
            Ok(answer) => Ok(answer),
            Err(Trouble::Io(reason) | Trouble::Refused(_, reason)) => Err(StoreFailure { operation, reason }),
        }
    }

    fn try_ask(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let answer = self.ask_logged_in(path, body);
        if answer.is_ok() {
            self.way.done(path == CHANGE, self.env.clock.monotonic());
        }
        answer
    }

    fn note(&self, fault: Option<&'static str>) {
        self.way.note(fault, self.env.clock.monotonic());
    }

    fn ask_logged_in(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let token = self.way.token();
        let answer = self.ask_as(token.as_deref(), path, body);
        let Err(Trouble::Refused(code, reason)) = &answer else { return answer };
        if !wants_login(*code, reason, token.is_some()) {
            return answer.map_err(|trouble| self.explained(trouble));
        }
        let access = self.way.access();
        let Some(user) = &access.user else {
            self.note(Some(LOGIN_REFUSED));
            let reason = format!("{reason}: etcd wants to know who asks (--etcd-user)");
            return Err(Trouble::Refused(*code, reason));
        };
        let token = self.log_in(user)?;
        self.way.keep_token(&access, token.as_deref());
        self.ask_as(token.as_deref(), path, body).map_err(|trouble| self.explained(trouble))
    }

    /// What is missing if etcd knows the user, and lets it not do this.
    fn explained(&self, trouble: Trouble) -> Trouble {
        match (trouble, &self.way.access().user) {
            (Trouble::Refused(PERMISSION_DENIED, reason), Some(user)) => {
                self.note(Some(NOT_PERMITTED));
                let (name, prefix) = (&user.name, &self.prefix);
                let reason = format!(
                    "{reason}: etcd's user {name} has no role that may read and write {prefix}; give it to one of its \
                     roles (etcdctl user get {name}) with: etcdctl role grant-permission ROLE readwrite --prefix {prefix}"
                );
                Trouble::Refused(PERMISSION_DENIED, reason)
            }
            (trouble, _) => trouble,
        }
    }

    /// A token for name and password; nothing where nobody has to log in.
    fn log_in(&self, user: &EtcdUser) -> Result<Option<String>, Trouble> {
        let body = json!({ "name": user.name, "password": user.password });
        let answer = match self.ask_as(None, "/v3/auth/authenticate", &body) {
            Err(Trouble::Refused(_, reason)) if reason.contains(ASKS_NOBODY) => return Ok(None),
            Err(Trouble::Refused(code, reason)) => {
                self.note(Some(LOGIN_REFUSED));
                let reason = format!("user {:?} cannot log in to etcd: {reason}", user.name);
                return Err(Trouble::Refused(code, reason));
            }
            answer => answer?,
        };
        let token = answer.get("token").and_then(Value::as_str);
        token.map(|token| Some(token.to_owned())).ok_or_else(|| Trouble::Io(NOT_ETCD.to_owned()))
    }

    fn ask_as(&self, token: Option<&str>, path: &str, body: &Value) -> Result<Value, Trouble> {
        let (body, access) = (body.to_string(), self.way.access());
        let answer = self.try_each(|endpoint, addr| {
            let ask = request(&access, endpoint, addr, token, path, &body);
            let answer = http_client::ask(&self.env, ask, self.timeout)?;
            let json = serde_json::from_slice(&answer.body).map_err(|_| not_json(&answer))?;
            Ok((answer.status, json))
        });
        if answer.is_ok() {
            // What etcd answers is none of the network's, whatever it is: what the login or the role lacks is noted after.
            self.way.reached();
        }
        answer.and_then(|(status, json): (u16, Value)| refusal(status, &json).map_or(Ok(json), Err))
    }

    fn try_each<T>(&self, ask: impl Fn(&str, SocketAddr) -> std::io::Result<T>) -> Result<T, Trouble> {
        let first = self.current.load(Ordering::Relaxed);
        let (mut last, mut fault) = ("there is no endpoint".to_owned(), None);
        for at in 0..self.endpoints.len() {
            let at = (first + at) % self.endpoints.len();
            let endpoint = &self.endpoints[at];
            let asked = self.names.addr(endpoint).and_then(|addr| {
                let asked = ask(endpoint, addr);
                asked.inspect_err(|_| self.names.doubt(endpoint))
            });
            match asked {
                Ok(answer) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => {
                    fault = fault.or(fault_of(&error));
                    last = format!("{endpoint}: {error}");
                }
            }
        }
        self.note(fault);
        Err(Trouble::Io(last))
    }

    /// An entry as etcd tells it.
    fn entry(&self, kv: &Value) -> Option<(String, Entry)> {
        let key = self.key_of(kv)?;
        // A value without bytes is left out.
        let value = kv.get("value").map_or(Some(Vec::new()), bytes_of)?;
        Some((key, Entry { value, version: mod_revision(kv)? }))
    }

    fn key_of(&self, kv: &Value) -> Option<String> {
        let key = String::from_utf8(bytes_of(kv.get("key")?)?).ok()?;
        Some(key.strip_prefix(&self.prefix)?.to_owned())
    }

    /// What a key becomes, as a part of a transaction.
    fn change(&self, key: &str, value: Option<&[u8]>, lease: Option<LeaseId>) -> Value {
        let key = self.key(key);
        match value {
            Some(value) => json!({ "request_put": {
                "key": key, "value": BASE64.encode(value), "lease": lease.map_or(0, |lease| lease.0).to_string(),
            } }),
            None => json!({ "request_delete_range": { "key": key } }),
        }
    }

    fn transact(
        &self,
        guard: Option<(&str, Version)>,
        changes: &[Value],
        is_leased: bool,
    ) -> Result<Swapped, StoreFailure> {
        let compare = guard.map(|(key, version)| {
            let (key, revision) = (self.key(key), version.0.to_string());
            json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision })
        });
        let compare: Vec<Value> = compare.into_iter().collect();
        let txn = json!({ "compare": compare, "success": changes });
        match self.try_ask(CHANGE, &txn) {
            Ok(answer) if answer.get("succeeded").and_then(Value::as_bool) == Some(true) => {
                version_of(&answer).map(Swapped::Done).ok_or_else(|| malformed("swap"))
            }
            Ok(_) => Ok(Swapped::Conflict),
            Err(Trouble::Refused(NOT_FOUND, _)) if is_leased => Ok(Swapped::NoLease),
            Err(Trouble::Io(reason) | Trouble::Refused(_, reason)) => {
                Err(StoreFailure { operation: "swap", reason })
            }
        }
    }

    /// How far etcd is, all that it holds together.
    fn revision(&self) -> Result<Version, StoreFailure> {
        let answer = self.ask("read", "/v3/kv/range", &json!({ "key": self.key(""), "keys_only": true }))?;
        version_of(&answer).ok_or_else(|| malformed("read"))
    }

    /// Waits for what comes after a version. A store that is not as far as `known` has gone back.
    fn watch_after(
        &self,
        after: Version,
        at_most: Duration,
        known: Option<Version>,
    ) -> Result<Watched, StoreFailure> {
        let watch = json!({ "create_request": {
            "key": self.key(""), "range_end": self.range_end(), "start_revision": (after.0 + 1).to_string(),
        } });
        let says = |line: &[u8]| said(line, known);
        let (access, token, watch) = (self.way.access(), self.way.token(), watch.to_string());
        let watched = self.try_each(|endpoint, addr| {
            let ask = request(&access, endpoint, addr, token.as_deref(), "/v3/watch", &watch);
            let is_news = |line: &[u8]| !matches!(says(line), Watched::Nothing);
            http_client::watch(&self.env, ask, self.timeout, at_most, &is_news)
        });
        let lines = watched.map_err(|trouble| {
            let (Trouble::Io(reason) | Trouble::Refused(_, reason)) = trouble;
            StoreFailure { operation: "watch", reason }
        })?;
        let mut watched = if lines.is_empty() { Watched::Silence } else { Watched::Nothing };
        for line in &lines {
            watched = match (watched, says(line)) {
                (_, Watched::Lost) | (Watched::Lost, _) => Watched::Lost,
                (Watched::News(mut events), Watched::News(more)) => {
                    events.extend(more);
                    Watched::News(events)
                }
                (_, news @ Watched::News(_)) => news,
                (watched, _) => watched,
            };
        }
        Ok(watched)
    }

    /// Makes of what was known what it is after an event.
    fn take_in(&self, known: &mut Snapshot, event: &Value) -> Option<()> {
        let kv = event.get("kv")?;
        let version = mod_revision(kv)?;
        if event.get("type").and_then(Value::as_str) == Some("DELETE") {
            known.entries.remove(&self.key_of(kv)?);
        } else {
            let (key, entry) = self.entry(kv)?;
            known.entries.insert(key, entry);
        }
        known.version = known.version.max(version);
        Some(())
    }

    fn key(&self, key: &str) -> String {
        BASE64.encode(format!("{}{key}", self.prefix))
    }

    /// The first key behind all of the cluster's: the prefix with its last byte one higher.
    fn range_end(&self) -> String {
        let mut end = self.prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        BASE64.encode(end)
    }
}

fn request<'a>(
    access: &'a EtcdAccess,
    endpoint: &'a str,
    addr: SocketAddr,
    token: Option<&'a str>,
    path: &'a str,
    body: &'a str,
) -> Ask<'a> {
    let tls = access.tls.as_ref().map(|EtcdTls(config)| config);
    let no_word = if tls.is_none() { NO_WORD } else { "it ended the connection without a word" };
    let body = Some(body);
    Ask { endpoint, addr, tls, path, token, body, most_bytes: MAX_ANSWER_BYTES, no_word }
}

/// What came of a watch.
enum Watched {
    /// It did not even say that it watches.
    Silence,
    /// It watches, and nothing has changed.
    Nothing,
    /// What has changed. All changes of one revision come at once.
    News(Vec<Value>),
    /// It cannot say what has changed: that is too long ago, or was never so, as after a restore.
    Lost,
}

/// What one line of a watch says, by a node that knows a version.
fn said(line: &[u8], known: Option<Version>) -> Watched {
    let mut json: Value = serde_json::from_slice(line).unwrap_or_default();
    let result = &mut json["result"];
    let is_older = version_of(result).zip(known).is_some_and(|(is, known)| is < known);
    if is_older || result.get("canceled").is_some() || json.get("error").is_some() {
        return Watched::Lost;
    }
    match json["result"].get_mut("events").map(Value::take) {
        Some(Value::Array(events)) => Watched::News(events),
        _ => Watched::Nothing,
    }
}

/// Whether etcd refused because it did not know who asked.
fn wants_login(code: i64, reason: &str, has_token: bool) -> bool {
    code == UNAUTHENTICATED
        || (code == PERMISSION_DENIED && !has_token)
        || SHOWS_TOO_LITTLE.iter().any(|what| reason.contains(what))
}

/// What etcd says if it refuses.
fn refusal(status: u16, json: &Value) -> Option<Trouble> {
    let error = json.get("error").filter(|error| !error.is_null());
    if status == 200 && error.is_none() {
        return None;
    }
    let nested = error.filter(|error| error.is_object()).unwrap_or(json);
    let code = nested.get("code").or_else(|| nested.get("grpc_code")).and_then(Value::as_i64);
    let text = nested.get("message").or(error).and_then(Value::as_str).unwrap_or("it refuses");
    Some(Trouble::Refused(code.unwrap_or_default(), format!("status {status}: {text}")))
}

/// Of an answer that cannot be read.
const NOT_ETCD: &str = "the answer is not what etcd answers";
/// So much of it is told.
const TOLD_BYTES: usize = 160;

fn malformed(operation: &'static str) -> StoreFailure {
    StoreFailure { operation, reason: NOT_ETCD.to_owned() }
}

/// Such as what is said to whoever comes without TLS.
fn not_json(answer: &Answer) -> std::io::Error {
    let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(TOLD_BYTES)]);
    std::io::Error::other(format!("{NOT_ETCD}: status {}: {}", answer.status, text.trim()))
}

/// The version of an entry as etcd tells it.
fn mod_revision(kv: &Value) -> Option<Version> {
    number_of(kv.get("mod_revision")?).and_then(|n| u64::try_from(n).ok()).map(Version)
}

fn version_of(header: &Value) -> Option<Version> {
    number_of(header.get("header")?.get("revision")?).and_then(|n| u64::try_from(n).ok()).map(Version)
}

impl Store for EtcdStore {
    fn place(&self) -> String {
        format!("{} {}", self.id.get().map_or("", String::as_str), self.prefix)
    }

    fn sibling(&self, name: &str) -> Result<Option<Arc<dyn Store>>, StoreFailure> {
        // No name of a cluster has a colon.
        let prefix = format!("{}:{name}/", self.prefix.trim_end_matches('/'));
        let way = Arc::clone(&self.way);
        let store = EtcdStore::below(self.env.clone(), self.endpoints.clone(), prefix, way);
        Ok(Some(Arc::new(EtcdStore { timeout: self.timeout, ..store })))
    }

    fn fault(&self) -> Option<&'static str> {
        self.way.fault()
    }

    fn read(&self) -> Result<Snapshot, StoreFailure> {
        let mut range =
            json!({ "key": self.key(""), "range_end": self.range_end(), "limit": PAGE.to_string() });
        let mut snapshot = Snapshot::default();
        loop {
            let answer = self.ask("read", "/v3/kv/range", &range)?;
            if snapshot.version == Version::ABSENT {
                // The other pages are of the same moment.
                snapshot.version = version_of(&answer).ok_or_else(|| malformed("read"))?;
                range["revision"] = snapshot.version.0.to_string().into();
                if let Some(id) = answer["header"]["cluster_id"].as_str() {
                    self.id.get_or_init(|| id.to_owned());
                }
            }
            let mut last = None;
            for kv in answer.get("kvs").and_then(Value::as_array).into_iter().flatten() {
                let (key, entry) = self.entry(kv).ok_or_else(|| malformed("read"))?;
                last = Some(key.clone());
                snapshot.entries.insert(key, entry);
            }
            match last.filter(|_| answer.get("more").and_then(Value::as_bool) == Some(true)) {
                // The next key that can be.
                Some(last) => range["key"] = self.key(&format!("{last}\0")).into(),
                None => return Ok(snapshot),
            }
        }
    }

    fn version_of(&self, key: &str) -> Result<Version, StoreFailure> {
        let answer = self.ask("read", "/v3/kv/range", &json!({ "key": self.key(key), "keys_only": true }))?;
        let Some(kv) = answer.get("kvs").and_then(Value::as_array).and_then(|kvs| kvs.first()) else {
            return Ok(Version::ABSENT);
        };
        mod_revision(kv).ok_or_else(|| malformed("read"))
    }

    fn commit(&self, commit: Commit<'_>) -> Result<Swapped, StoreFailure> {
        let change = |put: &Put| self.change(&put.key, put.value.as_deref(), commit.lease);
        let changes: Vec<Value> = commit.puts.iter().map(change).collect();
        self.transact(commit.guard, &changes, commit.lease.is_some())
    }

    fn follow(&self, mut known: Snapshot, at_most: Duration) -> Result<Snapshot, StoreFailure> {
        // A short watch ends before etcd tells it of the past, each time again.
        let is_behind = at_most < SYNCED_WITHIN && self.revision()? > known.version;
        let at_most = if is_behind { SYNCED_WITHIN } else { at_most.max(SHORTEST_WATCH) };
        match self.watch_after(known.version, at_most, Some(known.version))? {
            Watched::News(events) => {
                for event in &events {
                    self.take_in(&mut known, event).ok_or_else(|| malformed("watch"))?;
                }
                Ok(known)
            }
            // What changed is another's, or etcd is slow.
            Watched::Silence | Watched::Nothing if is_behind => self.read(),
            // Whether it answers at all: silence alone may be that of one that hangs. A short watch asked it before.
            Watched::Silence if at_most >= SYNCED_WITHIN => self.revision().map(|_| known),
            Watched::Silence | Watched::Nothing => Ok(known),
            Watched::Lost => self.read(),
        }
    }

    fn swap(&self, swap: Swap<'_>) -> Result<Swapped, StoreFailure> {
        let guard = swap.expected.map(|version| (swap.key, version));
        self.transact(guard, &[self.change(swap.key, swap.value, swap.lease)], swap.lease.is_some())
    }

    fn wait(&self, after: Version, at_most: Duration) -> Result<(), StoreFailure> {
        if at_most.is_zero() {
            return Ok(());
        }
        self.watch_after(after, at_most, None).map(drop)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreFailure> {
        // Whole seconds, never fewer than asked for: the fence counts on what was asked for.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let answer = self.ask("grant", "/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let id = answer.get("ID").and_then(number_of).ok_or_else(|| malformed("grant"))?;
        Ok(LeaseId(id))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        let body = json!({ "ID": lease.0.to_string() });
        let answer = self.ask("keep alive", "/v3/lease/keepalive", &body)?;
        let result = answer.get("result").ok_or_else(|| malformed("keep alive"))?;
        // Of a lease that has run out there is no time left, which is left out.
        Ok(result.get("TTL").and_then(number_of).is_some_and(|ttl| ttl > 0))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        match self.try_ask("/v3/lease/revoke", &json!({ "ID": lease.0.to_string() })) {
            Ok(_) | Err(Trouble::Refused(NOT_FOUND, _)) => Ok(()),
            Err(Trouble::Io(reason) | Trouble::Refused(_, reason)) => {
                Err(StoreFailure { operation: "revoke", reason })
            }
        }
    }
}

/// A number of 64 bits: text, so that nobody rounds it.
fn number_of(value: &Value) -> Option<i64> {
    value.as_str().map_or_else(|| value.as_i64(), |text| text.parse().ok())
}

/// Bytes: Base64.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    BASE64.decode(value.as_str()?).ok()
}

#[cfg(test)]
mod tests;
