//! Positions that the server keeps for readers, under names, in the bucket's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::SmallFile;
use base::env::Disk;
use engine::Bucket;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Refused, find, read_token, refuse, since};
use crate::http::Shared;
use crate::http::basic_auth::Caller;
use crate::user::User;
use ::node::changes::token::Token;

/// The folder in a bucket's folder.
const CURSORS: &str = "cursors";
const MOST_NAME_BYTES: usize = 64;
/// More than the longest token takes.
const MOST_BYTES: u64 = 64 << 10;

fn folder(bucket: &Bucket) -> PathBuf {
    bucket.config().dir.join(CURSORS)
}

fn check_name(name: &str) -> Result<(), Refused> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MOST_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let message = "a cursor's name has up to 64 letters, digits, - and _";
    Err(refuse(StatusCode::BAD_REQUEST, message))
}

/// The names of cursors among those of files, each of which may have a copy.
fn names_in(files: Vec<String>) -> BTreeSet<String> {
    let name = |file: String| file.strip_suffix(".copy").map(str::to_owned).unwrap_or(file);
    files.into_iter().map(name).filter(|name| check_name(name).is_ok()).collect()
}

fn disk_failed(bucket: &Bucket, error: &io::Error) -> Refused {
    tracing::error!(bucket = bucket.name(), %error, "a cursor");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the cursor cannot be kept: {error}"))
}

/// The stored position; nothing if there is no such cursor.
fn read(bucket: &Bucket, name: &str) -> Result<Option<Token>, Refused> {
    check_name(name)?;
    let parse = |bytes: &[u8], version: u16| parse(bytes, version, bucket.vbuckets());
    let found = file(bucket, name).open(&*bucket.env().disk, parse, |fault| tracing::error!("{fault}"));
    found.map_err(|error| disk_failed(bucket, &io::Error::other(error)))
}

/// The file of a cursor.
fn file(bucket: &Bucket, name: &str) -> SmallFile {
    SmallFile::new(&folder(bucket), name).owned_by(bucket.uuid()).at_most(MOST_BYTES)
}

/// Understands a cursor's file.
fn parse(bytes: &[u8], _version: u16, vbuckets: u16) -> Result<Token, String> {
    let token = str::from_utf8(bytes).ok().and_then(|text| Token::decode(text, vbuckets));
    token.ok_or_else(|| "it holds no position of this bucket".to_owned())
}

/// Faults of the cursors in a bucket's folder: the file, and what is wrong with it or its copy. Changes nothing.
pub(crate) fn faults(disk: &dyn Disk, bucket: &std::path::Path) -> Vec<(PathBuf, String)> {
    let folder = bucket.join(CURSORS);
    // A file without checksum is text, which is all that can be said without the bucket.
    let parse = |bytes: &[u8], _| str::from_utf8(bytes).map(drop).map_err(|error| error.to_string());
    let names = names_in(disk.read_dir(&folder).unwrap_or_default());
    let one = |name: &String| SmallFile::new(&folder, name).at_most(MOST_BYTES);
    let fault = |name| Some((folder.join(name), one(name).fault(disk, parse)?));
    names.iter().filter_map(fault).collect()
}

/// Stores a position durably.
fn write(bucket: &Bucket, name: &str, token: &Token) -> Result<(), Refused> {
    let (folder, disk) = (folder(bucket), &bucket.env().disk);
    disk.create_dir_all_synced(&folder).map_err(|error| disk_failed(bucket, &error))?;
    let written = file(bucket, name).write(&**disk, token.encode().as_bytes());
    written.map_err(|error| disk_failed(bucket, &io::Error::other(error)))
}

fn describe(name: &str, token: &Token) -> Value {
    json!({ "name": name, "token": token.encode() })
}

fn no_such_cursor(name: &str) -> Refused {
    refuse(StatusCode::NOT_FOUND, &format!("there is no cursor `{name}`"))
}

