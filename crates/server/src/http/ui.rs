//! The console for people: the files that a browser loads, which hold no data and are served to any client.
//!
//! The files are in `ui/`, in the form in which they are served. Everything that they show comes from the other addresses
//! of this port, with the user and password that are typed into the page (record 0123).

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::connections;
use super::security::hidden_console;
use super::shared::Shared;

/// What a page of the console may do: load its own files and ask its own node. No script or style is in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Other headers of each file.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // A browser asks each time whether its copy is still right, so that a newer node is never shown by an older page.
    (header::CACHE_CONTROL, "no-cache"),
];

/// A file of the console.
struct UiFile {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal $content_type:expr),+ $(,)?) => {
        &[$(UiFile { name: $name, content_type: $content_type, bytes: include_bytes!(concat!("ui/", $name)) }),+]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All of them: nothing else is served.
static FILES: &[UiFile] = files![
    "index.html" "text/html; charset=utf-8",
    "style.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "app.js" SCRIPT,
    "api.js" SCRIPT,
    "dom.js" SCRIPT,
    "chart.js" SCRIPT,
    "overview.js" SCRIPT,
    "nodes.js" SCRIPT,
    "buckets.js" SCRIPT,
    "documents.js" SCRIPT,
    "users.js" SCRIPT,
    "streams.js" SCRIPT,
    "timings.js" SCRIPT,
    "slow.js" SCRIPT,
    "logs.js" SCRIPT,
];

/// `GET /ui`
pub(super) async fn page(State(shared): State<Shared>, request: Request) -> Response {
    let hidden = hidden_console(&shared, &connections::by(&request));
    hidden.unwrap_or_else(|| served("index.html", request.headers()))
}

/// `GET /ui/FILE`
pub(super) async fn file(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let hidden = hidden_console(&shared, &connections::by(&request));
    hidden.unwrap_or_else(|| served(&name, request.headers()))
}

fn served(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return (StatusCode::NOT_FOUND, "the console has no such file\n").into_response();
    };
    let tag = tag_of(file.bytes);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response(),
    };
    let fields = HEADERS.into_iter().map(|(name, value)| (name, value.to_owned()));
    for (name, value) in fields.chain([(header::ETAG, tag)]) {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn tag_of(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path as FilePath;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "it looks at the source, not at the disk of a node")]
    fn each_file_of_the_folder_is_served_and_all_are_small() {
        let folder = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("src/http/ui");
        let there = std::fs::read_dir(folder).expect("the folder");
        let there: BTreeSet<String> =
            there.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        let served: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(there, served);
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes < 200 << 10, "{bytes} bytes, without compression");
    }

    #[test]
    fn no_file_has_what_the_policy_forbids_or_makes_markup_of_data() {
        for file in FILES.iter().filter(|file| file.name != "icon.svg") {
            let text = std::str::from_utf8(file.bytes).expect("text");
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "style=\"",
                "onclick=",
                "onload=",
                "javascript:",
                "http://",
                "https://",
                "localStorage",
                "sessionStorage",
                "document.cookie",
            ] {
                let is_namespace = |line: &str| line.contains("http://www.w3.org/2000/svg");
                let found = text.lines().find(|line| line.contains(forbidden) && !is_namespace(line));
                assert_eq!(found, None, "{}: {forbidden}", file.name);
            }
        }
    }

    #[test]
    fn a_copy_that_is_right_is_not_sent_again() {
        let answer = |tag: Option<&str>| {
            let fields = tag.map(|tag| (header::IF_NONE_MATCH, tag.parse().expect("a header")));
            served("app.js", &fields.into_iter().collect())
        };
        let first = answer(None);
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[header::CONTENT_TYPE], SCRIPT);
        let tag = first.headers()[header::ETAG].to_str().expect("text").to_owned();
        for known in [tag.clone(), format!("\"x\", {tag}")] {
            let again = answer(Some(&known));
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            assert_eq!(again.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
        assert_eq!(answer(Some("\"x\"")).status(), StatusCode::OK);
    }
}
