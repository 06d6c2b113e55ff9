//! A server in a few lines, for tests of the client: a map behind a loopback port, with log-in.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the other end of the client's socket"
)]

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base::{Cas, Seqno, VbUuid};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use node::sasl::client::{self as scram, SaltedPassword};
use protocol::extras::MutationToken;
use protocol::feature::{Feature, Features};
use protocol::{Limits, Parsed, Request, Response, Status, opcode, parse};

use super::{Dialect, Target};

pub const USERNAME: &str = "Administrator";
pub const PASSWORD: &str = "password";
pub const BUCKET: &str = "default";
const VBUCKETS: u16 = 64;
const SALT: &[u8] = b"salt";
const ITERATIONS: u32 = 10;

/// How the server differs from a well-behaved one.
#[derive(Clone, Debug)]
pub struct Habits {
    pub mechanisms: &'static str,
    /// What it knows as the password; proves to be somebody else's server if it is not ours.
    pub password: &'static str,
    /// Set is refused with this status so many times.
    pub refuse_sets: (u16, u32),
    /// Closes the connection after so many requests.
    pub close_after: Option<u32>,
    /// Sends a request of its own before each answer.
    pub chatty: bool,
    /// The cluster that it belongs to; alone if not given.
    pub cluster: Option<SharedMap>,
    /// Closes the connection instead of answering this request.
    pub closes_at: Option<u8>,
}

/// What the servers of a cluster know together.
#[derive(Debug, Default)]
pub struct FakeMap {
    pub revision: u32,
    pub servers: Vec<String>,
    /// The place of the server that is active for all vBuckets; -1 for none.
    pub active: i32,
    /// Whether refusals bring the map.
    pub is_told: bool,
    /// After this number of questions another one is active, with the next revision.
    pub then: Option<(u32, i32)>,
}

pub type SharedMap = Arc<Mutex<FakeMap>>;

