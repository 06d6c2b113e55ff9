//! `/pools/default/stats/range`: figures of the last hour, of all nodes, under the names of `/metrics`.
//!
//! The node that is asked asks the others once for each request over HTTP, leaves out what its user may not see, and applies
//! the functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::node::Node;
use ::node::privilege::Privilege;
use ::node::stats::history::Series;
use ::node::stats::over_time::{Together, apply};
use ::node::user::User;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::acting::{Refused, refused};
use super::basic_auth::Caller;
use super::metrics::too_many_wait;
use super::nodes;
use super::query::Query;
use super::range_request::{Across, MOST_PATTERNS, RangeRequest, of_json, of_query};
use super::rights::lacks;
use super::sample_requests::ask_node;
use super::shared::{Shared, view_of};

/// Where a node tells its own figures to other nodes: names with commas between them, then from when on.
pub(super) const PATH: &str = "/v1/series/{names}/{since}";
/// More than this is no answer of ours.
const MOST_ANSWER_BYTES: usize = 8 << 20;
/// Requests in one over HTTP.
const MOST_REQUESTS: usize = 100;
/// Bytes of these together: what is read of them takes a hundred times as much.
const MOST_LIST_BYTES: usize = 256 << 10;
/// Values in one answer over HTTP: 9 figures at as many times as one request may have.
const MOST_VALUES: u64 = 100_000;

/// `GET /pools/default/stats/range/METRIC`
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Response {
    one(&shared, &user, &headers, &name, "", fields).await.unwrap_or_else(|refused| *refused)
}

/// `GET /pools/default/stats/range/METRIC/FUNCTION/FUNCTION`
pub(super) async fn show_function(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
    Path((name, functions)): Path<(String, String)>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Response {
    one(&shared, &user, &headers, &name, &functions, fields).await.unwrap_or_else(|refused| *refused)
}

async fn one(
    shared: &Shared,
    user: &Arc<User>,
    headers: &HeaderMap,
    name: &str,
    functions: &str,
    fields: Vec<(String, String)>,
) -> Result<Response, Refused> {
    require_some(shared, user)?;
    let now_s = now_s(shared);
    let wanted = of_query(name, functions, fields, now_s).map_err(|(code, why)| refused(code, &why))?;
    answer(shared, user, headers, (vec![wanted], now_s), |told| to_json(&told.first())).await
}

fn to_json(told: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(told).unwrap_or_default()
}

/// `POST /pools/default/stats/range`: a list of requests.
pub(super) async fn show_several(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    several(&shared, &user, &headers, &body).await.unwrap_or_else(|refused| *refused)
}

async fn several(
    shared: &Shared,
    user: &Arc<User>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Refused> {
    require_some(shared, user)?;
    let wrong = |why: String| refused(StatusCode::BAD_REQUEST, &why);
    if body.len() > MOST_LIST_BYTES {
        let why = format!(
            "a list of requests has at most {MOST_LIST_BYTES} bytes, and this one has {}",
            body.len()
        );
        return Err(wrong(why));
    }
    let list: Vec<Value> = serde_json::from_slice(body)
        .map_err(|error| wrong(format!("the body is no JSON list of requests: {error}")))?;
    if list.len() > MOST_REQUESTS {
        return Err(wrong(format!("{} requests are too many: send at most {MOST_REQUESTS}", list.len())));
    }
    let now_s = now_s(shared);
    let each = list.iter().enumerate();
    let wanted =
        each.map(|(at, one)| of_json(one, now_s).map_err(|why| wrong(format!("request {at}: {why}"))));
    answer(shared, user, headers, (read_all(wanted)?, now_s), |told| to_json(&told)).await
}

/// Reads requests one after the other, as long as they have few patterns together.
fn read_all(each: impl Iterator<Item = Result<RangeRequest, Refused>>) -> Result<Vec<RangeRequest>, Refused> {
    let (mut all, mut patterns) = (Vec::new(), 0);
    for one in each {
        let one = one?;
        patterns += one.patterns();
        if patterns > MOST_PATTERNS {
            let why = format!("metric: a list has at most {MOST_PATTERNS} patterns (=~ and !~)");
            return Err(refused(StatusCode::BAD_REQUEST, &why));
        }
        all.push(one);
    }
    Ok(all)
}

/// `GET /v1/series/NAMES/SINCE`: the figures of this node alone, for other nodes, which look at the user's rights.
pub(super) async fn tell(
    State(shared): State<Shared>,
    Path((names, since_s)): Path<(String, u64)>,
) -> Response {
    let told = elsewhere(&shared, move |shared| {
        let names: Vec<&str> = names.split(',').collect();
        to_json(&shared.kept.tell(&shared.node, &names, since_s))
    });
    told.await.map_or_else(too_many_wait, as_json)
}

/// Does something where it holds up nothing else over HTTP; nothing if too much waits there.
pub(super) async fn elsewhere<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&Shared) -> T + Send + 'static,
) -> Option<T> {
    let own = shared.clone();
    shared.node.lanes().overviews.begin(shared.node.env(), None, move || work(&own))?.await
}

