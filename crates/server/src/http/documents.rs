//! `/v1/buckets/B/document` and `/v1/buckets/B/documents`: one document with its metadata and attributes, read, stored
//! and deleted by key; keys of a collection in pages. For people who look at a bucket; applications use an SDK.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ::node::audit::record::Ends;
use ::node::privilege::Privilege;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::leb128::encode_leb128;
use base::vbucket_map::vbucket_of;
use base::{Cas, CollectionId, VbId, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use engine::{Bucket, BucketKind};
use protocol::{Status, opcode};
use serde_json::{Value, json};
use subdoc::request::path_flag;

use super::acting::{
    Place, Refused, active, actives, connect, of_status, refused, unknown_outcome, unreachable_node,
    within_limits,
};
use super::basic_auth::Caller;
use super::query::Query;
use super::rights::{lacks, rights_in};
use super::settings::find;
use super::shared::Shared;
use crate::links::acting::{Acting, KvAnswer, KvRequest};

/// The longest value that is shown.
const MOST_SHOWN_BYTES: u64 = 1 << 20;
/// Keys of a page.
const MOST_KEYS: usize = 200;
const USUAL_KEYS: usize = 50;
/// vBuckets whose keys are asked for at once.
const AT_ONCE: u16 = 64;
/// A page ends after this time, full or not.
const PAGE_TIME: Duration = Duration::from_secs(2);
/// How often a document is read again that was changed while it was read.
const LOOKS: usize = 4;
/// Attributes that are shown, at most: what one look-up takes beside the body.
const MOST_XATTRS: usize = 15;
/// What SDKs expect of JSON ("common flags").
const JSON_FLAGS: u32 = 0x0200_0000;

/// Which document is meant.
#[derive(serde::Deserialize)]
pub(super) struct Which {
    key: String,
    scope: Option<String>,
    collection: Option<String>,
    /// Seconds until it expires, or when, as in the KV protocol.
    expiry: Option<u32>,
}

/// Which keys are meant.
#[derive(serde::Deserialize)]
pub(super) struct Page {
    scope: Option<String>,
    collection: Option<String>,
    #[serde(default)]
    prefix: String,
    limit: Option<usize>,
    /// Where the page before ended.
    from: Option<String>,
}

/// A collection of a bucket in which the caller may do something.
struct Within {
    /// The ends of the caller's connection.
    ends: Ends,
    bucket: Arc<Bucket>,
    collection: CollectionId,
}

fn within(
    shared: &Shared,
    (caller, ends): (&Caller, Ends),
    bucket: &str,
    (scope, collection): (Option<&str>, Option<&str>),
    needed: &[Privilege],
) -> Result<Within, Refused> {
    let bucket = find(shared, &caller.0, bucket)?;
    let (scope, collection) = (scope.unwrap_or("_default"), collection.unwrap_or("_default"));
    let manifest = bucket.collections().manifest();
    let rights = rights_in(&caller.0, &bucket);
    let there = manifest.scope_named(scope).and_then(|scope| manifest.collection_named(scope.id, collection));
    let there = there.filter(|there| rights.sees_collection(there.id));
    let Some(id) = there.map(|there| there.id) else {
        // Who may not read anywhere does not learn which collections there are.
        if !needed.iter().any(|one| rights.anywhere().has(*one)) {
            return Err(missing(needed, &bucket, scope));
        }
        let why = format!("bucket {} has no collection {scope}.{collection}", bucket.name());
        return Err(refused(StatusCode::NOT_FOUND, &why));
    };
    if !needed.iter().any(|one| rights.in_collection(id).has(*one)) {
        return Err(missing(needed, &bucket, scope));
    }
    Ok(Within { ends, bucket, collection: id })
}

/// The first of the privileges would have been enough.
fn missing(needed: &[Privilege], bucket: &Bucket, scope: &str) -> Refused {
    lacks(needed.get(..1).unwrap_or_default(), bucket.name(), Some(scope))
}

impl Within {
    fn stored_key(&self, key: &[u8]) -> Vec<u8> {
        let (bytes, len) = encode_leb128(self.collection.0);
        [&bytes[..len], key].concat()
    }

    /// The least key behind one of the collection, as it is stored; none behind the last of all.
    fn key_behind(&self, key: &[u8]) -> Option<Vec<u8>> {
        behind(key, self.most_key_bytes()).map(|key| self.stored_key(&key))
    }

    /// The longest key of the collection.
    fn most_key_bytes(&self) -> usize {
        match self.collection {
            CollectionId(0) => limits::MAX_KEY_BYTES,
            _ => limits::MAX_COLLECTION_KEY_BYTES,
        }
    }

    fn request(&self, opcode: u8, key: &str) -> KvRequest {
        let vbucket = vbucket_of(key.as_bytes(), self.bucket.vbuckets());
        KvRequest { opcode, vbucket, key: self.stored_key(key.as_bytes()), ..KvRequest::default() }
    }

    /// A connection to the node that has a document.
    async fn connect(
        &self,
        shared: &Shared,
        caller: &Caller,
        key: &str,
    ) -> Result<(Acting, Arc<Place>), Refused> {
        let most = self.most_key_bytes();
        if key.is_empty() || key.len() > most {
            let why = format!("the key has {} bytes: it must have 1 to {most}", key.len());
            return Err(refused(StatusCode::BAD_REQUEST, &why));
        }
        let place = active(shared, &self.bucket, vbucket_of(key.as_bytes(), self.bucket.vbuckets()))?;
        let acting = connect(shared, &place, &self.bucket, &caller.0, self.ends).await?;
        Ok((acting, place))
    }
}

/// The least key behind another one that has so many bytes at most.
fn behind(key: &[u8], most_bytes: usize) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    if next.len() < most_bytes {
        next.push(0);
        return Some(next);
    }
    while next.last() == Some(&0xff) {
        next.pop();
    }
    *next.last_mut()? += 1;
    Some(next)
}

