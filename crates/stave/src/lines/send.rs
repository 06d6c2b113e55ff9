//! Sends documents in batches, each to the node that its vBucket is active on; or only asks there what would become of them.

use std::collections::BTreeMap;
use std::time::Duration;

use base::env::Env;
use base::limits::MAX_COLLECTION_KEY_BYTES;
use base::vbucket_map::vbucket_of;
use base::{CollectionId, DocKey};
use protocol::extras::StoreExtras;
use protocol::{Status, opcode};

use super::Line;
use crate::client::{Answer, Client, ClientError, Cluster, DocRequest, status_name};
use crate::with_meta::{SourceCollection, create_collections};

/// So much is sent before answers are waited for, at the most.
const MOST_REQUESTS: usize = 256;
const MOST_BYTES: usize = 4 << 20;
/// Of a scope or a collection.
const MAX_NAME_BYTES: usize = 251;
/// Of sub-document changes: paths of one request, bytes of a path.
const MOST_PATHS: usize = 16;
const MOST_PATH_BYTES: usize = 1024;
/// Flags of a path and of a document: the path is an attribute's, the document is made if it is missing, or must be.
const XATTR_PATH: u8 = 0x04;
const MAKE_DOCUMENT: u8 = 0x01;
const ADD_DOCUMENT: u8 = 0x02;

/// A line that was not sent, or was refused.
pub(crate) struct Rejected {
    pub(crate) number: u64,
    pub(crate) raw: Vec<u8>,
    pub(crate) why: String,
}

/// Sends documents and counts what becomes of them.
pub(crate) struct LineSender<'e> {
    env: &'e Env,
    cluster: Cluster<'e>,
    keep_existing: bool,
    /// Whether collections that the bucket lacks are made.
    creates_collections: bool,
    /// Nothing is changed: the nodes are asked for what they have under the keys.
    is_trial: bool,
    /// The most documents a second.
    rate: Option<u32>,
    begun: Duration,
    sent: u64,
    /// `None`: the bucket lacks it, and it would be made.
    collections: BTreeMap<String, Result<Option<CollectionId>, String>>,
    waiting: Vec<(u64, Vec<u8>, DocRequest)>,
    waiting_bytes: usize,
    stored: u64,
    kept: u64,
}

