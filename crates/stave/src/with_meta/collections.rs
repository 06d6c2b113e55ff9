//! Which collection of the bucket a collection of the source is: by name, as the same number means another one elsewhere.

use std::collections::BTreeMap;

use anyhow::Context;
use base::CollectionId;
use base::env::Env;
use node::form::escaped;

use super::Unknown;
use crate::client::{Client, ClientError, Target};

/// A collection of the files or the backup that documents come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceCollection {
    pub(crate) scope: String,
    pub(crate) name: String,
    /// As REST has it: 0 for that of the bucket, -1 for none.
    pub(crate) max_ttl_s: i64,
}

impl SourceCollection {
    /// `SCOPE.COLLECTION`.
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.scope, self.name)
    }
}

/// Where documents of each collection go.
pub(crate) struct Collections {
    sources: BTreeMap<u32, SourceCollection>,
    /// What is not here the bucket lacks.
    targets: BTreeMap<u32, CollectionId>,
}

impl Collections {
    /// Looks for the sources, which are given by their numbers, in the bucket, and makes those that are lacking if that
    /// is wanted. The default collection is the bucket's, unless a source gives it another name.
    pub(crate) fn find(
        env: &Env,
        sources: BTreeMap<u32, SourceCollection>,
        target: &Target,
        unknown: Unknown,
    ) -> anyhow::Result<Collections> {
        let is_renamed = sources.get(&0).is_some_and(|source| source.path() != "_default._default");
        let targets = if is_renamed { BTreeMap::new() } else { BTreeMap::from([(0, CollectionId::DEFAULT)]) };
        let mut found = Collections { sources, targets };
        found.complete(env, target, unknown)?;
        Ok(found)
    }

    /// Another collection of the source.
    pub(crate) fn learn(
        &mut self,
        env: &Env,
        number: u32,
        source: SourceCollection,
        target: &Target,
        unknown: Unknown,
    ) -> anyhow::Result<()> {
        self.sources.insert(number, source);
        self.complete(env, target, unknown)
    }

    /// Looks for those that are not found yet, and makes what is lacking if that is wanted.
    fn complete(&mut self, env: &Env, target: &Target, unknown: Unknown) -> anyhow::Result<()> {
        let mut client = Client::open(env, target)?;
        let lacking = self.look(&mut client)?;
        if unknown == Unknown::Create && !lacking.is_empty() {
            create(&mut client, target, &lacking)?;
            self.look(&mut client)?;
        }
        Ok(())
    }

    /// Asks for the numbers of those that have none yet; returns those that the bucket lacks.
    fn look(&mut self, client: &mut Client) -> anyhow::Result<Vec<SourceCollection>> {
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

    /// Where documents of a collection of the source go; `None` if the bucket lacks it.
    pub(crate) fn target(&self, id: CollectionId) -> Option<CollectionId> {
        self.targets.get(&id.0).copied()
    }

    /// What a collection of the bucket is called in the source; its number if that has none for it.
    pub(crate) fn name_of_target(&self, id: CollectionId) -> String {
        let source = self.targets.iter().find(|(_, target)| **target == id).map(|(source, _)| *source);
        source.map_or_else(|| format!("0x{:x}", id.0), |source| self.name(CollectionId(source)))
    }

    /// What a collection of the source is called; its number if the source does not say.
    pub(crate) fn name(&self, id: CollectionId) -> String {
        self.sources.get(&id.0).map_or_else(|| format!("0x{:x}", id.0), SourceCollection::path)
    }
}

/// Makes scopes and collections over HTTP, and waits until the node that is asked has them.
pub(crate) fn create(
    client: &mut Client,
    target: &Target,
    lacking: &[SourceCollection],
) -> anyhow::Result<()> {
    let map = client.map()?.unwrap_or_default();
    let addr = map.http.context("the node does not say where it listens for HTTP")?;
    let http = target.over_http(addr);
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