/// One path of a look-up.
fn path(out: &mut Vec<u8>, opcode: u8, flags: u8, path: &str) {
    out.extend_from_slice(&[opcode, flags]);
    out.extend_from_slice(&(path.len() as u16).to_be_bytes());
    out.extend_from_slice(path.as_bytes());
}

/// What a look-up found: for each path its status and its value.
fn found(value: &[u8]) -> Vec<(u16, &[u8])> {
    let (mut out, mut rest) = (Vec::new(), value);
    while let [high, low, a, b, c, d, behind @ ..] = rest {
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some((value, after)) = behind.split_at_checked(len) else { break };
        out.push((u16::from_be_bytes([*high, *low]), value));
        rest = after;
    }
    out
}

/// Whether a look-up has found the document.
fn has_looked(answer: &KvAnswer) -> bool {
    matches!(answer.status(), Some(Status::Success | Status::SubdocMultiPathFailure))
}

fn parsed(value: &[u8]) -> Value {
    serde_json::from_slice(value).unwrap_or_else(|_| json!(String::from_utf8_lossy(value)))
}

/// `GET /v1/buckets/BUCKET/document?key=KEY`
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    Path(name): Path<String>,
    Query(which): Query<Which>,
) -> Response {
    let work = async {
        let places = (which.scope.as_deref(), which.collection.as_deref());
        let within = within(&shared, (&caller, ends), &name, places, &[Privilege::Read])?;
        let (mut acting, place) = within.connect(&shared, &caller, &which.key).await?;
        for _ in 0..LOOKS {
            if let Some(told) = look(&mut acting, &within, &place, &which.key).await? {
                return Ok(told);
            }
        }
        let why = "the document changes faster than it can be read: try again";
        Err(refused(StatusCode::SERVICE_UNAVAILABLE, why))
    };
    match within_limits(&shared, work).await {
        Ok(told) => Json(told).into_response(),
        Err(refused) => *refused,
    }
}

