//! The collections that files tell of.

use std::collections::BTreeMap;

use anyhow::Context;
use base::ScopeId;
use base::env::Env;
use couchstore::CouchFile;
use kvstore::StoredManifest;

use super::super::check::place::BucketFiles;
use crate::with_meta::SourceCollection;

/// The collections that the files tell of; of a number that was used again, as the newest manifest has it.
pub(super) fn sources(env: &Env, files: &BucketFiles) -> anyhow::Result<BTreeMap<u32, SourceCollection>> {
    let mut all: BTreeMap<u32, (u64, SourceCollection)> = BTreeMap::new();
    for path in &files.files {
        let file = CouchFile::open_read(&*env.disk, path).map_err(super::said_once)?;
        let manifest = StoredManifest::read(|id| file.local(id)).map_err(super::said_once)?;
        let manifest =
            manifest.with_context(|| format!("{}: its list of collections is damaged", path.display()))?;
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
    Ok(all.into_iter().map(|(number, (_, source))| (number, source)).collect())
}
