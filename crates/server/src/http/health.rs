//! `GET /livez`, `/readyz` and `/healthz`: whether the process answers, whether clients should be sent to this node, and
//! whether an operator should look at it.

use ::node::cluster::serving;
use ::node::readiness::{self, Audience};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::cluster_status;
use super::shared::Shared;

/// The process answers.
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// The node serves everything that the cluster map gives it, and has caught up since it was started: who restarts nodes one
/// after the other, or all at once, waits for that before the next one is stopped.
pub(super) async fn readyz(State(shared): State<Shared>) -> Response {
    let mut lines: Vec<String> = serving::why_not(&shared.node).into_iter().collect();
    lines.extend(readiness::unserved(&shared.node, Audience::Everybody));
    lines.extend(cluster_status::lacks(&shared));
    lines.extend(cluster_status::settles(&shared));
    told(lines)
}

/// Nothing is wrong that an operator has to do something about.
pub(super) async fn healthz(State(shared): State<Shared>) -> Response {
    let why_not = serving::why_not(&shared.node);
    // A node that serves no client reports its own reasons only.
    let mut misses = Vec::new();
    if why_not.is_none() {
        misses = cluster_status::misses(&shared);
        misses.extend(cluster_status::own_links_down(&shared));
    }
    let mut lines: Vec<String> = why_not.into_iter().collect();
    lines.extend(readiness::problems(&shared.node, Audience::Everybody));
    lines.extend(without_client_cas(&shared));
    lines.extend(cluster_status::lacks(&shared));
    lines.extend(misses);
    told(lines)
}

/// The CAs of clients cannot be read; the line names no path, since it is for everybody.
fn without_client_cas(shared: &Shared) -> Option<String> {
    shared.peer_tls.own().filter(|tls| tls.knows_no_clients()).map(|_| {
        "the file of tls-ca cannot be used, and new connections of clients that show a certificate are refused: put the CAs \
         that are to count into its place; the log says what is wrong with it"
            .to_owned()
    })
}

fn told(problems: Vec<String>) -> Response {
    if problems.is_empty() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response()
}
