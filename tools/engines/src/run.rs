//! All engines in turn, several times.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::child::{Extent, Measured, Part};
use crate::engine::NAMES;
use crate::table;

/// What to compare.
#[derive(Args)]
pub struct Options {
    /// A folder on the file system to be measured; made if missing
    #[arg(long, default_value = "target/engines")]
    dir: PathBuf,
    /// Engines; all if not given
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Parts; all if not given
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// How often; the first engine is another one each time, and medians count
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// An engine that takes longer than this for one part is ended
    #[arg(long, default_value_t = 240)]
    limit_s: u64,
    #[command(flatten)]
    extent: Extent,
    /// Close with one line of JSON
    #[arg(long)]
    json: bool,
}

/// What each engine measured in each round, by part.
pub type Results = BTreeMap<String, Vec<Vec<Measured>>>;

/// Measures, and prints tables.
pub fn run(options: &Options) -> Result<()> {
    ensure!(options.rounds > 0, "at least one round");
    let all = || NAMES.iter().map(|name| (*name).to_owned()).collect();
    let engines: Vec<String> = if options.engines.is_empty() { all() } else { options.engines.clone() };
    if let Some(unknown) = engines.iter().find(|engine| !NAMES.contains(&engine.as_str())) {
        bail!("no engine is called `{unknown}`; there are {}", NAMES.join(", "));
    }
    let parts = if options.parts.is_empty() {
        vec![Part::Random, Part::Shape, Part::Single]
    } else {
        options.parts.clone()
    };
    let mut out = serde_json::Map::new();
    for part in parts {
        let results = measure(options, part, &engines)?;
        println!("\n{}", table::draw(part, &options.extent, &engines, &results));
        out.insert(part.name().to_owned(), table::json(&engines, &results));
    }
    if options.json {
        println!("{}", serde_json::json!({ "bench": "engines", "parts": out }));
    }
    Ok(())
}

fn measure(options: &Options, part: Part, engines: &[String]) -> Result<Results> {
    let mut results = Results::new();
    for round in 0..options.rounds {
        for at in 0..engines.len() {
            let engine = &engines[(at + round) % engines.len()];
            let measured = one(options, part, engine).with_context(|| engine.clone())?;
            for row in &measured {
                eprintln!(
                    "{} round {}: {engine:<12} batch {:>8}: insert {:>9.0}/s, replace {:>9.0}/s",
                    part.name(),
                    round + 1,
                    row.batch,
                    row.insert.per_s(),
                    row.replace.per_s()
                );
            }
            results.entry(engine.clone()).or_default().push(measured);
        }
    }
    Ok(results)
}

/// Runs a child to its end, in an empty folder that goes afterwards.
fn one(options: &Options, part: Part, engine: &str) -> Result<Vec<Measured>> {
    let dir = options.dir.join(format!("{engine}-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // Nobody pays for what the one before left to the kernel.
    rustix::fs::sync();
    let line = child_output(options, part, engine, &dir);
    fs::remove_dir_all(&dir)?;
    Ok(serde_json::from_str(&line?)?)
}

fn child_output(options: &Options, part: Part, engine: &str, dir: &Path) -> Result<String> {
    let Extent { batches, batch, value_bytes, shapes, singles, seed } = &options.extent;
    let shapes: Vec<_> = shapes.iter().map(ToString::to_string).collect();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").arg("--dir").arg(dir).args(["--engine", engine, "--part", part.name()]);
    command.args(["--batches", &batches.to_string(), "--batch", &batch.to_string()]);
    command.args(["--value-bytes", &value_bytes.to_string(), "--seed", &seed.to_string()]);
    command.args(["--singles", &singles.to_string()]);
    command.args(["--shapes", &shapes.join(",")]).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run myself")?;
    let begun = Instant::now();
    // The one line that it prints fits into a pipe, so it can be read after the end.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(options.limit_s) {
            child.kill()?;
            child.wait()?;
            bail!("not done within {} s (--limit-s)", options.limit_s);
        }
        thread::sleep(Duration::from_millis(10));
    };
    ensure!(status.success(), "ended with {status}");
    let mut line = String::new();
    child.stdout.take().context("the output is piped")?.read_to_string(&mut line)?;
    Ok(line)
}
