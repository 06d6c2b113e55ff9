//! Buckets that a node has and cannot serve: what they are, and why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::SmallFileError;
use base::env::Env;
use serde_json::Value;

use crate::config::BucketSpec;
use crate::{bucket_list, node_files};

/// A bucket that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// Why, and what to do about it.
    pub reason: String,
    /// Whether what is on disk cannot be believed, whatever the disk does later.
    pub is_damage: bool,
    /// What its quota takes from the node's, in bytes; 0 if that is not known.
    pub quota_bytes: u64,
}

/// All of them by name.
pub type DownBuckets = BTreeMap<String, Down>;

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<BucketSpec, String> {
    let json = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let unknown = || "this version cannot make a bucket of it".to_owned();
    bucket_list::from_json(&json).ok_or_else(unknown)
}

/// Notes in a bucket's folder what the bucket is.
pub(crate) fn describe(env: &Env, folder: &Path, spec: &BucketSpec) -> Result<(), SmallFileError> {
    let (file, json) = (node_files::bucket(folder), bucket_list::to_json(spec));
    let is_noted = file.look(&*env.disk, |bytes, _| {
        serde_json::from_slice::<Value>(bytes).map_err(|error| error.to_string())
    });
    if matches!(is_noted, Ok(Some(found)) if found.content == json && !found.is_uneven()) {
        return Ok(());
    }
    file.write(&*env.disk, json.to_string().as_bytes())
}

/// What the buckets in a folder say that they are; of those that say nothing, why.
pub(crate) fn look_in(env: &Env, buckets: &Path, names: Vec<String>) -> (Vec<BucketSpec>, DownBuckets) {
    let (mut specs, mut down) = (Vec::new(), DownBuckets::new());
    for name in names {
        let folder: PathBuf = buckets.join(&name);
        let why = match node_files::bucket(&folder).look(&*env.disk, parse) {
            Ok(Some(found)) if found.content.name == name => {
                specs.push(found.content);
                continue;
            }
            Ok(Some(found)) => format!("its folder belongs to bucket {}", found.content.name),
            Ok(None) => "its folder does not say what it is".to_owned(),
            Err(error) => error.to_string(),
        };
        let reason = format!(
            "the list of buckets is damaged or missing, and {why}: put buckets.json back from a backup, or name the bucket in the \
             configuration"
        );
        down.insert(name, Down { reason, is_damage: false, quota_bytes: 0 });
    }
    (specs, down)
}
