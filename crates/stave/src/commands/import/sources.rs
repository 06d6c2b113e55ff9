//! The collections that files tell of.

use std::collections::BTreeMap;

use std::path::PathBuf;

use anyhow::Context;
use base::ScopeId;
use base::env::Env;
use kvstore::StoredManifest;

use super::CouchFiles;
use crate::with_meta::SourceCollection;

/// The list of collections of each file.
pub(super) fn manifests(env: &Env, files: &CouchFiles) -> anyhow::Result<Vec<StoredManifest>> {
    let one = |path: &PathBuf| {
        let file = files.open(env, path)?;
        let manifest = StoredManifest::read(|id| file.local(id)).map_err(super::said_once)?;
        manifest.with_context(|| format!("{}: its list of collections is damaged", path.display()))
    };
    files.paths.iter().map(one).collect()
}

/// The collections that vBuckets' manifests tell of; of a number that was used again, as the newest manifest has it.
pub(super) fn sources<'m>(
    manifests: impl IntoIterator<Item = &'m StoredManifest>,
) -> BTreeMap<u32, SourceCollection> {
    let mut all: BTreeMap<u32, (u64, SourceCollection)> = BTreeMap::new();
    for manifest in manifests {
        let scopes: BTreeMap<ScopeId, &str> =
            manifest.scopes.iter().map(|there| (there.scope.id, &*there.scope.name)).collect();
        for there in &manifest.open {
            let one = &there.collection;
            let Some(scope) = scopes.get(&one.scope) else { continue };
            let max_ttl_s = one.max_ttl_s.map_or(0, |ttl| if ttl == 0 { -1 } else { i64::from(ttl) });
            let source =
                SourceCollection { scope: (*scope).to_owned(), name: one.name.to_string(), max_ttl_s };
            let newest = all.entry(one.id.0).or_insert_with(|| (manifest.uid.0, source.clone()));
            if newest.0 < manifest.uid.0 {
                *newest = (manifest.uid.0, source);
            }
        }
    }
    all.into_iter().map(|(number, (_, source))| (number, source)).collect()
}
