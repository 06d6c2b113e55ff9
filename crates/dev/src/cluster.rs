//! A development cluster: how it comes to be, and how it ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ::cluster::state::AutoFailover;
use ::cluster::store::FileStore;
use ::cluster::{Command, View};
use ::node::Node;
use base::env::Env;
use serde_json::Value;

use super::config::{DevConfig, DevError};
use super::control::{self, Endpoint};
use super::node::{DevNode, folder_name};
use super::shared::{Shared, is_in, is_settled};

/// Where the document of the cluster is.
const DOCUMENT: &str = "cluster.json";
/// How long a start may take.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running cluster.
pub struct DevCluster {
    shared: Arc<Shared>,
    endpoint: Endpoint,
}

impl DevCluster {
    /// Starts all nodes, and makes the buckets that are not there; when it returns all of them serve.
    pub fn start(config: DevConfig, env: Env) -> Result<DevCluster, DevError> {
        let failed = |what| move |source| DevError::Io { what, source };
        env.disk.create_dir_all(&config.data).map_err(|error| {
            let source = std::io::Error::new(error.kind(), format!("{}: {error}", config.data.display()));
            DevError::Io { what: "cannot make the folder", source }
        })?;
        let store = FileStore::open(&env, &config.data.join(DOCUMENT), |fault| {
            tracing::error!(event = "file_copy_damaged", "{fault}")
        });
        let store = store.map_err(failed("cannot read the document of the cluster"))?;
        let shared = Arc::new(Shared::new(config, env, Arc::new(store)));
        let begun = shared
            .begin()
            .and_then(|()| control::start(&shared).map_err(failed("cannot start the control endpoint")));
        match begun {
            Ok(endpoint) => Ok(DevCluster { shared, endpoint }),
            Err(error) => {
                // What is told is why it did not start.
                let _ = shared.stop_all();
                Err(error)
            }
        }
    }

    /// The KV and HTTP addresses of all nodes, by number.
    pub fn addresses(&self) -> BTreeMap<u16, (SocketAddr, SocketAddr)> {
        let looks = self.shared.nodes().into_iter().map(|node| node.look());
        looks.map(|look| (look.number, (look.kv, look.http))).collect()
    }

    /// Where the nodes speak TLS with clients, KV and HTTP, by number; empty if they do not.
    pub fn tls_addresses(&self) -> BTreeMap<u16, (SocketAddr, SocketAddr)> {
        let looks = self.shared.nodes().into_iter().map(|node| node.look());
        looks.filter_map(|look| Some((look.number, look.tls?))).collect()
    }

    /// A node by its number from 1 on, if it runs.
    pub fn node(&self, number: u16) -> Option<Arc<Node>> {
        self.shared.node(number).ok()?.node()
    }

    /// Where the control endpoint listens.
    pub fn control_addr(&self) -> SocketAddr {
        self.endpoint.addr()
    }

    /// What the control endpoint tells of it.
    pub fn status(&self) -> Result<Value, DevError> {
        self.shared.status()
    }

    /// Waits until the process is told to stop, by SIGTERM, SIGINT (Ctrl-C), SIGQUIT or SIGHUP; says by which.
    pub fn wait_for_signal(&self) -> &'static str {
        self.endpoint.wait_for_signal()
    }

    /// Stops all nodes cleanly.
    pub fn stop(self) -> Result<(), DevError> {
        self.endpoint.stop();
        self.shared.stop_all()
    }
}

impl Shared {
    fn begin(&self) -> Result<(), DevError> {
        let before = self.view()?;
        self.check_vbuckets(before.as_ref())?;
        for (at, number) in self.numbers()?.into_iter().enumerate() {
            self.add_node(number, at == 0)?;
        }
        for (node, ()) in self.beside_each_other("open", DevNode::open)? {
            node.join(&self.config)?;
            let uuid = node.look().uuid.unwrap_or_default();
            // One after the other, so that the cluster numbers them as people do.
            self.ready(|view| view.state.node_of(&uuid).is_some())?;
        }
        let uuids: Vec<String> = self.nodes().iter().filter_map(|node| node.look().uuid).collect();
        self.ready(|view| uuids.iter().all(|uuid| is_in(view, uuid)))?;
        self.set_rules()?;
        if before.is_none() {
            self.ask(&Command::Rebalance { eject: Vec::new() })?;
        }
        self.ready(is_settled)?;
        self.make_buckets()?;
        self.ready(is_settled)?;
        self.sow()
    }

