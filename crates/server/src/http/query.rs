//! The query string of a request: one that cannot be read is refused in JSON, as everything else is.

use axum::extract::FromRequestParts;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::acting::refused;

/// What axum says before it says what is wrong.
const BEFORE_WHY: &str = "Failed to deserialize query string: ";

/// As the extractor of this name of axum, which refuses in bare text.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Response> {
        match axum::extract::Query::<T>::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Query(query)),
            Err(rejection) => Err(told(&rejection)),
        }
    }
}

fn told(rejection: &QueryRejection) -> Response {
    let text = rejection.body_text();
    let why = text.strip_prefix(BEFORE_WHY).unwrap_or(&text);
    *refused(StatusCode::BAD_REQUEST, &format!("the parameters behind the ? are wrong: {why}"))
}
