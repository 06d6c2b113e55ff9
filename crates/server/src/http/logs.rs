//! `GET /logs`: the last lines of the process's log, in the form in which the field tells a console of them.

use ::node::user_data::{CLOSE, OPEN};
use axum::Json;
use axum::extract::{Extension, State};
use serde_json::{Map, Value, json};

use super::basic_auth::Caller;
use super::query::Query;
use super::shared::Shared;

/// Lines that are told, at most.
const MOST_LINES: usize = 1_000;

/// Which lines are meant.
#[derive(serde::Deserialize)]
pub(super) struct WantedLines {
    limit: Option<usize>,
}

/// The newest line last. `text` is the message with the event's values behind it. Keys and names of users are for full
/// administrators: the other roles that read the log see no documents.
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Query(wanted): Query<WantedLines>,
) -> Json<Value> {
    let most = wanted.limit.unwrap_or(MOST_LINES).min(MOST_LINES);
    let lines = shared.node.host().map(|host| host.config().recent_log.last(most)).unwrap_or_default();
    let node = shared.node.uuid();
    let shown = |line: &str| match user.is_admin() {
        true => told(line, node),
        false => told(&without_user_data(line), node),
    };
    let list: Vec<Value> = lines.iter().filter_map(|line| shown(line)).collect();
    Json(json!({ "list": list }))
}

/// A line without what is between the marks of user data.
fn without_user_data(line: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(line.len()), line);
    while let Some((before, marked)) = rest.split_once(OPEN) {
        text.push_str(before);
        text.push_str(OPEN);
        // What is cut off is user data to its end.
        rest = marked.split_once(CLOSE).map_or("", |(_, behind)| behind);
        text.push_str("...");
        text.push_str(CLOSE);
    }
    text.push_str(rest);
    text
}

/// A line in the field's form; nothing if it is no event.
fn told(line: &str, node: &str) -> Option<Value> {
    let mut event: Map<String, Value> = serde_json::from_str(line).ok()?;
    let mut take = |name: &str| match event.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (time, level, part, message) = (take("timestamp"), take("level"), take("target"), take("message"));
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let values = event.iter().map(|(name, of)| format!(" {name}={}", value(of)));
    let text = std::iter::once(message.clone()).chain(values).collect::<String>();
    let kind = match &*level {
        "ERROR" => "critical",
        "WARN" => "warning",
        _ => "info",
    };
    Some(json!({
        "node": node, "type": kind, "code": 0, "module": part, "serverTime": time,
        "shortText": message, "text": text,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_is_left_out_between_its_marks() {
        let shown = without_user_data;
        assert_eq!(shown("key=<ud>k1</ud> peer=<ud>h</ud> x"), "key=<ud>...</ud> peer=<ud>...</ud> x");
        assert_eq!((shown("none"), shown("cut <ud>k1")), ("none".to_owned(), "cut <ud>...</ud>".to_owned()));
    }

    #[test]
    fn a_line_of_the_log_is_told_in_the_fields_form() {
        let line = r#"{"timestamp":"2026-01-02T03:04:05.1Z","level":"WARN","message":"the disk is full",
            "bucket":"b","left_out":3,"target":"engine::disk"}"#;
        let expected = json!({
            "node": "n", "type": "warning", "code": 0, "module": "engine::disk",
            "serverTime": "2026-01-02T03:04:05.1Z", "shortText": "the disk is full",
            "text": "the disk is full bucket=b left_out=3",
        });
        assert_eq!(told(line, "n"), Some(expected));
        assert_eq!(told("no event", "n"), None);
    }
}
