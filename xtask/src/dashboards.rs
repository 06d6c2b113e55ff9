//! `cargo xtask dashboards`: what is in `deploy/` for Prometheus and Grafana, against nodes that run: each query of the
//! dashboard has data, each alert asks for figures that there are, none fires while all is well.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use harness::child::{headline, is_installed, succeeds};
use harness::http;
use harness::stave::{PASSWORD, Stave, USER};
use harness::totals::Totals;
use harness::tree::{Scratch, release_binary, root};
use serde_json::{Value, json};

/// Nodes are read so often.
const SCRAPE_EVERY: &str = "1s";
/// Rates are told over so long.
const RATE_OVER: &str = "10s";
/// Every node must have been read so often before anything is asked.
const READ_TIMES: u64 = 8;
/// Prometheus must have read them that often within this time.
const READ_WITHIN: Duration = Duration::from_secs(90);
/// Figures that a healthy node does not tell, as what they are about is not there.
const NOT_TOLD: [&str; 1] = ["stave_bucket_down"];

/// How what is found is told.
#[derive(Args, Default)]
pub struct DashboardOptions {
    /// Take the release program that is there.
    #[arg(long)]
    pub no_build: bool,
    /// Print what was found as JSON.
    #[arg(long)]
    json: bool,
}

/// One query of the dashboard, and how many series it has.
struct Answered {
    panel: String,
    query: String,
    series: usize,
}

/// Runs nodes, clients and Prometheus, and looks; needs Debian's package `prometheus`.
pub fn run(options: &DashboardOptions) -> Result<Totals> {
    for program in ["prometheus", "promtool"] {
        ensure!(is_installed(program), "{program} is missing: install the package prometheus");
    }
    let mut totals = Totals::default();
    headline("files");
    let folder = root().join("deploy/prometheus");
    for (what, file) in [(["check", "rules"], "alerts.yml"), (["test", "rules"], "alerts.test.yml")] {
        let mut command = Command::new("promtool");
        command.args(what).arg(file).current_dir(&folder).stdout(Stdio::null());
        let good = succeeds(&mut command)?;
        println!("promtool {} {file}: {}", what.join(" "), if good { "good" } else { "FAILED" });
        totals += Totals::one(good);
    }
    headline("nodes, clients, Prometheus");
    let scratch = Scratch::new("dashboards")?;
    let world = WatchedCluster::start(scratch.path())?;
    totals += world.check_metrics(scratch.path())?;
    headline("the dashboard");
    let answered = world.ask_all()?;
    for row in &answered {
        totals += Totals::one(row.series > 0);
        println!("{:>6}  {:<45} {}", row.series, row.panel, if row.series > 0 { "" } else { &row.query });
    }
    headline("alerts");
    let unknown = world.unknown_figures(&folder.join("alerts.yml"))?;
    let firing = world.series("ALERTS{alertstate=\"firing\"}")?;
    totals += Totals::one(unknown.is_empty());
    totals += Totals::one(firing == 0);
    println!("figures that no node tells: {}", unknown.len());
    unknown.iter().for_each(|name| println!("  {name}"));
    println!("alerts that fire while all is well: {firing}");
    if options.json {
        let rows = answered.iter().map(|r| json!({"panel": r.panel, "query": r.query, "series": r.series}));
        let rows: Vec<Value> = rows.collect();
        println!("{}", json!({"queries": rows, "unknown_figures": unknown, "firing_alerts": firing}));
    }
    Ok(totals)
}

/// Three nodes, clients that go on, and Prometheus, which has read the nodes often enough.
struct WatchedCluster {
    nodes: Stave,
    _clients: Ended,
    _prometheus: Ended,
    prometheus_address: String,
}

