//! The project's rules that no lint of the compiler knows, each with its cure in the message.

mod attributes;
mod circles;
mod code;
mod floors;
mod log;
mod log_events;
mod log_names;
mod records;
mod runtime;
mod seldom;
mod threads;
mod tidy;
mod versions;
mod walk;
mod words;

#[cfg(test)]
mod tests;

use anyhow::Result;

/// Each rule's name and what violates it.
pub fn all() -> Result<Vec<(&'static str, Vec<String>)>> {
    Ok(vec![
        ("floors", floors::check()?),
        ("tidy", tidy::check()?),
        ("code", code::check()?),
        ("records", records::check()?),
        ("runtime", runtime::check()?),
        ("words", words::check()?),
        ("log", log::check()?),
        ("log_names", log_names::check()?),
        ("seldom", seldom::check()?),
        ("threads", threads::check()?),
        ("versions", versions::check()?),
        ("walk", walk::check()?),
    ])
}

/// What `exceptions.txt` would be if it fitted the tree.
pub fn exceptions() -> Result<String> {
    code::exceptions()
}

/// The circles of files of a crate, or of all, with the edges to cut.
pub fn circles(only: Option<&str>) -> Result<String> {
    circles::report(only)
}
