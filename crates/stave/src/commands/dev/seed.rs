//! Buckets, collections and documents that a development cluster begins with, from a file.
//!
//! The whole file is read and checked before the cluster starts. The documents stay in memory: a reset loads them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use base::env::{Env, OpenMode};
use protocol::feature::Feature;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::client::{Cluster, Patience, Secret, Target};
use crate::lines::{Body, JSON_FLAGS, Line, LineSender};
use crate::with_meta::{Collections, SourceCollection, Unknown};

/// The largest file; it is held in memory.
const MOST_BYTES: u64 = 64 << 20;
/// How long a node may take for one batch of documents or one collection.
const PATIENCE: Patience = Patience(Duration::from_secs(30));
/// Files with a document a line, by how their names end.
const LINES: [&str; 2] = ["jsonl", "ndjson"];
const DEFAULT: &str = "_default";

/// What a file says.
#[derive(Debug)]
pub(super) struct SeedFile {
    path: PathBuf,
    buckets: BTreeMap<String, BucketSeed>,
}

/// Of one bucket.
#[derive(Debug, Default)]
struct BucketSeed {
    collections: Vec<SourceCollection>,
    documents: Vec<Line>,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSeed {
    buckets: ByName<OnlyObject<WrittenBucket>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBucket {
    /// Of the default collection.
    #[serde(default)]
    documents: ByName<Box<RawValue>>,
    #[serde(default)]
    scopes: ByName<OnlyObject<WrittenScope>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenScope {
    collections: ByName<OnlyObject<WrittenCollection>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCollection {
    #[serde(default)]
    max_ttl_s: i64,
    #[serde(default)]
    documents: ByName<Box<RawValue>>,
}

/// An object with the members of `T`, and no list of their values, which serde takes for the same.
struct OnlyObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OnlyObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OnlyObject<T>, D::Error> {
        struct Object<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = OnlyObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OnlyObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OnlyObject)
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

/// Members of an object, none of them twice.
struct ByName<T>(Vec<(String, T)>);

impl<T> Default for ByName<T> {
    fn default() -> ByName<T> {
        ByName(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByName<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByName<T>, D::Error> {
        struct NamedMembers<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedMembers<T> {
            type Value = ByName<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a member for each name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByName<T>, A::Error> {
                let (mut members, mut names) = (Vec::new(), BTreeSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{name}` is there twice")));
                    }
                    members.push((name, map.next_value()?));
                }
                Ok(ByName(members))
            }
        }
        deserializer.deserialize_map(NamedMembers(PhantomData))
    }
}

impl SeedFile {
    /// Reads and checks a file. Lines of JSON go to `bucket`.
    pub(super) fn read(env: &Env, path: &Path, bucket: &str) -> anyhow::Result<SeedFile> {
        let file = env.disk.open(path, OpenMode::Read)?;
        let len = file.len()?;
        if len > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            bail!(
                "it has {len} bytes, and {most} MiB are allowed: send more with `stave import lines` instead"
            );
        }
        let mut bytes = vec![0; usize::try_from(len)?];
        let mut read = 0;
        while let more @ 1.. = file.read_at(&mut bytes[read..], read as u64)? {
            read += more;
        }
        bytes.truncate(read);
        let text = String::from_utf8(bytes).context("it is no UTF-8")?;
        let is_lines = path.extension().is_some_and(|end| LINES.iter().any(|lines| end == *lines));
        let buckets = match is_lines {
            true => BTreeMap::from([(bucket.to_owned(), of_lines(&text)?)]),
            false => of_json(&text)?,
        };
        Ok(SeedFile { path: path.to_owned(), buckets })
    }

    /// Names of the buckets that have to be there.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &String> {
        self.buckets.keys()
    }

    /// Makes collections that are lacking, and stores all documents, through the node at `kv`.
    pub(super) fn load(
        &self,
        env: &Env,
        kv: SocketAddr,
        username: &str,
        password: &str,
    ) -> anyhow::Result<()> {
        for (bucket, seed) in &self.buckets {
            let target = Target {
                addr: kv.to_string(),
                username: username.to_owned(),
                password: Secret(password.to_owned()),
                bucket: bucket.clone(),
                patience: PATIENCE,
                ..Target::default()
            };
            let loaded = seed.load(env, target).with_context(|| format!("bucket `{bucket}`"));
            loaded.with_context(|| format!("cannot load the seed file {}", self.path.display()))?;
        }
        Ok(())
    }
}

impl BucketSeed {
    fn load(&self, env: &Env, target: Target) -> anyhow::Result<()> {
        // Numbers tell collections of a source apart; 0 would be the default one.
        let sources = (1..).zip(self.collections.iter().cloned()).collect();
        Collections::find(env, sources, &target, Unknown::Create)?;
        let features = [Feature::Xattr, Feature::SubdocAllowsAccessOnMultipleXattrKeys];
        let mut sender = LineSender::new(Cluster::open(env, target, &features)?, false, None, env);
        let mut rejected = Vec::new();
        for (at, line) in (0..).zip(&self.documents) {
            rejected.extend(sender.send(at, Vec::new(), line)?);
        }
        rejected.extend(sender.finish()?.2);
        let Some(first) = rejected.first() else { return Ok(()) };
        let line = usize::try_from(first.number).ok().and_then(|at| self.documents.get(at));
        let (key, name) = line.map_or_else(Default::default, |line| {
            (String::from_utf8_lossy(&line.key).into_owned(), line.collection.clone().unwrap_or_default())
        });
        let more = match rejected.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more are refused"),
        };
        bail!("document `{key}` of collection `{name}`: {}{more}", first.why)
    }
}

fn of_json(text: &str) -> anyhow::Result<BTreeMap<String, BucketSeed>> {
    let OnlyObject(written): OnlyObject<WrittenSeed> = serde_json::from_str(text)?;
    let mut buckets = BTreeMap::new();
    for (bucket, OnlyObject(written)) in written.buckets.0 {
        let mut seed = BucketSeed::default();
        seed.take(DEFAULT, DEFAULT, written.documents);
        for (scope, OnlyObject(written)) in written.scopes.0 {
            if written.collections.0.is_empty() {
                bail!(
                    "scope `{scope}` of bucket `{bucket}` has no collections: give it one, or leave it out"
                );
            }
            for (name, OnlyObject(written)) in written.collections.0 {
                seed.take(&scope, &name, written.documents);
                let max_ttl_s = written.max_ttl_s;
                if (scope.as_str(), name.as_str()) != (DEFAULT, DEFAULT) {
                    seed.collections.push(SourceCollection { scope: scope.clone(), name, max_ttl_s });
                } else if max_ttl_s != 0 {
                    bail!(
                        "max_ttl_s of the default collection of bucket `{bucket}` cannot be set: leave it out"
                    );
                }
            }
        }
        buckets.insert(bucket, seed);
    }
    Ok(buckets)
}

fn of_lines(text: &str) -> anyhow::Result<BucketSeed> {
    let mut seed = BucketSeed::default();
    let mut names = BTreeSet::new();
    for (number, text) in (1..).zip(text.lines()).filter(|(_, text): &(u64, &str)| !text.trim().is_empty()) {
        let wrong = |why: String| anyhow::anyhow!("line {number}: {why}");
        let mut line = Line::decode(text).map_err(wrong)?;
        let name = line.collection.get_or_insert_with(|| format!("{DEFAULT}.{DEFAULT}")).clone();
        let Some((scope, collection)) = name.split_once('.') else {
            return Err(wrong(format!("its collection is `{name}`: give scope.collection")));
        };
        if (scope, collection) != (DEFAULT, DEFAULT) && names.insert(name.clone()) {
            let (scope, name) = (scope.to_owned(), collection.to_owned());
            seed.collections.push(SourceCollection { scope, name, max_ttl_s: 0 });
        }
        seed.documents.push(line);
    }
    Ok(seed)
}

impl BucketSeed {
    fn take(&mut self, scope: &str, collection: &str, documents: ByName<Box<RawValue>>) {
        let line = |(key, json): (String, Box<RawValue>)| Line {
            key: key.into_bytes(),
            collection: Some(format!("{scope}.{collection}")),
            flags: JSON_FLAGS,
            body: Body::Json(String::from(Box::<str>::from(json))),
            ..Line::default()
        };
        self.documents.extend(documents.0.into_iter().map(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", of_json(text).expect_err(text))
    }

    #[test]
    fn documents_are_where_the_file_has_them_and_as_they_are_written() {
        let text = r#"{"buckets": {
            "travel": {
                "documents": {"a": {"n": 1.50}},
                "scopes": {"app": {"collections": {"users": {"max_ttl_s": 60, "documents": {"u": [ ]}}}}}
            },
            "empty": {}
        }}"#;
        let buckets = of_json(text).expect("it is right");
        assert_eq!(buckets.keys().collect::<Vec<_>>(), ["empty", "travel"]);
        let travel = &buckets["travel"];
        let users = SourceCollection { scope: "app".to_owned(), name: "users".to_owned(), max_ttl_s: 60 };
        assert_eq!(travel.collections, [users]);
        let line = |key: &str, collection: &str, json: &str| Line {
            key: key.as_bytes().to_vec(),
            collection: Some(collection.to_owned()),
            flags: JSON_FLAGS,
            body: Body::Json(json.to_owned()),
            ..Line::default()
        };
        assert_eq!(
            travel.documents,
            [line("a", "_default._default", "{\"n\": 1.50}"), line("u", "app.users", "[ ]")]
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, why) in [
            (
                "{\"buckets\": {\"b\": {\n\"docs\": {}}}}",
                "unknown field `docs`, expected `documents` or `scopes` at line 2",
            ),
            (
                "{\"buckets\": {\"b\": {\"documents\": {\"k\": 1,\n \"k\": 2}}}}",
                "`k` is there twice at line 2",
            ),
            ("{\"buckets\": {\"b\": {}, \"b\": {}}}", "`b` is there twice at line 1"),
            (
                "{\"buckets\": {\"b\": {\"documents\": [1]}}}",
                "expected an object with a member for each name",
            ),
            ("{\"buckets\": {\"b\": {\"documents\": {\"k\": nul}}}}", "at line 1 column"),
            (
                "{\"buckets\": {\"b\": {\"scopes\": {\"s\": {\"collections\": {}}}}}}",
                "scope `s` of bucket `b` has no collections",
            ),
            (
                "{\"buckets\": {\"b\": {\"scopes\": {\"_default\": {\"collections\": {\"_default\": {\"max_ttl_s\": 1}}}}}}}",
                "max_ttl_s of the default collection of bucket `b`",
            ),
            ("[{}]", "expected an object"),
            ("{\"buckets\": {\"b\": []}}", "expected an object at line 1"),
            ("{\"buckets\": {}} x", "trailing characters at line 1"),
            ("{}", "missing field `buckets`"),
            ("", "EOF"),
        ] {
            let told = refused(text);
            assert!(told.contains(why), "{text}: {told}");
        }
        for (text, why) in [
            ("\n{\"key\":\"a\"}", "line 2: it needs either value"),
            ("{\"key\":\"a\",\"value\":1,\"collection\":\"users\"}", "line 1: its collection is `users`"),
        ] {
            let told = of_lines(text).expect_err(text).to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    #[test]
    fn lines_name_their_collections() {
        let text = "{\"key\":\"a\",\"value\":1}\n\n{\"key\":\"b\",\"value\":2,\"collection\":\"app.users\"}\n\
                    {\"key\":\"c\",\"value\":3,\"collection\":\"app.users\",\"expiry\":9}\n";
        let seed = of_lines(text).expect("it is right");
        assert_eq!(seed.collections.iter().map(SourceCollection::path).collect::<Vec<_>>(), ["app.users"]);
        let expiries: Vec<u32> = seed.documents.iter().map(|line| line.expiry).collect();
        assert_eq!(expiries, [0, 0, 9]);
    }
}
