//! What is told about a cluster: its document, who is alive, how far a rebalance is, and what somebody has to look at.

use std::collections::BTreeMap;

use ::cluster::damage::{self, Wrong};
use ::cluster::filling::{Filling, fillings};
use ::cluster::leader::{awaited, lacking, missed, settling};
use ::cluster::state::{AutoFailover, Outcome, Purpose, State as Document};
use ::cluster::{Command, Node, NodeId, Refused, Status, View, command};
use ::node::cluster::links_down::links_down as links_down_here;
use ::node::cluster::serving::{of_failed_over, still_joining};
use ::node::form::escaped;
use ::node::replication::{LONG, LinkDown};
use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::cluster_order::otp_name;
use super::manage::not_now;
use super::shared::{Shared, view_of};

/// How far the copies of a bucket are that a node fills.
fn of_filling(filling: &Filling) -> String {
    let Filling { bucket, node, vbuckets, has, of } = filling;
    let percent = if *of == 0 { 100 } else { u128::from(*has) * 100 / u128::from(*of) };
    format!("{node} fills {vbuckets} vBuckets of bucket {bucket}: it has {has} of {of} changes ({percent} %)")
}

/// What is told of a node that was failed over by force and may still serve.
fn of_awaited(bucket: &str, id: NodeId, vbuckets: usize) -> String {
    format!(
        "bucket {bucket}: {vbuckets} vBuckets of which no other node has a copy wait until {id}, which was failed over, \
         surely serves them no more: most of the other nodes have to say that they promise it nothing; if {id} has \
         stopped for certain, say so (stave cluster failover {id} --unsafe --stopped)"
    )
}

/// What is told of a node that does not answer and without which vBuckets are not served.
fn of_missed(bucket: &str, id: NodeId, vbuckets: usize) -> String {
    format!(
        "bucket {bucket}: nothing serves {vbuckets} vBuckets until {id} answers, which may be alone with durable writes of \
         them: start it; if it is gone for good, give up what it alone has (stave cluster failover {id} --unsafe)"
    )
}

/// What is told of a node that answers, has lost its copies, and may have been alone with durable writes of them.
fn of_lacking(bucket: &str, id: NodeId, vbuckets: usize) -> String {
    format!(
        "bucket {bucket}: nothing serves {vbuckets} vBuckets: {id} may have been alone with durable writes of them, and says \
         that it has no copy; stop it and put its files back from a copy of its data directory, or give up what it alone had \
         (stave cluster failover {id} --unsafe)"
    )
}

/// vBuckets that are not served because this node has lost its copies of them, a line for each bucket.
pub(super) fn lacks(shared: &Shared) -> Vec<String> {
    let Some((cluster, view)) = view_of(shared) else { return Vec::new() };
    let Some((this, _)) = view.state.node_of(cluster.uuid()) else { return Vec::new() };
    let of_this = lacking(&view).into_iter().filter(|((_, id), _)| *id == this);
    of_this.map(|((bucket, id), count)| of_lacking(bucket, id, count)).collect()
}

/// What is told of a node that was started again and has not caught up.
fn of_settling(bucket: &str, id: NodeId, vbuckets: usize) -> String {
    format!(
        "bucket {bucket}: {vbuckets} vBuckets of {id} are not known to have everything since it was started: wait before \
         another node is stopped, which may be alone with durable writes"
    )
}

/// vBuckets in which this node has not caught up since it was started, a line for each bucket.
pub(super) fn settles(shared: &Shared) -> Vec<String> {
    let Some((cluster, view)) = view_of(shared) else { return Vec::new() };
    let Some((this, _)) = view.state.node_of(cluster.uuid()) else { return Vec::new() };
    let of_this = settling(&view).into_iter().filter(|((_, id), _)| *id == this);
    of_this.map(|((bucket, id), count)| of_settling(bucket, id, count)).collect()
}

/// What is told of a link that has been down for long.
fn of_link_down(bucket: &str, id: NodeId, source: NodeId, why: &str) -> String {
    format!(
        "bucket {bucket}: {id} has had no connection to {source} for more than {} s, and its copies miss what changes there: \
         {why}",
        LONG.as_secs()
    )
}