    /// Loads the documents of the seed, if there is one. What is under way ends first: it may be buckets being emptied.
    pub(super) fn sow(&self) -> Result<(), DevError> {
        let Some(seed) = &self.config.seed else { return Ok(()) };
        self.ready(is_settled)?;
        let looks = self.nodes().into_iter().map(|node| node.look());
        let kv = looks.filter(|look| look.may_serve).map(|look| look.kv).next().ok_or(DevError::Nobody)?;
        (seed.0)(kv).map_err(DevError::Seed)
    }

    /// The nodes that there shall be: those that there were, or the first ones.
    fn numbers(&self) -> Result<Vec<u16>, DevError> {
        let failed = |source| DevError::Io { what: "cannot read the folder", source };
        let names = self.env.disk.read_dir(&self.config.data).map_err(failed)?;
        let were: Vec<u16> = (1..=super::MOST_NODES).filter(|at| names.contains(&folder_name(*at))).collect();
        let asked = self.config.nodes;
        if were.is_empty() {
            return Ok((1..=asked).collect());
        }
        if were.len() == usize::from(asked) {
            return Ok(were);
        }
        Err(DevError::Differs { ran: format!("{} nodes", were.len()), asked: asked.to_string() })
    }

    fn check_vbuckets(&self, before: Option<&View>) -> Result<(), DevError> {
        let asked = usize::from(self.config.vbuckets);
        let mut buckets = before.into_iter().flat_map(|view| view.state.buckets.values());
        match buckets.find(|bucket| bucket.map.len() != asked) {
            None => Ok(()),
            Some(bucket) => {
                let ran = format!("buckets of {} vBuckets", bucket.map.len());
                Err(DevError::Differs { ran, asked: asked.to_string() })
            }
        }
    }

    fn set_rules(&self) -> Result<(), DevError> {
        let Some(view) = self.view()? else { return Ok(()) };
        let rules = self.config.times.rules();
        let is = view.state.auto_failover;
        if (AutoFailover { count: is.count, ..rules }) == is {
            return Ok(());
        }
        self.ask(&Command::SetAutoFailover(rules))
    }

    fn make_buckets(&self) -> Result<(), DevError> {
        let Some(view) = self.view()? else { return Ok(()) };
        let Some(node) = self.nodes().iter().find_map(|node| node.node()) else { return Ok(()) };
        for spec in self.config.buckets.iter().filter(|spec| !view.state.buckets.contains_key(&spec.name)) {
            let failed = |source| DevError::Bucket { name: spec.name.clone(), source };
            node.management().create(spec.clone()).map_err(failed)?;
        }
        Ok(())
    }

    fn ready(&self, is_so: impl Fn(&View) -> bool) -> Result<(), DevError> {
        if self.wait(READY_WITHIN, is_so)? { Ok(()) } else { Err(DevError::NotReady(READY_WITHIN)) }
    }

    /// Stops the nodes that run, beside each other, so that none of them is missed by the others for long.
    fn stop_all(&self) -> Result<(), DevError> {
        self.beside_each_other("stop", |node| node.stop().map(drop)).map(drop)
    }

    /// Does something with all nodes on a thread each, with all of them whatever becomes of one.
    fn beside_each_other<T: Send + 'static>(
        &self,
        name: &str,
        work: fn(&DevNode) -> Result<T, DevError>,
    ) -> Result<Vec<(Arc<DevNode>, T)>, DevError> {
        let (sender, done) = mpsc::channel();
        let mut outcome = Ok(());
        for node in self.nodes() {
            let sender = sender.clone();
            let job = move || {
                let done = work(&node);
                // Whoever waits takes all of them.
                let _ = sender.send((node, done));
            };
            if let Err(source) = self.env.spawn.spawn(name, Box::new(job)) {
                outcome = Err(DevError::Io { what: "cannot start a thread", source });
            }
        }
        drop(sender);
        let mut all = Vec::new();
        for (node, done) in done {
            match done {
                Ok(done) => all.push((node, done)),
                Err(error) => {
                    tracing::error!(event = "dev_order_failed", %error, "a node could not {name}");
                    outcome = outcome.and(Err(error));
                }
            }
        }
        all.sort_by_key(|(node, _)| node.number);
        outcome.map(|()| all)
    }
}
