//! Where the files come from: an in-toto statement with SLSA provenance, version 1 (slsa.dev/spec/v1.0/provenance).
//!
//! It has no time and no name of a machine, so that two runs give the same bytes. It is not signed: who publishes a release
//! signs the list of checksums, in which it is.

use anyhow::Result;
use serde_json::{Value, json};

/// What a build of this kind is: its parameters are those of `cargo xtask dist`.
const BUILD_TYPE: &str = "urn:stave:cargo-xtask-dist:1";
/// A person's machine or a CI job: no builder that vouches for what it did.
const BUILDER: &str = "urn:stave:builder:local";

/// The name of a file, and the SHA-256 of its bytes.
pub type NameAndSum = (String, String);

/// What files were made from, and how.
pub struct Origin {
    /// The commit.
    pub commit: String,
    /// The lock file, which names each dependency with its checksum, and the program if it was there already: what that
    /// was built from is for its builder to say.
    pub inputs: Vec<NameAndSum>,
    /// The compiler, with its commit.
    pub compiler: String,
    /// What the program was built for, if that was said.
    pub target: Option<String>,
    /// Whether an image was asked for.
    pub image: bool,
}

/// The statement about files that were made.
pub fn make(origin: &Origin, files: &[NameAndSum]) -> Result<Vec<u8>> {
    let described = |(name, sum): &NameAndSum| json!({ "name": name, "digest": { "sha256": sum } });
    let mut parameters = json!({ "image": origin.image });
    if let Some(target) = &origin.target {
        parameters["target"] = json!(target);
    }
    let mut inputs = vec![json!({ "name": "source", "digest": { "gitCommit": origin.commit } })];
    inputs.extend(origin.inputs.iter().map(described));
    let statement: Value = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": files.iter().map(described).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters,
                "resolvedDependencies": inputs,
            },
            "runDetails": { "builder": { "id": BUILDER, "version": { "rustc": origin.compiler } } },
        },
    });
    let mut bytes = serde_json::to_vec_pretty(&statement)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_a_subject_and_the_sources_are_named() {
        let pair = |name: &str, sum: &str| (name.to_owned(), sum.to_owned());
        let origin = Origin {
            commit: "c0ffee".to_owned(),
            inputs: vec![pair("Cargo.lock", "aa"), pair("program", "bb")],
            compiler: "rustc 1.95.0".to_owned(),
            target: Some("x86_64-unknown-linux-musl".to_owned()),
            image: false,
        };
        let files = [pair("stave.tar.gz", "cc"), pair("stave.deb", "dd")];
        let make = || make(&origin, &files).expect("a statement");
        assert_eq!(make(), make());
        let statement: Value = serde_json::from_slice(&make()).expect("JSON");
        assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
        assert_eq!(statement["subject"][1], json!({ "name": "stave.deb", "digest": { "sha256": "dd" } }));
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(definition["externalParameters"]["target"], "x86_64-unknown-linux-musl");
        let inputs = definition["resolvedDependencies"].as_array().expect("a list");
        assert_eq!(inputs.len(), 3);
        assert_eq!(inputs[0]["digest"]["gitCommit"], "c0ffee");
        assert_eq!(inputs[2]["name"], "program");
        assert_eq!(statement["predicate"]["runDetails"]["builder"]["version"]["rustc"], "rustc 1.95.0");
    }
}
