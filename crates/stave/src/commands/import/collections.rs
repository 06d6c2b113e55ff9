//! Which collection of the bucket a collection of the files is: by name, as the same number means another one elsewhere.

use std::collections::BTreeMap;

use anyhow::Context;
use base::env::Env;
use base::{CollectionId, ScopeId};
use couchstore::CouchFile;
use kvstore::StoredManifest;

use super::super::check::place::BucketFiles;
use super::Unknown;
use crate::client::{Client, ClientError, HttpTarget, Target, escaped};

/// A collection of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    scope: String,
    name: String,
    /// As REST has it: 0 for that of the bucket, -1 for none.
    max_ttl_s: i64,
}

impl Source {
    fn path(&self) -> String {
        format!("{}.{}", self.scope, self.name)
    }
}

/// Where documents of each collection go.
pub(super) struct Collections {
    sources: BTreeMap<u32, Source>,
    /// What is not here the bucket lacks.
    targets: BTreeMap<u32, CollectionId>,
}

impl Collections {
    /// Looks for the files' collections in the bucket, and makes those that are lacking if that is wanted.
    pub(super) fn find(
        env: &Env,
        files: &BucketFiles,
        target: &Target,
        unknown: Unknown,
    ) -> anyhow::Result<Collections> {
        let sources = sources(env, files)?;
        let mut client = Client::open(env, target)?;
        let mut found = Collections { sources, targets: BTreeMap::from([(0, CollectionId::DEFAULT)]) };
        let lacking = found.look(&mut client)?;
        if unknown == Unknown::Create && !lacking.is_empty() {
            create(&mut client, target, &lacking)?;
            found.look(&mut client)?;
        }
        Ok(found)
    }

    /// Asks for the numbers of those that have none yet; returns those that the bucket lacks.
    fn look(&mut self, client: &mut Client) -> anyhow::Result<Vec<Source>> {
        let mut lacking = Vec::new();
        for (number, source) in &self.sources {
            if self.targets.contains_key(number) {
                continue;
            }
            match client.collection_id(&source.path()) {
                Ok(id) => drop(self.targets.insert(*number, id)),
                Err(ClientError::Collection { .. }) => lacking.push(source.clone()),
                Err(error) => return Err(error).with_context(|| format!("collection `{}`", source.path())),
            }
        }
        Ok(lacking)
    }

    /// Where documents of a collection of the files go; `None` if the bucket lacks it.
    pub(super) fn target(&self, id: CollectionId) -> Option<CollectionId> {
        self.targets.get(&id.0).copied()
    }

    /// What a collection of the files is called; its number if the files do not say.
    pub(super) fn name(&self, id: CollectionId) -> String {
        self.sources.get(&id.0).map_or_else(|| format!("0x{:x}", id.0), Source::path)
    }
}

/// The collections that the files tell of; of a number that was used again, as the newest manifest has it.
fn sources(env: &Env, files: &BucketFiles) -> anyhow::Result<BTreeMap<u32, Source>> {
    let mut all: BTreeMap<u32, (u64, Source)> = BTreeMap::new();
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
            let source = Source { scope: (*scope).to_owned(), name: one.name.to_string(), max_ttl_s };
            let newest = all.entry(one.id.0).or_insert_with(|| (manifest.uid.0, source.clone()));
            if newest.0 < manifest.uid.0 {
                *newest = (manifest.uid.0, source);
            }
        }
    }
    Ok(all.into_iter().map(|(number, (_, source))| (number, source)).collect())
}

/// Makes scopes and collections over HTTP, and waits until the node that is asked has them.
fn create(client: &mut Client, target: &Target, lacking: &[Source]) -> anyhow::Result<()> {
    let map = client.map()?.unwrap_or_default();
    let addr = map.http.context("the node does not say where it listens for HTTP")?;
    let (username, password) = (target.username.clone(), target.password.clone());
    let http = HttpTarget { addr, username, password, patience: target.patience.0 };
    let scopes = format!("/pools/default/buckets/{}/scopes", escaped(&target.bucket));
    let there = http.request("GET", &scopes, None)?;
    let names = there["scopes"].as_array().into_iter().flatten().filter_map(|scope| scope["name"].as_str());
    let mut there: Vec<String> = names.map(str::to_owned).collect();
    for one in lacking {
        if !there.contains(&one.scope) {
            http.form(&scopes, &[("name", &one.scope)]).with_context(|| format!("scope `{}`", one.scope))?;
            there.push(one.scope.clone());
        }
        let path = format!("{scopes}/{}/collections", escaped(&one.scope));
        let fields = [("name", one.name.as_str()), ("maxTTL", &one.max_ttl_s.to_string())];
        http.form(&path, &fields).with_context(|| format!("collection `{}`", one.path()))?;
    }
    Ok(())
}