/// Metadata first, which say how large the value is; then that with the attributes. `None` if it was changed in between.
async fn look(
    acting: &mut Acting,
    within: &Within,
    place: &Place,
    key: &str,
) -> Result<Option<Value>, Refused> {
    let mut paths = Vec::new();
    path(&mut paths, opcode::SUBDOC_GET, path_flag::XATTR, "$document");
    path(&mut paths, opcode::SUBDOC_GET, path_flag::XATTR, "$XTOC");
    let looked = KvRequest { value: paths, ..within.request(opcode::SUBDOC_MULTI_LOOKUP, key) };
    let answer = acting.ask_one(looked).await.map_err(|error| unreachable_node(place, &error))?;
    if !has_looked(&answer) {
        return Err(of_status(&answer));
    }
    let first: Vec<Value> = found(&answer.value).into_iter().map(|(_, value)| parsed(value)).collect();
    let meta = first.first().cloned().unwrap_or_default();
    let names: Vec<&str> =
        first.get(1).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let bytes = meta["value_bytes"].as_u64().unwrap_or(0);
    let mut told = json!({
        "key": key, "cas": answer.cas.0.to_string(), "meta": meta, "bytes": bytes, "node": place.id,
        "vbucket": vbucket_of(key.as_bytes(), within.bucket.vbuckets()).0,
    });
    if bytes > MOST_SHOWN_BYTES {
        told["tooLarge"] = json!(true);
        // What was looked at so far is not recorded by itself (see `audit::kv`), and there is no second look.
        let recorded = within.request(opcode::GET_META, key);
        acting.ask_one(recorded).await.map_err(|error| unreachable_node(place, &error))?;
        return Ok(Some(told));
    }
    let mut paths = Vec::new();
    let shown = &names[..names.len().min(MOST_XATTRS)];
    shown.iter().for_each(|name| path(&mut paths, opcode::SUBDOC_GET, path_flag::XATTR, name));
    // The whole body.
    path(&mut paths, opcode::GET, 0, "");
    let looked = KvRequest { value: paths, ..within.request(opcode::SUBDOC_MULTI_LOOKUP, key) };
    let again = acting.ask_one(looked).await.map_err(|error| unreachable_node(place, &error))?;
    if !has_looked(&again) {
        return Err(of_status(&again));
    }
    if again.cas != answer.cas {
        return Ok(None);
    }
    let found = found(&again.value);
    let body = found.last().map_or(&[][..], |(_, value)| value);
    match std::str::from_utf8(body) {
        Ok(text) => told["text"] = json!(text),
        Err(_) => told["base64"] = json!(BASE64.encode(body)),
    }
    told["isJson"] = json!(meta_says_json(&told["meta"]));
    told["xattrs"] =
        shown.iter().zip(&found).map(|(name, (_, value))| ((*name).to_owned(), parsed(value))).collect();
    told["xattrsLeftOut"] = json!(names.len() - shown.len());
    Ok(Some(told))
}

fn meta_says_json(meta: &Value) -> bool {
    meta["datatype"].as_array().is_some_and(|types| types.iter().any(|one| one == "json"))
}

/// What a change demands of the present document.
enum Demand {
    Absent,
    Is(Cas),
}

/// `If-None-Match: *`, or `If-Match` with a CAS.
fn demand(headers: &HeaderMap) -> Result<Demand, Refused> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(|text| text.trim());
    if text(header::IF_NONE_MATCH) == Some("*") {
        return Ok(Demand::Absent);
    }
    let cas =
        text(header::IF_MATCH).and_then(|tag| tag.trim_matches('"').parse().ok()).filter(|cas| *cas != 0);
    cas.map(|cas| Demand::Is(Cas(cas))).ok_or_else(|| {
        let why = "say what the document must be: If-Match with the CAS that was read, or If-None-Match: * for a new one";
        refused(StatusCode::PRECONDITION_REQUIRED, why)
    })
}

/// `PUT /v1/buckets/BUCKET/document?key=KEY`
pub(super) async fn store(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    Path(name): Path<String>,
    Query(which): Query<Which>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let work = async {
        let places = (which.scope.as_deref(), which.collection.as_deref());
        let needed = [Privilege::Upsert, Privilege::Insert];
        let within = within(&shared, (&caller, ends), &name, places, &needed)?;
        let request = match demand(&headers)? {
            Demand::Absent => insertion(&within, &which, &body),
            Demand::Is(cas) => replacement(&within, &which, cas, &body),
        };
        change(&shared, &caller, &within, &which.key, request).await
    };
    changed(within_limits(&shared, work).await)
}

/// Flags are those that SDKs expect.
fn insertion(within: &Within, which: &Which, body: &[u8]) -> KvRequest {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
    let flags = if is_json { JSON_FLAGS } else { 0 };
    let extras = [flags.to_be_bytes(), which.expiry.unwrap_or(0).to_be_bytes()].concat();
    KvRequest { extras, value: body.to_vec(), ..within.request(opcode::ADD, &which.key) }
}