fn as_json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn now_s(shared: &Shared) -> u64 {
    shared.node.env().clock.unix_ns() / 1_000_000_000
}

/// Whether a user may see the figures of a bucket.
fn sees(user: &User, bucket: &str) -> bool {
    user.may_select(bucket) && user.privileges_in(bucket).has(Privilege::SimpleStats)
}

/// Whether a user may see those of the node, which tell about all of its buckets.
pub(super) fn sees_node(node: &Node, user: &User) -> bool {
    user.privileges().has(Privilege::SimpleStats)
        || (!node.buckets().is_empty() && node.buckets().iter().all(|(spec, _)| sees(user, &spec.name)))
}

fn require_some(shared: &Shared, user: &User) -> Result<(), Refused> {
    let sees_some = shared.node.buckets().iter().any(|(spec, _)| sees(user, &spec.name));
    if sees_some || sees_node(&shared.node, user) {
        return Ok(());
    }
    Err(lacks(&[Privilege::SimpleStats], "*", None))
}

/// A node that is asked.
pub(super) struct Asked {
    /// As clients call it, `HOST:PORT`.
    pub(super) hostname: String,
    /// Name and endpoint for other nodes; `None` for this one.
    pub(super) elsewhere: Option<(String, String)>,
    /// Whether it seems to serve.
    pub(super) serves: bool,
}

/// The nodes of the cluster.
pub(super) fn all_nodes(shared: &Shared, headers: &HeaderMap) -> Vec<Asked> {
    let view = view_of(shared);
    let is_encrypted = shared.node.doors().peers.is_encrypted();
    let of = |told: Value| {
        let hostname = told["hostname"].as_str().unwrap_or_default().to_owned();
        let serves = told["status"] == "healthy" && told["clusterMembership"] == "active";
        if told["thisNode"] == true {
            return Some(Asked { hostname, elsewhere: None, serves });
        }
        let id = told["otpNode"].as_str()?.split('@').next()?;
        let (_, view) = view.as_ref()?;
        let (_, node) = view.state.nodes.iter().find(|(there, _)| there.name() == id)?;
        let elsewhere = (node.address.http(), node.address.http_by(is_encrypted));
        Some(Asked { hostname, elsewhere: Some(elsewhere), serves })
    };
    nodes::list(&shared.node, headers).into_iter().filter_map(of).collect()
}

impl Asked {
    pub(super) fn is_this(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Whether a request means it with this text: `HOST:PORT`, or the host alone.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.hostname == name || self.hostname.rsplit_once(':').is_some_and(|(host, _)| host == name)
    }
}

/// What each node has, or why it does not say it.
type Told = Vec<Result<Vec<Series>, String>>;

/// Asks the nodes, and makes the answer where it holds up nothing else over HTTP.
async fn answer(
    shared: &Shared,
    user: &Arc<User>,
    headers: &HeaderMap,
    (requests, now_s): (Vec<RangeRequest>, u64),
    write: impl FnOnce(&[Value]) -> Vec<u8> + Send + 'static,
) -> Result<Response, Refused> {
    let asked = all_nodes(shared, headers);
    let unknown = |name: &&String| !asked.iter().any(|node| node.is_called(name));
    if let Some(name) = requests.iter().flat_map(|wanted| &wanted.nodes).find(unknown) {
        let why = format!("nodes: the cluster has no node {name:?}: /pools/nodes lists those that it has");
        return Err(refused(StatusCode::BAD_REQUEST, &why));
    }
    let buckets = shared.node.buckets();
    let is_hidden = |name: &&str| !buckets.iter().any(|(spec, _)| spec.name == *name && sees(user, name));
    if let Some(name) = requests.iter().filter_map(RangeRequest::bucket).find(is_hidden) {
        let why = format!("bucket: there is no bucket {name:?}, or this user may not see its figures");
        return Err(refused(StatusCode::NOT_FOUND, &why));
    }
    let mut names: Vec<String> = requests.iter().map(|wanted| wanted.name.clone()).collect();
    names.retain(|name| shared.kept.has(name));
    names.sort_unstable();
    names.dedup();
    let since_s = requests.iter().map(RangeRequest::since_s).min().unwrap_or(0);
    let is_meant = |node: &Asked| requests.iter().any(|wanted| is_meant(wanted, node));
    let told = ask_others(shared, asked.iter().map(|node| (node, is_meant(node))), &names, since_s).await;
    let question = Question { requests, now_s, asked, told, names, since_s };
    let user = Arc::clone(user);
    match elsewhere(shared, move |shared| question.answer(shared, &user).map(|told| write(&told))).await {
        Some(Ok(body)) => Ok(as_json(body)),
        Some(Err(why)) => Err(refused(StatusCode::BAD_REQUEST, &why)),
        None => Err(Box::new(too_many_wait())),
    }
}

