//! Values of logged events are not called as a line of JSON calls its own parts (record 0114).

use std::fs;

use anyhow::{Context, Result};
use harness::tree;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// What each line has beside the values of its event.
const OWN: [&str; 4] = ["timestamp", "level", "target", "message"];
const MACROS: [&str; 6] = ["trace", "debug", "info", "warn", "error", "event"];

/// Looks at all code of the crates.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in tree::files(&["rs"])?.into_iter().filter(|path| path.starts_with("crates")) {
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        found.extend(violations(&path.display().to_string(), &text)?);
    }
    Ok(found)
}

fn violations(path: &str, text: &str) -> Result<Vec<String>> {
    if !text.contains("tracing::") {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text).with_context(|| format!("cannot read {path}"))?;
    let mut events = Events::default();
    events.visit_file(&file);
    let told = events.own.iter().map(|name| {
        format!("log: {path}: an event has a value {name:?}, which lines of JSON have themselves: rename it")
    });
    Ok(told.collect())
}

#[derive(Default)]
struct Events {
    own: Vec<String>,
}

impl<'ast> Visit<'ast> for Events {
    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        let name = found.path.segments.last().map(|last| last.ident.to_string());
        if name.is_some_and(|name| MACROS.contains(&name.as_str())) {
            self.own.extend(names(&found.tokens).into_iter().filter(|name| OWN.contains(&name.as_str())));
        }
        visit::visit_macro(self, found);
    }
}

/// Names of an event's values: those before a `=`, and those that stand alone, maybe behind `%` or `?`.
fn names(tokens: &TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    let value = |part: &[TokenTree]| {
        let is_sign =
            |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if "%?".contains(mark.as_char()));
        let part = if part.first().is_some_and(is_sign) { &part[1..] } else { part };
        let is_named = match part.get(1) {
            None => true,
            Some(TokenTree::Punct(mark)) => mark.as_char() == '=',
            Some(_) => false,
        };
        match part.first() {
            Some(TokenTree::Ident(name)) if is_named => Some(name.to_string()),
            _ => None,
        }
    };
    tokens.split(is_comma).filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_called_as_a_line_s_own_parts() {
        let count = |event: &str| {
            let text = format!("fn f() {{ tracing::{event}; }}");
            violations("a.rs", &text).expect("it is Rust").len()
        };
        assert_eq!(count("warn!(%vb, bucket = b.level(), \"level {message}\")"), 0);
        assert_eq!(count("warn!(target: \"x\", failure, \"says\")"), 0);
        assert_eq!(count("warn!(level, \"says\")"), 1);
        assert_eq!(count("info!(%target, message = ?x, \"says\")"), 2);
    }
}
