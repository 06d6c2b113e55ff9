//! `bench report`: the comparisons with other servers, one behind the other, and a page of what they came to.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, ValueEnum};
use harness::child::{self, headline, is_installed, output};
use harness::tree::{self, Scratch};

use super::report::{Cell, Report, median};
use super::{Bench, engines, measure};

/// What to compare, and where the page goes.
#[derive(Args)]
pub struct ReportOptions {
    /// The page.
    #[arg(long, default_value = "docs/performance.md")]
    out: PathBuf,
    /// Rounds of each comparison; 5 and more give an interval of 93.75 % and more.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each single run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only these comparisons.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Comparison>,
}

/// A measurement beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Comparison {
    /// Processor time beside memcached and Redis.
    Cycles,
    /// Writes that are on disk when they are answered, beside Redis.
    Durable,
    /// TLS beside Redis.
    Tls,
    /// Memory of documents beside memcached and Redis.
    Memory,
    /// From exec to ready.
    Start,
    /// The storage beside fjall, LMDB, redb, and RocksDB where it can be built.
    Engines,
}

/// A comparison's part of the page.
struct Section {
    comparison: Comparison,
    command: String,
    found: Result<Found>,
}

/// What a comparison ends with.
enum Found {
    Figures(Report),
    /// Tables that it has drawn itself.
    Text(String),
}

/// A command line of a measurement, read as `xtask bench` reads it.
#[derive(Parser)]
struct One {
    #[command(subcommand)]
    bench: Bench,
}

/// Compares and writes the page; whether all comparisons could be made and what should hold, holds.
pub fn run(options: &ReportOptions) -> Result<bool> {
    let out = tree::root().join(&options.out);
    let folder = out.parent().context("the page is in a folder")?;
    ensure!(folder.is_dir(), "there is no folder {} for the page (--out)", folder.display());
    let chosen = if options.only.is_empty() { Comparison::value_variants() } else { &options.only };
    let machine = machine()?;
    let sections: Vec<Section> = chosen.iter().map(|comparison| section(*comparison, options)).collect();
    fs::write(&out, page(&machine, &sections)).with_context(|| format!("cannot write {}", out.display()))?;
    headline("report");
    println!("{} is written", out.display());
    let mut good = true;
    for section in &sections {
        let verdict = match &section.found {
            Err(error) => format!("not made: {error:#}"),
            Ok(Found::Text(_)) => "made".to_owned(),
            Ok(Found::Figures(report)) => {
                let missed = report.verdicts().filter(|(.., holds)| !holds).count();
                good &= missed == 0;
                format!("made, {missed} goals missed")
            }
        };
        good &= section.found.is_ok();
        println!("{:<60} {verdict}", section.command);
    }
    Ok(good)
}

fn section(comparison: Comparison, options: &ReportOptions) -> Section {
    let arguments = comparison.arguments(options);
    let command = format!("cargo xtask bench {}", arguments.join(" "));
    headline(&command);
    let found = One::try_parse_from(["bench".to_owned()].iter().chain(&arguments))
        .map_err(anyhow::Error::from)
        .and_then(|one| found(&one.bench));
    if let Err(error) = &found {
        println!("not made: {error:#}");
    }
    Section { comparison, command, found }
}

fn found(bench: &Bench) -> Result<Found> {
    let Bench::Engines(options) = bench else {
        let report = measure(bench)?;
        report.close();
        return Ok(Found::Figures(report));
    };
    let mut text = String::new();
    let succeeded = engines::compare(options, |line| {
        text.push_str(line.trim_end());
        text.push('\n');
    })?;
    ensure!(succeeded, "the comparison failed");
    Ok(Found::Text(text))
}

impl Comparison {
    fn title(self) -> &'static str {
        match self {
            Comparison::Cycles => "Processor time and tails beside memcached and Redis",
            Comparison::Durable => "Durable writes beside Redis",
            Comparison::Tls => "TLS beside Redis",
            Comparison::Memory => "Memory beside memcached and Redis",
            Comparison::Start => "Start and size",
            Comparison::Engines => "The storage beside other engines",
        }
    }

    /// What a reader has to know about how it is measured.
    fn method(self) -> &'static str {
        match self {
            Comparison::Cycles => {
                "Each server has one CPU for all its threads, the client the other; 50 connections, 1,000,000 keys of 20 bytes, values of 512 bytes, keys by Zipf's law.\n\
                 `mixed` has 80 % reads, `reads` and `writes` are reads and writes alone, the number behind it is the pipeline depth.\n\
                 Stave writes everything to disk meanwhile, `redis-aof` syncs its file once a second, memcached and `redis` write nothing to disk."
            }
            Comparison::Durable => {
                "Each client waits until its write is on disk and then sends the next; 512-byte values, all cores for the server and the client together.\n\
                 Redis runs with `appendfsync always`, Stave with persist to majority on one node."
            }
            Comparison::Tls => "50 connections, 512-byte values, the same client for all.",
            Comparison::Memory => "1,000,000 documents with keys of 20 bytes and values of 512 bytes.",
            Comparison::Start => "Each start has an empty data folder.",
            Comparison::Engines => "Each batch is durable when it is acknowledged.",
        }
    }

    fn arguments(self, options: &ReportOptions) -> Vec<String> {
        let (rounds, seconds) = (options.rounds.to_string(), options.seconds.to_string());
        let timed = ["--rounds", &rounds, "--seconds", &seconds];
        let (name, more): (_, &[&str]) = match self {
            Comparison::Cycles => ("cycles", &timed),
            Comparison::Durable => ("durable", &timed),
            Comparison::Tls => ("tls", &timed),
            Comparison::Memory => ("memory", &[]),
            Comparison::Start => ("start", &[]),
            Comparison::Engines => ("engines", &timed[..2]),
        };
        [name].iter().chain(more).map(|argument| (*argument).to_owned()).collect()
    }
}

