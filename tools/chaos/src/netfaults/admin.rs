//! The administrator: asks nodes over HTTP how the cluster is, and does what makes it whole again.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use harness::http;
use harness::stave::BUCKET;
use serde_json::Value;

use super::process::HTTP;
use super::world::{Place, World};

/// How long a node may take to answer before another one is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Between two looks at a cluster that is not whole.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the cluster's nodes say together.
pub struct Admin {
    nodes: Vec<String>,
}

impl Admin {
    /// Of nodes 1 to `nodes`.
    pub fn new(nodes: u8) -> Admin {
        let address = |number| format!("{}:{HTTP}", Place::Node(number).address());
        Admin { nodes: (1..=nodes).map(address).collect() }
    }

    /// Asks one node.
    fn ask_at(&self, world: &World, at: usize, path: &str) -> Result<String> {
        world.in_the_middle(|| http::form(&self.nodes[at], "GET", path, "", ANSWER_WITHIN))?
    }

    /// Asks one node after the other until one answers.
    fn ask(&self, world: &World, method: &str, path: &str, form: &str) -> Result<String> {
        world.in_the_middle(|| {
            let mut last = anyhow::anyhow!("there are no nodes");
            for node in &self.nodes {
                match http::form(node, method, path, form, ANSWER_WITHIN) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => last = error,
                }
            }
            Err(last)
        })?
    }

    /// The cluster as a node that belongs to it sees it.
    pub fn look(&self, world: &World) -> Result<Cluster> {
        Ok(Cluster(serde_json::from_str(&self.ask(world, "GET", "/v1/cluster", "")?)?))
    }

    /// Which node does not know how things are now, or must not serve, as it says itself. A lease that is alive says
    /// neither: when etcd comes back, all that there were live on for their whole time, also those of nodes that have
    /// not heard of etcd yet and serve nothing.
    fn who_does_not_serve(&self, world: &World) -> Option<String> {
        (0..self.nodes.len()).find_map(|at| {
            let told =
                self.ask_at(world, at, "/v1/cluster").and_then(|json| Ok(serde_json::from_str(&json)?));
            let why = match told.as_ref().map(serves) {
                Ok(true) => return None,
                Ok(false) => "does not serve yet".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            Some(format!("node {}: {why}", at + 1))
        })
    }

    /// Asks for something that may be refused.
    pub fn post(&self, world: &World, path: &str, form: &str) -> Result<()> {
        self.ask(world, "POST", path, form).map(drop)
    }

    /// Makes the bucket, and has nodes that fail replaced soon.
    pub fn set_up(&self, world: &World, replicas: u8, store: &str) -> Result<()> {
        self.post(world, "/settings/autoFailover", "enabled=true&timeout=1&maxCount=100")?;
        let bucket = format!("name={BUCKET}&ramQuotaMB=256&replicaNumber={replicas}&storageBackend={store}");
        self.post(world, "/pools/default/buckets", &bucket)
    }

    /// Waits until the cluster is whole, and does what an administrator has to do for that: nodes that were failed over
    /// are taken back, and vBuckets spread again. Nodes with `old` lives must have begun new ones. `meanwhile` is called
    /// between two looks.
    pub fn make_whole(
        &self,
        world: &World,
        old: &[Life],
        within: Duration,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            let trouble = match self.look(world) {
                Ok(cluster) => match cluster.trouble(self.nodes.len(), old) {
                    None => match self.who_does_not_serve(world) {
                        None => return Ok(()),
                        Some(trouble) => trouble,
                    },
                    Some(trouble) => {
                        // What is refused now is tried again at the next look.
                        let refused = self.help(world, &cluster).err();
                        refused.map_or(trouble.clone(), |why| format!("{trouble} ({why:#})"))
                    }
                },
                Err(error) => format!("{error:#}"),
            };
            if begun.elapsed() > within {
                bail!("the cluster is not whole after {within:?}: {trouble}");
            }
            meanwhile()?;
            thread::sleep(LOOK_EVERY);
        }
    }

    fn help(&self, world: &World, cluster: &Cluster) -> Result<()> {
        if cluster.is_moving() {
            return Ok(());
        }
        let there: Vec<String> =
            cluster.nodes().into_iter().map(|node| format!("{}:{HTTP}", node.host)).collect();
        for node in self.nodes.iter().filter(|node| !there.contains(node)) {
            self.post(world, "/controller/addNode", &format!("hostname={node}"))?;
        }
        let mut is_ready = true;
        let mut comes_back = false;
        for node in cluster.nodes() {
            if node.status != "active" && !node.is_alive {
                is_ready = false;
            }
            if node.status == "failed_over" && node.is_alive {
                let form = format!("otpNode={}&recoveryType=delta", node.name);
                self.post(world, "/controller/setRecoveryType", &form)?;
            }
            comes_back |= node.status != "active";
        }
        if is_ready && comes_back {
            self.post(world, "/controller/rebalance", "")?;
        }
        Ok(())
    }
}

