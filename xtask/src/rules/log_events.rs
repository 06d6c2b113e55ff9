//! What the crates log for people: each `info!`, `warn!` and `error!` outside of tests, also within other macros.

use std::fs;

use anyhow::{Context, Result};
use harness::tree;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::attributes::is_test;

const LEVELS: [&str; 3] = ["info", "warn", "error"];

/// One of these macros, as it is written.
pub(super) struct LogEvent {
    pub(super) level: String,
    tokens: TokenStream,
}

impl LogEvent {
    /// Whether it has a value of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let is_it = |token: TokenTree| matches!(token, TokenTree::Ident(found) if found == name);
        self.tokens.clone().into_iter().any(is_it)
    }

    /// The last text among its parts, which is what it says.
    pub(super) fn text(&self) -> String {
        self.tokens.clone().into_iter().filter_map(text_of).last().unwrap_or_default()
    }

    /// What `event = "..."` at its beginning says.
    pub(super) fn name(&self) -> Option<String> {
        let first: Vec<TokenTree> = self.tokens.clone().into_iter().take(3).collect();
        let [TokenTree::Ident(key), TokenTree::Punct(mark), value] =
            <[TokenTree; 3]>::try_from(first).ok()?
        else {
            return None;
        };
        if key != "event" || mark.as_char() != '=' { None } else { text_of(value) }
    }
}

fn text_of(token: TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    syn::parse_str::<syn::LitStr>(&literal.to_string()).ok().map(|text| text.value())
}

/// The files of the crates but their tests: path and text.
pub(super) fn sources() -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for path in tree::files(&["rs"])?.into_iter().filter(|path| path.starts_with("crates")) {
        let name = path.display().to_string();
        if !["/tests/", "/tests.rs", "/examples/"].iter().any(|part| name.contains(part)) {
            let text = fs::read_to_string(tree::root().join(&path));
            sources.push((name, text.with_context(|| format!("cannot read {}", path.display()))?));
        }
    }
    Ok(sources)
}

/// What a file logs.
pub(super) fn of_file(text: &str) -> Result<Vec<LogEvent>> {
    let mut found = Found::default();
    if LEVELS.iter().any(|level| text.contains(&format!("{level}!"))) {
        found.visit_file(&syn::parse_file(text)?);
    }
    Ok(found.0)
}

#[derive(Default)]
struct Found(Vec<LogEvent>);

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, found: &'ast syn::ItemMod) {
        if !is_test(&found.attrs) {
            visit::visit_item_mod(self, found);
        }
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        let name = found.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
        self.look_at(&name, &found.tokens);
        visit::visit_macro(self, found);
    }
}

impl Found {
    /// An event, or another macro that may have events in it.
    fn look_at(&mut self, name: &str, tokens: &TokenStream) {
        if LEVELS.contains(&name) {
            self.0.push(LogEvent { level: name.to_owned(), tokens: tokens.clone() });
        } else {
            self.look_into(tokens);
        }
    }

    fn look_into(&mut self, tokens: &TokenStream) {
        let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            let TokenTree::Group(group) = token else { continue };
            let name = match &tokens[..at] {
                [.., TokenTree::Ident(name), TokenTree::Punct(mark)] if mark.as_char() == '!' => {
                    name.to_string()
                }
                _ => String::new(),
            };
            self.look_at(&name, &group.stream());
        }
    }
}
