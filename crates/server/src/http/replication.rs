//! What of a bucket follows other nodes, over HTTP: declared as a whole, and where it stands.

use std::ops::RangeInclusive;

use ::node::cluster::serving::is_a_clusters;
use ::node::replication::{LinkStatus, Password, Source, Sources, WantError, lag_of};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::VbId;
use dcp::{Mode, Stage, VbProgress};
use serde::Deserialize;
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::query::Query;
use super::settings::find;
use super::shared::Shared;

/// The body of a declaration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declaration {
    sources: Vec<SourceBody>,
}

/// One node, and the vBuckets that follow it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceBody {
    node: String,
    username: String,
    password: String,
    vbuckets: String,
    #[serde(default)]
    mode: ModeBody,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeBody {
    #[default]
    Replicate,
    TakeOver,
}

fn refused(what: impl std::fmt::Display) -> Response {
    let errors = json!({ "errors": { "_": what.to_string() } });
    (StatusCode::BAD_REQUEST, Json(errors)).into_response()
}

/// `PUT /v1/buckets/BUCKET/replication`: from now on these vBuckets follow these nodes, and no others do.
pub(super) async fn declare(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    let bucket = match find(&shared, &user, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    if is_a_clusters(&shared.node) {
        return refused(
            "a cluster decides which node has a vBucket, and which ones follow it: `stave cluster rebalance` moves \
             vBuckets, and `stave replicate --continuous` sends changes to a bucket of another cluster",
        );
    }
    // The message of a malformed body must not repeat a password.
    let declared: Declaration = match serde_json::from_slice(&body) {
        Ok(declared) => declared,
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            return refused(format!(
                "line {line}, column {column}: the body must be {{\"sources\": [{{\"node\": \"HOST:PORT\", \
                 \"username\": ..., \"password\": ..., \"vbuckets\": \"0-511\", \"mode\": \"replicate\" or \
                 \"takeover\"}}]}}"
            ));
        }
    };
    let own = declared.sources.iter().find(|source| shared.node.address().is_at(&source.node));
    if let Some(SourceBody { node, .. }) = own {
        return refused(format!(
            "{node} is this node itself, and a vBucket that follows its own node is not served any more: name the node \
             whose vBuckets they are"
        ));
    }
    let sources = match sources(declared) {
        Ok(sources) => sources,
        Err(what) => return refused(what),
    };
    match shared.node.replication().want(&bucket, &sources) {
        Ok(()) => Json(summary(&name, &shared.node.replication().status(Some(&name)), false)).into_response(),
        Err(error @ (WantError::Stopping | WantError::Thread(_))) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "errors": { "_": error.to_string() } })))
                .into_response()
        }
        Err(error) => refused(error),
    }
}

/// Whether each vBucket is to be told of.
#[derive(Deserialize)]
pub(super) struct Detail {
    #[serde(default)]
    detail: bool,
}

/// `GET /v1/buckets/BUCKET/replication`: where it stands; with `?detail=true` each vBucket.
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(Detail { detail }): Query<Detail>,
) -> Response {
    match find(&shared, &user, &name) {
        Ok(_) => Json(summary(&name, &shared.node.replication().status(Some(&name)), detail)).into_response(),
        Err(response) => *response,
    }
}

fn sources(declared: Declaration) -> Result<Sources, String> {
    let mut all = Sources::new();
    for body in declared.sources {
        if !body
            .node
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        {
            return Err(format!("{:?}: give a node as HOST:PORT", body.node));
        }
        let source = Source {
            node: body.node,
            username: body.username,
            password: Password::from(body.password),
            mode: match body.mode {
                ModeBody::Replicate => Mode::Replicate,
                ModeBody::TakeOver => Mode::TakeOver,
            },
        };
        for range in ranges(&body.vbuckets)? {
            for vb in range {
                if all.insert(VbId(vb), source.clone()).is_some() {
                    return Err(format!("vBucket {vb} has two sources"));
                }
            }
        }
    }
    Ok(all)
}

/// Numbers and ranges, such as `0-511,600`.
fn ranges(text: &str) -> Result<Vec<RangeInclusive<u16>>, String> {
    let wrong = || format!("{text:?}: give vBuckets as numbers and ranges, such as 0-511,600");
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some(first..=last)
    };
    text.split(',').map(|part| range(part).ok_or_else(wrong)).collect()
}

