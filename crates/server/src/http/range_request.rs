//! What a request for figures over time says, in its address or as JSON.

use std::collections::BTreeMap;

use ::node::stats::history::EVERY_S;
use ::node::stats::over_time::{Function, Steps, Together};
use axum::http::StatusCode;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// From when on figures are told, and over which time functions look, unless the request says it: the last minute.
const DEFAULT_S: i64 = 60;
/// Times that are told of each figure, at most: as Prometheus has it.
const MOST_STEPS: u64 = 11_000;
/// Labels of one request, at most.
const MOST_LABELS: usize = 16;
/// Functions of one request, at most.
const MOST_FUNCTIONS: usize = 8;
/// Patterns of all requests of a list, at most: each is translated on the thread that answers HTTP.
pub(super) const MOST_PATTERNS: usize = 16;
/// The longest pattern.
const MOST_PATTERN_BYTES: usize = 256;
/// The largest program that a pattern comes to, which takes half a millisecond to make.
const MOST_PATTERN_SIZE: usize = 1 << 16;
/// How deep groups of a pattern may stand in each other.
const MOST_PATTERN_DEPTH: u32 = 32;

/// What is done with figures that several nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Across {
    /// Each node's are told.
    Each,
    Together(Together),
    /// Needs a histogram.
    Percentile,
}

/// Which value of a label is wanted.
#[derive(Debug)]
enum Wants {
    Is(String),
    IsNot(String),
    Fits(Regex),
    FitsNot(Regex),
}

/// A request.
#[derive(Debug)]
pub(super) struct RangeRequest {
    pub(super) name: String,
    labels: Vec<(String, Wants)>,
    pub(super) functions: Vec<Function>,
    /// Empty: all.
    pub(super) nodes: Vec<String>,
    pub(super) across: Across,
    pub(super) window_s: u64,
    pub(super) steps: Steps,
}

impl RangeRequest {
    /// From when on figures are looked at.
    pub(super) fn since_s(&self) -> u64 {
        // The window of a figure without a function over time is shorter than that.
        self.steps.start_s.saturating_sub(self.window_s.max(60))
    }

    /// The one bucket that it is about, if it names one.
    pub(super) fn bucket(&self) -> Option<&str> {
        self.labels.iter().find_map(|(label, wants)| match wants {
            // An empty one is that of figures without a bucket.
            Wants::Is(bucket) if label == "bucket" && !bucket.is_empty() => Some(bucket.as_str()),
            _ => None,
        })
    }

    /// How many of its labels have patterns.
    pub(super) fn patterns(&self) -> usize {
        self.labels.iter().filter(|(_, wants)| matches!(wants, Wants::Fits(_) | Wants::FitsNot(_))).count()
    }

    /// Whether a figure with these labels is meant.
    pub(super) fn wants(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get("name") == Some(&self.name)
            && self.labels.iter().all(|(label, wants)| {
                // A label that is not there is empty, as in Prometheus.
                let value = labels.get(label).map_or("", String::as_str);
                match wants {
                    Wants::Is(wanted) => value == wanted,
                    Wants::IsNot(other) => value != other,
                    Wants::Fits(pattern) => pattern.is_match(value),
                    Wants::FitsNot(pattern) => !pattern.is_match(value),
                }
            })
    }
}

/// Fields that are no labels.
#[derive(Default)]
struct Fields {
    nodes: Vec<String>,
    across: Option<String>,
    start: Option<String>,
    end: Option<String>,
    step: Option<String>,
    window: Option<String>,
    is_aligned: bool,
}

impl Fields {
    /// Takes a field; whether it is one.
    fn take(&mut self, field: &str, value: &str) -> Result<bool, String> {
        let place = match field {
            "nodes" => {
                self.nodes.extend(
                    value.split([',', ' ', '[', ']', '"']).filter(|node| !node.is_empty()).map(str::to_owned),
                );
                return Ok(true);
            }
            "alignTimestamps" => {
                self.is_aligned =
                    value.parse().map_err(|_| format!("{field}: {value:?} is not true or false"))?;
                return Ok(true);
            }
            "timeout" => {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{field}: {value:?} is no number of milliseconds"))?;
                return Ok(true);
            }
            "nodesAggregation" => &mut self.across,
            "start" => &mut self.start,
            "end" => &mut self.end,
            "step" => &mut self.step,
            "timeWindow" => &mut self.window,
            _ => return Ok(false),
        };
        *place = Some(value.to_owned());
        Ok(true)
    }