/// A program that ends with the run.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl WatchedCluster {
    fn start(folder: &Path) -> Result<WatchedCluster> {
        let tls = folder.join("certs");
        let tls = tls.to_str().context("the folder's name is text")?;
        let more = ["--nodes", "3", "--replicas", "1", "--vbuckets", "64", "--tls", tls];
        let nodes = Stave::start_dev(&folder.join("dev.log"), &more)?;
        // Some figures are there only once something of their kind has happened.
        let durable = bench(&nodes, &["--durability", "majority", "--operations", "2000"]).status()?;
        ensure!(durable.success(), "stave bench ended with {durable}");
        let clients = bench(&nodes, &["--seconds", "600", "--rate", "2000"]).spawn()?;
        let clients = Ended(clients);
        let (prometheus, prometheus_address) = start_prometheus(folder, &http_addresses(&nodes)?)?;
        let world = WatchedCluster { nodes, _clients: clients, _prometheus: prometheus, prometheus_address };
        world.wait_until_read()?;
        Ok(world)
    }

    fn wait_until_read(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < READ_WITHIN {
            // It may not listen yet.
            let read = self.ask("min(count_over_time(up{job=\"stave\"}[5m]))");
            let times =
                read.ok().as_ref().and_then(|found| found[0]["value"][1].as_str()?.parse::<u64>().ok());
            if times >= Some(READ_TIMES) {
                let up = self.ask("sum(up{job=\"stave\"})")?;
                ensure!(up[0]["value"][1] == "3", "Prometheus cannot read the three nodes: {up}");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("Prometheus did not read the nodes {READ_TIMES} times within {READ_WITHIN:?}");
    }

    /// What a query has as its result now.
    fn ask(&self, query: &str) -> Result<Value> {
        let path = format!("/api/v1/query?query={}", escaped(query));
        let answer = http::request(&self.prometheus_address, "GET", &path, "")?;
        let answer: Value = serde_json::from_str(unchunked(&answer))?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        Ok(answer["data"]["result"].clone())
    }

    fn series(&self, query: &str) -> Result<usize> {
        Ok(self.ask(query)?.as_array().map_or(0, Vec::len))
    }

    fn check_metrics(&self, folder: &Path) -> Result<Totals> {
        let page = folder.join("metrics.txt");
        fs::write(&page, http::request(&self.nodes.http, "GET", "/metrics", "")?)?;
        let mut command = Command::new("promtool");
        command.args(["check", "metrics"]).stdin(fs::File::open(&page)?);
        let good = succeeds(&mut command)?;
        println!("promtool check metrics: {}", if good { "good" } else { "FAILED" });
        Ok(Totals::one(good))
    }

    fn ask_all(&self) -> Result<Vec<Answered>> {
        let text = fs::read_to_string(root().join("deploy/grafana/stave.json"))?;
        let dashboard: Value = serde_json::from_str(&text)?;
        let panels = dashboard["panels"].as_array().context("the dashboard has panels")?;
        let mut answered = Vec::new();
        for panel in panels {
            let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
            for target in targets {
                let query = target["expr"].as_str().context("a target has a query")?;
                let query = filled_in(query);
                let series = self.series(&query)?;
                let panel = panel["title"].as_str().unwrap_or_default().to_owned();
                answered.push(Answered { panel, query, series });
            }
        }
        ensure!(!answered.is_empty(), "the dashboard asks nothing");
        Ok(answered)
    }

    /// Names in the file that look like figures and that Prometheus has not heard of.
    fn unknown_figures(&self, alerts: &Path) -> Result<Vec<String>> {
        let answer = http::request(&self.prometheus_address, "GET", "/api/v1/label/__name__/values", "")?;
        let known: Value = serde_json::from_str(unchunked(&answer))?;
        let known: BTreeSet<&str> =
            known["data"].as_array().context("there are names")?.iter().filter_map(Value::as_str).collect();
        let text = fs::read_to_string(alerts)?;
        let asked = figures(&text);
        ensure!(!asked.is_empty(), "the alerts ask for nothing");
        let is_unknown = |name: &String| !known.contains(name.as_str()) && !NOT_TOLD.contains(&name.as_str());
        Ok(asked.into_iter().filter(is_unknown).collect())
    }
}

fn bench(nodes: &Stave, more: &[&str]) -> Command {
    let mut command = Command::new(release_binary());
    command.args(["bench", "--quiet", "--addr", &nodes.kv, "--keys", "20000"]).args(more);
    command.env("STAVE_USERNAME", USER).env("STAVE_PASSWORD", PASSWORD);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Where each node answers over HTTP.
fn http_addresses(nodes: &Stave) -> Result<Vec<String>> {
    let answer = http::request(&nodes.http, "GET", "/pools/default/nodeServices", "")?;
    let services: Value = serde_json::from_str(&answer)?;
    let all = services["nodesExt"].as_array().context("the answer names nodes")?;
    let address = |node: &Value| {
        let host = node["hostname"].as_str().unwrap_or("127.0.0.1").to_owned();
        Some(format!("{host}:{}", node["services"]["mgmt"].as_u64()?))
    };
    let addresses: Vec<String> = all.iter().filter_map(address).collect();
    ensure!(addresses.len() == 3, "not all nodes say where their HTTP is: {answer}");
    Ok(addresses)
}

fn start_prometheus(folder: &Path, nodes: &[String]) -> Result<(Ended, String)> {
    // It does not tell which port it takes, so a free one is looked for.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let alerts: PathBuf = root().join("deploy/prometheus/alerts.yml");
    let config = json!({
        "global": {"scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY},
        "scrape_configs": [{
            "job_name": "stave",
            "basic_auth": {"username": USER, "password": PASSWORD},
            "static_configs": [{"targets": nodes}],
        }],
        "rule_files": [alerts],
    });
    // JSON is YAML.
    let path = folder.join("prometheus.yml");
    fs::write(&path, config.to_string())?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", path.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("figures").display()));
    command.arg(format!("--web.listen-address={address}"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("prometheus.log"))?);
    Ok((Ended(command.spawn().context("cannot run prometheus")?), address))
}

/// A query of the dashboard with its variables filled in.
fn filled_in(query: &str) -> String {
    let all = [("$__rate_interval", RATE_OVER), ("$job", "stave"), ("$node", ".*"), ("$bucket", ".*")];
    all.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value))
}

/// Names of Stave's figures in a text.
fn figures(text: &str) -> BTreeSet<String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let expressions = text.lines().filter(|line| line.trim_start().starts_with("expr:"));
    let words = expressions.flat_map(|line| line.split(move |char| !is_part(char)));
    words.filter(|word| word.starts_with("stave_") || word.starts_with("kv_")).map(str::to_owned).collect()
}

