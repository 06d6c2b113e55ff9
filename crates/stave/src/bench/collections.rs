//! The collections that a run's keys are spread over: found by name, or made for the run and removed after it.
#![allow(clippy::disallowed_methods, reason = "the client's end is not part of a node")]

use std::str::FromStr;

use anyhow::Context;
use base::CollectionId;
use base::env::Env;
use node::form::escaped;

use super::plan::Plan;
use super::routes::Routes;
use crate::client::{Client, ClientError, HttpTarget};

/// More than a bucket may have beside others.
pub const MAX_COLLECTIONS: u32 = 1_000;
/// The scope of collections that are made for a run.
const SCOPE: &str = "bench";
/// Between two looks whether a node has heard of a collection.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// What a run's keys are to be spread over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// `bench.c0`, `bench.c1` and so on, this number of them.
    Number(u32),
    /// These, which must exist.
    Named(Vec<String>),
}

impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Spread, String> {
        if let Ok(number) = text.parse() {
            return match number {
                1..=MAX_COLLECTIONS => Ok(Spread::Number(number)),
                _ => Err(format!(
                    "`{text}` is out of range; give 1 to {MAX_COLLECTIONS} collections, or names"
                )),
            };
        }
        let names: Vec<String> = text.split(',').map(str::to_owned).collect();
        if names.iter().any(|name| name.is_empty() || name.split('.').count() > 2) {
            return Err(format!(
                "`{text}` names no collections; give a number, or names like shop.orders,shop.bills"
            ));
        }
        if names.len() > MAX_COLLECTIONS as usize {
            return Err(format!("{} collections are too many; give at most {MAX_COLLECTIONS}", names.len()));
        }
        Ok(Spread::Named(names))
    }
}

impl Spread {
    fn names(&self) -> Vec<String> {
        match self {
            Spread::Number(number) => (0..*number).map(|at| format!("{SCOPE}.c{at}")).collect(),
            Spread::Named(names) => names.clone(),
        }
    }
}

/// The collections of a run.
#[derive(Debug)]
pub struct Collections {
    /// Their numbers; only that of the default collection if the run names none.
    pub ids: Vec<CollectionId>,
    made: Option<Made>,
}

/// What was made for the run.
#[derive(Debug)]
struct Made {
    http: HttpTarget,
    /// The address of the bucket's scopes.
    scopes: String,
    is_scope_ours: bool,
    collections: Vec<String>,
}

impl Collections {
    /// Finds those of the plan; makes those that are missing, if the plan gives a number.
    pub fn prepare(env: &Env, plan: &Plan, routes: &Routes) -> anyhow::Result<Collections> {
        let Some(spread) = &plan.collections else {
            return Ok(Collections { ids: vec![CollectionId::DEFAULT], made: None });
        };
        let mut collections = Collections { ids: Vec::new(), made: None };
        if matches!(spread, Spread::Number(_)) {
            let mut client = Client::open(env, &plan.target)?;
            let map = client.map()?.unwrap_or_default();
            let addr = map.http.context("the node does not say where it listens for HTTP")?;
            let http = plan.target.over_http(addr);
            let scopes = format!("/pools/default/buckets/{}/scopes", escaped(&plan.target.bucket));
            let made = Made { http, scopes, is_scope_ours: false, collections: Vec::new() };
            if let Err(error) = collections.made.insert(made).make(&spread.names()) {
                collections.remove()?;
                return Err(error);
            }
        }
        match ids(env, plan, routes, &spread.names(), collections.made.is_some()) {
            Ok(ids) => Ok(Collections { ids, ..collections }),
            Err(error) => {
                collections.remove()?;
                Err(error)
            }
        }
    }

    /// Removes what was made, with its documents.
    pub fn remove(&mut self) -> anyhow::Result<()> {
        self.made.take().map_or(Ok(()), Made::remove).context("remove the collections of the run")
    }
}

impl Made {
    fn make(&mut self, names: &[String]) -> anyhow::Result<()> {
        let there = self.http.request("GET", &self.scopes, None)?;
        let scope = there["scopes"].as_array().into_iter().flatten().find(|scope| scope["name"] == SCOPE);
        let has = |name: &str| {
            let mut all = scope.and_then(|scope| scope["collections"].as_array()).into_iter().flatten();
            all.any(|one| one["name"] == name)
        };
        if scope.is_none() {
            self.http.form(&self.scopes, &[("name", SCOPE)]).with_context(|| format!("scope `{SCOPE}`"))?;
            self.is_scope_ours = true;
        }
        let path = format!("{}/{SCOPE}/collections", self.scopes);
        for name in names.iter().filter_map(|name| name.split_once('.')).map(|(_, name)| name) {
            if !has(name) {
                self.http.form(&path, &[("name", name)]).with_context(|| format!("collection `{name}`"))?;
                self.collections.push(name.to_owned());
            }
        }
        Ok(())
    }

