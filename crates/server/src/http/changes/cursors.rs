//! `/v1/buckets/BUCKET/cursors`: positions that the server keeps for readers, under names.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ::node::changes::cursor;
use ::node::changes::token::Token;
use ::node::cluster::serving::is_a_clusters;
use ::node::user::User;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::planted::{self, Bug};
use engine::Bucket;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::super::query::Query;
use super::{Refused, find, read_token, refuse, since};
use crate::http::basic_auth::Caller;
use crate::http::shared::Shared;

fn check_name(name: &str) -> Result<(), Refused> {
    if cursor::is_name(name) {
        return Ok(());
    }
    let message = "a cursor's name has up to 64 letters, digits, - and _";
    Err(refuse(StatusCode::BAD_REQUEST, message))
}

fn disk_failed(bucket: &Bucket, error: &io::Error) -> Refused {
    if let Some(left_out) = engine::admit_log(bucket, "cursor not kept") {
        tracing::error!(
            event = "cursor_failed", bucket = bucket.name(), %error, left_out,
            "the position of a cursor cannot be kept or read"
        );
    }
    refuse(StatusCode::INTERNAL_SERVER_ERROR, &format!("the cursor cannot be kept: {error}"))
}

/// The stored position; `None` if there is no such cursor.
fn read(bucket: &Bucket, name: &str) -> Result<Option<Token>, Refused> {
    check_name(name)?;
    cursor::read(bucket, name).map_err(|error| disk_failed(bucket, &error))
}

fn write(bucket: &Bucket, name: &str, token: &Token) -> Result<(), Refused> {
    cursor::write(bucket, name, token).map_err(|error| disk_failed(bucket, &error))
}

/// Refuses one more cursor than a bucket may have.
fn check_room(bucket: &Bucket) -> Result<(), Refused> {
    let names = cursor::names(bucket).map_err(|error| disk_failed(bucket, &error))?;
    if names.len() < cursor::MOST {
        return Ok(());
    }
    let most = cursor::MOST;
    let message =
        format!("this bucket has {most} cursors, as many as it may have: remove those that are not used");
    Err(refuse(StatusCode::SERVICE_UNAVAILABLE, &message))
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
    if planted::is(Bug::CursorOnSharedThread) {
        return work();
    }
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
        let names = cursor::names(bucket).map_err(|error| disk_failed(bucket, &error))?;
        Ok(Json(json!({ "cursors": names })).into_response())
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
    if query.get("since").is_some_and(|since| since == "now") && is_a_clusters(&shared.node) {
        let message = "in a cluster this node does not know where other nodes are now: read changes?since=now up to its \
            first position, and give that token as since";
        return *refuse(StatusCode::BAD_REQUEST, message);
    }
    answer(&shared, &user, &bucket, move |bucket| {
        if let Some(there) = read(bucket, &name)? {
            return Ok(Json(describe(&name, &there)).into_response());
        }
        let (token, _) = since(bucket, query.get("since").map_or("start", String::as_str))?;
        check_room(bucket)?;
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
        match cursor::remove(bucket, &name) {
            Ok(true) => Ok(StatusCode::NO_CONTENT.into_response()),
            Ok(false) => Err(no_such_cursor(&name)),
            Err(error) => Err(disk_failed(bucket, &error)),
        }
    })
    .await
}
