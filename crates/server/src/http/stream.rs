//! Answers that never end: a cluster map now, and each new one when it comes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::Frame;

use super::basic_auth::Caller;
use super::{Shared, no_such_bucket};

/// What separates two documents.
const SEPARATOR: &[u8] = b"\n\n\n\n";

/// One document, then silence until the node stops: the map of a single node never changes.
struct Documents {
    first: Option<Bytes>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for Documents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => self.stopped.as_mut().poll(cx).map(|()| None),
        }
    }
}

fn stream(shared: &Shared, json: &[u8]) -> Response {
    let mut stopping = shared.stopping.clone();
    let stopped = async move {
        // An error means that whoever could stop the node is gone.
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    let first = Bytes::from([json, SEPARATOR].concat());
    let body = Body::new(Documents { first: Some(first), stopped: Box::pin(stopped) });
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// `GET /pools/default/bs/BUCKET`
pub(super) async fn terse_bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(bucket): Path<String>,
) -> Response {
    let maps = shared.node.cluster_map();
    match maps.bucket(&bucket) {
        Some(map) if user.may_select(&bucket) => stream(&shared, map.json()),
        _ => no_such_bucket(),
    }
}

/// `GET /pools/default/nodeServicesStreaming`
pub(super) async fn node_services(State(shared): State<Shared>) -> Response {
    stream(&shared, shared.node.cluster_map().global().json())
}
