//! What the program is made of, as CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use harness::child::{cargo, output};
use serde_json::{Value, json};

use super::Release;

fn metadata() -> Result<Value> {
    let text =
        output(cargo(&["metadata", "--format-version", "1", "--locked"]).env("CARGO_TERM_COLOR", "never"))?;
    Ok(serde_json::from_str(&text)?)
}

/// The version of Stave.
pub fn version() -> Result<String> {
    let text = output(&mut cargo(&["metadata", "--format-version", "1", "--locked", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("there are packages")?;
    let stave = packages.iter().find(|package| package["name"] == "stave").context("one is stave")?;
    Ok(stave["version"].as_str().context("it has a version")?.to_owned())
}

/// All packages that are linked into the program, each with its licence.
pub fn make(release: &Release) -> Result<Vec<u8>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("there are packages")?;
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let linked = linked(&metadata)?;
    let components: Vec<Value> = linked.iter().filter_map(|id| Some(component(by_id.get(id)?))).collect();
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "name": "stave", "version": release.version },
        },
        "components": components,
    });
    let mut bytes = serde_json::to_vec_pretty(&list)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn component(package: &Value) -> Value {
    let (name, version) = (package["name"].as_str().unwrap_or(""), package["version"].as_str().unwrap_or(""));
    let mut component = json!({ "type": "library", "name": name, "version": version });
    if package["source"].is_string() {
        component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
    }
    if let Some(licence) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    component
}

/// The ids of all packages that the program needs to run, itself left out.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("dependencies are resolved")?;
    let by_id: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let is_stave = |id: &&&str| id.contains("/crates/stave#");
    let root = by_id.keys().find(is_stave).context("one package is the program")?;
    let (mut found, mut open) = (BTreeSet::new(), vec![*root]);
    while let Some(id) = open.pop() {
        let needs = by_id.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        for need in needs {
            // No kind: needed to run, neither to build nor to test.
            let is_linked = need["dep_kinds"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()));
            let Some(need) = need["pkg"].as_str().filter(|_| is_linked) else { continue };
            if found.insert(need) {
                open.push(need);
            }
        }
    }
    Ok(found)
}
