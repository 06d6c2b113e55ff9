//! What is told to whoever asks with a method that an address does not have.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Names the methods that there are, as the header `Allow` does.
pub(super) async fn tell(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allowed = response.headers().get(header::ALLOW).cloned();
    let Some(allowed) = allowed else { return response };
    let names = allowed.to_str().unwrap_or_default().replace(',', ", ");
    let what = format!("there is no {method} at this address: use one of {names}");
    let told = Json(json!({ "errors": { "_": what } }));
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, allowed)], told).into_response()
}