/// What `/v1/cluster` says.
pub struct Cluster(Value);

/// One life of a node: its name and its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life(String, u64);

/// A node as the cluster sees it.
pub struct Member {
    /// Such as `n_2`.
    pub name: String,
    /// What it is to the cluster.
    pub status: String,
    /// Whether its lease is alive.
    pub is_alive: bool,
    /// Where it is.
    pub host: String,
    /// Its life.
    pub life: Life,
}

impl Cluster {
    /// All nodes.
    pub fn nodes(&self) -> Vec<Member> {
        let alive: Vec<u64> = list(&self.0["alive"]).iter().filter_map(Value::as_u64).collect();
        let nodes = self.0["state"]["nodes"].as_object().into_iter().flatten();
        let member = |(id, node): (&String, &Value)| Member {
            name: format!("n_{id}"),
            status: node["status"].as_str().unwrap_or_default().to_owned(),
            is_alive: id.parse().is_ok_and(|id| alive.contains(&id)),
            host: node["address"]["host"].as_str().unwrap_or_default().to_owned(),
            life: Life(format!("n_{id}"), node["incarnation"].as_u64().unwrap_or_default()),
        };
        nodes.map(member).collect()
    }

    /// A node by its number.
    pub fn member(&self, number: u8) -> Result<Member> {
        let host = Place::Node(number).address();
        let node = self.nodes().into_iter().find(|node| node.host == host);
        node.with_context(|| format!("node {number} does not belong to the cluster"))
    }

    /// Whether vBuckets are being moved, or wait for the choice of their active copy.
    pub fn is_moving(&self) -> bool {
        !self.0["state"]["rebalance"].is_null() || self.open_steps() > 0
    }

    fn buckets(&self) -> Vec<&Value> {
        self.0["state"]["buckets"].as_object().into_iter().flatten().map(|(_, bucket)| bucket).collect()
    }

    fn open_steps(&self) -> usize {
        let buckets = self.buckets();
        buckets.iter().filter_map(|bucket| bucket["steps"].as_object()).map(serde_json::Map::len).sum()
    }

    /// What is missing of so many active nodes that are alive, with all copies and nothing under way.
    fn trouble(&self, nodes: usize, old: &[Life]) -> Option<String> {
        let members = self.nodes();
        let good = members.iter().filter(|node| node.is_alive && node.status == "active").count();
        if good < nodes {
            let all: Vec<String> = members
                .iter()
                .map(|node| {
                    format!("{} {} {}", node.name, node.status, if node.is_alive { "alive" } else { "gone" })
                })
                .collect();
            return Some(all.join(", "));
        }
        if let Some(node) = members.iter().find(|node| old.contains(&node.life)) {
            return Some(format!("{} has not been let in again", node.name));
        }
        if self.is_moving() {
            return Some(format!("{} vBuckets are under way", self.open_steps()));
        }
        let missing =
            |bucket: &&&Value| bucket["missing"].as_object().is_some_and(|missing| !missing.is_empty());
        if self.buckets().iter().any(|bucket| missing(&bucket)) {
            return Some("copies are missing".to_owned());
        }
        None
    }
}

/// Whether a node serves, and knows how things are, as it says itself.
fn serves(told: &Value) -> bool {
    told["serves"] == true && told["isStale"] == false
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_waits_for_etcd_does_not_serve() {
        assert!(serves(&json!({ "serves": true, "isStale": false })));
        assert!(!serves(&json!({ "serves": false, "isStale": false })), "its lease is not renewed");
        assert!(!serves(&json!({ "serves": true, "isStale": true })), "it has not read the document since");
        assert!(!serves(&json!({ "errors": {} })));
    }
}
