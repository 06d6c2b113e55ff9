//! Positions that the server keeps for readers, under names, in the bucket's folder.

use std::io;
use std::path::PathBuf;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::env::OpenMode;
use engine::Bucket;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::token::Token;
use super::{Refused, find, read_token, refuse, since};
use crate::http::Shared;
use crate::http::basic_auth::Caller;

const MOST_NAME_BYTES: usize = 64;
/// More than the longest token takes.
const MOST_BYTES: usize = 64 << 10;
const UNFINISHED: &str = ".new";

fn folder(bucket: &Bucket) -> PathBuf {
    bucket.config().dir.join("cursors")
}

fn check_name(name: &str) -> Result<(), Refused> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if (1..=MOST_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let message = "a cursor's name has up to 64 letters, digits, - and _";
    Err(refuse(StatusCode::BAD_REQUEST, message))
}

fn disk_failed(bucket: &Bucket, error: &io::Error) -> Refused {
    tracing::error!(bucket = bucket.name(), %error, "a cursor");
    refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the cursor cannot be kept: {error}"))
}

/// The stored position; nothing if there is no such cursor.
fn read(bucket: &Bucket, name: &str) -> Result<Option<Token>, Refused> {
    check_name(name)?;
    let file = match bucket.env().disk.open(&folder(bucket).join(name), OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk_failed(bucket, &error)),
    };
    let mut bytes = vec![0; MOST_BYTES];
    let count = file.read_at(&mut bytes, 0).map_err(|error| disk_failed(bucket, &error))?;
    let text = str::from_utf8(&bytes[..count]).ok();
    let token = text.and_then(|text| Token::decode(text, bucket.vbuckets()));
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "its file holds no position of this bucket");
    token.map(Some).ok_or_else(|| disk_failed(bucket, &broken()))
}

/// Stores a position durably.
fn write(bucket: &Bucket, name: &str, token: &Token) -> Result<(), Refused> {
    let (folder, disk) = (folder(bucket), &bucket.env().disk);
    let (path, unfinished) = (folder.join(name), folder.join(format!("{name}{UNFINISHED}")));
    let write = || {
        disk.create_dir_all_synced(&folder)?;
        let file = disk.open(&unfinished, OpenMode::Create)?;
        let text = token.encode();
        file.set_len(text.len() as u64)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync_data()?;
        disk.rename(&unfinished, &path)?;
        disk.sync_dir(&folder)
    };
    write().map_err(|error| disk_failed(bucket, &error))
}

fn describe(name: &str, token: &Token) -> Value {
    json!({ "name": name, "token": token.encode() })
}

fn no_such_cursor(name: &str) -> Refused {
    refuse(StatusCode::NOT_FOUND, &format!("there is no cursor `{name}`"))
}

fn either(answer: Result<Response, Refused>) -> Response {
    answer.unwrap_or_else(|refused| *refused)
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
    either(find(&shared, &user, &bucket).and_then(|bucket| {
        let mut names = match bucket.env().disk.read_dir(&folder(&bucket)) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(disk_failed(&bucket, &error)),
        };
        names.retain(|name| check_name(name).is_ok());
        names.sort();
        Ok(Json(json!({ "cursors": names })).into_response())
    }))
}

/// `GET /v1/buckets/BUCKET/cursors/NAME`
pub async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
) -> Response {
    either(find(&shared, &user, &bucket).and_then(|bucket| {
        let token = place(&bucket, &name)?;
        Ok(Json(describe(&name, &token)).into_response())
    }))
}

/// `PUT /v1/buckets/BUCKET/cursors/NAME?since=...`: makes one. One that is there stays where it is.
pub async fn create(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    either(find(&shared, &user, &bucket).and_then(|bucket| {
        if let Some(there) = read(&bucket, &name)? {
            return Ok(Json(describe(&name, &there)).into_response());
        }
        let (token, _) = since(&bucket, query.get("since").map_or("start", String::as_str))?;
        write(&bucket, &name, &token)?;
        Ok((StatusCode::CREATED, Json(describe(&name, &token))).into_response())
    }))
}

/// `POST /v1/buckets/BUCKET/cursors/NAME`: the body is the token up to which the reader has worked on everything.
pub async fn move_to(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    either(find(&shared, &user, &bucket).and_then(|bucket| {
        place(&bucket, &name)?;
        let text = str::from_utf8(&body).unwrap_or_default();
        let (token, _) = read_token(&bucket, text)?
            .ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "the body is no token of this bucket's events"))?;
        write(&bucket, &name, &token)?;
        Ok(StatusCode::NO_CONTENT.into_response())
    }))
}

/// `DELETE /v1/buckets/BUCKET/cursors/NAME`
pub async fn remove(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((bucket, name)): Path<(String, String)>,
) -> Response {
    either(find(&shared, &user, &bucket).and_then(|bucket| {
        check_name(&name)?;
        let (folder, disk) = (folder(&bucket), &bucket.env().disk);
        match disk.remove_file(&folder.join(&name)).and_then(|()| disk.sync_dir(&folder)) {
            Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_such_cursor(&name)),
            Err(error) => Err(disk_failed(&bucket, &error)),
        }
    }))
}
