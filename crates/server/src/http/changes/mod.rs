//! `GET /v1/buckets/BUCKET/changes`: a bucket's changes as lines of JSON or as server-sent events.

mod cursors;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::node::Node;
use ::node::changes::anchor::Anchor;
use ::node::changes::bell::Bell;
use ::node::changes::elsewhere::Elsewhere;
use ::node::changes::event::{Format, Writer};
use ::node::changes::feed::{Feed, OneDocument, Progress, Wishes};
use ::node::changes::positions::SPACING;
use ::node::changes::short::Short;
use ::node::changes::token::{Place, Token};
use ::node::cluster::serving::still_joining;
use ::node::connection_memory::{Held, LARGE_BYTES};
use ::node::doors::ReaderLinks;
use ::node::news::Hearing;
use ::node::privilege::Privilege;
use ::node::user::User;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::CollectionId;
use base::leb128::encode_leb128;
use base::limits::MAX_KEY_BYTES;
use base::vbucket_map::vbucket_of;
use engine::{Bucket, HISTORY_NEEDS_LOG, StreamWanted};
use http_body::Frame;
use kvstore::StorageBackend;
use protocol::Status;
use protocol::dcp::CollectionNames;
use serde_json::json;
use tokio::time::Sleep;
use vbucket::{MAX_COLLECTIONS, Manifest};

pub(super) use self::cursors::{create, list, move_to, remove, show};
use super::answers::no_such_bucket;
use super::basic_auth::Caller;
use super::query::Query;
use super::rights::{lacks, rights_in};
use super::shared::Shared;

/// How long nothing happens before a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// What a reader may have on its way to its client, beside what its streams hold.
const ANSWER_BYTES: usize = 512 << 10;
/// Steps of a reader before others have their turn.
const MOST_STEPS: u32 = 16;
/// How long a reader waits before it looks again whether memory is short.
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// A reader waits no longer than that for the pieces of others.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

type Refused = Box<Response>;
/// Ready when the bucket or the node ends.
type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

fn refuse(status: StatusCode, message: &str) -> Refused {
    Box::new((status, Json(json!({ "message": message }))).into_response())
}

/// The bucket, if the caller may see it.
fn find(shared: &Shared, user: &User, name: &str) -> Result<Arc<Bucket>, Refused> {
    let visible = shared.node.bucket(name).filter(|_| user.may_select(name));
    visible.ok_or_else(|| Box::new(no_such_bucket()))
}

/// A place to begin: `start`, `now` or a token, with the kept position that a short token refers to.
fn since(bucket: &Bucket, text: &str) -> Result<(Token, Option<Anchor>), Refused> {
    match text {
        "" | "start" | "0" => Ok((Token::start(bucket.vbuckets()), None)),
        "now" => Ok((now(bucket), None)),
        _ => read_token(bucket, text)?.ok_or_else(|| {
            let message = "`since` is no place in this bucket: give start, now or a token of its events";
            refuse(StatusCode::BAD_REQUEST, message)
        }),
    }
}

/// The position of a token; `None` if the text is none.
fn read_token(bucket: &Bucket, text: &str) -> Result<Option<(Token, Option<Anchor>)>, Refused> {
    let Some(short) = Short::decode(text) else {
        return Ok(Token::decode(text, bucket.vbuckets()).map(|token| (token, None)));
    };
    let kept = Anchor::read(bucket, &short.id).map_err(|error| {
        if let Some(left_out) = engine::admit_log(bucket, "position not read") {
            tracing::error!(
                event = "changes_position_failed", bucket = bucket.name(), %error, left_out,
                "a kept position cannot be read"
            );
        }
        refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the position of this token cannot be read: {error}"),
        )
    })?;
    let kept = kept.ok_or_else(|| {
        let message = "this node does not keep the position of this token: it is too old, or another node's; begin \
            with since=start, and use a cursor or tokens=whole where tokens are kept for long";
        refuse(StatusCode::GONE, message)
    })?;
    let resolved = short.resolve(kept.clone());
    Ok(resolved.map(|token| (token, Some(Anchor { id: short.id, token: kept }))))
}

