//! `cargo xtask matrix`: who may use which command, group of stats and address, as the tests print it that ask as each role.

use std::fmt::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use harness::child::cargo;

/// The tests that compare what they find with `command_roles.txt`, `stats_roles.txt` and `http_roles.txt`.
const TESTS: &str = "is_for_the_roles_of_the_table";
/// Commands, groups of stats, addresses.
const TABLES: usize = 3;
/// How the line above a table begins.
const HEADING: &str = "matrix of ";

/// What one test found.
#[derive(Debug, Default, PartialEq)]
struct Table {
    /// What the rows are.
    what: String,
    /// Whom each column is about, with the letter that stands for "may".
    users: Vec<(char, String)>,
    /// A letter or sign for each user, and the name.
    rows: Vec<(String, String)>,
}

impl Table {
    /// Reads the line above it: `matrix of WHAT | LETTER USER | ...`.
    fn of_heading(line: &str) -> Option<Table> {
        let mut parts = line.strip_prefix(HEADING)?.split(" | ");
        let what = parts.next()?.to_owned();
        let user = |part: &str| Some((part.chars().next()?, part.split_once(' ')?.1.to_owned()));
        let users = parts.map(user);
        Some(Table { what, users: users.collect::<Option<_>>()?, rows: Vec::new() })
    }

    /// Takes a row; whether the line was one.
    fn take(&mut self, line: &str) -> bool {
        let (signs, name) = line.split_once(' ').unwrap_or((line, ""));
        let is_row = signs.chars().count() == self.users.len();
        if is_row {
            self.rows.push((signs.to_owned(), name.to_owned()));
        }
        is_row
    }

    /// The matrix, with the users' names from the top down.
    fn drawn(&self) -> String {
        let mut drawn = format!("{} x {} {}\n\n", self.users.len(), self.rows.len(), self.what);
        let height = self.users.iter().map(|(_, user)| user.chars().count()).max().unwrap_or_default();
        for at in (0..height).rev() {
            let line: Vec<String> = self.users.iter().map(|(_, user)| nth_from_end(user, at)).collect();
            writeln!(drawn, "{}", line.join(" ").trim_end()).expect("a text takes it");
        }
        for (signs, name) in &self.rows {
            let marks: Vec<&str> =
                signs.chars().zip(&self.users).map(|(sign, (letter, _))| mark(sign, *letter)).collect();
            writeln!(drawn, "{}  {name}", marks.join(" ").trim_end()).expect("a text takes it");
        }
        drawn
    }
}

fn nth_from_end(name: &str, at: usize) -> String {
    name.chars().rev().nth(at).unwrap_or(' ').to_string()
}

/// What a sign of the tests is drawn as: the letter of the column is for who may, others say how one is refused.
fn mark(sign: char, letter: char) -> &'static str {
    match sign {
        sign if sign == letter => "+",
        '?' => "?",
        _ => ".",
    }
}

/// Prints the matrix; whether all of it is as written.
pub fn run() -> Result<bool> {
    let mut tables: Vec<Table> = Vec::new();
    let mut is_open = false;
    let arguments =
        ["test", "--workspace", "--locked", "--lib", "--test", "access", "--", TESTS, "--nocapture"];
    let mut command = cargo(&[&arguments[..], &["--test-threads", "1"]].concat());
    let ended =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    for line in String::from_utf8_lossy(&ended.stdout).lines() {
        match (Table::of_heading(heading_of(line)), tables.last_mut()) {
            (Some(table), _) => {
                tables.push(table);
                is_open = true;
            }
            (None, Some(table)) if is_open => is_open = table.take(line),
            _ => {}
        }
    }
    ensure!(tables.len() == TABLES, "{} tables were printed instead of {TABLES}", tables.len());
    println!("\n+: allowed, .: refused, ?: as if there were no such bucket or collection\n");
    tables.iter().for_each(|table| println!("{}", table.drawn()));
    if !ended.status.success() {
        println!("FAIL: not all of it is as written; the tests say what differs");
    }
    Ok(ended.status.success())
}

/// A line without what the test runner writes before what a test prints.
fn heading_of(line: &str) -> &str {
    line.find(HEADING).map_or(line, |at| &line[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tests_print_and_draws_it() {
        let line = "test access ... matrix of things | A admin | r reader[b] | 1 one";
        let mut table = Table::of_heading(heading_of(line)).unwrap();
        assert_eq!((table.what.as_str(), table.users.len()), ("things", 3));
        assert!(table.take("Ax1 GET /x") && table.take("Ar? a b") && !table.take("ok"));
        let drawn = table.drawn();
        assert!(drawn.starts_with("3 x 2 things\n\n  r\n  e\n"), "{drawn}");
        assert!(drawn.ends_with("n ] e\n+ . +  GET /x\n+ + ?  a b\n"), "{drawn}");
    }
}
