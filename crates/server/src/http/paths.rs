//! Paths as they are looked up. Addresses with a slash at their end are those without it, and those that begin with several slashes begin with one, as
//! the field's server has it and some SDKs and agents send them.

use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Takes slashes off the end of a request's path, and all but one off its beginning. A path with a percent sign that begins no
/// code is refused: what it is meant to name is not known, and the percent sign would become a part of a name.
pub(super) async fn plain(mut request: Request, next: Next) -> Response {
    if has_broken_code(request.uri().path()) {
        let what =
            "The path has a % that two hexadecimal digits do not follow: write %25 for a percent sign.\n";
        return (StatusCode::BAD_REQUEST, what).into_response();
    }
    if let Some(uri) = shorter(request.uri()) {
        *request.uri_mut() = uri;
    }
    next.run(request).await
}

fn has_broken_code(path: &str) -> bool {
    let is_code = |code: &str| code.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    path.split('%').skip(1).any(|code| !is_code(code))
}

/// The address without these slashes, if it has any.
fn shorter(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let short = path.trim_end_matches('/');
    let behind = short.trim_start_matches('/');
    let short = &short[short.len().saturating_sub(behind.len() + 1)..];
    let short = if short.is_empty() { "/" } else { short };
    if path.is_empty() || short.len() == path.len() {
        return None;
    }
    let text = match uri.query() {
        Some(query) => format!("{short}?{query}"),
        None => short.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_begin_codes() {
        for (path, is_broken) in [
            ("/a", false),
            ("/a%20b%2F", false),
            ("/%zz", true),
            ("/%2", true),
            ("/a%", true),
            ("/%%20", true),
        ] {
            assert_eq!(has_broken_code(path), is_broken, "{path}");
        }
    }

    #[test]
    fn surplus_slashes_go() {
        for (long, short) in [
            ("/pools/", Some("/pools")),
            ("/pools/default/buckets//?a=b/", Some("/pools/default/buckets?a=b/")),
            ("//", Some("/")),
            ("//pools/default//x", Some("/pools/default//x")),
            ("///a/?b=//", Some("/a?b=//")),
            ("/", None),
            ("/pools?x=/", None),
            ("http://h:1/a%2F/", Some("http://h:1/a%2F")),
        ] {
            let uri: Uri = long.parse().expect("an address");
            assert_eq!(shorter(&uri).map(|uri| uri.to_string()).as_deref(), short, "{long}");
        }
    }
}
