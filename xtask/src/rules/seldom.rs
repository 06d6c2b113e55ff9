//! Warnings and errors that a client, another node or a bad disk can bring about again and again are logged seldom.
//!
//! An event at one of these levels says how many of its kind were left out (`left_out`, from `base::RateLimit`), or
//! `seldom.txt` says why it cannot be repeated without bound.

use std::fs;

use anyhow::{Context, Result};
use harness::tree;

use super::log_events;

const REASONS: &str = "xtask/src/rules/seldom.txt";
const LIMITED: &str = "left_out";

/// An event that says nothing of what was left out: its file, and its text.
type Event = (String, String);

/// Looks at all code of the crates but their tests.
pub fn check() -> Result<Vec<String>> {
    let reasons =
        fs::read_to_string(tree::root().join(REASONS)).with_context(|| format!("cannot read {REASONS}"))?;
    let mut events = Vec::new();
    for (name, text) in log_events::sources()? {
        let texts = unlimited(&text).with_context(|| format!("cannot read {name}"))?;
        events.extend(texts.into_iter().map(|what| (name.clone(), what)));
    }
    Ok(judge(&events, &reasons))
}

/// Texts of the events of a file that are not limited.
fn unlimited(text: &str) -> Result<Vec<String>> {
    let events = log_events::of_file(text)?.into_iter();
    Ok(events
        .filter(|event| event.level != "info" && !event.has(LIMITED))
        .map(|event| event.text())
        .collect())
}

fn judge(events: &[Event], reasons: &str) -> Vec<String> {
    let lines: Vec<[&str; 3]> = reasons
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let mut parts = line.splitn(3, " | ");
            [(); 3].map(|()| parts.next().unwrap_or_default())
        })
        .collect();
    let is_of = |[path, text, _]: &[&str; 3], event: &Event| event.0 == *path && event.1.starts_with(text);
    let unknown = events.iter().filter(|event| !lines.iter().any(|line| is_of(line, event))).map(|(path, text)| {
        format!(
            "seldom: {path}: the event {text:?} may be repeated without bound: log it through a RateLimit and say \
             left_out, or give a reason in {REASONS}"
        )
    });
    let stale =
        lines.iter().filter(|line| line[2].is_empty() || !events.iter().any(|event| is_of(line, event)));
    let stale = stale
        .map(|[path, text, _]| format!("seldom: {REASONS}: {path} | {text}: no such event, or no reason"));
    unknown.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        fn f() {
            tracing::warn!(%vb, left_out, \"seldom\");
            tracing::error!(bucket = name, \"often and \\
                                             long\");
            tracing::info!(\"ordinary\");
            select! { _ = f() => { tracing::error!(\"within\") } }
        }
        #[cfg(test)]
        mod tests {
            fn g() { tracing::error!(\"a test's\"); }
        }";

    #[test]
    fn events_without_a_limit_need_a_reason() {
        let texts = unlimited(FILE).expect("it is Rust");
        assert_eq!(texts, ["often and long", "within"]);
        let events = [("a.rs".to_owned(), texts[0].clone())];
        assert!(judge(&events, "").iter().all(|told| told.contains("a.rs") && told.contains("left_out")));
        assert_eq!(judge(&events, "# head\na.rs | often | once a start"), Vec::<String>::new());
        for list in ["a.rs | often | ", "b.rs | often | once", "a.rs | seldom | once"] {
            assert!(!judge(&events, list).is_empty(), "{list}");
        }
        assert_eq!(judge(&events, "a.rs | often | once\na.rs | gone | once").len(), 1);
    }
}