/// Attributes and flags stay as they are, and the expiry time does if no other one is given.
fn replacement(within: &Within, which: &Which, cas: Cas, body: &[u8]) -> KvRequest {
    let mut value = vec![opcode::SET, 0, 0, 0];
    value.extend_from_slice(&(body.len() as u32).to_be_bytes());
    value.extend_from_slice(body);
    KvRequest {
        cas,
        preserve_ttl: which.expiry.is_none(),
        extras: which.expiry.map(|expiry| expiry.to_be_bytes().to_vec()).unwrap_or_default(),
        value,
        ..within.request(opcode::SUBDOC_MULTI_MUTATION, &which.key)
    }
}

/// `DELETE /v1/buckets/BUCKET/document?key=KEY`
pub(super) async fn remove(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    Path(name): Path<String>,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Response {
    let work = async {
        let places = (which.scope.as_deref(), which.collection.as_deref());
        let within = within(&shared, (&caller, ends), &name, places, &[Privilege::Delete])?;
        let Demand::Is(cas) = demand(&headers)? else {
            return Err(refused(
                StatusCode::BAD_REQUEST,
                "a document that is not there cannot be deleted: use If-Match",
            ));
        };
        let request = KvRequest { cas, ..within.request(opcode::DELETE, &which.key) };
        change(&shared, &caller, &within, &which.key, request).await
    };
    changed(within_limits(&shared, work).await)
}

async fn change(
    shared: &Shared,
    caller: &Caller,
    within: &Within,
    key: &str,
    request: KvRequest,
) -> Result<Cas, Refused> {
    let (mut acting, place) = within.connect(shared, caller, key).await?;
    let answer = acting.ask_one(request).await.map_err(|error| unknown_outcome(&place, &error))?;
    if answer.status() == Some(Status::Success) { Ok(answer.cas) } else { Err(of_status(&answer)) }
}

fn changed(outcome: Result<Cas, Refused>) -> Response {
    match outcome {
        Ok(cas) => Json(json!({ "cas": cas.0.to_string() })).into_response(),
        Err(refused) => *refused,
    }
}

/// `GET /v1/buckets/BUCKET/documents`: keys that are stored, vBucket after vBucket, in order within each.
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    Path(name): Path<String>,
    Query(page): Query<Page>,
) -> Response {
    let work = async {
        let places = (page.scope.as_deref(), page.collection.as_deref());
        let within = within(&shared, (&caller, ends), &name, places, &[Privilege::Read])?;
        let most = within.most_key_bytes();
        if page.prefix.len() > most {
            let why = format!("the prefix has {} bytes: keys have at most {most}", page.prefix.len());
            return Err(refused(StatusCode::BAD_REQUEST, &why));
        }
        keys(&shared, &caller, &within, &page).await
    };
    match within_limits(&shared, work).await {
        Ok(told) => Json(told).into_response(),
        Err(refused) => *refused,
    }
}

/// Where a page begins: the vBucket, and the key in it that was the last one; empty for none.
fn start_of(page: &Page, vbuckets: u16, most_key_bytes: usize) -> Result<(u16, Vec<u8>), Refused> {
    let Some(from) = &page.from else { return Ok((0, Vec::new())) };
    let parsed =
        from.split_once('.').and_then(|(vb, key)| Some((vb.parse().ok()?, BASE64.decode(key).ok()?)));
    match parsed.filter(|(vb, key)| *vb < vbuckets && key.len() <= most_key_bytes) {
        Some(start) => Ok(start),
        None => Err(refused(StatusCode::BAD_REQUEST, "from must be next of the page before")),
    }
}