/// Links of all nodes that have been down for long, as the nodes report them.
fn links_down(view: &View) -> Vec<String> {
    let all = view.state.nodes.keys().filter_map(|id| Some((*id, &view.report(*id)?.links_down)));
    let is_there = |source: &NodeId| view.alive(*source).is_some();
    let of_node = |(id, of): (NodeId, &BTreeMap<String, BTreeMap<NodeId, String>>)| {
        let each =
            of.iter().flat_map(|(bucket, of)| of.iter().map(move |(source, why)| (bucket, source, why)));
        let each = each.filter(|(_, source, _)| is_there(source));
        each.map(|(bucket, source, why)| of_link_down(bucket, id, *source, why)).collect::<Vec<_>>()
    };
    all.flat_map(of_node).collect()
}

/// Links of this node that have been down for long.
pub(super) fn own_links_down(shared: &Shared) -> Vec<String> {
    let Some((cluster, view)) = view_of(shared) else {
        // Replication that was declared by hand: the address of the source is not for everybody.
        let down = shared.node.replication().long_down().into_iter();
        let of = |down: LinkDown| {
            format!(
                "bucket {}: a link to a node that it follows has been down for more than {} s: the log of the node says \
                 why",
                down.bucket,
                LONG.as_secs()
            )
        };
        return down.map(of).collect();
    };
    let Some((this, _)) = view.state.node_of(cluster.uuid()) else { return Vec::new() };
    let down = links_down_here(&shared.node, &view);
    let each = down.iter().flat_map(|(bucket, of)| of.iter().map(move |(source, why)| (bucket, source, why)));
    each.map(|(bucket, source, why)| of_link_down(bucket, this, *source, for_everybody(why))).collect()
}

/// Reasons other than those of TLS may name users.
fn for_everybody(why: &str) -> &str {
    if why.starts_with("TLS: ") { why } else { "the log of the node says why" }
}

/// This many vBuckets are named in one note.
const NAMED: usize = 8;

/// How much of a rebalance is done, from 0 to 1.
fn progress(document: &Document) -> Option<f64> {
    let rebalance = document.rebalance.as_ref()?;
    let left = document.to_move() as f64;
    Some(if rebalance.total == 0 { 1.0 } else { (1.0 - left / f64::from(rebalance.total)).clamp(0.0, 1.0) })
}

/// How much of what a node takes part in is done: what is to come, and what is there.
fn progress_of(document: &Document, id: NodeId) -> f64 {
    let (mut total, mut left) = (0_u32, 0_u32);
    for bucket in document.buckets.values() {
        for (chain, target) in bucket.map.iter().zip(&bucket.target) {
            let shall = target.contains(&Some(id));
            total += u32::from(shall);
            left += u32::from(shall && chain != target);
        }
    }
    if total == 0 { 1.0 } else { 1.0 - f64::from(left) / f64::from(total) }
}

/// `GET /pools/default/rebalanceProgress`
pub(super) async fn rebalance_progress(State(shared): State<Shared>) -> Json<Value> {
    let view = view_of(&shared).map(|(_, view)| view).filter(|view| view.state.rebalance.is_some());
    let Some(view) = view else { return Json(json!({ "status": "none" })) };
    let mut json = json!({ "status": "running" });
    for id in view.state.nodes.keys().filter(|id| view.state.is_active(**id)) {
        json[otp_name(&view.state, *id)] = json!({ "progress": progress_of(&view.state, *id) });
    }
    Json(json)
}

/// `GET /pools/default/tasks`: the rebalance first, then compactions on this node.
pub(super) async fn tasks(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
) -> Json<Value> {
    let view = view_of(&shared).map(|(_, view)| view);
    let buckets = shared.node.buckets();
    let visible = buckets.iter().filter(|(spec, _)| user.may_select(&spec.name));
    let compactions = visible.filter_map(|(spec, bucket)| {
        let stats = bucket.compaction().compaction_stats();
        compaction(&spec.name, bucket.vbuckets(), stats.waiting + stats.under_way)
    });
    let rebalance = task(view.as_ref().map(|view| &view.state));
    Json(std::iter::once(rebalance).chain(compactions).collect())
}

