//! When nodes are failed over without anybody asking, in the field's form.

use ::cluster::Command;
use ::cluster::state::AutoFailover;
use ::node::bucket_form::Errors;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::cluster_order::{Form, Order, Wrong};
use super::shared::{Shared, view_of};

/// Fields of the form that can have one value here, and why: scripts send them with what they read elsewhere.
const FIXED: [(&str, bool, &str); 7] = [
    ("canAbortRebalance", true, "a rebalance does not keep a node from being failed over"),
    (
        "failoverPreserveDurabilityMajority",
        true,
        "no node is failed over by itself if durable writes could be lost",
    ),
    ("failoverOnDataDiskIssues[enabled]", false, NOT_FOR_DISKS),
    ("failoverOnDataDiskNonResponsiveness[enabled]", false, NOT_FOR_DISKS),
    ("failoverServerGroup", false, "there are no server groups"),
    (
        "allowFailoverEphemeralNoReplicas",
        false,
        "no node is failed over by itself if documents are lost by that",
    ),
    ("disableMaxCount", false, "give a large maxCount instead"),
];
const NOT_FOR_DISKS: &str =
    "a node is failed over when its lease has run out, and not for what its disk does";

/// `GET /settings/autoFailover`
pub(super) async fn show(State(shared): State<Shared>) -> Response {
    // A node that belongs to no cluster is never failed over; tools ask it all the same.
    let alone = AutoFailover { enabled: false, ..AutoFailover::default() };
    let rules = view_of(&shared).map_or(alone, |(_, view)| view.state.auto_failover);
    let json = json!({
        "enabled": rules.enabled, "timeout": rules.timeout_ms.div_ceil(1_000),
        "maxCount": rules.max_count, "count": rules.count,
    });
    Json(json).into_response()
}

/// `POST /settings/autoFailover`: `enabled`, `timeout` in seconds, `maxCount`; all are taken or none.
pub(super) async fn change(order: Order) -> Result<StatusCode, Wrong> {
    order.ask(|view, form| Ok(Command::SetAutoFailover(changed(view.state.auto_failover, form)?))).await
}

fn changed(now: AutoFailover, form: &Form) -> Result<AutoFailover, Wrong> {
    let (mut rules, mut errors) = (now, Errors::new());
    for (field, value) in form.fields() {
        let taken = match field {
            "enabled" => truth(value).map(|enabled| rules.enabled = enabled),
            "timeout" => number(value, 3_600).map(|seconds| rules.timeout_ms = u64::from(seconds) * 1_000),
            "maxCount" => number(value, 100).map(|count| rules.max_count = count),
            _ => fixed(field, value),
        };
        if let Err(what) = taken {
            errors.insert(field.to_owned(), what);
        }
    }
    if form.fields().next().is_none() {
        errors.insert("_".to_owned(), "give enabled, timeout or maxCount: nothing was changed".to_owned());
    }
    if errors.is_empty() { Ok(rules) } else { Err(Wrong::Fields(errors)) }
}

fn truth(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

fn number(value: &str, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("give a number from 1 to {most}"))
}

/// Whether a field says what is so anyway.
fn fixed(field: &str, value: &str) -> Result<(), String> {
    let Some((_, is, why)) = FIXED.iter().find(|(name, _, _)| *name == field) else {
        return Err("there is no such field".to_owned());
    };
    let says_so = truth(value)? == *is;
    if says_so { Ok(()) } else { Err(format!("it is {is} and cannot be changed: {why}")) }
}
