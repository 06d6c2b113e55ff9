//! What stands in `server`: only files that need the async runtime, sockets or HTTP. Everything else a node does stands in
//! `node`, where a simulator can reach it.

use std::fs;

use anyhow::{Context, Result};
use harness::tree;

/// The crate's files.
const FOLDER: &str = "crates/server/src";

/// What ties a file to the crate: the runtime, sockets, HTTP and TLS, and the modules of the crate that are made of them.
const TIES: [&str; 14] = [
    "tokio::",
    "axum::",
    "http_body::",
    "rustls::",
    "socket2::",
    "TcpStream",
    "TcpListener",
    "::http::",
    "http_client::",
    "tls::Tls",
    "wire::Wire",
    "worker::Worker",
    "server::Server",
    "super::connections::",
];

/// Looks at all files of `server`.
pub fn check() -> Result<Vec<String>> {
    let mut files = Vec::new();
    for path in tree::files(&["rs"])? {
        if path.starts_with(FOLDER) {
            let text = fs::read_to_string(tree::root().join(&path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            files.push((path.display().to_string(), text));
        }
    }
    Ok(violations(&files))
}

fn violations(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        if !needs_server(path, text) {
            found.push(format!(
                "runtime: {path} needs no runtime, no socket and no HTTP: move it to crates/node"
            ));
        }
        if text.lines().any(passes_on_node) {
            found.push(format!("runtime: {path} re-exports what is `node`'s: let users name `node`"));
        }
    }
    found
}

fn passes_on_node(line: &str) -> bool {
    ["pub use node::", "pub use ::node::", "pub use node;", "pub use ::node;"]
        .iter()
        .any(|start| line.trim_start().starts_with(start))
}

/// Whether a file could not stand in `node`; one that only says which modules there are is not looked at, nor are tests.
fn needs_server(path: &str, text: &str) -> bool {
    if path.ends_with("/tests.rs") {
        return true;
    }
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let is_outline = lines.clone().all(|line| {
        ["mod ", "pub mod ", "pub(crate) mod ", "use ", "pub use ", "pub(crate) use ", "}", "#["]
            .iter()
            .any(|start| line.starts_with(start))
            || line.is_empty()
            || line.ends_with(',')
    });
    is_outline || lines.any(|line| TIES.iter().any(|tie| line.contains(tie)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_file_needs_what_only_the_server_knows() {
        let sound = files(&[
            ("s/lib.rs", "//! x\nmod a;\npub use a::{\n    B,\n};\n"),
            ("s/a.rs", "//! x\nuse tokio::sync::Notify;\nfn f() {}\n"),
            ("s/a/tests.rs", "//! x\nfn f() {}\n"),
        ]);
        assert_eq!(violations(&sound), Vec::<String>::new());
    }

    #[test]
    fn what_it_says_in_comments_and_tests_is_no_need() {
        let text = "//! Not tokio::sync.\nfn f() {}\n#[cfg(test)]\nmod tests {\nuse tokio::x;\n}\n";
        assert_eq!(violations(&files(&[("s/a.rs", text)])).len(), 1);
    }

    #[test]
    fn nothing_of_node_is_passed_on() {
        let text = "//! x\nuse tokio::x;\npub use ::node::{\n    A,\n};\n";
        assert_eq!(violations(&files(&[("s/lib.rs", text)])).len(), 1);
    }
}