/// A bucket of which so many vBuckets are still to be compacted; `None` if there are none.
fn compaction(bucket: &str, vbuckets: u16, left: u64) -> Option<Value> {
    let progress = (1.0 - left as f64 / f64::from(vbuckets.max(1))).max(0.0) * 100.0;
    (left > 0).then(|| {
        json!({
            "type": "bucket_compaction", "bucket": bucket, "status": "running", "recommendedRefreshPeriod": 2.0,
            "progress": progress.floor(), "vbucketsLeft": left,
            "cancelURI": format!("/pools/default/buckets/{}/controller/cancelBucketCompaction", escaped(bucket)),
        })
    })
}

/// The rebalance that runs, or how the last one ended.
fn task(document: Option<&Document>) -> Value {
    let running = document.and_then(|document| Some((document, document.rebalance.as_ref()?)));
    let Some((document, rebalance)) = running else {
        let finished = document.and_then(|document| document.finished.as_ref());
        let mut task = json!({
            "type": "rebalance", "status": "notRunning", "statusIsStale": false, "masterRequestTimedOut": false,
        });
        if finished.is_some_and(|finished| finished.outcome == Outcome::Interrupted) {
            task["errorMessage"] = json!("Rebalance failed: a node was failed over meanwhile");
        }
        if let Some(why) = finished.and_then(|finished| finished.why.as_ref()) {
            task["errorMessage"] = json!(format!("Rebalance failed: {why}"));
        }
        if let Some(finished) = finished {
            task["lastReportId"] = json!(finished.id.to_string());
        }
        return task;
    };
    let kind = match rebalance.purpose {
        Purpose::GracefulFailover { .. } => "gracefulFailover",
        Purpose::Rebalance { .. } | Purpose::Repair => "rebalance",
    };
    let percent = |share: f64| share * 100.0;
    let per_node: serde_json::Map<String, Value> = document
        .nodes
        .keys()
        .filter(|id| document.is_active(**id))
        .map(|id| (otp_name(document, *id), json!({ "progress": percent(progress_of(document, *id)) })))
        .collect();
    json!({
        "type": "rebalance", "subtype": kind, "status": "running", "statusIsStale": false,
        "masterRequestTimedOut": false, "recommendedRefreshPeriod": 0.25, "rebalanceId": rebalance.id.to_string(),
        "progress": percent(progress(document).unwrap_or(0.0)), "perNode": per_node,
    })
}

/// What keeps a node from being failed over by itself, or when that happens.
fn of_absent(view: &View, id: NodeId) -> String {
    let rules: &AutoFailover = &view.state.auto_failover;
    let refused = command::apply(view, &Command::FailOver { node: id, force: false });
    let active = view.state.nodes.iter().filter(|(_, node)| node.status == Status::Active);
    let (up, down): (Vec<_>, Vec<_>) = active.partition(|(id, _)| view.alive(**id).is_some());
    match refused {
        Err(why) => format!("{id} is down and cannot be failed over without loss: {why}"),
        Ok(_) if !rules.enabled => {
            format!("{id} is down; nodes are not failed over by themselves: stave cluster failover {id}")
        }
        Ok(_) if down.len() >= up.len() => {
            format!(
                "{id} is down, and no more than half of the nodes are up: none is failed over by itself: \
                 stave cluster failover {id}"
            )
        }
        Ok(_) if rules.count >= rules.max_count => format!(
            "{id} is down; {} of at most {} nodes were failed over without anybody asking since the last rebalance: \
             stave cluster failover {id}",
            rules.count, rules.max_count
        ),
        Ok(_) => {
            format!("{id} is down; {} s after its lease ran out it is failed over", rules.timeout_ms / 1_000)
        }
    }
}

/// What is told of damaged copies.
fn of_damage(wrong: &Wrong) -> Vec<String> {
    let Wrong { bucket, node, down, damaged, lost, at_risk } = wrong;
    let what = if *down { "the bucket is down".to_owned() } else { copies(damaged) };
    let mut notes = vec![format!("damage on {node}, bucket {bucket}: {what}; the log of that node says why")];
    if !lost.is_empty() {
        notes.push(format!(
            "bucket {bucket}: nothing serves {}, and no other copy surely has all of it: put the files of {node} back from a backup \
             and start it again, or give up what they held (stave cluster give-up-damaged {bucket} --unsafe)",
            list(lost)
        ));
    }
    if !at_risk.is_empty() {
        notes.push(format!(
            "bucket {bucket}: {node} serves {} from what can be read of damaged files, and no other copy surely has all \
             of it: add replicas and rebalance, or give up what only the damaged files hold (stave cluster \
             give-up-damaged {bucket} --unsafe)",
            list(at_risk)
        ));
    }
    notes
}