fn now(bucket: &Bucket) -> Token {
    let mut token = Token::start(bucket.vbuckets());
    bucket.each_vbucket(|vb| {
        if let Some(place) = token.place(vb.id()) {
            *place = Place::at(vb.uuid(), vb.high_seqno());
        }
    });
    token
}

/// The collections that a reader wants, as hexadecimal numbers; empty for all.
#[derive(Default)]
struct Chosen(Vec<String>);

impl Chosen {
    /// Those that are named like `scope.collection` or `0x8`.
    fn read(manifest: &Manifest, names: &[&str]) -> Result<Chosen, Refused> {
        let mut by_name: HashMap<(&str, &str), CollectionId> = HashMap::new();
        if names.iter().any(|name| !name.starts_with("0x")) {
            for one in manifest.collections() {
                if let Some(scope) = manifest.scope(one.scope) {
                    by_name.insert((&scope.name, &one.name), one.id);
                }
            }
        }
        let id = |name: &&str| match name.strip_prefix("0x") {
            Some(id) => Ok(id.to_owned()),
            None => {
                let parts = name.split_once('.').unwrap_or(("_default", name));
                by_name.get(&parts).map(|id| format!("{:x}", id.0)).ok_or_else(|| unknown(name))
            }
        };
        Ok(Chosen(names.iter().map(id).collect::<Result<_, Refused>>()?))
    }

    /// The value of a stream request.
    fn filter(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        json!({ "collections": self.0 }).to_string().into_bytes()
    }

    /// Their numbers; a stream request refuses those that are none.
    fn ids(&self) -> Vec<CollectionId> {
        self.0.iter().filter_map(|id| u32::from_str_radix(id, 16).ok().map(CollectionId)).collect()
    }
}

/// The names of a list, each once. More than a bucket can have collections are refused.
fn distinct(names: &str) -> Result<Vec<&str>, Refused> {
    let mut seen = HashSet::new();
    let names = names.split(',').filter(|name| !name.is_empty() && seen.insert(*name));
    let names: Vec<&str> = names.take(MAX_COLLECTIONS + 1).collect();
    if names.len() > MAX_COLLECTIONS {
        let message =
            format!("`collections` has more than {MAX_COLLECTIONS} names: leave it out to follow all");
        return Err(refuse(StatusCode::BAD_REQUEST, &message));
    }
    Ok(names)
}

fn unknown(name: &str) -> Refused {
    refuse(StatusCode::BAD_REQUEST, &format!("there is no collection `{name}`"))
}

/// What a reader with these collections streams.
fn wanted(ids: &[CollectionId]) -> StreamWanted<'_> {
    if ids.is_empty() { StreamWanted::Everything } else { StreamWanted::Collections(ids) }
}

/// Refuses a user who may not stream all that is wanted; a collection in which the user has no privilege is answered like
/// one that does not exist.
fn check_rights(user: &User, bucket: &Bucket, names: &[&str], ids: &[CollectionId]) -> Result<(), Refused> {
    let rights = rights_in(user, bucket);
    let mut named = names.iter().zip(ids);
    if let Some((name, _)) = named.find(|(_, id)| !rights.sees_collection(**id)) {
        let is_number = name.starts_with("0x");
        return Err(if is_number { refused(Status::UnknownCollection) } else { unknown(name) });
    }
    if rights.may_stream(wanted(ids)) {
        return Ok(());
    }
    Err(lacks(&[Privilege::DcpStream, Privilege::DcpProducer], bucket.name(), None))
}

/// What collections are called now.
fn names(manifest: &Manifest) -> CollectionNames {
    let mut names = CollectionNames::new();
    manifest.scopes().for_each(|scope| names.add_scope(scope.id, &scope.name));
    manifest.collections().for_each(|one| names.add_collection(one.id, one.scope, &one.name));
    names
}

/// The document whose changes alone are wanted, if a key was given.
fn one_document(
    bucket: &Bucket,
    query: &BTreeMap<String, String>,
    collections: &[CollectionId],
) -> Result<Option<OneDocument>, Refused> {
    let Some(key) = query.get("key") else { return Ok(None) };
    let &[collection] = collections else {
        let message =
            "`key` needs the collection of the document: give one, as with collections=_default._default";
        return Err(refuse(StatusCode::BAD_REQUEST, message));
    };
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let message = format!("`key` has {} bytes: it must have 1 to {MAX_KEY_BYTES}", key.len());
        return Err(refuse(StatusCode::BAD_REQUEST, &message));
    }
    let (number, len) = encode_leb128(collection.0);
    let vb = vbucket_of(key.as_bytes(), bucket.vbuckets());
    Ok(Some(OneDocument { vb, key: [&number[..len], key.as_bytes()].concat() }))
}