impl<'e> LineSender<'e> {
    pub(crate) fn new(
        mut cluster: Cluster<'e>,
        keep_existing: bool,
        rate: Option<u32>,
        env: &'e Env,
    ) -> LineSender<'e> {
        // Those that are asked for by name are there.
        cluster.collections_are_known();
        let begun = env.clock.monotonic();
        let (collections, waiting) = (BTreeMap::new(), Vec::new());
        LineSender {
            env,
            cluster,
            keep_existing,
            creates_collections: false,
            is_trial: false,
            rate,
            begun,
            sent: 0,
            collections,
            waiting,
            waiting_bytes: 0,
            stored: 0,
            kept: 0,
        }
    }

    /// Makes scopes and collections that the bucket lacks, from now on.
    pub(crate) fn create_collections(&mut self) {
        self.creates_collections = true;
    }

    /// Changes nothing from now on: counts documents as if they were stored, and refuses what would be refused.
    pub(crate) fn only_try(&mut self) {
        self.is_trial = true;
    }

    /// Sends a document, or lets it wait for more; lines that turned out to be refused. Its collection must be named.
    pub(crate) fn send(&mut self, number: u64, raw: Vec<u8>, line: &Line) -> anyhow::Result<Vec<Rejected>> {
        let name = line.collection.as_deref().unwrap_or("_default._default");
        let collection = match self.collection(name)? {
            Ok(collection) => collection,
            Err(why) => return Ok(vec![Rejected { number, raw, why }]),
        };
        if let Err(why) = line.check() {
            return Ok(vec![Rejected { number, raw, why }]);
        }
        let request = self.request(collection.unwrap_or(CollectionId::DEFAULT), line);
        let request = request.and_then(|request| match collection {
            None if line.key.len() > MAX_COLLECTION_KEY_BYTES => Err(refusal(Status::Einval.code())),
            _ => Ok(request),
        });
        let request = match request {
            Ok(request) => request,
            Err(why) => return Ok(vec![Rejected { number, raw, why }]),
        };
        if collection.is_none() {
            self.stored += 1;
            return Ok(Vec::new());
        }
        let request = if self.is_trial { question(request) } else { request };
        self.waiting_bytes += request.key.len() + request.value.len() + raw.len();
        self.waiting.push((number, raw, request));
        if self.waiting.len() >= MOST_REQUESTS || self.waiting_bytes >= MOST_BYTES {
            return self.flush();
        }
        Ok(Vec::new())
    }

    /// What stores the document: a plain change, or, with attributes, one of several paths, so that it gets CAS and revision
    /// like any other.
    fn request(&self, collection: CollectionId, line: &Line) -> Result<DocRequest, String> {
        let (prefix, len) = DocKey { collection, key: &line.key }.prefix();
        let request = DocRequest {
            vbucket: vbucket_of(&line.key, self.cluster.vbuckets()),
            key: [&prefix[..len], &line.key].concat(),
            is_repeatable: true,
            ..DocRequest::default()
        };
        if line.xattrs.is_empty() {
            return Ok(DocRequest {
                opcode: if self.keep_existing { opcode::ADD } else { opcode::SET },
                extras: StoreExtras { flags: line.flags, expiry: line.expiry }.encode().to_vec(),
                value: line.body.bytes().to_vec(),
                ..request
            });
        }
        let of_document = if self.keep_existing { ADD_DOCUMENT } else { MAKE_DOCUMENT };
        let extras = [&line.expiry.to_be_bytes()[..], &line.flags.to_be_bytes(), &[of_document]].concat();
        Ok(DocRequest { opcode: opcode::SUBDOC_MULTI_MUTATION, extras, value: paths(line)?, ..request })
    }

    /// The number of a collection, which is asked for once; `None` if it would be made.
    fn collection(&mut self, name: &str) -> anyhow::Result<Result<Option<CollectionId>, String>> {
        if name == "_default._default" {
            return Ok(Ok(Some(CollectionId::DEFAULT)));
        }
        if let Some(id) = name.strip_prefix("0x").and_then(|id| u32::from_str_radix(id, 16).ok()) {
            return Ok(Ok(Some(CollectionId(id))));
        }
        if let Some(known) = self.collections.get(name) {
            return Ok(known.clone());
        }
        let Some(member) = self.cluster.members().into_iter().next() else {
            anyhow::bail!("no node of the cluster is known");
        };
        let mut client = Client::open(self.env, &member)?;
        let found = match client.collection_id(name) {
            Ok(id) => Ok(Some(id)),
            Err(ClientError::Collection { .. }) if self.creates_collections => {
                let (scope, name_in_scope) = name.split_once('.').unwrap_or(("_default", name));
                if self.is_trial {
                    let can_be = (scope == "_default" || is_user_name(scope)) && is_user_name(name_in_scope);
                    let made =
                        if can_be { Ok(None) } else { Err(format!("no collection can be named `{name}`")) };
                    self.collections.insert(name.to_owned(), made.clone());
                    return Ok(made);
                }
                let (scope, name_in_scope) = (scope.to_owned(), name_in_scope.to_owned());
                let wanted = SourceCollection { scope, name: name_in_scope, max_ttl_s: 0 };
                // A name that none can have is the line's mistake.
                create_collections(&mut client, &member, &[wanted])
                    .and_then(|()| Ok(Some(client.collection_id(name)?)))
                    .map_err(|error| format!("{error:#}"))
            }
            Err(error @ ClientError::Collection { .. }) => Err(lacking(&error)),
            Err(error) if error.may_pass() => return Err(error.into()),
            Err(error) => Err(error.to_string()),
        };
        self.collections.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// Sends what waits.
    fn flush(&mut self) -> anyhow::Result<Vec<Rejected>> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.pause();
        let (lines, requests): (Vec<_>, Vec<_>) =
            waiting.into_iter().map(|(number, raw, request)| ((number, raw), request)).unzip();
        let answers = self.cluster.exchange("import", &requests)?;
        self.sent += requests.len() as u64;
        let mut rejected = Vec::new();
        for ((number, raw), answer) in lines.into_iter().zip(answers) {
            match Status::from_code(answer.status_code) {
                _ if self.is_trial => match would_be_kept(&answer) {
                    Ok(is_there) if is_there && self.keep_existing => self.kept += 1,
                    Ok(_) => self.stored += 1,
                    Err(why) => rejected.push(Rejected { number, raw, why }),
                },
                Some(Status::Success) => self.stored += 1,
                Some(Status::KeyEexists | Status::NotStored) if self.keep_existing => self.kept += 1,
                _ => {
                    let why = refusal(answer.status_code);
                    rejected.push(Rejected { number, raw, why });
                }
            }
        }
        Ok(rejected)
    }

    /// Waits as long as the rate asks for.
    #[expect(clippy::disallowed_methods, reason = "the client's end is not part of a node")]
    fn pause(&self) {
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.sent as f64 / f64::from(rate));
        std::thread::sleep(due.saturating_sub(self.env.clock.monotonic() - self.begun));
    }

    /// Sends what waits: documents that were stored, those that were left as they are, and lines that were refused.
    pub(crate) fn finish(mut self) -> anyhow::Result<(u64, u64, Vec<Rejected>)> {
        let rejected = self.flush()?;
        Ok((self.stored, self.kept, rejected))
    }
}