fn copies(vbuckets: &[u16]) -> String {
    let (are, copies) = if vbuckets.len() == 1 { ("is", "the copy") } else { ("are", "the copies") };
    format!("{copies} of {} {are} damaged", list(vbuckets))
}

/// vBuckets in words: the first of them, and how many more.
fn list(vbuckets: &[u16]) -> String {
    let first: Vec<String> = vbuckets.iter().take(NAMED).map(u16::to_string).collect();
    let more = vbuckets.len() - first.len();
    let word = if vbuckets.len() == 1 { "vBucket" } else { "vBuckets" };
    let and_more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{word} {}{and_more}", first.join(", "))
}

/// No rebalance helps against this.
fn too_few_nodes(bucket: &str, replicas: u8, active: usize) -> String {
    let plural = if replicas == 1 { "" } else { "s" };
    let there = if active == 1 { "there is" } else { "there are" };
    let needed = usize::from(replicas) + 1;
    format!(
        "bucket {bucket} needs {needed} nodes for {replicas} replica{plural}, {there} {active} active: it has fewer \
         copies than it should"
    )
}

/// What to do about a node that was failed over.
fn of_one_failed_over(view: &View, id: NodeId, node: &Node) -> String {
    if view.alive(id).is_some() {
        return of_failed_over(id);
    }
    let at = node.address.http();
    let has_its_place = |(other, of): &(&NodeId, &Node)| {
        **other != id && of.address.http() == at && view.alive(**other).is_some()
    };
    match view.state.nodes.iter().find(has_its_place) {
        Some((other, _)) => {
            format!(
                "{id} was failed over, and {other} is at its address now: it leaves with the next rebalance"
            )
        }
        None => format!(
            "{id} was failed over and is down: start it and take it back (stave cluster add {id}), or let it leave with the \
             next rebalance"
        ),
    }
}

/// What a rebalance would mend of a bucket, unless one runs.
fn of_few_copies(state: &Document, bucket: &str) -> Option<String> {
    let few = state.buckets.get(bucket).map_or(0, |bucket| state.with_few_copies(bucket));
    (few > 0 && state.rebalance.is_none()).then(|| {
        format!(
            "{few} vBuckets of bucket {bucket} have fewer copies than they should: stave cluster rebalance"
        )
    })
}

/// vBuckets that the document gives to no node, and that are not being looked for.
fn of_lost(state: &Document, bucket: &str) -> Option<String> {
    let of = state.buckets.get(bucket)?;
    let is_lost = |vb: &u16| of.has_no_copy(*vb) && !of.steps.contains_key(vb);
    let lost = of.vbuckets().filter(is_lost).count();
    let failed = state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    let failed: Vec<NodeId> = failed.map(|(id, _)| *id).collect();
    let named = |before: &str| failed.iter().map(|id| format!("{before}{id}")).collect::<Vec<_>>();
    let what = match failed.first() {
        None => "they begin empty with the next rebalance: stave cluster rebalance".to_owned(),
        Some(first) => format!(
            "{} may have kept them: start each of them, take it back (stave cluster add {first}), and rebalance then; or \
             give up their documents: stave cluster rebalance{}",
            named("").join(", "),
            named(" --eject ").concat()
        ),
    };
    (lost > 0).then(|| format!("bucket {bucket}: nothing serves {lost} vBuckets, of which no node that is there has a copy: {what}"))
}

/// What is wrong with the cluster as a whole: a coordination store that does not answer, vBuckets that no node serves, nodes
/// that were failed over, and vBuckets with too few copies, whose documents are lost with the next node that is lost.
pub(super) fn misses(shared: &Shared) -> Vec<String> {
    let Some((cluster, view)) = view_of(shared) else { return Vec::new() };
    // This address asks for no password.
    let lost = cluster.lost_for_all();
    let unserved = view.state.buckets.iter().filter_map(|(name, bucket)| {
        let unserved = view.unserved(bucket);
        (unserved > 0).then(|| {
            let all = bucket.map.len();
            format!(
                "bucket {name}: nothing serves {unserved} of {all} vBuckets: stave cluster status says why"
            )
        })
    });
    let failed_over = view.state.nodes.iter().filter(|(_, node)| node.status == Status::FailedOver);
    let nodes = failed_over.map(|(id, node)| of_one_failed_over(&view, *id, node));
    let few = view.state.buckets.keys().filter_map(|name| of_few_copies(&view.state, name));
    lost.into_iter().chain(unserved).chain(nodes).chain(few).collect()
}

