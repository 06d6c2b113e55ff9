//! Each line that a node logs for people has a stable name, and the reference lists all names (record 0186).

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use harness::tree;

use super::log_events::{self, LogEvent};

const PAGE: &str = "docs/reference/log_events.md";
/// What to do about which event.
const CURES: &str = "xtask/src/rules/log_cures.txt";
/// Where the list begins in the page.
const MARK: &str = "<!-- generated from the code by cargo xtask check -->";
/// With this in the environment the page is written instead of compared, as with the other pages of the reference.
const UPDATE: &str = "UPDATE_REFERENCE";

/// What is logged under one name.
#[derive(Default)]
struct Named {
    levels: BTreeSet<String>,
    crates: BTreeSet<String>,
    texts: BTreeSet<String>,
}

/// Looks at all events of the crates, and at the page that lists them.
pub fn check() -> Result<Vec<String>> {
    let mut events = Vec::new();
    for (path, text) in log_events::sources()? {
        let of_file = log_events::of_file(&text).with_context(|| format!("cannot read {path}"))?;
        events.extend(of_file.into_iter().map(|event| (path.clone(), event)));
    }
    let cures =
        fs::read_to_string(tree::root().join(CURES)).with_context(|| format!("cannot read {CURES}"))?;
    let (mut found, list) = listed(&events, &cures);
    let path = tree::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    match renewed(&page, &list) {
        None => found.push(format!("log_names: {PAGE}: no line {MARK:?}: put it where the list begins")),
        Some(wanted) if env::var_os(UPDATE).is_some() && wanted != page => fs::write(&path, wanted)?,
        Some(wanted) if wanted != page => found.push(format!(
            "log_names: {PAGE}: not what the code logs: {UPDATE}=1 cargo xtask check, and look at what changed: a name \
             that was released stays with what it names"
        )),
        Some(_) => {}
    }
    Ok(found)
}

/// Events without a good name, errors and warnings about which it is not said what to do, and the table of all with names.
fn listed(events: &[(String, LogEvent)], cures: &str) -> (Vec<String>, String) {
    let (mut found, mut names) = (Vec::new(), BTreeMap::<String, Named>::new());
    let rows = cures.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut cures: BTreeMap<&str, &str> = rows.filter_map(|row| row.split_once(" | ")).collect();
    for (path, event) in events {
        let Some(name) = event.name().filter(|name| is_good(name)) else {
            found.push(format!(
                "log_names: {path}: the event {:?} has no name: begin it with event = \"words_like_these\"",
                event.text()
            ));
            continue;
        };
        let named = names.entry(name).or_default();
        named.levels.insert(event.level.clone());
        named.crates.extend(path.split('/').nth(1).map(str::to_owned));
        named.texts.insert(event.text());
    }
    let mut table = String::from("| event | level | part | says | what to do |\n|---|---|---|---|---|\n");
    for (name, Named { levels, crates, texts }) in names {
        let cure = cures.remove(&*name);
        let level = ["error", "warn"].into_iter().find(|level| levels.contains(*level));
        if let (None, Some(level)) = (cure, level) {
            found.push(format!(
                "log_names: {CURES}: say what to do about {name}, of level {level}; if nothing has to be done, say why"
            ));
        }
        if cure.is_some_and(|cure| cure.trim_end_matches(['.', ':', ' ']) == "nothing") {
            found.push(format!("log_names: {CURES}: {name}: say why nothing has to be done"));
        }
        let join =
            |all: BTreeSet<String>, between: &str| Vec::from_iter(all).join(between).replace('|', "\\|");
        let (levels, crates) = (join(levels, ", "), join(crates, ", "));
        let texts = texts.into_iter().map(|text| shown(&text)).collect();
        let (texts, cure) = (join(texts, " / "), cure.unwrap_or_default());
        let _ = writeln!(table, "| `{name}` | {levels} | {crates} | {texts} | {cure} |");
    }
    found.extend(cures.keys().map(|name| format!("log_names: {CURES}: nothing logs {name}: take it out")));
    (found, table)
}