/// The changes of a document's paths: each attribute, then the whole body (kv_engine docs/SubDocument.md).
fn paths(line: &Line) -> Result<Vec<u8>, String> {
    if line.xattrs.len() >= MOST_PATHS {
        return Err(format!("it has {} attributes: {} can be sent", line.xattrs.len(), MOST_PATHS - 1));
    }
    let mut value = Vec::new();
    let mut push = |opcode: u8, flags: u8, path: &str, text: &[u8]| {
        value.extend_from_slice(&[opcode, flags]);
        value.extend_from_slice(&u16::try_from(path.len()).unwrap_or(u16::MAX).to_be_bytes());
        value.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        value.extend_from_slice(path.as_bytes());
        value.extend_from_slice(text);
    };
    for (name, json) in &line.xattrs {
        if name.contains(['.', '[', ']', '`']) || name.len() > MOST_PATH_BYTES {
            return Err(format!("the attribute `{name}` cannot be sent: its name is a path, or too long"));
        }
        push(opcode::SUBDOC_DICT_UPSERT, XATTR_PATH, name, json.as_bytes());
    }
    push(opcode::SET, 0, "", line.body.bytes());
    Ok(value)
}

/// Whether a client may make a scope or collection of this name: 1 to 251 letters, digits, `_`, `-` and `%`, of which the
/// first one is neither `_` nor `%`.
fn is_user_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-%".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with(['_', '%'])
}

fn refusal(status_code: u16) -> String {
    format!("the bucket refuses it: {}", status_name(status_code))
}

/// Asks for what there is under the key of a request instead.
fn question(request: DocRequest) -> DocRequest {
    let DocRequest { vbucket, key, is_repeatable, .. } = request;
    DocRequest { opcode: opcode::GET_META, vbucket, key, is_repeatable, ..DocRequest::default() }
}

/// Whether there is a document under a key; or why none can be stored there.
fn would_be_kept(answer: &Answer) -> Result<bool, String> {
    match Status::from_code(answer.status_code) {
        // The first field says whether it is a tombstone.
        Some(Status::Success) => Ok(answer.extras.get(..4) == Some(&[0; 4])),
        // A user who may write may not be allowed to read.
        Some(Status::KeyEnoent | Status::Eaccess) => Ok(false),
        _ => Err(refusal(answer.status_code)),
    }
}

/// What is said of a line whose collection the bucket lacks.
fn lacking(error: &ClientError) -> String {
    format!("{error}; --create-collections makes those that are lacking")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Body;
    use crate::test_server::TestServer;

    fn line(key: &str, collection: &str) -> Line {
        let (key, collection) = (key.as_bytes().to_vec(), Some(collection.to_owned()));
        Line { key, collection, body: Body::Json("{}".to_owned()), ..Line::default() }
    }

    /// Sends lines; documents that were stored, those that were there, and the keys of lines that were rejected.
    fn sent(server: &TestServer, lines: &[Line], creates: bool, tries: bool) -> (u64, u64, Vec<String>) {
        let env = Env::real();
        let cluster = Cluster::open(&env, server.target(), &[]).expect("a cluster");
        let mut sender = LineSender::new(cluster, true, None, &env);
        if creates {
            sender.create_collections();
        }
        if tries {
            sender.only_try();
        }
        let mut rejected = Vec::new();
        for line in lines {
            rejected.extend(sender.send(0, line.key.clone(), line).expect("a node answers"));
        }
        let (stored, kept, last) = sender.finish().expect("a node answers");
        rejected.extend(last);
        let text = |one: Rejected| String::from_utf8(one.raw).expect("text");
        let mut keys: Vec<String> = rejected.into_iter().map(text).collect();
        keys.sort();
        (stored, kept, keys)
    }

    #[test]
    fn a_trial_tells_what_would_become_of_lines_and_changes_nothing() {
        let mut server = TestServer::start();
        let (default, lacking) = ("_default._default", "app.made");
        sent(&server, &[line("there", default)], false, false);
        let (longest, long) = ("k".repeat(246), "l".repeat(247));
        let wrong = Line { xattrs: vec![("a.b".to_owned(), "1".to_owned())], ..line("wrong", default) };
        let lines = [
            line("there", default),
            line("new", default),
            line(&longest, lacking),
            line(&long, lacking),
            line("number", "0x99"),
            line("none", "app._made"),
            wrong,
        ];
        let lost = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let without = lost(&[&longest, &long, "none", "number", "wrong"]);
        assert_eq!(sent(&server, &lines, false, true), (1, 1, without));
        let rejected = lost(&[&long, "none", "number", "wrong"]);
        for _ in 0..2 {
            assert_eq!(sent(&server, &lines, true, true), (2, 1, rejected.clone()), "it makes none");
        }
        assert_eq!(sent(&server, &lines, true, false), (2, 1, rejected), "what the trial said");
        server.stop();
    }

    #[test]
    fn names_that_can_be_made_are_those_of_a_node() {
        let long = ["n".repeat(251), "n".repeat(252)];
        let names = ["a", "", "_a", "%a", "a%", "a_-", "-a", "a$", "$a", "a.b", "\u{e9}", &long[0], &long[1]];
        for name in names {
            assert_eq!(is_user_name(name), vbucket::collections::manifest::is_user_name(name), "{name}");
        }
    }

    #[test]
    fn the_flag_is_named_that_makes_collections() {
        let said = lacking(&ClientError::Collection { name: "app.users".to_owned() });
        assert!(said.contains("`app.users`") && said.contains("--create-collections"), "{said}");
    }
}
