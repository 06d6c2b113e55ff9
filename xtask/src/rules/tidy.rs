//! Tidiness of every file: heads, lengths, and words that must not be committed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use harness::tree;

/// Longer files hold more than one noun.
const MAX_LINES: usize = 900;

/// Words that no source file may hold, written in two parts so that this file does not, and the cure.
const WORDS: [(&str, &str, &str); 7] = [
    ("todo", "!(", "finish it, or leave it out and say so in the documents"),
    ("unimpl", "emented!(", "finish it, or return an error that says what is missing"),
    ("FIX", "ME", "fix it, or open an issue and describe the limit where users look"),
    ("XX", "X", "fix it, or open an issue and describe the limit where users look"),
    ("#[ign", "ore", "make the test fast and steady, or delete it"),
    ("should_", "panic", "return an error and assert on it"),
    ("dbg", "!(", "log with tracing, or remove it"),
];

/// Beginnings of paths that exist on one machine only, in two parts for the same reason.
const MACHINE_PATHS: [(&str, &str); 4] = [("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/wo", "rk/")];

/// Whose home examples and tests may name.
const EXAMPLE_USER: &str = "ada";

/// What makes a test wait for time to pass, in two parts for the same reason.
const SLEEPS: [(&str, &str); 2] = [("thread::", "sleep"), ("time::", "sleep")];

/// Looks at all source files and documents.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in tree::files(&["rs", "md", "toml", "sh", "py", "go", "java", "js", "txt", "yaml", "yml"])? {
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        found.extend(violations(&path, &text).into_iter().map(|v| format!("tidy: {}{v}", path.display())));
    }
    Ok(found)
}

/// What is wrong with a file: `:LINE: what: cure`.
fn violations(path: &Path, text: &str) -> Vec<String> {
    let mut found = machine_paths(text);
    found.extend(conflicts(text));
    let extension = path.extension().unwrap_or_default();
    if extension == "rs" {
        found.extend(rust(path, text));
    }
    if extension == "md" && !path.starts_with("tests") {
        found.extend(sentences(text));
    }
    if path == Path::new("CHANGELOG.md") {
        found.extend(told_twice(text));
    }
    // Decision records tell of their time and are not rewritten.
    if extension == "md" && !path.starts_with("tests") && !path.starts_with("docs/adr") {
        found.extend(dead_paths(text, |named| tree::root().join(named).exists()));
    }
    if extension == "md" && !path.starts_with("tests") {
        let folder = tree::root().join(path.parent().unwrap_or(Path::new("")));
        found.extend(dead_links(
            text,
            |file| fs::read_to_string(folder.join(file)).ok(),
            |file| folder.join(file).exists(),
        ));
    }
    found
}

/// What a merge leaves where two changes meet, in two parts so that this file has none.
const CONFLICTS: [(&str, &str); 2] = [("<<<<", "<<< "), (">>>>", ">>> ")];

fn conflicts(text: &str) -> Vec<String> {
    let is_one = |line: &str| CONFLICTS.iter().any(|(a, b)| line.starts_with(&format!("{a}{b}")));
    let marked = numbered(text).filter(|(_, line)| is_one(line));
    marked
        .map(|(number, _)| format!(":{number}: two versions of the same lines: keep what both say"))
        .collect()
}

/// Entries without a subject that begin with the same bytes, so many, are two versions of one.
const SAME_BYTES: usize = 60;

/// Subjects that a list of changes has twice, as a merge that keeps both sides leaves them.
fn told_twice(text: &str) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for (number, line) in numbered(text) {
        if line.starts_with("## ") {
            known.clear();
        }
        let Some(entry) = line.strip_prefix("- ") else { continue };
        let subject = match entry.strip_prefix("**").and_then(|rest| rest.split_once("**")) {
            Some((subject, _)) => subject,
            None => entry.get(..SAME_BYTES).unwrap_or(entry),
        };
        if !known.insert(subject) {
            found.push(format!(":{number}: `{subject}` is there twice: make one entry of both"));
        }
    }
    found
}

fn machine_paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in numbered(text) {
        for (a, b) in MACHINE_PATHS {
            let path = format!("{a}{b}");
            let line = line.replace(&format!("{path}{EXAMPLE_USER}"), "");
            // `https://example.org/home/` is an address, not a path.
            if line.split(&path).next().is_some_and(|before| before.len() < line.len() && begins_path(before))
            {
                found.push(format!(
                    ":{number}: a path of one machine ({path}): use a relative path or a variable"
                ));
            }
        }
    }
    found
}

fn begins_path(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !"./_-}".contains(c))
}

fn rust(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push(":1: no `//!` at the head: say in one sentence what the file is about".to_owned());
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        found.push(format!(":1: {lines} lines, more than {MAX_LINES}: cut it, one noun a file"));
    }
    for (number, line) in numbered(text) {
        for (a, b, cure) in WORDS {
            if line.contains(&format!("{a}{b}")) {
                found.push(format!(":{number}: `{a}{b}`: {cure}"));
            }
        }
    }
    found.extend(sleeps(path, text));
    found
}

/// Everything below the first `#[cfg(test)]` that opens a module, or a whole file of tests.
fn sleeps(path: &Path, text: &str) -> Vec<String> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let in_folder = path.components().any(|c| c.as_os_str() == "tests");
    let mut testing = in_folder || stem == "tests" || stem.ends_with("_tests");
    let mut found = Vec::new();
    let mut attribute = false;
    for (number, line) in numbered(text) {
        testing |= attribute && line.trim_start().starts_with("mod ") && line.ends_with('{');
        attribute = line.trim() == "#[cfg(test)]";
        for (a, b) in SLEEPS {
            if testing && line.contains(&format!("{a}{b}")) {
                found.push(format!(
                    ":{number}: a test that sleeps: use the simulated clock, or wait for an event"
                ));
            }
        }
    }
    found
}

