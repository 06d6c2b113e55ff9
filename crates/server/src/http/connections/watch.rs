//! Follows a request from the end of its head to the end of its answer, and takes its body within the limits.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::node::audit::record::Ends;
use ::node::connection_memory::LARGE_BYTES;
use ::node::first_head::MOST_OF_STRANGERS;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde_json::json;

use super::listener::Listener;
use super::{Connection, Connections, Cut, NEVER, Phase, SLOWEST_BODY_BYTES_PER_S};

/// The connection that a request comes from.
#[derive(Clone)]
pub(crate) struct Guest {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Listener>> for Guest {
    fn connect_info(stream: axum::serve::IncomingStream<'_, Listener>) -> Guest {
        let io = stream.io();
        Guest { connection: Arc::clone(io.connection()), connections: Arc::clone(io.connections()) }
    }
}

impl Guest {
    fn waits(&self) {
        let deadline_s = self.connections.now_s() + self.connections.limits.idle_timeout_s;
        self.connection.enter(Phase::Waiting, deadline_s);
        self.connections.done(&self.connection);
    }

    fn is_busy(&self) {
        self.connection.enter(Phase::Busy, NEVER);
    }
}

/// Around everything else: from here on the client is not the one that is waited for. A connection whose client has not
/// logged in ends with its answer, and what is held for it with it (record 185).
pub(super) async fn watch(ConnectInfo(guest): ConnectInfo<Guest>, request: Request, next: Next) -> Response {
    guest.is_busy();
    let (mut response, is_charged) = charged(&guest, next.run(request).await).await;
    if guest.connection.is_let_in.get().is_none() {
        response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Answer { body, guest, is_charged }))
}

/// Charges an answer that is large and there as a whole, and whether it is such a one; without room another one takes its
/// place. Answers that are made in pieces are charged piece by piece.
async fn charged(guest: &Guest, response: Response) -> (Response, bool) {
    let bytes = http_body::Body::size_hint(response.body()).exact().unwrap_or(0);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes < LARGE_BYTES {
        return (response, false);
    }
    if !guest.connections.reserve_answer(&guest.connection, bytes) {
        return (*no_room(), false);
    }
    let (parts, body) = response.into_parts();
    let Ok(whole) = axum::body::to_bytes(body, bytes).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR.into_response(), false);
    };
    // The text has grown in a buffer of up to twice its size, which is not kept until the client has taken the text.
    (Response::from_parts(parts, Body::from(Bytes::copy_from_slice(&whole))), true)
}

/// An answer's body; when it is sent or given up, the client may ask for something else.
struct Answer {
    body: Body,
    guest: Guest,
    /// It was charged as a whole.
    is_charged: bool,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.guest.waits();
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_charged {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        if self.guest.connections.must_wait(&self.guest.connection) {
            return Poll::Pending;
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.guest.connections.answered(&self.guest.connection, data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Notes that the client of a request has logged in.
pub(crate) fn let_in(request: &Request) {
    if let Some(ConnectInfo(guest)) = request.extensions().get::<ConnectInfo<Guest>>() {
        // Requests before this one may have done so, too.
        let _ = guest.connection.is_let_in.set(());
    }
}

/// Where a request comes from.
pub(crate) fn peer(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<ConnectInfo<Guest>>().map(|ConnectInfo(guest)| guest.connection.peer)
}

/// Both ends of the connection that a request comes by.
pub(crate) fn ends(request: &Request) -> Ends {
    let guest = request.extensions().get::<ConnectInfo<Guest>>();
    let ends = |connection: &Connection| Ends {
        local: connection.local.get().copied(),
        remote: Some(connection.remote),
    };
    guest.map(|ConnectInfo(guest)| ends(&guest.connection)).unwrap_or_default()
}

/// Where a request comes from and where it came to, if both are known.
pub fn addresses(request: &Request) -> Option<(SocketAddr, SocketAddr)> {
    let Ends { local, remote } = ends(request);
    remote.zip(local)
}

/// How a request comes.
#[derive(Clone, Debug, Default)]
pub(crate) struct By {
    /// Whether its connection is encrypted.
    pub(crate) is_encrypted: bool,
    /// The user that the certificate of its client stands for.
    pub(crate) certified: Option<String>,
}

/// How a request comes.
pub(crate) fn by(request: &Request) -> By {
    let guest = request.extensions().get::<ConnectInfo<Guest>>();
    let is_encrypted = guest.is_some_and(|ConnectInfo(guest)| guest.connection.is_encrypted.get().is_some());
    By { is_encrypted, certified: certified(request) }
}

/// The user that the certificate of a request's client stands for.
fn certified(request: &Request) -> Option<String> {
    let ConnectInfo(guest) = request.extensions().get::<ConnectInfo<Guest>>()?;
    guest.connection.certified().map(str::to_owned)
}

/// A request with all of its body, or what is answered instead. The body of a client that has not logged in has come with
/// its head: none is waited for with all that hyper holds for a connection (record 192).
pub(crate) async fn body(request: Request) -> Result<Request, Box<Response>> {
    let Some(ConnectInfo(guest)) = request.extensions().get::<ConnectInfo<Guest>>().cloned() else {
        return Ok(request);
    };
    let limits = guest.connections.limits;
    let is_stranger = guest.connection.is_let_in.get().is_none();
    let most = if is_stranger { limits.body_bytes.min(MOST_OF_STRANGERS) } else { limits.body_bytes };
    let (parts, body) = request.into_parts();
    let told =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|len| len > most as u64) {
        return Err(too_large(most));
    }
    let expected = told.unwrap_or(most as u64) as usize;
    let has_body = !http_body::Body::is_end_stream(&body);
    if has_body && is_stranger && guest.connection.is_first_whole.get().is_none() {
        return Err(not_with_its_head(&parts.headers));
    }
    if has_body && !guest.connections.reserve_body(&guest.connection, expected) {
        return Err(no_room());
    }
    let extra_s = told.unwrap_or(most as u64) / SLOWEST_BODY_BYTES_PER_S;
    let deadline_s = guest.connections.now_s() + limits.body_timeout_s + extra_s;
    guest.connection.enter(Phase::Body, deadline_s);
    let body = axum::body::to_bytes(body, most).await;
    guest.is_busy();
    match body {
        Ok(body) => Ok(Request::from_parts(parts, Body::from(body))),
        Err(_) if guest.connection.cut() == Some(Cut::SlowBody) => {
            let why =
                format!("the body of the request did not come within {} seconds", limits.body_timeout_s);
            Err(refused(StatusCode::REQUEST_TIMEOUT, &why))
        }
        Err(_) => Err(too_large(most)),
    }
}

/// What a client without a login is answered whose body would have to be waited for.
fn not_with_its_head(headers: &HeaderMap) -> Box<Response> {
    let rule = format!("without a login a request has at most {MOST_OF_STRANGERS} bytes of body");
    if headers.contains_key(header::EXPECT) {
        let why = format!("{rule}, which is not asked for: send it without Expect");
        return refused(StatusCode::EXPECTATION_FAILED, &why);
    }
    let why = format!("{rule}, with Content-Length, and at most 16 KiB of head and body together");
    refused(StatusCode::LENGTH_REQUIRED, &why)
}

fn no_room() -> Box<Response> {
    refused(StatusCode::SERVICE_UNAVAILABLE, "memory for connections is short: try again later")
}

fn too_large(most: usize) -> Box<Response> {
    refused(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body of the request has more than {most} bytes"))
}

fn refused(code: StatusCode, why: &str) -> Box<Response> {
    let mut response = (code, Json(json!({ "message": why }))).into_response();
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    Box::new(response)
}