/// What was taken behind the moment of a request, or by a clock that is ahead, is told as of that moment.
fn none_to_come(series: &mut Series, now_s: u64) {
    series.values.iter_mut().for_each(|(at, _)| *at = now_s.min(*at));
}

/// What was asked, and what other nodes say to it.
struct Question {
    requests: Vec<RangeRequest>,
    /// When they came.
    now_s: u64,
    asked: Vec<Asked>,
    told: Told,
    names: Vec<String>,
    since_s: u64,
}

impl Question {
    /// The answers to all requests, or why there are too many values.
    fn answer(mut self, shared: &Shared, user: &User) -> Result<Vec<Value>, String> {
        let is_meant_at_all = |node: &Asked| self.requests.iter().any(|wanted| is_meant(wanted, node));
        if let Some(at) = self.asked.iter().position(|node| node.elsewhere.is_none() && is_meant_at_all(node))
        {
            let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
            if let Some(told) = self.told.get_mut(at) {
                *told = Ok(shared.kept.tell(&shared.node, &names, self.since_s));
            }
        }
        self.told.iter_mut().flatten().flatten().for_each(|series| none_to_come(series, self.now_s));
        let sees_node = sees_node(&shared.node, user);
        let may_see = |series: &Series| match series.labels.get("bucket") {
            Some(bucket) => sees(user, bucket),
            None => sees_node,
        };
        let values =
            self.requests.iter().map(|wanted| self.values(wanted, may_see)).fold(0, u64::saturating_add);
        if values > MOST_VALUES {
            return Err(format!(
                "step: these figures at these times are {values} values, more than {MOST_VALUES}: ask for less time, a longer step, or fewer figures"
            ));
        }
        let each = self.requests.iter();
        Ok(each.map(|wanted| describe(shared, wanted, &self.asked, &self.told, may_see)).collect())
    }

    /// How many values the answer to a request has, at most.
    fn values(&self, wanted: &RangeRequest, may_see: impl Fn(&Series) -> bool) -> u64 {
        let meant = self.asked.iter().zip(&self.told).filter(|(node, _)| is_meant(wanted, node));
        let all = meant.filter_map(|(_, told)| told.as_ref().ok()).flatten();
        let series = all.filter(|series| may_see(series) && wanted.wants(&series.labels)).count() as u64;
        series.saturating_mul(wanted.steps.count())
    }
}

fn is_meant(wanted: &RangeRequest, node: &Asked) -> bool {
    wanted.nodes.is_empty() || wanted.nodes.iter().any(|name| node.is_called(name))
}

/// Asks all other nodes that are meant at the same time.
async fn ask_others(
    shared: &Shared,
    asked: impl Iterator<Item = (&Asked, bool)>,
    names: &[String],
    since_s: u64,
) -> Told {
    let path = PATH.replace("{names}", &names.join(",")).replace("{since}", &since_s.to_string());
    let mut waiting = Vec::new();
    for (node, is_meant) in asked {
        let told = match &node.elsewhere {
            _ if !is_meant || names.is_empty() => Ok(Ok(Vec::new())),
            None => Ok(Ok(Vec::new())),
            Some((name, endpoint)) => {
                let (shared, path) = (shared.clone(), path.clone());
                let (name, endpoint) = (name.clone(), endpoint.clone());
                Err(tokio::spawn(async move { ask(&shared, name, endpoint, path).await }))
            }
        };
        waiting.push(told);
    }
    let mut told = Vec::new();
    for node in waiting {
        told.push(match node {
            Ok(told) => told,
            Err(asked) => asked.await.unwrap_or_else(|_| Err("it was not asked".to_owned())),
        });
    }
    told
}

async fn ask(shared: &Shared, name: String, endpoint: String, path: String) -> Result<Vec<Series>, String> {
    let answer =
        ask_node(shared, name, endpoint, path, MOST_ANSWER_BYTES, None).await.map_err(|(_, why)| why)?;
    let told = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200);
    told.ok_or_else(|| format!("it answers with status {}", answer.status))
}