/// A text as the list has it: `...` in the place of what differs from line to line.
fn shown(text: &str) -> String {
    let mut parts = text.split('{');
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str("...");
        shown.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    shown
}

/// Small words with `_` between.
fn is_good(name: &str) -> bool {
    name.split('_').all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The page with this list; `None` if it has no mark.
fn renewed(page: &str, list: &str) -> Option<String> {
    let head = page.split_once(MARK)?.0;
    Some(format!("{head}{MARK}\n\n{list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> (Vec<String>, String) {
        let events = log_events::of_file(&format!("fn f() {{ {code} }}")).expect("it is Rust");
        let events = events.into_iter().map(|event| ("crates/a/src/b.rs".to_owned(), event));
        listed(&events.collect::<Vec<_>>(), "# head\na | do it\n")
    }

    #[test]
    fn an_event_without_a_name_is_found() {
        for code in [
            "tracing::warn!(\"no name\")",
            "tracing::info!(bucket, event = \"not_first\", \"x\")",
            "error!(event = name, \"not a literal\")",
            "tracing::error!(event = \"Bad-Name\", \"x\")",
            "tracing::error!(event = \"a__b\", \"x\")",
            "select! { _ = f() => { tracing::error!(\"within\") } }",
        ] {
            let (found, list) = of(&format!("{code}; tracing::error!(event = \"a\", \"x\")"));
            assert!(matches!(&found[..], [one] if one.contains("crates/a/src/b.rs")), "{code}: {found:?}");
            assert_eq!(list.lines().count(), 3, "{code}");
        }
        assert!(of("tracing::debug!(\"x\"); tracing::info!(event = \"a\", \"x\")").0.is_empty());
    }

    #[test]
    fn an_error_and_a_warning_say_what_to_do() {
        let (found, _) = of("tracing::error!(event = \"b\", \"x\"); tracing::warn!(event = \"c\", \"x\");
             tracing::info!(event = \"d\", \"x\"); tracing::info!(event = \"c\", \"x\")");
        let [error, warning, stale] = &found[..] else { panic!("{found:?}") };
        assert!(error.contains("about b, of level error"), "{found:?}");
        assert!(warning.contains("about c, of level warn"), "{found:?}");
        assert!(stale.contains("nothing logs a"), "{found:?}");
    }

    #[test]
    fn nothing_has_to_be_done_for_a_reason() {
        let events =
            log_events::of_file("fn f() { tracing::warn!(event = \"a\", \"x\") }").expect("it is Rust");
        let events: Vec<_> =
            events.into_iter().map(|event| ("crates/a/src/b.rs".to_owned(), event)).collect();
        assert!(listed(&events, "a | nothing: it is tried again\n").0.is_empty());
        for bare in ["nothing", "nothing:", "nothing."] {
            assert_eq!(listed(&events, &format!("a | {bare}\n")).0.len(), 1, "{bare}");
        }
    }

    #[test]
    fn the_list_has_each_name_once_with_all_that_it_says() {
        let (found, list) = of("tracing::info!(event = \"disk_full\", bucket, \"full: {what} of it\");
             tracing::info!(event = \"disk_full\", \"a | b\"); f(|x| tracing::error!(event = \"a\", \"{x}\"));");
        assert!(found.is_empty(), "{found:?}");
        let rows: Vec<&str> = list.lines().skip(2).collect();
        let wanted = [
            "| `a` | error | a | ... | do it |",
            "| `disk_full` | info | a | a \\| b / full: ... of it |  |",
        ];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn a_page_is_renewed_behind_its_mark() {
        let page = format!("# Head\n\n{MARK}\n\nold\n");
        assert_eq!(renewed(&page, "new\n"), Some(format!("# Head\n\n{MARK}\n\nnew\n")));
        assert_eq!(renewed("# Head\n", "new\n"), None);
    }
}
