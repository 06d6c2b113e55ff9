//! `/pools/default/buckets/BUCKET/stats`: what monitoring agents read of a bucket, of all nodes together or of one of them,
//! now or over the last hour.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::node::form::escaped;
use ::node::stats::agent_fields::{FiguresByName, of_figures};
use ::node::stats::agent_rows::{AgentFigures, AgentSpan, Point};
use ::node::user::User;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use engine::{Bucket, BucketKind};
use serde_json::{Map, Value, json};

use super::acting::{Refused, refused};
use super::answers::{json_bytes, no_such_bucket};
use super::basic_auth::Caller;
use super::metrics::too_many_wait;
use super::query::Query;
use super::range::{Asked, all_nodes, elsewhere, sees_node};
use super::sample_requests::ask_node;
use super::settings::find;
use super::shared::Shared;

/// Where a node tells its own figures of a bucket to other nodes: the bucket's name follows, then how much time is meant.
pub(super) const PATH: &str = "/v1/agents/{bucket}/{span}";
/// More than this is no answer of ours.
const MOST_ANSWER_BYTES: usize = 4 << 20;
/// A point counts for so many steps after its time.
const STEPS: u64 = 3;

/// How much time is meant. Other parameters of the field, such as `resampleForUI`, change nothing.
#[derive(serde::Deserialize)]
pub(super) struct Zoomed {
    zoom: Option<String>,
    /// Only what is later, in milliseconds since 1970; but always the last figures.
    #[serde(rename = "haveTStamp")]
    later_than_ms: Option<u64>,
}

impl Zoomed {
    fn span(&self) -> Result<AgentSpan, Refused> {
        match self.zoom.as_deref() {
            None => Ok(AgentSpan::Now),
            Some("minute") => Ok(AgentSpan::Minute),
            // No more than the last hour is kept.
            Some("hour" | "day" | "week" | "month" | "year") => Ok(AgentSpan::Hour),
            Some(other) => {
                let why = format!("zoom: {other:?} is none: use minute, hour, day, week, month or year");
                Err(refused(StatusCode::BAD_REQUEST, &why))
            }
        }
    }
}

/// `GET /pools/default/buckets/BUCKET/stats?zoom=hour`: figures one after the other, the last ones those of now; rates in
/// each second. Without `zoom`, those of now alone.
pub(super) async fn stats(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(zoomed): Query<Zoomed>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        let bucket = find(&shared, &user, &name)?;
        let span = zoomed.span()?;
        let nodes = all_nodes(&shared, &headers).into_iter().filter(|node| node.is_this() || node.serves);
        let question = AgentQuestion { user, bucket, span, zoomed, hostname: None };
        question.answer(&shared, nodes.collect()).await
    };
    answer.await.unwrap_or_else(|refused: Refused| *refused)
}

/// `GET /pools/default/buckets/BUCKET/nodes/HOST:PORT/stats`: those of one node alone.
pub(super) async fn stats_of_node(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path((name, node)): Path<(String, String)>,
    Query(zoomed): Query<Zoomed>,
    headers: HeaderMap,
) -> Response {
    let answer = async {
        let bucket = find(&shared, &user, &name)?;
        let span = zoomed.span()?;
        let mut nodes = all_nodes(&shared, &headers);
        nodes.retain(|there| there.is_called(&node));
        let [one] = &nodes[..] else {
            let why = format!(
                "{} nodes of the cluster are called {node:?}: /pools/nodes lists those that it has, as HOST:PORT",
                nodes.len()
            );
            return Err(refused(StatusCode::NOT_FOUND, &why));
        };
        let hostname = Some(one.hostname.clone());
        AgentQuestion { user, bucket, span, zoomed, hostname }.answer(&shared, nodes).await
    };
    answer.await.unwrap_or_else(|refused: Refused| *refused)
}