/// The answer to one request.
fn describe(
    shared: &Shared,
    wanted: &RangeRequest,
    asked: &[Asked],
    told: &Told,
    may_see: impl Fn(&Series) -> bool,
) -> Value {
    let is_kept = shared.kept.has(&wanted.name);
    let mut errors: Vec<Value> = Vec::new();
    let mut of_nodes: Vec<(&str, Series)> = Vec::new();
    for (node, told) in asked.iter().zip(told).filter(|(node, _)| is_meant(wanted, node)) {
        let computed = match told {
            _ if !is_kept => Err(format!(
                "no figures of {:?} are kept over time: see /pools/default/stats/range in docs/reference/http.md",
                wanted.name
            )),
            Err(why) => Err(why.clone()),
            Ok(all) => {
                let all = all.iter().filter(|series| may_see(series) && wanted.wants(&series.labels));
                apply(all.cloned().collect(), &wanted.functions, wanted.window_s, wanted.steps)
                    .map_err(str::to_owned)
            }
        };
        match computed {
            Ok(all) => of_nodes.extend(all.into_iter().map(|series| (&node.hostname[..], series))),
            Err(why) => errors.push(json!({ "node": node.hostname, "error": why })),
        }
    }
    let data = match wanted.across {
        Across::Each => of_nodes.into_iter().map(|(node, series)| metric(&series, &[node])).collect(),
        Across::Together(together) => across(together, &of_nodes),
        Across::Percentile => {
            let why = "a percentile needs a histogram, and none is kept over time";
            errors.extend(asked.iter().map(|node| json!({ "node": node.hostname, "error": why })));
            Vec::new()
        }
    };
    json!({
        "data": data,
        "errors": errors,
        "startTimestamp": wanted.steps.start_s,
        "endTimestamp": wanted.steps.end_s,
    })
}

/// One figure of those of several nodes that have the same labels.
fn across(together: Together, of_nodes: &[(&str, Series)]) -> Vec<Value> {
    let mut by_labels: BTreeMap<&BTreeMap<String, String>, Vec<&(&str, Series)>> = BTreeMap::new();
    of_nodes.iter().for_each(|of| by_labels.entry(&of.1.labels).or_default().push(of));
    let combined = by_labels.into_iter().map(|(labels, all)| {
        let values = together.combine(all.iter().map(|(_, series)| &series.values[..]));
        let nodes: Vec<&str> = all.iter().map(|(node, _)| *node).collect();
        metric(&Series { labels: labels.clone(), values }, &nodes)
    });
    combined.collect()
}

fn metric(series: &Series, nodes: &[&str]) -> Value {
    let mut labels = json!(series.labels);
    labels["nodes"] = json!(nodes);
    let values: Vec<Value> = series.values.iter().map(|(at, value)| json!([at, value.to_string()])).collect();
    json!({ "metric": labels, "values": values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_have_the_same_figure_are_put_together() {
        let of = |bucket: &str, value: f64| Series {
            labels: [("name".to_owned(), "kv_ops".to_owned()), ("bucket".to_owned(), bucket.to_owned())]
                .into(),
            values: vec![(100, value)],
        };
        let of_nodes = [("a:1", of("x", 1.0)), ("a:1", of("y", 9.0)), ("b:1", of("x", 2.5))];
        let told = across(Together::Sum, &of_nodes);
        let metric =
            |bucket: &str, nodes: Value| json!({ "name": "kv_ops", "bucket": bucket, "nodes": nodes });
        assert_eq!(
            told,
            [
                json!({ "metric": metric("x", json!(["a:1", "b:1"])), "values": [[100, "3.5"]] }),
                json!({ "metric": metric("y", json!(["a:1"])), "values": [[100, "9"]] }),
            ]
        );
    }

    #[test]
    fn what_is_taken_while_a_request_is_answered_is_of_its_moment() {
        let mut series = Series { labels: BTreeMap::new(), values: vec![(90, 1.0), (100, 2.0), (101, 3.0)] };
        none_to_come(&mut series, 100);
        assert_eq!(series.values, [(90, 1.0), (100, 2.0), (100, 3.0)]);
    }

    #[test]
    fn a_node_is_called_by_its_address_or_its_host() {
        let node = Asked { hostname: "[::1]:8091".to_owned(), elsewhere: None, serves: true };
        assert!(node.is_called("[::1]:8091") && node.is_called("[::1]"));
        assert!(!node.is_called("::1:8092") && !node.is_called(""));
    }
}
