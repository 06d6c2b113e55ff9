//! Where the files come from: an in-toto statement with SLSA provenance, version 1 (slsa.dev/spec/v1.0/provenance).
//!
//! It has no time and no name of a machine, so that two runs give the same bytes. It is not signed: who publishes a release
//! signs the list of checksums, in which it is.

use std::process::Command;

use anyhow::Result;
use harness::child::output;
use harness::tree;
use serde_json::{Value, json};

use super::{Packages, sha256};

/// What a build of this kind is: its parameters are those of `cargo xtask dist`.
const BUILD_TYPE: &str = "urn:stave:cargo-xtask-dist:1";
/// A person's machine or a CI job: no builder that vouches for what it did.
const BUILDER: &str = "urn:stave:builder:local";

/// A file that was made: its name and its bytes.
pub type Subject<'s> = (&'s str, &'s [u8]);

/// What files were made from.
pub struct Sources {
    commit: String,
    /// Digest of the lock file, which names each dependency with its checksum.
    lock: String,
    /// The compiler, with its commit.
    compiler: String,
}

impl Sources {
    /// Those of the tree.
    pub fn of_tree() -> Result<Sources> {
        let compiler = output(Command::new("rustc").arg("--version").current_dir(tree::root()))?;
        Ok(Sources {
            commit: super::commit()?,
            lock: sha256(&std::fs::read(tree::root().join("Cargo.lock"))?),
            compiler: compiler.trim().to_owned(),
        })
    }
}

/// The statement about files that `options` had made. `given` is the program if it was there already.
pub fn make(
    sources: &Sources,
    options: &Packages,
    given: Option<&[u8]>,
    subjects: &[Subject<'_>],
) -> Result<Vec<u8>> {
    let subject =
        |(name, bytes): &Subject<'_>| json!({ "name": name, "digest": { "sha256": sha256(bytes) } });
    let mut parameters = json!({ "image": options.image });
    if let Some(target) = &options.target {
        parameters["target"] = json!(target);
    }
    let lock = json!({ "name": "Cargo.lock", "digest": { "sha256": sources.lock } });
    let mut inputs = vec![json!({ "name": "source", "digest": { "gitCommit": sources.commit } }), lock];
    // What it was built from is for its builder to say.
    inputs.extend(given.map(|program| json!({ "name": "program", "digest": { "sha256": sha256(program) } })));
    let statement: Value = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects.iter().map(subject).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters,
                "resolvedDependencies": inputs,
            },
            "runDetails": { "builder": { "id": BUILDER, "version": { "rustc": sources.compiler } } },
        },
    });
    let mut bytes = serde_json::to_vec_pretty(&statement)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(given: Option<&[u8]>) -> Value {
        let options = Packages {
            out: "out".into(),
            binary: None,
            target: Some("x86_64-unknown-linux-musl".to_owned()),
            image: false,
            start: false,
        };
        let sources = Sources::of_tree().expect("a commit, a lock file and a compiler");
        let subjects: [Subject<'_>; 2] = [("stave.tar.gz", b"abc"), ("stave.deb", b"")];
        let make = || make(&sources, &options, given, &subjects).expect("a statement");
        assert_eq!(make(), make());
        serde_json::from_slice(&make()).expect("JSON")
    }

    #[test]
    fn each_file_is_a_subject_and_the_sources_are_named() {
        let statement = statement(None);
        assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
        assert_eq!(statement["subject"][0]["name"], "stave.tar.gz");
        // The digest of "abc" in FIPS 180-2.
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(statement["subject"][0]["digest"]["sha256"], digest);
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(definition["externalParameters"]["target"], "x86_64-unknown-linux-musl");
        let inputs = definition["resolvedDependencies"].as_array().expect("a list");
        assert_eq!(inputs.len(), 2);
        let commit = inputs[0]["digest"]["gitCommit"].as_str().expect("a commit");
        assert!(commit.len() >= 40, "{commit}");
        let builder = &statement["predicate"]["runDetails"]["builder"];
        assert!(builder["version"]["rustc"].as_str().is_some_and(|rustc| rustc.starts_with("rustc ")));
    }

    #[test]
    fn a_program_that_was_there_is_an_input() {
        let statement = statement(Some(b"abc"));
        let inputs = &statement["predicate"]["buildDefinition"]["resolvedDependencies"];
        assert_eq!(inputs[2]["name"], "program");
    }
}