/// `GET /v1/agents/BUCKET/SPAN`: those of this node alone, for other nodes, which have checked the user's rights.
pub(super) async fn tell(
    State(shared): State<Shared>,
    Path((bucket, span)): Path<(String, AgentSpan)>,
) -> Response {
    let Some(bucket) = shared.node.bucket(&bucket) else { return no_such_bucket() };
    let told = elsewhere(&shared, move |shared| {
        let told = shared.agent_rows.tell(&shared.node, &shared.kept, &bucket, span);
        serde_json::to_vec(&told).unwrap_or_default()
    });
    told.await.map_or_else(too_many_wait, json_bytes)
}

/// What is asked, by whom.
struct AgentQuestion {
    user: Arc<User>,
    bucket: Arc<Bucket>,
    span: AgentSpan,
    zoomed: Zoomed,
    /// The one node that is meant.
    hostname: Option<String>,
}

impl AgentQuestion {
    /// Asks the other nodes, and makes the answer where it holds up nothing else over HTTP.
    async fn answer(self, shared: &Shared, nodes: Vec<Asked>) -> Result<Response, Refused> {
        let asks_this = nodes.iter().any(Asked::is_this);
        let others = nodes.into_iter().filter_map(|node| node.elsewhere);
        let others = others.map(|(name, endpoint)| {
            let (shared, bucket, span) = (shared.clone(), self.bucket.name().to_owned(), self.span);
            tokio::spawn(async move { ask(&shared, name, endpoint, &bucket, span).await })
        });
        let others: Vec<_> = others.collect();
        let mut all = Vec::new();
        for other in others {
            match other.await.unwrap_or_else(|_| Err("it was not asked".to_owned())) {
                Ok(told) => all.push(told),
                Err(why) if self.hostname.is_some() => return Err(refused(StatusCode::BAD_GATEWAY, &why)),
                // The figures are those of nodes that answer.
                Err(why) => tracing::debug!(why, "a node does not tell its figures"),
            }
        }
        let body = elsewhere(shared, move |shared| {
            if asks_this {
                all.push(shared.agent_rows.tell(&shared.node, &shared.kept, &self.bucket, self.span));
            }
            serde_json::to_vec(&self.describe(shared, &all)).unwrap_or_default()
        });
        Ok(body.await.map_or_else(too_many_wait, json_bytes))
    }

    fn describe(&self, shared: &Shared, all: &[AgentFigures]) -> Value {
        let now_ms = shared.node.env().clock.unix_ns() / 1_000_000;
        let mut told = at_times(all, now_ms / 1_000, self.span);
        if let Some(later_than_ms) = self.zoomed.later_than_ms {
            told.retain(|(at_ms, _)| *at_ms > later_than_ms);
        }
        told.push((now_ms, all.iter().map(|of| (of, &of.now)).collect()));
        let hidden: Vec<&str> = if sees_node(&shared.node, &self.user) {
            Vec::new()
        } else {
            // They tell about buckets that the user may not see.
            shared.agent_rows.of_node().collect()
        };
        let times: Vec<u64> = told.iter().map(|(at_ms, _)| *at_ms).collect();
        let mut samples = Map::new();
        for (name, figures) in columns(&told, &hidden) {
            samples.insert(name, figures.into_iter().map(number).collect());
        }
        samples.insert("timestamp".to_owned(), json!(times));
        let (_, step_s) = self.span.seconds();
        let mut answer = json!({ "op": {
            "samples": samples,
            "samplesCount": times.len(),
            "isPersistent": self.bucket.config().kind == BucketKind::Persistent,
            "lastTStamp": times.last(),
            "interval": step_s * 1_000,
        } });
        if let Some(hostname) = &self.hostname {
            answer["hostname"] = json!(hostname);
        }
        answer
    }
}

/// What nodes have at a time, with the names of that.
type AtTime<'a> = (u64, Vec<(&'a AgentFigures, &'a Point)>);

