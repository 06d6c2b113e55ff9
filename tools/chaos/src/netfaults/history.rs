//! What the workload wrote down: one JSON object a line for each operation (`tests/faults/history.go`).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// A register gets a value.
    Write,
    /// A register gets a value if its CAS is the expected one.
    Replace,
    /// A document is made with a value.
    Insert,
    /// A counter goes up by one.
    Increment,
    /// A set gets an element.
    Add,
    /// A document is read.
    Read,
    /// A document is read when everything is over.
    Final,
}

impl Op {
    fn parse(text: &str) -> Option<Op> {
        Some(match text {
            "write" => Op::Write,
            "replace" => Op::Replace,
            "insert" => Op::Insert,
            "increment" => Op::Increment,
            "add" => Op::Add,
            "read" => Op::Read,
            "final" => Op::Final,
            _ => return None,
        })
    }

    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Op::Write => "upsert",
            Op::Replace => "replace with CAS",
            Op::Insert => "insert",
            Op::Increment => "increment",
            Op::Add => "add to a set",
            Op::Read => "read",
            Op::Final => "read in the end",
        }
    }

    /// Whether it changes nothing.
    pub fn is_read(self) -> bool {
        matches!(self, Op::Read | Op::Final)
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// It was done.
    Ok,
    /// It surely was not done, and never will be.
    No,
    /// Nobody knows.
    Maybe,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which client asked.
    pub process: u64,
    /// Of which document.
    pub key: String,
    /// What.
    pub op: Op,
    /// The value or element to be written.
    pub value: u64,
    /// The CAS that a replace expects.
    pub expected: u64,
    /// When it was asked, in nanoseconds of the machine's monotonic clock.
    pub invoked: u64,
    /// When it was answered.
    pub answered: u64,
    /// How it ended.
    pub class: Class,
    /// Why, if it was not done.
    pub error: String,
    /// The document's CAS afterwards; 0 if there is none.
    pub cas: u64,
    /// The number, or the elements, that were read.
    pub read: Vec<u64>,
}

/// The error of a replace that met another CAS.
pub const CAS_MISMATCH: &str = "cas mismatch";

/// Reads a history.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = BufReader::new(file).lines().enumerate();
    lines
        .map(|(number, line)| parse(&line?).with_context(|| format!("{}:{}", path.display(), number + 1)))
        .collect()
}

fn parse(line: &str) -> Result<Event> {
    let json: Value = serde_json::from_str(line)?;
    let number = |name: &str| json.get(name).map_or(Some(0), Value::as_u64).context("a number is none");
    let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default();
    let class = match text("class") {
        "ok" => Class::Ok,
        "no" => Class::No,
        "maybe" => Class::Maybe,
        other => bail!("{other:?} is no class of answers"),
    };
    let elements = json.get("read").and_then(Value::as_array).into_iter().flatten();
    Ok(Event {
        process: number("process")?,
        key: text("key").to_owned(),
        op: Op::parse(text("op")).with_context(|| format!("{:?} is no operation", text("op")))?,
        value: number("value")?,
        expected: number("expected")?,
        invoked: number("invoked")?,
        answered: number("answered")?,
        class,
        error: text("error").to_owned(),
        cas: number("cas")?,
        read: elements
            .map(|element| element.as_u64().context("an element is no number"))
            .collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_operation() {
        let line = r#"{"process":2,"key":"set-1-0","op":"read","invoked":5,"answered":7,"class":"ok","cas":9,"read":[3,4]}"#;
        let event = parse(line).expect("a sound line");
        assert_eq!((event.op, event.class, event.cas), (Op::Read, Class::Ok, 9));
        assert_eq!((event.invoked, event.answered, event.read), (5, 7, vec![3, 4]));
        for wrong in
            ["{}", r#"{"op":"read","class":"perhaps"}"#, r#"{"op":"read","class":"ok","cas":"x"}"#, "x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
