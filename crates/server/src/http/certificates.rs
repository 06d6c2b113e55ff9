//! Certificate and key are read again, when a script has put new ones into their place.

use std::sync::Arc;

use ::node::management::BucketError;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::failures::failed;
use super::manage::on_a_thread;
use super::shared::Shared;

/// Where that is asked for.
pub(super) const PATH: &str = "/node/controller/reloadCertificate";

/// `POST` of [`PATH`]: whether the files are others than those that connections are made with, which from now on are the
/// new ones; when the certificate ends, and since when certificate and CAs count, in seconds of Unix time; how many CAs
/// there are; and what the certificate is not for.
pub(super) async fn reload(State(shared): State<Shared>) -> Response {
    let Some(tls) = shared.peer_tls.own().cloned() else {
        return refused("this node does not speak TLS: start it with tls-cert and tls-key");
    };
    let node = Arc::clone(&shared.node);
    let reading = on_a_thread(&shared, move |_| {
        let reloaded = tls.reload_same(node.env());
        Ok::<_, BucketError>(reloaded.map(|changes| {
            let taken = tls.taken();
            json!({
                "changed": changes.any(),
                "validUntil": tls.note_end(&node),
                "since": taken.pair_since_s,
                "cas": taken.cas,
                "casChanged": changes.cas,
                "casSince": taken.cas.map(|_| taken.cas_since_s),
                "warnings": tls.unfit(&node),
            })
        }))
    });
    match reading.await {
        Ok(Ok(told)) => Json(told).into_response(),
        Ok(Err(error)) => {
            let what = format!("certificate or key cannot be used, and those before are kept: {error}");
            let response = refused(&what);
            failed(response, "certificate and key were not read again", &what)
        }
        Err(error) => super::manage::answer(&error),
    }
}

fn refused(what: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": { "_": what } }))).into_response()
}