/// Answers a request about cursors with what waits for the disk.
async fn answer(
    shared: &Shared,
    user: &User,
    bucket: &str,
    work: impl FnOnce(&Bucket) -> Result<Response, Refused> + Send + 'static,
) -> Response {
    let bucket = match find(shared, user, bucket) {
        Ok(bucket) => bucket,
        Err(refused) => return *refused,
    };
    let done = on_disk(shared, move || work(&bucket)).await;
    done.unwrap_or_else(|refused| *refused)
}

/// Does what waits for the disk on a thread of its own, one at a time: others are answered meanwhile, and no two write
/// a cursor at the same time.
pub(super) async fn on_disk<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let place = Arc::clone(&shared.cursors).acquire_owned().await;
    let (sender, receiver) = oneshot::channel();
    let spawn = Arc::clone(&shared.node.env().spawn);
    let job = move || {
        // If the client has gone meanwhile, no one receives this; the work is done all the same.
        let _ = sender.send(work());
        drop(place);
    };
    let failed = |error: &dyn std::fmt::Display| {
        refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the cursor cannot be looked at: {error}"))
    };
    match spawn.spawn("cursor", Box::new(job)) {
        Ok(_) => receiver.await.unwrap_or_else(|error| Err(failed(&error))),
        Err(error) => Err(failed(&error)),
    }
}

/// Where a cursor stands.
pub(super) fn place(bucket: &Bucket, name: &str) -> Result<Token, Refused> {
    read(bucket, name)?.ok_or_else(|| no_such_cursor(name))
}

/// `GET /v1/buckets/BUCKET/cursors`
pub async fn list(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(bucket): Path<String>,
) -> Response {
    answer(&shared, &user, &bucket, move |bucket| {
        let names = match bucket.env().disk.read_dir(&folder(bucket)) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(disk_failed(bucket, &error)),
        };
        Ok(Json(json!({ "cursors": names_in(names) })).into_response())
    })
    .await
}

/// `GET /v1/buckets/BUCKET/cursors/NAME`
pub async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
) -> Response {
    answer(&shared, &user, &bucket, move |bucket| {
        let token = place(bucket, &name)?;
        Ok(Json(describe(&name, &token)).into_response())
    })
    .await
}

/// `PUT /v1/buckets/BUCKET/cursors/NAME?since=...`: makes one. One that is there stays where it is.
pub async fn create(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if query.get("since").is_some_and(|since| since == "now") && shared.node.cluster().is_some() {
        let message = "in a cluster this node does not know where other nodes are now: read changes?since=now up to its \
            first position, and give that token as since";
        return *refuse(StatusCode::BAD_REQUEST, message);
    }
    answer(&shared, &user, &bucket, move |bucket| {
        if let Some(there) = read(bucket, &name)? {
            return Ok(Json(describe(&name, &there)).into_response());
        }
        let (token, _) = since(bucket, query.get("since").map_or("start", String::as_str))?;
        write(bucket, &name, &token)?;
        Ok((StatusCode::CREATED, Json(describe(&name, &token))).into_response())
    })
    .await
}

/// `POST /v1/buckets/BUCKET/cursors/NAME`: the body is the token up to which the reader has worked on everything.
pub async fn move_to(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    answer(&shared, &user, &bucket, move |bucket| {
        place(bucket, &name)?;
        let text = str::from_utf8(&body).unwrap_or_default();
        let (token, _) = read_token(bucket, text)?
            .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "the body is no token of this bucket's events"))?;
        write(bucket, &name, &token)?;
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

/// `DELETE /v1/buckets/BUCKET/cursors/NAME`
pub async fn remove(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
) -> Response {
    answer(&shared, &user, &bucket, move |bucket| {
        check_name(&name)?;
        let (file, disk) = (file(bucket, &name), &*bucket.env().disk);
        // One that is damaged may be removed, too.
        if matches!(file.look(disk, |_, _| Ok(())), Ok(None)) {
            return Err(no_such_cursor(&name));
        }
        let removed = file.remove(disk).map_err(|error| disk_failed(bucket, &io::Error::other(error)));
        removed.map(|()| StatusCode::NO_CONTENT.into_response())
    })
    .await
}