    fn wanted(
        self,
        name: String,
        functions: Vec<Function>,
        labels: Vec<(String, Wants)>,
        now_s: u64,
    ) -> Result<RangeRequest, String> {
        if labels.len() > MOST_LABELS || functions.len() > MOST_FUNCTIONS {
            return Err(format!("at most {MOST_LABELS} labels and {MOST_FUNCTIONS} functions are taken"));
        }
        let end_s = time("end", self.end.as_deref(), 0, now_s)?;
        let mut start_s = time("start", self.start.as_deref(), -DEFAULT_S, now_s)?;
        let step_s = self.step.as_deref().map_or(Ok(EVERY_S), |text| duration("step", text))?;
        if self.is_aligned {
            start_s -= start_s % step_s;
        }
        if start_s > end_s {
            return Err(format!("start: {start_s} is after the end, {end_s}"));
        }
        // There is no figure of a time to come.
        let end_s = end_s.min(now_s.max(start_s));
        let steps = (end_s - start_s) / step_s;
        if steps >= MOST_STEPS {
            return Err(format!("step: {steps} times are too many: ask for less time, or a longer step"));
        }
        let window = self.window.as_deref();
        let window_s = window.map_or(Ok(DEFAULT_S.unsigned_abs()), |text| duration("timeWindow", text))?;
        let across = self.across.as_deref().map_or(Some(Across::Each), across);
        let across = across.ok_or("nodesAggregation: use none, sum, min, max or avg")?;
        let steps = Steps { start_s, end_s, step_s };
        Ok(RangeRequest { name, labels, functions, nodes: self.nodes, across, window_s, steps })
    }
}

fn across(name: &str) -> Option<Across> {
    if name == "none" {
        return Some(Across::Each);
    }
    match Function::parse(name)? {
        Function::Together(together) => Some(Across::Together(together)),
        Function::Percentile => Some(Across::Percentile),
        Function::OverTime(_) => None,
    }
}

/// A time in seconds since 1970; less than 0 is before now.
fn time(field: &str, text: Option<&str>, default: i64, now_s: u64) -> Result<u64, String> {
    let number = text.map_or(Ok(default), str::parse::<i64>);
    let number =
        number.map_err(|_| format!("{field}: {:?} is no number of seconds", text.unwrap_or_default()))?;
    let is_relative = number < 0 || text.is_none();
    Ok(if is_relative { now_s.saturating_sub(number.unsigned_abs()) } else { number.unsigned_abs() })
}

/// A number with a unit; without one, in seconds.
fn duration(field: &str, text: &str) -> Result<u64, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800), ("y", 31_536_000)];
    let unit = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, seconds) = unit.unwrap_or((text, 1));
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    seconds.filter(|seconds| *seconds > 0).ok_or_else(|| {
        format!("{field}: {text:?} is no time: use a number with s, m, h, d, w or y behind it, as in 10s")
    })
}

/// Reads an address: what is not known is told with status 404, what is wrong with 400.
pub(super) fn of_query(
    name: &str,
    functions: &str,
    query: Vec<(String, String)>,
    now_s: u64,
) -> Result<RangeRequest, (StatusCode, String)> {
    let each = functions.split('/').filter(|function| !function.is_empty());
    let functions: Result<Vec<Function>, String> = each.map(function).collect();
    let functions = functions.map_err(|why| (StatusCode::NOT_FOUND, why))?;
    let mut fields = Fields::default();
    let mut labels = Vec::new();
    for (field, value) in query {
        if !fields.take(&field, &value).map_err(|why| (StatusCode::BAD_REQUEST, why))? {
            labels.push((field, Wants::Is(value)));
        }
    }
    let wanted = fields.wanted(name.to_owned(), functions, labels, now_s);
    wanted.map_err(|why| (StatusCode::BAD_REQUEST, why))
}

fn function(name: &str) -> Result<Function, String> {
    let known = "rate, irate, increase, avg_over_time, min_over_time, max_over_time, deriv, delta, idelta, sum, min, max, avg";
    Function::parse(name).ok_or_else(|| format!("there is no function {name:?}: use one of {known}"))
}

