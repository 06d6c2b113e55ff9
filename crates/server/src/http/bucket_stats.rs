//! `/v1/buckets/B/stats/GROUP`: a group of stats as the KV protocol has it, of this node or of another one of the cluster.

use ::node::audit::record::Ends;
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use protocol::{Status, opcode};
use serde_json::{Value, json};

use super::acting::{connect, named, of_status, refused, unreachable_node, within_limits};
use super::basic_auth::Caller;
use super::query::Query;
use super::settings::find;
use super::shared::Shared;
use crate::links::acting::{KvAnswer, KvRequest};

/// The longest name of a group with its arguments.
const MOST_NAME_BYTES: usize = 300;

/// Which node is meant.
#[derive(serde::Deserialize)]
pub(super) struct Of {
    node: Option<String>,
}

/// `GET /v1/buckets/BUCKET/stats/GROUP?node=n_2`: names and values in their order.
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    Path((name, group)): Path<(String, String)>,
    Query(of): Query<Of>,
) -> Response {
    let work = async {
        let bucket = find(&shared, &caller.0, &name)?;
        if group.len() > MOST_NAME_BYTES || group.split_whitespace().next() == Some("reset") {
            let why = format!("{group:?} is no group of stats that can be read over HTTP");
            return Err(refused(StatusCode::BAD_REQUEST, &why));
        }
        let place = named(&shared, of.node.as_deref())?;
        let mut acting = connect(&shared, &place, &bucket, &caller.0, ends).await?;
        let mut stats: Vec<Value> = Vec::new();
        let mut last = KvAnswer::default();
        let mut keep = |_, answer: KvAnswer| {
            if !answer.key.is_empty() {
                let text = String::from_utf8_lossy;
                stats.push(json!([text(&answer.key), text(&answer.value)]));
            }
            last = answer;
        };
        let request =
            KvRequest { opcode: opcode::STAT, key: group.clone().into_bytes(), ..KvRequest::default() };
        acting.ask(&[request], &mut keep).await.map_err(|error| unreachable_node(&place, &error))?;
        match last.status() {
            Some(Status::Success) => Ok(json!({ "node": place.id, "stats": stats })),
            Some(Status::KeyEnoent) => {
                let why = format!(
                    "there are no stats {group:?}: docs/reference/stats.md lists those that there are"
                );
                Err(refused(StatusCode::NOT_FOUND, &why))
            }
            _ => Err(of_status(&last)),
        }
    };
    match within_limits(&shared, work).await {
        Ok(told) => Json(told).into_response(),
        Err(refused) => *refused,
    }
}