    fn remove(self) -> anyhow::Result<()> {
        if self.is_scope_ours {
            self.http.request("DELETE", &format!("{}/{SCOPE}", self.scopes), None)?;
            return Ok(());
        }
        for name in &self.collections {
            let path = format!("{}/{SCOPE}/collections/{name}", self.scopes);
            self.http.request("DELETE", &path, None)?;
        }
        Ok(())
    }
}

/// The numbers of collections, as soon as every node knows them.
fn ids(
    env: &Env,
    plan: &Plan,
    routes: &Routes,
    names: &[String],
    were_made: bool,
) -> anyhow::Result<Vec<CollectionId>> {
    let until = env.clock.monotonic() + plan.target.patience.0;
    let mut ids = Vec::new();
    for addr in routes.nodes() {
        let mut client = Client::open_at(env, &plan.target, addr, plan.target.patience.0, &[])?;
        ids.clear();
        for name in names {
            let id = loop {
                match client.collection_id(name) {
                    // The node has not heard of it yet.
                    Err(ClientError::Collection { .. }) if were_made && env.clock.monotonic() < until => {
                        std::thread::sleep(PAUSE);
                    }
                    found => break found,
                }
            };
            ids.push(id.with_context(|| format!("collection `{name}` at {addr}"))?);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::super::{Distribution, Extent, Protocol, ValueKind, run};
    use super::*;
    use crate::test_server::TestServer;

    fn plan(server: &TestServer, collections: &str) -> Plan {
        Plan {
            target: server.target(),
            protocol: Protocol::Couchbase,
            connections: 2,
            pipeline: 4,
            threads: 2,
            collections: Some(collections.parse().expect("collections")),
            keys: 30,
            key_size_bytes: 12,
            value_size: "10".parse().expect("a size"),
            value_kind: ValueKind::Random,
            compressible_percent: 0,
            set_percent: 25,
            distribution: Distribution::Uniform,
            durability: None,
            populate: true,
            warmup_s: 0.0,
            rate: None,
            extent: Extent::Operations(200),
            seed: 1,
            server_pid: None,
        }
    }

    /// The collections of the scope `bench`; `None` if there is no such scope.
    fn there(http: &HttpTarget, scopes: &str) -> Option<Vec<String>> {
        let told = http.request("GET", scopes, None).expect("an answer");
        let scope = told["scopes"].as_array()?.iter().find(|scope| scope["name"] == SCOPE)?.clone();
        let names = scope["collections"].as_array()?.iter().filter_map(|one| one["name"].as_str());
        Some(names.map(str::to_owned).collect())
    }

    #[test]
    fn collections_of_a_run_are_made_and_removed_and_those_that_are_there_stay() {
        let (env, mut server) = (Env::real(), TestServer::start());
        let http = server.http_target();
        let scopes = "/pools/default/buckets/default/scopes";
        let report = run(&env, &plan(&server, "3"), true).expect("a run");
        assert!(report.is_clean() && report.misses == 0, "{:?}", report.errors);
        assert!(report.json().contains("\"collections\":3"), "{}", report.json());
        assert!(report.table().contains("spread over 3 collections"), "{}", report.table());
        assert_eq!(there(&http, scopes), None, "the scope was made for the run");

        http.form(scopes, &[("name", SCOPE)]).expect("a scope");
        http.form(&format!("{scopes}/{SCOPE}/collections"), &[("name", "c1")]).expect("a collection");
        run(&env, &plan(&server, "3"), true).expect("a run");
        assert_eq!(there(&http, scopes), Some(vec!["c1".to_owned()]));
        let report = run(&env, &plan(&server, "bench.c1,_default"), true).expect("a run");
        assert!(report.is_clean() && report.misses == 0, "{:?}", report.errors);
        assert_eq!(there(&http, scopes), Some(vec!["c1".to_owned()]));
        let mut client = Client::open(&env, &server.target()).expect("the node lets us in");
        for (collection, key) in [("bench.c1", b"bench-000000"), ("_default", b"bench-000001")] {
            let id = client.collection_id(collection).expect("it is there");
            client.use_collection(id);
            assert!(client.get(key).expect("an answer").is_some(), "{collection}");
        }
        let error = run(&env, &plan(&server, "bench.none"), true).expect_err("it is not there");
        assert!(format!("{error:#}").contains("bench.none"), "{error:#}");
        server.stop();
    }

    #[test]
    fn a_number_or_names() {
        assert_eq!("3".parse(), Ok(Spread::Number(3)));
        assert_eq!(Spread::Number(2).names(), ["bench.c0", "bench.c1"]);
        let named = Spread::Named(vec!["shop.orders".to_owned(), "plain".to_owned()]);
        assert_eq!("shop.orders,plain".parse(), Ok(named));
        for wrong in ["0", "1001", "", "a,,b", "a.b.c"] {
            assert!(wrong.parse::<Spread>().is_err(), "{wrong}");
        }
    }
}