/// Reads a request of a list.
pub(super) fn of_json(request: &Value, now_s: u64) -> Result<RangeRequest, String> {
    let object = request.as_object().ok_or("it is no JSON object")?;
    let mut fields = Fields::default();
    let mut functions = Vec::new();
    let (mut name, mut labels) = (None, Vec::new());
    for (field, value) in object {
        match (&field[..], value) {
            ("metric", Value::Array(all)) if all.len() > MOST_LABELS + 1 => {
                return Err(format!("metric: at most {MOST_LABELS} labels are taken beside the name"));
            }
            ("metric", Value::Array(all)) => {
                for one in all {
                    match label(one)? {
                        (label, Wants::Is(value)) if label == "name" => name = Some(value),
                        (label, _) if label == "name" => {
                            return Err("metric: name needs the operator =".to_owned());
                        }
                        label => labels.push(label),
                    }
                }
            }
            ("applyFunctions", Value::Array(all)) => {
                let each = all.iter().map(|one| function(one.as_str().unwrap_or_default()));
                functions = each.collect::<Result<_, String>>().map_err(|why| format!("{field}: {why}"))?;
            }
            ("nodes", Value::Array(all)) => {
                fields.nodes = all.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect();
            }
            (_, Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                if !fields.take(field, &text)? {
                    return Err(format!("{field}: there is no such field"));
                }
            }
            _ => return Err(format!("{field}: there is no such field, or it has another type")),
        }
    }
    let name = name.ok_or("metric: a list is needed, with {\"label\": \"name\", \"value\": METRIC} in it")?;
    fields.wanted(name, functions, labels, now_s)
}

/// A label of a request's metric.
fn label(one: &Value) -> Result<(String, Wants), String> {
    let text = |field: &str| one[field].as_str().map(str::to_owned);
    let wrong = || format!("metric: {one} is no label: use {{\"label\": LABEL, \"value\": VALUE}}");
    let (label, value) = (text("label").ok_or_else(wrong)?, text("value").ok_or_else(wrong)?);
    let wants = match one["operator"].as_str().unwrap_or("=") {
        "=" => Wants::Is(value),
        "!=" => Wants::IsNot(value),
        "=~" => Wants::Fits(pattern(&value)?),
        "!~" | "~=" => Wants::FitsNot(pattern(&value)?),
        other => return Err(format!("metric: there is no operator {other:?}: use =, !=, =~ or !~")),
    };
    Ok((label, wants))
}