/// Lines that describe what all this runs on.
fn machine() -> Result<Vec<String>> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let cores = std::thread::available_parallelism()?;
    let cpu = value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown);
    let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_else(unknown);
    let memory_gib = memory.trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN) / f64::from(1 << 20);
    let busy = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    let version = |program: &str, flag: &str| -> Option<String> {
        let text = output(Command::new(program).arg(flag)).ok().filter(|_| is_installed(program))?;
        text.lines().next().map(|line| line.trim().to_owned())
    };
    let mut lines = vec![
        format!("{cores} cores: {cpu}"),
        format!("memory: {memory_gib:.1} GiB"),
        format!("kernel: {}", read("/proc/sys/kernel/osrelease").trim()),
        format!("a write of 512 bytes and its `fdatasync`: {:.0} µs, the median of 200", sync_us()?),
        format!("load average before the first comparison: {busy}"),
        format!("Stave: {}", child::commit()),
    ];
    for (program, flag) in [("memcached", "--version"), ("redis-server", "--version")] {
        let version = version(program, flag).unwrap_or_else(|| "not installed".to_owned());
        lines.push(format!("{program}: {version}"));
    }
    Ok(lines)
}

/// What a small append and its sync take here: what no durable write can be faster than.
fn sync_us() -> Result<f64> {
    let scratch = Scratch::new("report")?;
    let mut file = File::create(scratch.path().join("file"))?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let begun = Instant::now();
        file.write_all(&[7; 512])?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut times))
}

/// The page in Markdown.
fn page(machine: &[String], sections: &[Section]) -> String {
    let mut out = String::from(
        "# Performance\n\n\
         `cargo xtask bench report` measures all of this and writes this page.\n\
         In a comparison the servers take turns, each round in another order.\n\
         A cell has the median of the rounds, and in brackets the least and the most.\n\
         With n rounds these two enclose the true median with a probability of 1 − 2^(1−n): 93.75 % with 5.\n\
         A row in which they are several times apart says nothing: the machine had other work.\n\n\
         ## The machine\n\n",
    );
    for line in machine {
        out.push_str(&format!("- {line}\n"));
    }
    for section in sections {
        // Writing to a string does not fail.
        let _ = draw(&mut out, section);
    }
    out
}