/// Refuses a parameter.
fn not_understood(name: &str, value: &str) -> Refused {
    let message = match PARAMETERS.iter().find(|(known, _)| *known == name) {
        Some((_, takes)) => format!("`{name}={value}` is not understood: {name} takes {takes}"),
        None => {
            let known = PARAMETERS.map(|(name, _)| name).join(", ");
            format!("there is no parameter `{name}`: there are {known}")
        }
    };
    refuse(StatusCode::BAD_REQUEST, &message)
}

/// The parameters of a reader, and what they take.
const PARAMETERS: [(&str, &str); 10] = [
    ("since", "start, now or a token"),
    ("cursor", "the name of a cursor"),
    ("nodes", "all or this"),
    ("tokens", "short or whole"),
    ("collections", "names like scope.collection, with commas between them"),
    ("key", "the key of a document"),
    ("follow", "true or false"),
    ("format", "ndjson or sse"),
    ("include", "values, or nothing"),
    ("history", "true or false"),
];

/// What a reader wants, of which collections, and whether only of the node that it asks.
fn wishes(
    user: &User,
    bucket: &Bucket,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
) -> Result<(Wishes, Vec<CollectionId>, bool), Refused> {
    let wrong = |message: String| refuse(StatusCode::BAD_REQUEST, &message);
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let accepts_events =
        header(header::ACCEPT.as_str()).is_some_and(|types| types.contains("text/event-stream"));
    let mut format = if accepts_events { Format::Sse } else { Format::Ndjson };
    if query.contains_key("since") && query.contains_key("cursor") {
        return Err(wrong("`since` and `cursor` exclude each other".to_owned()));
    }
    let (mut follow, mut values, mut place, mut collections) = (true, false, None, Chosen::default());
    let (mut are_tokens_whole, mut from_now, mut is_of_this_node) = (false, false, false);
    let mut with_history = false;
    for (name, value) in query {
        match (name.as_str(), value.as_str()) {
            ("since", text) => {
                from_now = text == "now";
                place = Some(since(bucket, text)?);
            }
            ("nodes", "all") => is_of_this_node = false,
            ("nodes", "this") => is_of_this_node = true,
            ("cursor", name) => place = Some((cursors::place(bucket, name)?, None)),
            ("tokens", "short") => are_tokens_whole = false,
            ("tokens", "whole") => are_tokens_whole = true,
            ("collections", names) => {
                let names = distinct(names)?;
                collections = Chosen::read(&bucket.collections().manifest(), &names)?;
                check_rights(user, bucket, &names, &collections.ids())?;
            }
            ("follow", "true") => follow = true,
            ("follow", "false") => follow = false,
            ("format", "ndjson") => format = Format::Ndjson,
            ("format", "sse") => format = Format::Sse,
            ("include", "values") => values = true,
            ("history", "true") if bucket.backend() != StorageBackend::LogStructured => {
                return Err(wrong(format!("`history=true`: {HISTORY_NEEDS_LOG}")));
            }
            ("history", is_wanted @ ("true" | "false")) => with_history = is_wanted == "true",
            ("include", "") => {}
            // It is read when the collection is known.
            ("key", _) => {}
            (name, value) => return Err(not_understood(name, value)),
        }
    }
    if collections.0.is_empty() {
        check_rights(user, bucket, &[], &[])?;
    }
    // Whoever comes back by itself, as browsers do, says where it was.
    if let Some(last) = header("last-event-id").filter(|last| !last.is_empty()) {
        from_now = last == "now";
        place = Some(since(bucket, last)?);
    }
    let (since, anchor) = place.unwrap_or_else(|| (Token::start(bucket.vbuckets()), None));
    let writer = Writer { format, values, names: names(&bucket.collections().manifest()) };
    let only = one_document(bucket, query, &collections.ids())?;
    let filter = collections.filter();
    let wishes =
        Wishes { writer, follow, since, from_now, anchor, are_tokens_whole, with_history, filter, only };
    Ok((wishes, collections.ids(), is_of_this_node))
}