async fn keys(shared: &Shared, caller: &Caller, within: &Within, page: &Page) -> Result<Value, Refused> {
    if within.bucket.config().kind == BucketKind::Ephemeral {
        let why = "an ephemeral bucket has no keys on disk to list: find its documents by their keys";
        return Err(refused(StatusCode::BAD_REQUEST, why));
    }
    let vbuckets = within.bucket.vbuckets();
    let (mut at, mut after) = start_of(page, vbuckets, within.most_key_bytes())?;
    let limit = page.limit.unwrap_or(USUAL_KEYS).clamp(1, MOST_KEYS);
    let clock = &shared.node.env().clock;
    let until = clock.monotonic() + PAGE_TIME;
    let places = actives(shared, &within.bucket);
    let mut asking =
        KeyReading { shared, caller, within, prefix: &page.prefix, limit, connections: HashMap::new() };
    let (mut listed, mut unserved): (Vec<Value>, Vec<u16>) = (Vec::new(), Vec::new());
    while at < vbuckets {
        let end = at.saturating_add(AT_ONCE).min(vbuckets);
        let mut of = asking.ask(&places, at..end, &after).await?;
        for vb in at..end {
            let after = std::mem::take(&mut after);
            let Some(keys) = of.remove(&vb) else {
                unserved.push(vb);
                continue;
            };
            let is_wanted = |key: &Vec<u8>| key.starts_with(page.prefix.as_bytes()) && *key > after;
            for key in keys.into_iter().filter(is_wanted) {
                let is_text = std::str::from_utf8(&key).is_ok();
                listed
                    .push(json!({ "key": String::from_utf8_lossy(&key), "isText": is_text, "vbucket": vb }));
                if listed.len() == limit {
                    let next = format!("{vb}.{}", BASE64.encode(&key));
                    return Ok(json!({ "keys": listed, "next": next, "unserved": unserved }));
                }
            }
        }
        at = end;
        if at < vbuckets && clock.monotonic() >= until {
            return Ok(json!({ "keys": listed, "next": format!("{at}."), "unserved": unserved }));
        }
    }
    Ok(json!({ "keys": listed, "next": null, "unserved": unserved }))
}

/// Asks nodes for keys, on one connection each.
struct KeyReading<'a> {
    shared: &'a Shared,
    caller: &'a Caller,
    within: &'a Within,
    prefix: &'a str,
    limit: usize,
    connections: HashMap<String, Acting>,
}

impl KeyReading<'_> {
    /// The keys of some vBuckets, those of the first one behind `after`; vBuckets that no node serves are missing.
    async fn ask(
        &mut self,
        places: &[Option<Arc<Place>>],
        window: Range<u16>,
        after: &[u8],
    ) -> Result<HashMap<u16, Vec<Vec<u8>>>, Refused> {
        let mut by_node: HashMap<&str, (&Place, Vec<KvRequest>)> = HashMap::new();
        for vb in window.clone() {
            let Some(place) = places.get(usize::from(vb)).and_then(Option::as_deref) else { continue };
            let prefix = self.prefix.as_bytes();
            let goes_on = vb == window.start && after >= prefix;
            let from = if goes_on || prefix.is_empty() {
                self.within.key_behind(if goes_on { after } else { b"" })
            } else {
                Some(self.within.stored_key(prefix))
            };
            // Behind the last of all keys nothing is asked for.
            let Some(key) = from else { continue };
            let request = KvRequest {
                opcode: opcode::GET_KEYS,
                vbucket: VbId(vb),
                extras: (self.limit as u32).to_be_bytes().to_vec(),
                key,
                ..KvRequest::default()
            };
            by_node.entry(&place.id).or_insert_with(|| (place, Vec::new())).1.push(request);
        }
        let mut all = HashMap::new();
        for (place, requests) in by_node.into_values() {
            self.ask_node(place, requests, &mut all).await?;
        }
        Ok(all)
    }

    /// What a node does not answer is told of as not served.
    async fn ask_node(
        &mut self,
        place: &Place,
        requests: Vec<KvRequest>,
        all: &mut HashMap<u16, Vec<Vec<u8>>>,
    ) -> Result<(), Refused> {
        let mut acting = match self.connections.remove(&place.id) {
            Some(acting) => acting,
            None => match connect(self.shared, place, &self.within.bucket, &self.caller.0, self.within.ends)
                .await
            {
                Ok(acting) => acting,
                Err(_) => return Ok(()),
            },
        };
        // Each turn has another key of each vBucket that is asked again, up to the limit.
        let mut open = requests;
        while !open.is_empty() {
            let mut answers = vec![KvAnswer::default(); open.len()];
            let mut keep = |number: usize, answer: KvAnswer| {
                if let Some(place) = answers.get_mut(number) {
                    *place = answer;
                }
            };
            if acting.ask(&open, &mut keep).await.is_err() {
                // What came before is not all that there is.
                open.iter().for_each(|request| drop(all.remove(&request.vbucket.0)));
                return Ok(());
            }
            open = self.take(open, answers, all)?;
        }
        self.connections.insert(place.id.clone(), acting);
        Ok(())
    }

    /// Takes keys that came; what is asked for those behind them. A node ends an answer that takes it long, so that an
    /// empty one alone says that nothing follows.
    fn take(
        &self,
        requests: Vec<KvRequest>,
        answers: Vec<KvAnswer>,
        all: &mut HashMap<u16, Vec<Vec<u8>>>,
    ) -> Result<Vec<KvRequest>, Refused> {
        let (_, prefix_len) = encode_leb128(self.within.collection.0);
        let mut open = Vec::new();
        for (request, answer) in requests.into_iter().zip(answers) {
            let keys = match answer.status() {
                Some(Status::Success) => keys_of(&answer.value, prefix_len),
                Some(Status::KeyEnoent) => Vec::new(),
                Some(Status::NotMyVbucket | Status::Etmpfail) => {
                    all.remove(&request.vbucket.0);
                    continue;
                }
                _ => return Err(of_status(&answer)),
            };
            let last = keys.last().filter(|last| last.starts_with(self.prefix.as_bytes()));
            let next = last.and_then(|last| self.within.key_behind(last));
            let of = all.entry(request.vbucket.0).or_default();
            of.extend(keys);
            if let Some(key) = next.filter(|_| of.len() < self.limit) {
                open.push(KvRequest { key, ..request });
            }
        }
        Ok(open)
    }
}