/// What somebody should know, or has to do.
fn notes(view: &View) -> Vec<String> {
    let state = &view.state;
    let mut notes = Vec::new();
    for (id, node) in &state.nodes {
        match node.status {
            Status::Active if view.alive(*id).is_none() => notes.push(of_absent(view, *id)),
            Status::New | Status::DeltaRecovery | Status::FullRecovery if view.alive(*id).is_none() => {
                notes.push(match command::apply(view, &Command::Eject { node: *id }) {
                    Err(refused @ Refused::WouldBeEmpty { .. }) => format!("{id} is down: {refused}"),
                    _ => format!(
                        "{id} is down, and without it there is no rebalance: start it, or let it leave (stave cluster \
                         remove {id})"
                    ),
                });
            }
            Status::New | Status::DeltaRecovery | Status::FullRecovery if state.rebalance.is_none() => {
                notes.push(format!("{id} has its share after the next rebalance: stave cluster rebalance"));
            }
            Status::FailedOver => notes.push(of_one_failed_over(view, *id, node)),
            _ => {}
        }
    }
    let active = state.nodes.keys().filter(|id| state.is_active(**id)).count();
    for (name, bucket) in &state.buckets {
        let needed = usize::from(bucket.replicas) + 1;
        if active < needed {
            notes.push(too_few_nodes(name, bucket.replicas, active));
        }
        notes.extend(of_lost(state, name));
        notes.extend(of_few_copies(state, name));
        if bucket.flushing.is_some() {
            notes.push(format!("all documents of bucket {name} are being removed"));
        }
    }
    notes.extend(fillings(view).iter().map(of_filling));
    notes.extend(awaited(view).into_iter().map(|((bucket, id), count)| of_awaited(bucket, id, count)));
    notes.extend(missed(view).into_iter().map(|((bucket, id), count)| of_missed(bucket, id, count)));
    notes.extend(settling(view).into_iter().map(|((bucket, id), count)| of_settling(bucket, id, count)));
    notes.extend(lacking(view).into_iter().map(|((bucket, id), count)| of_lacking(bucket, id, count)));
    notes.extend(damage::wrongs(view).iter().flat_map(of_damage));
    notes.extend(links_down(view));
    for (uuid, member) in &view.members {
        if state.node_of(uuid).is_none() {
            let address = member.address.http();
            notes.push(format!(
                "a node at {address} is there and belongs to the cluster no more: stave cluster add {address}"
            ));
        }
    }
    notes
}