impl FakeMap {
    /// Counts a question; what is moved then is moved for the next one.
    fn asked(&mut self) {
        match &mut self.then {
            Some((0, active)) => {
                self.active = *active;
                self.revision += 1;
                self.then = None;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
    }

    fn config(&self) -> Vec<u8> {
        let map = vec![[self.active]; VBUCKETS.into()];
        let (revision, servers) = (self.revision, &self.servers);
        serde_json::json!({
            "rev": revision, "revEpoch": 1, "vBucketServerMap": { "serverList": servers, "vBucketMap": map }
        })
        .to_string()
        .into_bytes()
    }
}

impl Default for Habits {
    fn default() -> Habits {
        Habits {
            mechanisms: "SCRAM-SHA512 SCRAM-SHA1 PLAIN",
            password: PASSWORD,
            refuse_sets: (0, 0),
            close_after: None,
            chatty: false,
            cluster: None,
            closes_at: None,
        }
    }
}

/// A server that lives as long as the test process. Documents are kept by the key as it was sent.
pub struct FakeServer {
    addr: String,
    documents: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
    settings: Settings,
}

/// Settings by the names that they have in stats.
type Settings = Arc<Mutex<BTreeMap<String, String>>>;

impl FakeServer {
    pub fn start(habits: Habits) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        if let Some(map) = &habits.cluster {
            map.lock().unwrap().servers.push(addr.clone());
        }
        let own = addr.clone();
        let documents = Arc::new(Mutex::new(HashMap::new()));
        let settings = [("ep_max_size", "268435456"), ("ep_mem_high_wat_percent", "85"), ("ep_novel", "1")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings: Settings = Arc::new(Mutex::new(settings.into()));
        let (shared, shared_settings) = (documents.clone(), settings.clone());
        std::thread::spawn(move || {
            let refusals = Arc::new(Mutex::new(habits.refuse_sets.1));
            for stream in listener.incoming().flatten() {
                let (documents, habits, refusals) = (shared.clone(), habits.clone(), refusals.clone());
                let (challenge, features) = (None, Features::NONE);
                let settings = shared_settings.clone();
                let addr = own.clone();
                let session = Session { documents, settings, habits, refusals, challenge, features, addr };
                std::thread::spawn(move || session.serve(stream));
            }
        });
        FakeServer { addr, documents, settings }
    }

    pub fn target(&self, dialect: Dialect) -> Target {
        Target {
            addr: self.addr.clone(),
            dialect,
            username: USERNAME.into(),
            password: PASSWORD.to_owned().into(),
            bucket: BUCKET.into(),
            ..Target::default()
        }
    }

    /// The value of a setting.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.settings.lock().unwrap().get(&format!("ep_{name}")).cloned()
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.documents.lock().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    }
}

struct Session {
    documents: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
    settings: Settings,
    habits: Habits,
    refusals: Arc<Mutex<u32>>,
    /// The client's first message without its header, and the server's.
    challenge: Option<(String, String)>,
    features: Features,
    addr: String,
}

impl Session {
    fn serve(mut self, mut stream: TcpStream) {
        let (mut received, mut out, mut requests) = (Vec::new(), Vec::new(), 0);
        let mut chunk = [0; 8192];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            received.extend_from_slice(&chunk[..count]);
            while let Parsed::Request { request, total_len } = parse(&received, Limits::AUTHENTICATED) {
                requests += 1;
                let is_last = self.habits.close_after.is_some_and(|limit| requests > limit);
                if is_last || self.habits.closes_at == Some(request.opcode) {
                    return;
                }
                if self.habits.chatty {
                    out.extend_from_slice(&[0x82, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                    out.extend_from_slice(&[0; 8]);
                }
                self.answer(&request, &mut out);
                received.drain(..total_len);
            }
            if stream.write_all(&out).is_err() {
                return;
            }
            out.clear();
        }
    }

    fn answer(&mut self, request: &Request<'_>, out: &mut Vec<u8>) {
        let token = MutationToken { uuid: VbUuid(9), seqno: Seqno(3) }.encode();
        let mut extras: &[u8] = &[];
        let mut value = Vec::new();
        let status = match request.opcode {
            opcode::HELLO => {
                let asked = Features::decode(request.value).unwrap();
                self.features = asked.and(Features::of(&[Feature::Collections, Feature::MutationSeqno]));
                value = self.features.encode();
                Status::Success
            }
            opcode::SASL_LIST_MECHS => {
                value = self.habits.mechanisms.as_bytes().to_vec();
                Status::Success
            }
            opcode::SASL_AUTH | opcode::SASL_STEP => self.log_in(request, &mut value),
            opcode::SELECT_BUCKET if request.key == BUCKET.as_bytes() => Status::Success,
            opcode::SELECT_BUCKET => Status::Eaccess,
            opcode::GET_CLUSTER_CONFIG => {
                match &self.habits.cluster {
                    Some(map) => {
                        let mut map = map.lock().unwrap();
                        value = map.config();
                        map.asked();
                    }
                    None => {
                        let map = vec!["[0]"; VBUCKETS.into()].join(",");
                        value = format!(r#"{{"vBucketServerMap":{{"vBucketMap":[{map}]}}}}"#).into_bytes();
                    }
                }
                Status::Success
            }
            opcode::STAT if request.key == b"nonsense" => {
                value = br#"{"error":{"context":"no such group"}}"#.to_vec();
                Status::KeyEnoent
            }
            opcode::STAT if request.key == b"config" => {
                let (opcode, opaque) = (opcode::STAT, request.opaque);
                for (name, value) in &*self.settings.lock().unwrap() {
                    let (key, value) = (name.as_bytes(), value.as_bytes());
                    Response { opcode, opaque, key, value, ..Response::default() }.write(out);
                }
                Status::Success
            }
            opcode::SET_PARAM => self.set_param(request, &mut value),
            opcode::STAT => {
                for (key, value) in figures(request.key) {
                    let (key, value) = (key.as_bytes(), value.as_bytes());
                    let opaque = request.opaque;
                    Response { opcode: opcode::STAT, opaque, key, value, ..Response::default() }.write(out);
                }
                Status::Success
            }
            _ => {
                let is_change = matches!(request.opcode, opcode::SET | opcode::DELETE);
                if self.features.has(Feature::MutationSeqno) && is_change {
                    extras = &token;
                }
                if request.opcode == opcode::GET {
                    extras = &[0, 0, 0, 7];
                }
                self.on_document(request, &mut value)
            }
        };
        if status != Status::Success {
            extras = &[];
        }
        let (opcode, opaque) = (request.opcode, request.opaque);
        let cas = Cas(42);
        Response { opcode, opaque, status, cas, extras, value: &value, ..Response::default() }.write(out);
    }

    /// Takes values of settings that it has, and of those numbers only.
    fn set_param(&self, request: &Request<'_>, answer: &mut Vec<u8>) -> Status {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let (name, value) = (format!("ep_{}", text(request.key)), text(request.value));
        assert_eq!(request.extras, [0, 0, 0, 1]);
        let mut settings = self.settings.lock().unwrap();
        match settings.get_mut(&name).filter(|_| value.parse::<u64>().is_ok()) {
            Some(setting) => {
                value.clone_into(setting);
                Status::Success
            }
            None => {
                answer.extend_from_slice(br#"{"error":{"context":"this is why"}}"#);
                Status::Einval
            }
        }
    }

    fn on_document(&mut self, request: &Request<'_>, value: &mut Vec<u8>) -> Status {
        if self.features.has(Feature::Collections) {
            let vbucket = base::vbucket_map::vbucket_of(&request.key[1..], VBUCKETS);
            assert_eq!((request.key[0], request.vbucket), (0, vbucket));
        }
        if let Some(map) = &self.habits.cluster {
            let mut map = map.lock().unwrap();
            let active = usize::try_from(map.active).ok().and_then(|at| map.servers.get(at));
            if active != Some(&self.addr) {
                if map.is_told {
                    *value = map.config();
                }
                map.asked();
                return Status::NotMyVbucket;
            }
        }
        let mut documents = self.documents.lock().unwrap();
        match request.opcode {
            opcode::GET => match documents.get(request.key) {
                Some(found) => {
                    value.extend_from_slice(found);
                    Status::Success
                }
                None => Status::KeyEnoent,
            },
            opcode::SET => {
                let mut refusals = self.refusals.lock().unwrap();
                if *refusals > 0 {
                    *refusals -= 1;
                    return Status::from_code(self.habits.refuse_sets.0).unwrap();
                }
                documents.insert(request.key.to_vec(), request.value.to_vec());
                Status::Success
            }
            opcode::DELETE if documents.remove(request.key).is_some() => Status::Success,
            opcode::DELETE => Status::KeyEnoent,
            _ => Status::UnknownCommand,
        }
    }

    fn log_in(&mut self, request: &Request<'_>, value: &mut Vec<u8>) -> Status {
        let text = std::str::from_utf8(request.value).unwrap();
        if request.key == b"PLAIN" {
            let expected = format!("\0{USERNAME}\0{}", self.habits.password);
            return if text == expected { Status::Success } else { Status::AuthError };
        }
        if request.opcode == opcode::SASL_AUTH {
            let first = text.strip_prefix("n,,").unwrap().to_owned();
            let nonce = first.split_once("r=").unwrap().1;
            let challenge = format!("r={nonce}more,s={},i={ITERATIONS}", BASE64.encode(SALT));
            value.extend_from_slice(challenge.as_bytes());
            self.challenge = Some((first, challenge));
            return Status::AuthContinue;
        }
        let (first, challenge) = self.challenge.take().unwrap();
        let (without_proof, proof) = text.rsplit_once(",p=").unwrap();
        let auth_message = format!("{first},{challenge},{without_proof}");
        let salted = SaltedPassword::derive(self.habits.password, SALT, ITERATIONS);
        let (expected, signature) = scram::sign(salted.key(), &auth_message);
        // A server that does not know the password lets everybody in, but cannot sign.
        if self.habits.password == PASSWORD && BASE64.encode(expected) != proof {
            return Status::AuthError;
        }
        value.extend_from_slice(format!("v={}", BASE64.encode(signature)).as_bytes());
        Status::Success
    }
}

/// Figures of a group of stats.
fn figures(group: &[u8]) -> Vec<(String, &'static str)> {
    match group.strip_prefix(b"vbucket-details ").map(String::from_utf8_lossy) {
        Some(vb) => vec![(format!("vb_{vb}:unreadable"), "its file is damaged")],
        None => vec![("curr_items".to_owned(), "2"), ("version".to_owned(), "fake")],
    }
}