/// Escapes a query for an address.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The JSON of a body that may come in pieces: short answers come in one, with their length before and a zero behind.
fn unchunked(body: &str) -> &str {
    match (body.find('{'), body.rfind('}')) {
        (Some(from), Some(to)) => &body[from..=to],
        _ => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_and_the_alerts_are_about_figures_that_the_reference_names() {
        let reference = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
        let known: BTreeSet<&str> = reference.split('`').collect();
        let dashboard: Value =
            serde_json::from_str(&fs::read_to_string(root().join("deploy/grafana/stave.json")).unwrap())
                .unwrap();
        let mut text = fs::read_to_string(root().join("deploy/prometheus/alerts.yml")).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                text += &format!("\nexpr: {}", target["expr"].as_str().unwrap());
            }
        }
        let whole = |name: &String| {
            let parts = ["_bucket", "_sum", "_count"];
            known.contains(name.as_str())
                || parts.iter().filter_map(|part| name.strip_suffix(part)).any(|name| known.contains(name))
        };
        let asked = figures(&text);
        assert!(asked.len() > 40, "{asked:?}");
        let others = |name: &&String| !NOT_TOLD.contains(&name.as_str());
        let unknown: Vec<&String> = asked.iter().filter(others).filter(|name| !whole(name)).collect();
        assert_eq!(unknown, Vec::<&String>::new());
    }

    /// The page of the reference is made from the answer of a node, which leaves out what it has no subject for.
    #[test]
    fn the_reference_names_every_family_of_the_code() {
        let reference = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
        let known: BTreeSet<&str> = reference.split('`').collect();
        let is_family = |word: &&str| {
            (word.starts_with("stave_") || word.starts_with("kv_"))
                && word.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
        };
        let (mut seen, mut missing) = (0, Vec::new());
        for entry in fs::read_dir(root().join("crates/node/src/stats")).unwrap() {
            let entry = entry.unwrap();
            if !entry.file_name().to_string_lossy().starts_with("metrics") {
                continue;
            }
            let text = fs::read_to_string(entry.path()).unwrap();
            for family in text.split('"').filter(is_family) {
                seen += 1;
                if !known.contains(family) {
                    missing.push(family.to_owned());
                }
            }
        }
        assert!(seen > 100, "{seen}");
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn variables_of_a_query_are_filled_in() {
        let query = "sum(rate(kv_ops{job=\"$job\",instance=~\"$node\"}[$__rate_interval]))";
        assert_eq!(filled_in(query), "sum(rate(kv_ops{job=\"stave\",instance=~\".*\"}[10s]))");
        assert_eq!(escaped("a{b=\"c\"}"), "a%7Bb%3D%22c%22%7D");
        assert_eq!(unchunked("1f\r\n{\"a\":{}}\r\n0\r\n"), "{\"a\":{}}");
    }
}