/// `GET /v1/cluster`: the document as it is, who is alive, and what somebody has to look at.
pub(super) async fn show(State(shared): State<Shared>) -> Response {
    if let Some(why) = still_joining(&shared.node) {
        return not_now(why);
    }
    let Some(cluster) = shared.node.cluster() else {
        let errors = json!({ "errors": { "_": "this node belongs to no cluster; start it with --join" } });
        return (StatusCode::BAD_REQUEST, Json(errors)).into_response();
    };
    let (lost, outside) = (cluster.lost(), cluster.outside());
    let Some(view) = cluster.view() else {
        let why =
            lost.or(outside).unwrap_or_else(|| "this node has not read the cluster's state yet".to_owned());
        let errors = json!({ "errors": { "_": why } });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(errors)).into_response();
    };
    let mut notes = notes(&view);
    if let Some(why) = &lost {
        let serves = match cluster.is_promised() {
            true => "; it serves, since the other nodes promise not to take over",
            false => "",
        };
        notes.insert(0, format!("this node does not know how things are now: {why}{serves}"));
    }
    notes.extend(outside);
    let alive: Vec<NodeId> =
        view.state.nodes.keys().copied().filter(|id| view.alive(*id).is_some()).collect();
    let this = view.state.node_of(cluster.uuid()).map(|(id, _)| id);
    let now_ns = shared.node.env().clock.monotonic_ns();
    Json(json!({
        "this": this, "alive": alive, "progress": progress(&view.state), "state": view.state, "notes": notes,
        "damage": damage::wrongs(&view), "filling": fillings(&view),
        "serves": shared.node.fence().may_serve(now_ns), "isStale": lost.is_some(),
        "isPromised": cluster.is_promised(),
    }))
    .into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ::cluster::state::Address;
    use ::cluster::store::Version;
    use ::cluster::{Member, Report};

    use super::*;

    #[test]
    fn a_compaction_is_a_task_until_no_vbucket_waits() {
        assert_eq!(compaction("a", 64, 0), None);
        let told = compaction("a b", 64, 16).expect("some wait");
        assert_eq!((&told["type"], &told["status"]), (&json!("bucket_compaction"), &json!("running")));
        assert_eq!((&told["progress"], &told["vbucketsLeft"]), (&json!(75.0), &json!(16)));
        assert_eq!(told["cancelURI"], "/pools/default/buckets/a%20b/controller/cancelBucketCompaction");
    }

    /// Two nodes with a bucket, of which those in `alive` are there.
    fn view(alive: &[&str]) -> View {
        let address = |at: u16| Address::new("h".to_owned(), at, at + 1);
        let mut view = View {
            state: command::found("a", &address(1), 1),
            version: Version(1),
            members: BTreeMap::new(),
            reports: BTreeMap::new(),
        };
        let member = |at: u16| Member {
            incarnation: 1,
            address: address(at),
            limits: None,
            reads: 2,
            node_login: true,
            timed_proofs: true,
            moves_stores: true,
        };
        for (uuid, at) in [("a", 1), ("b", 3)] {
            view.members.insert(uuid.to_owned(), member(at));
            view.reports
                .insert(uuid.to_owned(), Report { incarnation: 1, applied: u64::MAX, ..Report::default() });
        }
        let mut ask = |command: Command| view.state = command::apply(&view, &command).expect("it is done");
        ask(Command::Join { uuid: "b".to_owned(), address: address(3), incarnation: 1 });
        ask(Command::Rebalance { eject: Vec::new() });
        view.state.rebalance = None;
        let mut ask = |command: Command| view.state = command::apply(&view, &command).expect("it is done");
        ask(Command::CreateBucket {
            name: "default".to_owned(),
            uuid: "u".to_owned(),
            settings: json!({}),
            replicas: 1,
            vbuckets: 4,
            manifest: json!({ "uid": "0" }),
        });
        view.members.retain(|uuid, _| alive.contains(&uuid.as_str()));
        view
    }

    #[test]
    fn somebody_who_is_down_is_told_of() {
        assert_eq!(notes(&view(&["a", "b"])), Vec::<String>::new());
        let told = notes(&view(&["a"]));
        assert!(told.len() == 1 && told[0].starts_with("n_2 is down"), "{told:?}");
    }

    #[test]
    fn one_that_was_failed_over_is_taken_back_if_it_is_there() {
        let mut view = view(&["a", "b"]);
        view.state =
            command::apply(&view, &Command::FailOver { node: NodeId(2), force: true }).expect("it is done");
        let note = |view: &View| {
            notes(view).into_iter().find(|note| note.starts_with("n_2 was failed over")).expect("a note")
        };
        assert!(note(&view).starts_with("n_2 was failed over: take it back"), "{}", note(&view));
        let member = view.members.remove("b").expect("it was there");
        assert!(note(&view).contains("is down: start it and take it back"), "{}", note(&view));
        // Another one at its address, with a folder of its own.
        let join = Command::Join { uuid: "c".to_owned(), address: member.address.clone(), incarnation: 1 };
        view.state = command::apply(&view, &join).expect("it joins");
        view.members.insert("c".to_owned(), member);
        assert!(note(&view).contains("n_3 is at its address now"), "{}", note(&view));
    }

    #[test]
    fn damaged_copies_are_told_of() {
        let mut view = view(&["a", "b"]);
        let report = view.reports.get_mut("a").expect("it reports");
        report.note_damaged("default", ::cluster::Damaged::of([1, 2]));
        let told = notes(&view);
        assert!(
            told[0].starts_with("damage on n_1, bucket default: the copies of vBuckets 1, 2 are"),
            "{told:?}"
        );
        assert_eq!(told.len(), 1, "n_2 has copies: {told:?}");
        view.members.remove("b");
        let told = notes(&view);
        assert!(told.iter().any(|note| note.contains("no other copy surely has all of it")), "{told:?}");
    }

    #[test]
    fn how_far_copies_are_is_told() {
        let filling = Filling { bucket: "b".to_owned(), node: NodeId(2), vbuckets: 7, has: 5, of: 15 };
        assert_eq!(of_filling(&filling), "n_2 fills 7 vBuckets of bucket b: it has 5 of 15 changes (33 %)");
        let nothing = Filling { has: 0, of: 0, ..filling };
        assert!(of_filling(&nothing).ends_with("(100 %)"));
    }

    #[test]
    fn replicas_that_have_no_node_are_told_of() {
        let mut view = view(&["a", "b"]);
        view.state =
            command::apply(&view, &Command::FailOver { node: NodeId(2), force: true }).expect("it is done");
        let wanted = "bucket default needs 2 nodes for 1 replica, there is 1 active";
        let told = notes(&view);
        assert!(told.iter().any(|note| note.starts_with(wanted)), "{told:?}");
    }

    #[test]
    fn who_is_waited_for_before_last_copies_are_given_up_is_told() {
        let mut view = view(&["b"]);
        let bucket = view.state.buckets.get_mut("default").expect("it is there");
        bucket.map = vec![vec![Some(NodeId(1)), None]; 4];
        view.state =
            command::apply(&view, &Command::FailOver { node: NodeId(1), force: true }).expect("it is done");
        view.reports.clear();
        let told = notes(&view);
        let wanted = "bucket default: 4 vBuckets of which no other node has a copy wait until n_1";
        assert!(told.iter().any(|note| note.starts_with(wanted)), "{told:?}");
        view.state = command::apply(&view, &Command::HasStopped { node: NodeId(1) }).expect("it is done");
        let told = notes(&view);
        assert!(!told.iter().any(|note| note.starts_with(wanted)), "an administrator has said it: {told:?}");
    }

    #[test]
    fn a_new_node_that_is_down_keeps_others_from_a_rebalance() {
        let mut view = view(&["a", "b"]);
        let address = Address::new("h".to_owned(), 5, 6);
        let join = Command::Join { uuid: "c".to_owned(), address, incarnation: 1 };
        view.state = command::apply(&view, &join).expect("it joins");
        let told = notes(&view);
        assert!(told.len() == 1 && told[0].contains("stave cluster remove n_3"), "{told:?}");
        let refused = command::apply(&view, &Command::Rebalance { eject: Vec::new() });
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.contains("stave cluster remove n_3"), "{refused}");
    }

    #[test]
    fn nobody_leaves_who_is_not_named() {
        let mut view = view(&["a", "b"]);
        view.state =
            command::apply(&view, &Command::FailOver { node: NodeId(2), force: true }).expect("it is done");
        view.state.buckets.clear();
        let leave = |eject: &[u32]| {
            let eject = eject.iter().copied().map(NodeId).collect();
            command::apply(&view, &Command::Rebalance { eject })
        };
        let refused = leave(&[1]).expect_err("it is refused").to_string();
        assert!(refused.starts_with("n_2 is failed over, too, and would leave: name it, too"), "{refused}");
        for named in [&[2][..], &[]] {
            let purpose = leave(named).expect("it begins").rebalance.expect("it runs").purpose;
            assert_eq!(purpose, Purpose::Rebalance { eject: vec![NodeId(2)] }, "{named:?}");
        }
    }

    #[test]
    fn a_node_that_is_down_hands_nothing_over() {
        let refused = command::apply(&view(&["a"]), &Command::FailOverGracefully { node: NodeId(2) });
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.starts_with("n_2 is down") && refused.contains("without --graceful"), "{refused}");
    }

    #[test]
    fn a_rebalance_is_a_task() {
        let mut view = view(&["a", "b"]);
        assert_eq!(task(Some(&view.state))["status"], "notRunning");
        view.state =
            command::apply(&view, &Command::Rebalance { eject: vec![NodeId(2)] }).expect("it begins");
        let told = task(Some(&view.state));
        assert_eq!((&told["status"], &told["subtype"]), (&json!("running"), &json!("rebalance")));
        assert_eq!(told["progress"], json!(0.0));
        assert!(told["perNode"]["n_1@h"]["progress"].is_number(), "{told}");
    }
}