/// Numbers as ranges.
fn told(vbuckets: impl Iterator<Item = VbId>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for VbId(vb) in vbuckets {
        match ranges.last_mut() {
            Some((_, last)) if u32::from(*last) + 1 == u32::from(vb) => *last = vb,
            _ => ranges.push((vb, vb)),
        }
    }
    let text = |(first, last): (u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

fn summary(bucket: &str, links: &[LinkStatus], detail: bool) -> Value {
    json!({ "bucket": bucket, "links": links.iter().map(|link| describe(link, detail)).collect::<Vec<_>>() })
}

fn describe(link: &LinkStatus, detail: bool) -> Value {
    let in_stage = |stage| link.vbuckets.iter().filter(|progress| progress.stage == stage).count();
    let taken = link.taken_over;
    let trouble = link.vbuckets.iter().find_map(|progress| Some((progress.vb, progress.trouble?)));
    let mut out = json!({
        "node": link.node,
        "username": link.username,
        "state": link.state.name(),
        "vbuckets": told(link.vbuckets.iter().map(|progress| progress.vb)),
        "following": link.vbuckets.len(),
        "streaming": in_stage(Stage::Streaming),
        "rolling_back": in_stage(Stage::RollingBack),
        "pausing": in_stage(Stage::Pausing),
        "lag": link.lag(),
        "caught_up": link.is_caught_up(),
        "taken_over": taken.done,
        "blocked_longest_us": taken.blocked_longest.as_micros() as u64,
        "blocked_total_us": taken.blocked_total.as_micros() as u64,
        "received_bytes": link.counts.bytes,
        "changes": link.counts.changes,
        "rollbacks": link.counts.rollbacks,
        "unsupported": link.counts.unsupported,
        "filling_by_file": in_stage(Stage::Filling),
        "filled_by_file": link.counts.filled_by_file,
        "filled_by_documents": link.counts.filled_by_documents,
        "file_bytes": link.file_bytes,
        "files_refused": link.files_refused,
        "file_refused": link.file_refused,
        "connections": link.connections,
        "violations": link.violations,
        "last_error": link.last_error,
        "trouble": trouble.map(|(vb, trouble)| format!("vBucket {vb}: {trouble}")),
    });
    if detail {
        out["each"] = link.vbuckets.iter().map(each).collect();
    }
    out
}

fn each(progress: &VbProgress) -> Value {
    json!({
        "vbucket": progress.vb.0,
        "mode": match progress.mode {
            Mode::Replicate => "replicate",
            Mode::TakeOver => "takeover",
        },
        "stage": progress.stage.name(),
        "high_seqno": progress.high.0,
        "source_high_seqno": progress.source_high.map(|high| high.0),
        "lag": lag_of(progress),
        "trouble": progress.trouble.map(|trouble| trouble.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vbuckets_are_numbers_and_ranges() {
        assert_eq!(ranges("0-511,600"), Ok(vec![0..=511, 600..=600]));
        for wrong in ["", "a", "5-", "-5", "7-3", "1,,2", "70000"] {
            assert!(ranges(wrong).is_err(), "{wrong}");
        }
        assert_eq!(told([0, 1, 2, 5, 7, 8].map(VbId).into_iter()), "0-2,5,7-8");
    }

    #[test]
    fn a_declaration_names_each_vbucket_once() {
        let parse = |text: &str| sources(serde_json::from_str(text).expect("JSON of the right form"));
        let source = |vbuckets: &str, node: &str| {
            format!(r#"{{"node":"{node}","username":"u","password":"p","vbuckets":"{vbuckets}"}}"#)
        };
        let two = format!(r#"{{"sources":[{},{}]}}"#, source("0-3", "a:1"), source("3", "b:1"));
        assert_eq!(parse(&two), Err("vBucket 3 has two sources".to_owned()));
        let one = format!(r#"{{"sources":[{}]}}"#, source("0-3", "a:1"));
        assert_eq!(parse(&one).map(|all| all.len()), Ok(4));
        for node in ["a", ":1", "a:", "a:70000"] {
            let wrong = format!(r#"{{"sources":[{}]}}"#, source("0", node));
            assert!(parse(&wrong).is_err_and(|what| what.contains("HOST:PORT")), "{node}");
        }
    }
}
