//! Answers that never end: a cluster map, or the cluster, now, and again with each new map.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::node::cluster_map::ClusterMap;
use ::node::user::User;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use protocol::extras::ConfigVersion;

use super::answers::no_such_bucket;
use super::basic_auth::Caller;
use super::shared::Shared;
use super::{buckets, pools};

/// What separates two documents.
const SEPARATOR: &[u8] = b"\n\n\n\n";

/// What a stream shows.
enum Subject {
    /// The map of a bucket, for as long as there is one, to this user.
    Bucket(String, Arc<User>),
    /// The map of the nodes, to this user.
    Nodes(Arc<User>),
    /// The cluster, to this user, who asked with these headers.
    Cluster(Arc<User>, HeaderMap),
    /// A bucket as it is described to this user, for as long as there is one.
    Described(String, Arc<User>, HeaderMap),
}

impl Subject {
    /// Whether it may still be shown: its user is there, with the same password, and may see the bucket.
    fn is_allowed(&self, shared: &Shared) -> bool {
        let (user, bucket) = match self {
            Subject::Nodes(user) | Subject::Cluster(user, _) => (user, None),
            Subject::Bucket(name, user) | Subject::Described(name, user, _) => (user, Some(name)),
        };
        let users = shared.node.accounts().users();
        let now = users.now(user);
        now.is_some_and(|now| bucket.is_none_or(|bucket| now.may_select(bucket)))
    }

    async fn document(&self, shared: &Shared, maps: &ClusterMap) -> Option<Bytes> {
        let json = match self {
            Subject::Bucket(name, _) => maps.bucket(name)?.json().to_vec(),
            Subject::Nodes(_) => maps.global().json().to_vec(),
            Subject::Cluster(user, headers) => {
                pools::document(shared, user, headers).await.to_string().into_bytes()
            }
            Subject::Described(name, user, headers) => {
                buckets::document(shared, user, name, headers).await?.to_string().into_bytes()
            }
        };
        Some(Bytes::from([&*json, SEPARATOR].concat()))
    }
}

/// A map, and which.
type Document = (Bytes, ConfigVersion);

/// The map as it is, then each new one. Who reads slowly misses those in between.
struct Documents {
    next: Pin<Box<dyn Future<Output = Option<Document>> + Send>>,
    shared: Shared,
    subject: Arc<Subject>,
}

impl http_body::Body for Documents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match ready!(self.next.as_mut().poll(cx)) {
            Some((document, version)) => {
                let next = next(self.shared.clone(), Arc::clone(&self.subject), Some(version));
                self.next = Box::pin(next);
                Poll::Ready(Some(Ok(Frame::data(document))))
            }
            None => Poll::Ready(None),
        }
    }
}

/// The map once it is newer than `known`; nothing when the bucket is gone, the node stops, or the user may not see it.
async fn next(shared: Shared, subject: Arc<Subject>, known: Option<ConfigVersion>) -> Option<Document> {
    let mut hearing = shared.node.announcer().hearing();
    loop {
        hearing.edition();
        if !subject.is_allowed(&shared) {
            return None;
        }
        let maps = shared.node.cluster_map();
        if known.is_none_or(|known| known < maps.version()) {
            return Some((subject.document(&shared, &maps).await?, maps.version()));
        }
        tokio::select! {
            () = hearing.changed() => {}
            () = shared.stopped() => return None,
        }
    }
}

fn stream(shared: &Shared, subject: Subject) -> Response {
    let subject = Arc::new(subject);
    let next = Box::pin(next(shared.clone(), Arc::clone(&subject), None));
    let body = Body::new(Documents { next, shared: shared.clone(), subject });
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// `GET /pools/default/bs/BUCKET`
pub(super) async fn terse_bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(bucket): Path<String>,
) -> Response {
    match shared.node.cluster_map().bucket(&bucket) {
        Some(_) if user.may_select(&bucket) => stream(&shared, Subject::Bucket(bucket, user)),
        _ => no_such_bucket(),
    }
}

/// `GET /pools/default/bucketsStreaming/BUCKET`
pub(super) async fn bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(bucket): Path<String>,
    headers: HeaderMap,
) -> Response {
    match shared.node.cluster_map().bucket(&bucket) {
        Some(_) if user.may_select(&bucket) => stream(&shared, Subject::Described(bucket, user, headers)),
        _ => no_such_bucket(),
    }
}

/// `GET /pools/default/nodeServicesStreaming`
pub(super) async fn node_services(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
) -> Response {
    stream(&shared, Subject::Nodes(user))
}

/// `GET /poolsStreaming/default`
pub(super) async fn cluster(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    stream(&shared, Subject::Cluster(user, headers))
}