/// The keys of an answer to Get keys, without their collection.
fn keys_of(value: &[u8], prefix_len: usize) -> Vec<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), value);
    while let [high, low, behind @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((key, after)) = behind.split_at_checked(len) else { break };
        out.push(key.get(prefix_len..).unwrap_or_default().to_vec());
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(from: Option<&str>) -> Page {
        let from = from.map(str::to_owned);
        Page { scope: None, collection: None, prefix: "p".to_owned(), limit: None, from }
    }

    #[test]
    fn pages_begin_where_others_ended() {
        let start = |from| start_of(&page(from), 8, 250).ok();
        assert_eq!(start(None), Some((0, Vec::new())));
        assert_eq!(start(Some("3.")), Some((3, Vec::new())));
        assert_eq!(start(Some("7.cHgA")), Some((7, b"px\0".to_vec())));
        let long = format!("1.{}", BASE64.encode([b'x'; 251]));
        for wrong in ["", "x", "8.", "-1.", "3.*", "3", long.as_str()] {
            assert_eq!(start(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn the_key_behind_another_one_is_the_least_one() {
        for (key, next) in [
            (&b""[..], Some(&b"\0"[..])),
            (b"ab", Some(b"ab\0")),
            (b"abc", Some(b"abd")),
            (b"a\xff\xff", Some(b"b")),
            (b"\xff\xff\xff", None),
        ] {
            assert_eq!(behind(key, 3).as_deref(), next, "{key:?}");
        }
    }

    #[test]
    fn answers_are_taken_apart_as_far_as_they_go() {
        assert_eq!(keys_of(b"\0\x03\0ab\0\x02\0c\0\x09x", 1), [b"ab".to_vec(), b"c".to_vec()]);
        assert_eq!(
            found(b"\0\0\0\0\0\x01x\0\xc0\0\0\0\0\0\0\0\0\0\x09y"),
            [(0, &b"x"[..]), (0xc0, &b""[..])]
        );
    }

    #[test]
    fn a_change_says_what_the_document_must_be() {
        let of = |name, value: &'static str| {
            let headers = HeaderMap::from_iter([(name, header::HeaderValue::from_static(value))]);
            demand(&headers).ok()
        };
        assert!(matches!(of(header::IF_NONE_MATCH, "*"), Some(Demand::Absent)));
        assert!(matches!(of(header::IF_MATCH, "\"17\""), Some(Demand::Is(Cas(17)))));
        for wrong in ["0", "\"0\"", "*", "", "x"] {
            assert!(of(header::IF_MATCH, wrong).is_none(), "{wrong}");
        }
        assert!(demand(&HeaderMap::new()).is_err());
    }
}