/// Whether a place to begin is on disk: a cursor, or the kept position that a short token refers to.
fn reads_disk(query: &BTreeMap<String, String>, headers: &HeaderMap) -> bool {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let mut tokens = query.get("since").map(String::as_str).into_iter().chain(last);
    query.contains_key("cursor") || tokens.any(|text| Short::decode(text).is_some())
}

/// Begins a reader's streams. What is read from the disk for that is read on a thread of its own.
async fn begin(
    shared: &Shared,
    user: &Arc<User>,
    name: &str,
    query: BTreeMap<String, String>,
    headers: HeaderMap,
) -> Result<(Feed, Vec<CollectionId>, Format, Ended), Refused> {
    let bucket = find(shared, user, name)?;
    let (wishes, collections, is_of_this_node) = if reads_disk(&query, &headers) {
        let (user, bucket) = (Arc::clone(user), Arc::clone(&bucket));
        cursors::on_disk(shared, move || wishes(&user, &bucket, &query, &headers)).await?
    } else {
        wishes(user, &bucket, &query, &headers)?
    };
    let (format, ended) = (wishes.writer.format, Box::pin(shared.bucket_ended(&bucket)));
    if let Some(why) = still_joining(&shared.node).filter(|_| !is_of_this_node) {
        return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, why));
    }
    let elsewhere = match shared.node.cluster() {
        Some(_) if !is_of_this_node => Some(elsewhere(shared, &bucket, &wishes)?),
        _ => None,
    };
    let feed = Feed::begin(bucket, wishes, elsewhere).map_err(refused)?;
    Ok((feed, collections, format, ended))
}

/// `GET /v1/buckets/BUCKET/changes`
pub(super) async fn changes(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let (feed, collections, format, ended) = match begin(&shared, &user, &name, query, headers).await {
        Ok(begun) => begun,
        Err(response) => return *response,
    };
    let charge = Held::new(Arc::clone(shared.node.connection_memory()));
    if !charge.reserve(feed.held_bytes() + ANSWER_BYTES) {
        let message = "memory for connections is short: read fewer streams of changes at a time, or raise connection-memory";
        return *refuse(StatusCode::SERVICE_UNAVAILABLE, message);
    }
    let bell = Arc::clone(feed.bell());
    let heartbeat = Box::pin(tokio::time::sleep(HEARTBEAT));
    let news = next_news(shared.node.announcer().hearing());
    let edition = shared.node.accounts().edition();
    let node = Arc::clone(&shared.node);
    let mut reader = Reader { node, user, bucket: name, collections, edition: edition.wrapping_sub(1) };
    if !reader.may_go_on() {
        // It lost the right since the request was let in.
        return no_such_bucket();
    }
    let body = Changes {
        reader,
        feed,
        charge,
        noted_bytes: 0,
        waits_since: None,
        bell,
        is_finished: false,
        ended,
        news,
        look: None,
        heartbeat,
        is_owing: false,
    };
    let head = [(header::CONTENT_TYPE, format.content_type()), (header::CACHE_CONTROL, "no-store")];
    (head, Body::new(body)).into_response()
}

