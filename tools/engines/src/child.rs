//! One engine, measured in a process of its own, so that bytes written and memory are its own.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::engine::{self, Engine};
use crate::meter::{Written, begin_peak, peak_resident_bytes};
use crate::work::{Random, shape};

/// Which work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Batches of random keys, growing, then all keys once more.
    Random,
    /// One batch, one commit: keys in order, values of one byte.
    Shape,
    /// Commits of one item each.
    Single,
}

impl Part {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::Random => "random",
            Part::Shape => "shape",
            Part::Single => "single",
        }
    }
}

/// How much work.
#[derive(Args, Clone, Debug)]
pub struct Extent {
    /// Batches of random keys; the same number replaces them
    #[arg(long, default_value_t = 100)]
    pub batches: u32,
    /// Items in each of them
    #[arg(long, default_value_t = 10_000)]
    pub batch: u32,
    /// Bytes of their values
    #[arg(long, default_value_t = 512)]
    pub value_bytes: usize,
    /// Sizes of the single batches
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
    pub shapes: Vec<usize>,
    /// Commits of one item each
    #[arg(long, default_value_t = 2_000)]
    pub singles: u32,
    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// The engine's name
    #[arg(long)]
    engine: String,
    /// The work
    #[arg(long)]
    part: Part,
    /// An empty folder
    #[arg(long)]
    dir: PathBuf,
    #[command(flatten)]
    extent: Extent,
}

/// What a phase took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Items saved.
    pub items: u64,
    /// Seconds until the last batch was acknowledged, without the time in which batches were made.
    pub seconds: f64,
    /// Seconds that it took afterwards to do what had been put off.
    pub settle_s: f64,
    /// Bytes written through system calls, what had been put off included.
    pub calls_bytes: u64,
    /// Bytes of pages made dirty, likewise.
    pub pages_bytes: u64,
}

impl Phase {
    /// Items acknowledged a second.
    pub fn per_s(&self) -> f64 {
        self.items as f64 / self.seconds
    }

    /// The same, with what had been put off on the clock.
    pub fn settled_per_s(&self) -> f64 {
        self.items as f64 / (self.seconds + self.settle_s)
    }
}

/// An insert and a replace of the same keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Items in a batch.
    pub batch: u64,
    /// All keys are new.
    pub insert: Phase,
    /// All keys are there.
    pub replace: Phase,
    /// The most resident memory, beyond what there was before the engine was opened.
    pub peak_bytes: u64,
}

/// Measures, and prints a line of JSON.
pub fn run(options: &Options) -> Result<()> {
    let measured = match options.part {
        Part::Random => vec![random(options, options.extent.batches, options.extent.batch)?],
        Part::Single => vec![random(options, options.extent.singles, 1)?],
        Part::Shape => {
            let shapes = options.extent.shapes.iter();
            shapes.map(|items| single_batch(options, *items)).collect::<Result<_>>()?
        }
    };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// Measures a phase: `save` stages and saves, and returns the seconds that saving took.
fn phase(
    engine: &mut dyn Engine,
    items: u64,
    save: impl FnOnce(&mut dyn Engine) -> Result<f64>,
) -> Result<Phase> {
    let before = Written::now()?;
    let seconds = save(engine)?;
    let begun = Instant::now();
    engine.settle()?;
    let settle_s = begun.elapsed().as_secs_f64();
    let Written { calls_bytes, pages_bytes } = Written::now()?.since(before);
    Ok(Phase { items, seconds, settle_s, calls_bytes, pages_bytes })
}

fn timed_save(engine: &mut dyn Engine) -> Result<f64> {
    let begun = Instant::now();
    engine.save()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn random(options: &Options, batches: u32, batch: u32) -> Result<Measured> {
    let Extent { value_bytes, seed, .. } = options.extent;
    let mut random = Random::new(batches * batch, value_bytes, seed);
    let resident = begin_peak()?;
    let mut engine = engine::open(&options.engine, &options.dir)?;
    let items = u64::from(batches) * u64::from(batch);
    let mut last = None;
    let mut all_batches = |engine: &mut dyn Engine, random: &mut Random| {
        let mut seconds = 0.0;
        for _ in 0..batches {
            let items = random.batch(batch as usize);
            last = items.first().map(|item| (item.key.clone(), item.value.clone()));
            engine.stage(items);
            seconds += timed_save(engine)?;
        }
        Ok(seconds)
    };
    let insert = phase(&mut *engine, items, |engine| all_batches(engine, &mut random))?;
    random.again();
    let replace = phase(&mut *engine, items, |engine| all_batches(engine, &mut random))?;
    // Before the check: the raw file is read whole.
    let peak_bytes = peak_resident_bytes()?.saturating_sub(resident);
    if let Some((key, value)) = last {
        ensure!(engine.get(&key)? == Some(value), "{} does not give back what it took", options.engine);
    }
    Ok(Measured { batch: batch.into(), insert, replace, peak_bytes })
}

/// Small batches are repeated, each time in an empty folder, and the median counts.
fn single_batch(options: &Options, items: usize) -> Result<Measured> {
    let times = (200_000 / items.max(1)).clamp(1, 9);
    let mut all: Vec<_> =
        (0..times).map(|time| single_batch_once(options, items, time)).collect::<Result<_>>()?;
    all.sort_by(|a, b| a.insert.seconds.total_cmp(&b.insert.seconds));
    let insert = all[times / 2].insert;
    all.sort_by(|a, b| a.replace.seconds.total_cmp(&b.replace.seconds));
    let replace = all[times / 2].replace;
    let peak_bytes = all.iter().map(|measured| measured.peak_bytes).max().unwrap_or_default();
    Ok(Measured { batch: items as u64, insert, replace, peak_bytes })
}

fn single_batch_once(options: &Options, items: usize, time: usize) -> Result<Measured> {
    let dir = options.dir.join(format!("{items}-{time}"));
    std::fs::create_dir_all(&dir)?;
    let mut engine = engine::open(&options.engine, &dir)?;
    let mut peak_bytes = 0;
    let mut one = |value| {
        engine.stage(shape(items, value));
        let resident = begin_peak()?;
        let phase = phase(&mut *engine, items as u64, timed_save)?;
        peak_bytes = peak_bytes.max(peak_resident_bytes()?.saturating_sub(resident));
        anyhow::Ok(phase)
    };
    let (insert, replace) = (one(b'a')?, one(b'b')?);
    let key = format!("key{}", items / 2);
    ensure!(engine.get(key.as_bytes())?.is_some(), "{} does not give back what it took", options.engine);
    drop(engine);
    std::fs::remove_dir_all(&dir)?;
    Ok(Measured { batch: items as u64, insert, replace, peak_bytes })
}
