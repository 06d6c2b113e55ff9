//! How much the node's process logs, by part: shown, and changed while it runs.

use ::node::bucket_form::Errors;
use ::node::form;
use ::node::log_levels::LogLevels;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::settings::refused;
use super::shared::Shared;

/// Where the levels are.
pub(super) const PATH: &str = "/node/settings/log";

fn levels(shared: &Shared) -> LogLevels {
    shared.node.host().map(|host| host.config().log_levels.clone()).unwrap_or_default()
}

fn told(levels: &LogLevels) -> Response {
    let levels = levels.levels();
    Json(json!({ "level": levels.present, "configured": levels.configured })).into_response()
}

/// `GET` of [`PATH`]: what is logged, and what is logged after a start.
pub(super) async fn show(State(shared): State<Shared>) -> Response {
    told(&levels(&shared))
}

/// `POST` of [`PATH`]: the field `level` is `LEVEL`, `PART=LEVEL`, or several of them with commas between, or `default` for
/// what the configuration says. It holds until the node starts again, or SIGHUP has it read its configuration.
pub(super) async fn change(State(shared): State<Shared>, body: Bytes) -> Response {
    let (mut wanted, mut errors) = (None, Errors::new());
    for (name, value) in form::parse(&body) {
        if name == "level" {
            wanted = Some(value.trim().to_owned());
        } else {
            errors.insert(name, "there is no such field: give level".to_owned());
        }
    }
    let levels = levels(&shared);
    match wanted {
        _ if !errors.is_empty() => {}
        None => {
            errors.insert("level".to_owned(), "give level=LEVEL: nothing was changed".to_owned());
        }
        Some(wanted) => match levels.set(Some(&*wanted).filter(|wanted| *wanted != "default")) {
            Ok(_) => {}
            Err(why) => {
                errors.insert("level".to_owned(), why);
            }
        },
    }
    if errors.is_empty() { (StatusCode::OK, told(&levels)).into_response() } else { refused(errors) }
}