/// A pattern fits the whole value. Its length is looked at first: what is made of it while it is read takes thousands of
/// times as much, and only the program that comes of it has a limit.
fn pattern(text: &str) -> Result<Regex, String> {
    let len = text.len();
    if len > MOST_PATTERN_BYTES {
        return Err(format!(
            "metric: a pattern has at most {MOST_PATTERN_BYTES} bytes, and this one has {len}"
        ));
    }
    let builder = &mut RegexBuilder::new(&format!("^(?:{text})$"));
    let built = builder.size_limit(MOST_PATTERN_SIZE).nest_limit(MOST_PATTERN_DEPTH).build();
    built.map_err(|_| format!("metric: {text:?} is no pattern, or it comes to too large a program"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn query(text: &str) -> Result<RangeRequest, (StatusCode, String)> {
        let fields = text.split('&').filter_map(|field| field.split_once('='));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        of_query("kv_ops", "irate/sum", fields, 1_000)
    }

    #[test]
    fn what_is_wrong_with_a_time_is_told_as_it_was_given() {
        let (_, why) = query("start=abc").expect_err("no time");
        assert_eq!(why, "start: \"abc\" is no number of seconds");
    }

    #[test]
    fn an_address_says_times_nodes_and_labels() {
        let wanted = query("").expect("a request");
        assert_eq!((wanted.steps.start_s, wanted.steps.end_s, wanted.steps.step_s), (940, 1_000, 10));
        assert_eq!((wanted.window_s, wanted.across, wanted.nodes.len()), (60, Across::Each, 0));
        let functions = ["irate", "sum"].map(|name| Function::parse(name).expect("a function"));
        assert_eq!(wanted.functions, functions);
        let text = "start=-300&end=-10&step=1m&timeWindow=2m&nodes=[a:1, b]&nodesAggregation=sum&alignTimestamps=true&op=get";
        let wanted = query(text).expect("a request");
        assert_eq!((wanted.steps.start_s, wanted.steps.end_s, wanted.steps.step_s), (660, 990, 60));
        assert_eq!((wanted.window_s, &wanted.nodes[..]), (120, &["a:1".to_owned(), "b".to_owned()][..]));
        assert_eq!((wanted.across, wanted.since_s()), (Across::Together(Together::Sum), 540));
        let labels = |op: &str| {
            let labels = [("name", "kv_ops"), ("op", op)];
            labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into()
        };
        assert!(wanted.wants(&labels("get")) && !wanted.wants(&labels("set")));
        for wrong in [
            "start=x",
            "start=2000",
            "step=0s",
            "step=5x",
            "timeWindow=",
            "alignTimestamps=yes",
            "nodesAggregation=rate",
            "timeout=soon",
        ] {
            assert!(matches!(query(wrong), Err((StatusCode::BAD_REQUEST, _))), "{wrong}");
        }
        let unknown = of_query("kv_ops", "irate/none", Vec::new(), 1_000);
        assert!(matches!(unknown, Err((StatusCode::NOT_FOUND, _))));
    }

    #[test]
    fn no_time_to_come_is_looked_at() {
        let wanted = query("start=990&end=9000&step=1").expect("a request");
        assert_eq!((wanted.steps.start_s, wanted.steps.end_s), (990, 1_000));
        let wanted = query("start=2000&end=9000&step=1").expect("a request");
        assert_eq!((wanted.steps.start_s, wanted.steps.end_s), (2_000, 2_000));
        let fields = [("step", "1"), ("start", "1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let many = of_query("kv_ops", "", fields.into(), 20_000);
        assert!(matches!(many, Err((StatusCode::BAD_REQUEST, _))));
    }

    #[test]
    fn a_list_says_the_same_as_json() {
        let name = json!({ "label": "name", "value": "kv_ops" });
        let of = |operator: &str, value: &str| json!({ "label": "op", "value": value, "operator": operator });
        let labels = |op: &str| {
            let labels = [("name", "kv_ops"), ("op", op)];
            labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into()
        };
        for (operator, value, fits, other) in [
            ("=", "get", "get", "set"),
            ("!=", "get", "set", "get"),
            ("=~", "g.t|incr", "get", "gets"),
            ("!~", "g.t|incr", "set", "incr"),
            ("~=", "g.*", "set", "get_meta"),
        ] {
            let request = json!({
                "metric": [name, of(operator, value)], "applyFunctions": ["rate"], "start": -5, "step": 5,
                "nodes": ["a"], "nodesAggregation": "max", "alignTimestamps": false, "timeout": 1_000,
            });
            let wanted = of_json(&request, 1_000).expect("a request");
            assert_eq!((wanted.steps.start_s, wanted.steps.step_s, wanted.nodes.len()), (995, 5, 1));
            assert!(wanted.wants(&labels(fits)) && !wanted.wants(&labels(other)), "{operator} {value}");
        }
        let most = [vec![of("=", "get"); MOST_LABELS], vec![name.clone()]].concat();
        assert!(of_json(&json!({ "metric": most }), 1_000).is_ok(), "the name may come last");
        let many = [vec![name.clone()], vec![of("=", "get"); MOST_LABELS + 1]].concat();
        for wrong in [
            json!(1),
            json!({}),
            json!({ "metric": "kv_ops" }),
            json!({ "metric": [of("=", "get")] }),
            json!({ "metric": [name, of("<", "get")] }),
            json!({ "metric": [name, of("=~", "(")] }),
            json!({ "metric": [name, of("=~", &"a".repeat(300))] }),
            json!({ "metric": [{ "label": "name", "value": "kv_.*", "operator": "=~" }] }),
            json!({ "metric": [name], "applyFunctions": ["none"] }),
            json!({ "metric": [name], "colour": "red" }),
            json!({ "metric": [name], "applyFunctions": vec!["sum"; MOST_FUNCTIONS + 1] }),
            json!({ "metric": many }),
        ] {
            assert!(of_json(&wrong, 1_000).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_length_of_a_pattern_is_looked_at_before_it_is_read() {
        // It is no pattern, too: who reads it first says so, with all of it.
        let told = pattern(&"(".repeat(1 << 20)).expect_err("it is too long");
        assert_eq!(told, "metric: a pattern has at most 256 bytes, and this one has 1048576");
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        assert!(pattern(&deep).is_err() && pattern("(get|set).*").is_ok());
    }
}