/// One sentence a line, so that a change of a sentence is a change of a line.
fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for (number, line) in numbered(text) {
        code ^= line.trim_start().starts_with("```");
        if !code && !line.starts_with('|') && has_second_sentence(line) {
            found.push(format!(":{number}: two sentences on a line: give each a line of its own"));
        }
    }
    found
}

/// Folders of the tree; what begins with one in a document is a path that must exist.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "tests/", "tools/", "xtask/", ".ci/"];

/// Paths in backticks that lead nowhere.
fn dead_paths(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in numbered(text) {
        // Every second piece stands between backticks.
        for named in line.split('`').skip(1).step_by(2) {
            let is_path =
                FOLDERS.iter().any(|folder| named.starts_with(folder)) && !named.contains(['*', ' ']);
            if is_path && !exists(named) {
                found.push(format!(":{number}: `{named}` does not exist: name what took its place"));
            }
        }
    }
    found
}

/// Links of Markdown to files of the tree, or to headings, that lead nowhere.
fn dead_links(
    text: &str,
    read: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for (number, line) in numbered(text) {
        code ^= line.trim_start().starts_with("```");
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (target, _) in targets.filter(|(target, _)| !code && !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let has_heading = || {
                let there = if file.is_empty() { Some(text.to_owned()) } else { read(file) };
                there.is_some_and(|there| headings(&there).any(|one| one == heading))
            };
            if !file.is_empty() && !exists(file) || !heading.is_empty() && !has_heading() {
                found
                    .push(format!(":{number}: the link to {target} leads nowhere: name what took its place"));
            }
        }
    }
    found
}

/// A page's headings, as links name them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    titles.map(|title| {
        let kept = title.trim().chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

fn has_second_sentence(line: &str) -> bool {
    line.match_indices(". ").any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(|c| c.is_lowercase() || ")`".contains(c));
        let after = line[at + 2..].chars().next().is_some_and(char::is_uppercase);
        before && after
    })
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        violations(Path::new(path), text).len()
    }

    #[test]
    fn a_rust_file_has_a_head_and_a_length() {
        assert_eq!(count("a.rs", "//! What it is.\nfn f() {}\n"), 0);
        assert_eq!(count("a.rs", "fn f() {}\n"), 1);
        assert_eq!(count("a.rs", &format!("//! Long.\n{}", "\n".repeat(MAX_LINES))), 1);
    }

    #[test]
    fn what_a_merge_left_is_not_committed() {
        let (a, b) = CONFLICTS[0];
        assert_eq!(count("a.txt", &format!("x\n{a}{b}HEAD\ny\n")), 1);
        assert_eq!(count("a.txt", &format!("x {a}{b}\n")), 0);
    }

    #[test]
    fn a_change_is_told_once() {
        let list = "## 1\n- **Access**: users.\n- **Access**: users and groups.\n- Other.\n## 0\n- **Access**: one.\n";
        assert_eq!(count("CHANGELOG.md", list), 1);
        assert_eq!(count("docs/x.md", list), 0);
    }

    #[test]
    fn unfinished_work_is_not_committed() {
        let (a, b, _) = WORDS[2];
        assert_eq!(count("a.rs", &format!("//! x\n// {a}{b} later\n")), 1);
    }

    #[test]
    fn tests_do_not_sleep_but_tools_may() {
        let (a, b) = SLEEPS[0];
        let sleep = format!("{a}{b}(x);\n");
        assert_eq!(count("a.rs", &format!("//! x\n{sleep}")), 0);
        assert_eq!(count("a.rs", &format!("//! x\n#[cfg(test)]\nmod tests {{\n{sleep}}}\n")), 1);
        assert_eq!(count("crates/a/src/tests.rs", &format!("//! x\n{sleep}")), 1);
    }

    #[test]
    fn no_paths_of_one_machine() {
        let (a, b) = MACHINE_PATHS[0];
        assert_eq!(count("a.md", &format!("see {a}{b}me/x\n")), 1);
        assert_eq!(count("a.md", &format!("see https://example.org{a}{b}me\n")), 0);
        assert_eq!(count("a.md", &format!("see {a}{b}{EXAMPLE_USER}/x\n")), 0);
    }

    #[test]
    fn a_document_points_at_what_exists() {
        let dead = |text| dead_paths(text, |named| named == "crates/a/src/").len();
        assert_eq!(dead("see `crates/a/src/` and `cargo test`, `crates/*/x`"), 0);
        assert_eq!(dead("see `crates/b/src/`"), 1);
    }

    #[test]
    fn a_link_leads_somewhere() {
        let read = |file: &str| (file == "b.md").then(|| "# What `it` is, and how\n".to_owned());
        let dead = |text| dead_links(text, read, |file| file == "b.md").len();
        let well = "# A b\n[x](b.md) [x](b.md#what-it-is-and-how) [x](#a-b) [x](https://example.org/)\n";
        assert_eq!(dead(well), 0);
        assert_eq!(dead("[x](c.md) [x](#c) [x](b.md#c)"), 3);
    }

    #[test]
    fn one_sentence_a_line() {
        assert_eq!(count("a.md", "It works.\nReally.\n"), 0);
        assert_eq!(count("a.md", "It works. Really.\n"), 1);
        assert_eq!(count("a.md", "```\nIt works. Really.\n```\n"), 0);
        assert_eq!(count("a.md", "Version 1.6. Then more.\n"), 0);
    }
}