fn draw(out: &mut String, section: &Section) -> std::fmt::Result {
    writeln!(out, "\n## {}\n\n{}", section.comparison.title(), section.comparison.method())?;
    writeln!(out, "The command alone: `{}`.\n", section.command)?;
    let report = match &section.found {
        Err(error) => return writeln!(out, "It could not be made: {error:#}."),
        Ok(Found::Text(text)) => return writeln!(out, "```\n{}\n```", text.trim()),
        Ok(Found::Figures(report)) => report,
    };
    let mut tables: Vec<&str> = Vec::new();
    for cell in report.cells() {
        if !tables.contains(&cell.table) {
            tables.push(cell.table);
        }
    }
    for table in tables {
        let cells: Vec<&Cell> = report.cells().iter().filter(|cell| cell.table == table).collect();
        writeln!(out, "### {}\n", capitalized(table))?;
        draw_table(out, &cells)?;
        draw_bars(out, &cells)?;
    }
    writeln!(out, "| figure | value | goal | verdict |\n|---|---|---|---|")?;
    for (name, value, goal, holds) in report.verdicts() {
        let (goal, verdict) = match goal {
            None => (String::new(), ""),
            Some(goal) => (goal.to_string(), if holds { "holds" } else { "**missed**" }),
        };
        writeln!(out, "| `{name}` | {} | {goal} | {verdict} |", short(value))?;
    }
    Ok(())
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Three digits that say something, or all in front of the point.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Median, least and most.
fn spread(cell: &Cell) -> (f64, f64, f64) {
    let mut values = cell.values.clone();
    let middle = median(&mut values);
    (middle, values.first().copied().unwrap_or(middle), values.last().copied().unwrap_or(middle))
}

fn said(cell: &Cell) -> String {
    let (middle, least, most) = spread(cell);
    if cell.values.len() == 1 {
        return short(middle);
    }
    format!("{} ({} to {})", short(middle), short(least), short(most))
}

fn draw_table(out: &mut String, cells: &[&Cell]) -> std::fmt::Result {
    let (rows, columns) = (distinct(cells, |cell| &cell.row), distinct(cells, |cell| &cell.column));
    writeln!(out, "| | {} |\n|---{}|", columns.join(" | "), "|---".repeat(columns.len()))?;
    for row in rows {
        let of = |column: &&str| cells.iter().find(|cell| cell.row == row && cell.column == *column);
        let said: Vec<String> =
            columns.iter().map(|column| of(column).map_or(String::new(), |c| said(c))).collect();
        writeln!(out, "| {row} | {} |", said.join(" | "))?;
    }
    writeln!(out)
}

/// Each name once, in the order of the cells.
fn distinct<'a>(cells: &[&'a Cell], name: fn(&Cell) -> &String) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells {
        let name = name(cell).as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// How wide the longest bar is.
const WIDTH: f64 = 40.0;

/// Bars up to the median, a lighter end up to the most; each row has a scale of its own.
fn draw_bars(out: &mut String, cells: &[&Cell]) -> std::fmt::Result {
    let names = distinct(cells, |cell| &cell.column);
    let wide = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    writeln!(out, "```")?;
    for row in distinct(cells, |cell| &cell.row) {
        writeln!(out, "{row}")?;
        let of_row: Vec<&&Cell> = cells.iter().filter(|cell| cell.row == row).collect();
        let most = of_row.iter().map(|cell| spread(cell).2).fold(f64::MIN_POSITIVE, f64::max);
        for cell in of_row {
            let (middle, _, highest) = spread(cell);
            let length = |value: f64| ((value / most).clamp(0.0, 1.0) * WIDTH).round() as usize;
            let (full, light) = (length(middle), length(highest).saturating_sub(length(middle)));
            let bar = "█".repeat(full) + &"░".repeat(light);
            writeln!(out, "  {:<wide$} {bar} {}", cell.column, short(middle))?;
        }
    }
    writeln!(out, "```\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Report {
        let mut report = Report::new("cycles", false);
        report.cell("time, µs", "reads", "stave", &[3.0, 1.0, 2.0]);
        report.cell("time, µs", "reads", "redis", &[4.0, 4.0, 4.0]);
        report.cell("time, µs", "writes", "redis", &[120.4]);
        report.cell("time, µs", "nothing", "redis", &[]);
        report.add("reads_to_redis", 0.5, Some(0.75));
        report.add("writes_to_redis", 2.0, Some(1.0));
        report
    }

    fn section(found: Result<Found>) -> Section {
        Section { comparison: Comparison::Cycles, command: "cargo xtask bench cycles".to_owned(), found }
    }

    #[test]
    fn a_page_has_tables_bars_and_verdicts() {
        let page = page(&["2 cores: x".to_owned()], &[section(Ok(Found::Figures(figures())))]);
        for line in [
            "- 2 cores: x",
            "The command alone: `cargo xtask bench cycles`.",
            "### Time, µs",
            "| | stave | redis |",
            "| reads | 2.00 (1.00 to 3.00) | 4.00 (4.00 to 4.00) |",
            "| writes |  | 120 |",
            "  stave ████████████████████░░░░░░░░░░ 2.00",
            "  redis ████████████████████████████████████████ 4.00",
            "| `reads_to_redis` | 0.50 | at most 0.75 | holds |",
            "| `writes_to_redis` | 2.00 | at most 1 | **missed** |",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is missing in\n{page}");
        }
        assert!(!page.contains("nothing |"), "{page}");
    }

    #[test]
    fn what_could_not_be_made_is_said() {
        let page = page(&[], &[section(Err(anyhow::anyhow!("redis-server is not installed")))]);
        assert!(page.contains("It could not be made: redis-server is not installed."), "{page}");
    }

    #[test]
    fn every_command_line_is_one_of_the_measurements() {
        let options = ReportOptions { out: PathBuf::new(), rounds: 5, seconds: 1, only: Vec::new() };
        for comparison in Comparison::value_variants() {
            let arguments = comparison.arguments(&options);
            assert!(
                One::try_parse_from(["bench".to_owned()].iter().chain(&arguments)).is_ok(),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn the_machine_is_described() {
        let lines = machine().expect("files of /proc can be read");
        assert!(lines.iter().any(|line| line.contains("cores")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("fdatasync")), "{lines:?}");
    }
}