/// What the nodes had at each time before now at which one had something; in milliseconds.
fn at_times(all: &[AgentFigures], now_s: u64, span: AgentSpan) -> Vec<AtTime<'_>> {
    let (seconds, step_s) = span.seconds();
    let end_s = now_s - now_s % step_s;
    let times = (end_s.saturating_sub(seconds)..end_s).step_by(usize::try_from(step_s).unwrap_or(1));
    let at = |at_s: u64| {
        let had = all.iter().filter_map(|of| {
            let before = of.points.iter().rev().find(|point| point.at_s <= at_s)?;
            (before.at_s + STEPS * step_s > at_s).then_some((of, before))
        });
        let had: Vec<_> = had.collect();
        (!had.is_empty()).then_some((at_s * 1_000, had))
    };
    times.filter_map(at).collect()
}

/// Each field at all of the times, without what is made of figures that are `hidden`.
fn columns(told: &[AtTime<'_>], hidden: &[&str]) -> BTreeMap<String, Vec<Option<f64>>> {
    let mut columns: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
    for (at, (_, had)) in told.iter().enumerate() {
        let mut sums = FiguresByName::new();
        for (of, point) in had {
            let figures = std::iter::zip(&of.names, &point.figures).filter_map(|(name, figure)| {
                let name = name.as_str();
                (!hidden.contains(&name)).then_some((name, (*figure)?))
            });
            figures.for_each(|(name, figure)| *sums.entry(name).or_default() += figure);
        }
        for (name, figure) in of_figures(&sums) {
            // All columns have one length, whatever was known when.
            columns.entry(name).or_insert_with(|| vec![None; told.len()])[at] = Some(figure);
        }
    }
    columns
}

/// Whole numbers are written as such.
fn number(figure: Option<f64>) -> Value {
    match figure {
        Some(whole) if whole.fract() == 0.0 && whole.abs() < 9e15 => json!(whole as i64),
        figure => json!(figure),
    }
}

async fn ask(
    shared: &Shared,
    name: String,
    endpoint: String,
    bucket: &str,
    span: AgentSpan,
) -> Result<AgentFigures, String> {
    let path = PATH.replace("{bucket}", &escaped(bucket)).replace("{span}", span.name());
    let why_not = |why: String| format!("node {name}: {why}");
    let answer = ask_node(shared, name.clone(), endpoint, path, MOST_ANSWER_BYTES, None).await;
    let answer = answer.map_err(|(_, why)| why_not(why))?;
    let told = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200);
    told.ok_or_else(|| why_not(format!("it answers with status {}", answer.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_added_at_each_time() {
        let told = |of: &[(u64, f64)]| AgentFigures {
            names: vec!["curr_items".to_owned(), "get_hits".to_owned(), "get_misses".to_owned()],
            points: of
                .iter()
                .map(|(at_s, items)| Point { at_s: *at_s, figures: vec![Some(*items), Some(1.5), None] })
                .collect(),
            now: Point::default(),
        };
        let all = [told(&[(80, 1.0), (87, 2.0), (92, 3.0)]), told(&[(88, 10.0), (93, 20.0)])];
        let times = at_times(&all, 121, AgentSpan::Minute);
        let seconds: Vec<u64> = times.iter().map(|(at_ms, _)| at_ms / 1_000).collect();
        assert_eq!(seconds, [80, 85, 90, 95, 100, 105], "what is older than 15 seconds is not told");
        let columns = columns(&times, &[]);
        let expected = [1.0, 1.0, 12.0, 23.0, 23.0, 23.0].map(Some);
        assert_eq!((&columns["curr_items"][..], columns["get_hits"][2]), (&expected[..], Some(3.0)));
        assert!(!columns.contains_key("cmd_get"), "misses are not known");
        assert!(columns.values().all(|figures| figures.len() == times.len()));
        assert!(!super::columns(&times, &["curr_items"]).contains_key("curr_items"));
    }

    #[test]
    fn whole_numbers_are_written_as_such() {
        let told = [Some(3.0), Some(0.25), None, Some(1e300)].map(number);
        assert_eq!(told, [json!(3), json!(0.25), Value::Null, json!(1e300)]);
    }
}
