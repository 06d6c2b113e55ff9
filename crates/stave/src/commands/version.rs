//! `stave version`: what this program is, and which files and states it reads and writes.

use std::fmt::Write;

use base::FormatVersions;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::output::print;

/// The commit that the program was built from; `cargo xtask dist` says it. A build script that asks git would make a
/// build depend on the folder that it is made in.
const COMMIT: Option<&str> = option_env!("STAVE_COMMIT");
/// The library that speaks TLS, and the one that it takes its ciphers from.
const TLS: (&str, &str) = ("rustls", "ring");
const TLS_VERSIONS: [&str; 2] = ["1.2", "1.3"];
/// Formats of files and of the state of a cluster, by the names of `docs/compatibility.md`.
const FORMATS: [(&str, FormatVersions); 8] = [
    ("couchstore", couchstore::FORMAT),
    ("magma manifest", kvstore::MANIFEST_FORMAT),
    ("magma segment", kvstore::SEGMENT_FORMAT),
    ("journal", kvstore::journal::FORMAT),
    ("encryption", base::encryption::FORMAT),
    ("backup block", crate::backup::BLOCK_FORMAT),
    ("backup log", crate::backup::LOG_FORMAT),
    ("cluster state", node::version::STATE_FORMATS),
];

/// Print the version, the commit and the target of this program, and the formats that it reads and writes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave version
  stave version --json | jq -r .commit")]
pub struct VersionFlags {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(flags: &VersionFlags) -> anyhow::Result<Outcome> {
    print(&if flags.json { format!("{}\n", object()) } else { text() })?;
    Ok(Outcome::Done)
}

/// What the program was built for, as rustc names it.
fn target() -> String {
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    match os {
        "macos" => format!("{arch}-apple-darwin"),
        "linux" => format!("{arch}-unknown-linux-{libc}"),
        other => format!("{arch}-{other}"),
    }
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "development" } else { "release" }
}

fn object() -> Value {
    let range = |(least, most): (u32, u32)| json!({ "min": least, "max": most });
    let format = |(name, of): &(&str, FormatVersions)| {
        ((*name).to_owned(), json!({ "written": range(of.written), "read": range(of.read) }))
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT,
        "target": target(),
        "build": profile(),
        "protocol_version": node::version::SERVER_VERSION,
        "tls": { "library": TLS.0, "cryptography": TLS.1, "versions": TLS_VERSIONS },
        "formats": FORMATS.iter().map(format).collect::<serde_json::Map<_, _>>(),
    })
}

fn text() -> String {
    let mut out = format!("stave {}\n", env!("CARGO_PKG_VERSION"));
    let (library, cryptography) = TLS;
    for (name, value) in [
        ("commit", COMMIT.unwrap_or("unknown").to_owned()),
        ("target", target()),
        ("build", profile().to_owned()),
        ("protocol", node::version::SERVER_VERSION.to_owned()),
        ("tls", format!("{library} with {cryptography}, versions {}", TLS_VERSIONS.join(" and "))),
    ] {
        let _ = writeln!(out, "{name:<15} {value}");
    }
    for (name, versions) in FORMATS {
        let _ = writeln!(out, "{name:<15} {versions}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_a_person_read_the_same() {
        let (object, text) = (object(), text());
        assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(object["commit"], json!(COMMIT));
        assert!(text.contains(&target()) && object["target"] == target(), "{text}");
        assert_eq!(
            object["formats"]["couchstore"],
            json!({
                "written": { "min": 13, "max": 13 }, "read": { "min": 11, "max": 14 },
            })
        );
        assert!(text.contains("couchstore      written 13, read 11 to 14\n"), "{text}");
        assert!(text.contains("journal         written 8 to 9, read 1 to 9\n"), "{text}");
        assert_eq!(object["formats"].as_object().map(serde_json::Map::len), Some(FORMATS.len()));
    }

    /// A version that the page of promises does not name is a promise that was forgotten.
    #[test]
    fn the_page_of_compatibility_has_the_same_versions() {
        let page = include_str!("../../../../docs/compatibility.md");
        let of = |name: &str| FORMATS.iter().find(|(known, _)| *known == name).expect(name).1;
        let (manifest, segment, journal) = (of("magma manifest"), of("magma segment"), of("journal"));
        let (state, couch) = (of("cluster state"), of("couchstore"));
        for cell in [
            format!("| couchstore {}; ", couch.written.0),
            format!("| {} to {}; ", couch.read.0, couch.read.1),
            format!("| manifests {}, segments and runs {} |", manifest.written.0, segment.written.0),
            format!("| manifests 1 to {}, segments and runs 1 and {} |", manifest.read.1, segment.read.1),
            format!("| {}; {} in front of a log-structured store |", journal.written.0, journal.written.1),
            format!("| {} to {} |", journal.read.0, journal.read.1),
            format!("| state of the cluster | {}, in several entries |", state.written.0),
            format!("`SBK{}`", of("backup block").written.0),
            format!("`SLG{}`", of("backup log").written.0),
        ] {
            assert!(page.contains(&cell), "docs/compatibility.md does not say {cell:?}");
        }
    }
}