/// The other nodes, for a reader that follows the whole cluster.
fn elsewhere(shared: &Shared, bucket: &Arc<Bucket>, wishes: &Wishes) -> Result<Elsewhere, Refused> {
    let links = Arc::clone(&shared.reader_links) as Arc<dyn ReaderLinks>;
    Elsewhere::new(Arc::clone(&shared.node), bucket, links, wishes).ok_or_else(|| {
        let message = "this node has as many connections to other nodes for readers of changes as it may have; ask \
            another node, or each node for its own changes (nodes=this)";
        refuse(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

fn refused(status: Status) -> Refused {
    let code = match status {
        Status::Etmpfail => StatusCode::SERVICE_UNAVAILABLE,
        Status::UnknownCollection | Status::UnknownScope => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    };
    refuse(code, status.text())
}

type News = Pin<Box<dyn Future<Output = Hearing> + Send>>;

/// Ready when there is something to look at, such as another cluster map.
fn next_news(mut hearing: Hearing) -> News {
    hearing.edition();
    Box::pin(async move {
        hearing.changed().await;
        hearing
    })
}

/// Who reads the changes of a bucket.
struct Reader {
    node: Arc<Node>,
    user: Arc<User>,
    bucket: String,
    /// Empty for all.
    collections: Vec<CollectionId>,
    /// The edition of the node's users with which it may.
    edition: u64,
}

impl Reader {
    /// Whether it still may, as its user is now: costs one look if the users have not changed.
    fn may_go_on(&mut self) -> bool {
        let edition = self.node.accounts().edition();
        if self.edition == edition {
            return true;
        }
        self.edition = edition;
        let (users, bucket) = (self.node.accounts().users(), self.node.bucket(&self.bucket));
        let (Some(user), Some(bucket)) = (users.now(&self.user), bucket) else { return false };
        let rights = rights_in(user, &bucket);
        rights.whole.has(Privilege::DcpProducer) && rights.may_stream(wanted(&self.collections))
    }
}

/// The events of a reader; what it does not take is not made.
struct Changes {
    reader: Reader,
    feed: Feed,
    /// What that holds is charged to it.
    charge: Held,
    /// What of that is noted as a piece that is being made.
    noted_bytes: usize,
    /// Since when it waits for the pieces of others, by the node's monotonic clock.
    waits_since: Option<Duration>,
    bell: Arc<Bell>,
    is_finished: bool,
    ended: Ended,
    /// What the node says of itself: a vBucket may have moved.
    news: News,
    /// When vBuckets that wait are to be asked for again.
    look: Option<Pin<Box<Sleep>>>,
    heartbeat: Pin<Box<Sleep>>,
    /// Whether that is set to the moment when the reader may be told its position.
    is_owing: bool,
}

impl Changes {
    fn note(&mut self, bytes: usize) {
        self.charge.set(bytes);
        self.reader.node.connection_memory().pieces_become(self.noted_bytes, bytes);
        self.noted_bytes = bytes;
    }

    /// Whether it waits for the pieces of others. One that has begun to make a piece goes on.
    fn must_wait(&mut self) -> bool {
        let must = self.noted_bytes < LARGE_BYTES && self.reader.node.connection_memory().must_pieces_wait();
        if !must {
            self.waits_since = None;
            return false;
        }
        let now = self.reader.node.env().clock.monotonic();
        let since = *self.waits_since.get_or_insert(now);
        now.saturating_sub(since) < LONGEST_WAIT
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.note(0);
    }
}

impl http_body::Body for Changes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_finished || self.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        self.bell.listen(cx.waker());
        while let Poll::Ready(hearing) = self.news.as_mut().poll(cx) {
            self.news = next_news(hearing);
        }
        if !self.reader.may_go_on() {
            return Poll::Ready(None);
        }
        while self.must_wait() {
            // Those of others are sent soon, or their connections are closed.
            self.look = Some(Box::pin(tokio::time::sleep(SHORT_PAUSE)));
            if self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_pending()) {
                return Poll::Pending;
            }
        }
        let mut out = Vec::new();
        for _ in 0..MOST_STEPS {
            let progress = self.feed.step(&mut out);
            let held_bytes = self.feed.held_bytes();
            self.note(held_bytes);
            self.is_finished = progress == Progress::Finished;
            if !out.is_empty() || self.is_finished {
                self.heartbeat = Box::pin(tokio::time::sleep(HEARTBEAT));
                let frame = (!out.is_empty()).then(|| Ok(Frame::data(out.into())));
                return Poll::Ready(frame);
            }
            if progress == Progress::Idle {
                self.look = self.feed.next_look().map(|wait| Box::pin(tokio::time::sleep(wait)));
                if self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_ready()) {
                    continue;
                }
                if self.is_owing != self.feed.owes_position() {
                    self.is_owing = !self.is_owing;
                    let wait = if self.is_owing { SPACING } else { HEARTBEAT };
                    self.heartbeat = Box::pin(tokio::time::sleep(wait));
                }
                if self.heartbeat.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.heartbeat = Box::pin(tokio::time::sleep(HEARTBEAT));
                if std::mem::take(&mut self.is_owing) {
                    continue;
                }
                self.feed.heartbeat(&mut out);
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
