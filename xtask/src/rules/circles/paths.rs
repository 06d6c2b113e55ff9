//! Which files of a crate name what another file defines.
//!
//! A name counts where it is used, and leads to the file that defines it: re-exports are followed, so none hides an edge.
//! A module alone is no use of its file; what is named through it is. Methods, and what tests name, do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::graph::Graph;
use crate::rules::attributes::is_test;

/// Re-exports that are followed from one name.
const MOST_STEPS: usize = 32;

/// A module: the names that lead to it from the crate's root.
type ModulePath = Vec<String>;

/// The graph of a crate's files; `files` are their paths below its `src` and their texts.
pub fn graph(files: &[(PathBuf, String)]) -> Result<Graph> {
    let mut names = Names::default();
    let mut parsed = Vec::new();
    let is_root = |root: &str| files.iter().any(|(path, _)| path == Path::new(root));
    let root = if is_root("lib.rs") { "lib" } else { "main" };
    for (path, text) in files {
        let Some(module) = module_of(path, root) else { continue };
        let file = syn::parse_file(text).with_context(|| format!("cannot parse {}", path.display()))?;
        let mut reader = Definitions { names: &mut names, file: parsed.len(), module: module.clone() };
        reader.enter();
        reader.visit_file(&file);
        parsed.push((path, module, file));
    }
    let mut graph = Graph::new(parsed.iter().map(|(path, ..)| path.display().to_string()).collect());
    for (number, (_, module, file)) in parsed.iter().enumerate() {
        if names.is_test(module) {
            continue;
        }
        let mut reader = Uses { names: &names, module: module.clone(), file: number, graph: &mut graph };
        reader.visit_file(file);
    }
    Ok(graph)
}

/// The module that a file is; `None` for programs beside the crate, and for files of tests.
fn module_of(path: &Path, root: &str) -> Option<ModulePath> {
    let mut module: ModulePath =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.iter().any(|part| part == "tests" || part == "bin") {
        return None;
    }
    if module.last().is_some_and(|last| last == "mod" || (module.len() == 1 && last == root)) {
        module.pop();
    }
    Some(module)
}

/// What a name leads to.
#[derive(Clone, Debug)]
enum Meant {
    Module(ModulePath),
    /// What the module of this path defines.
    Item(ModulePath),
}

/// A name that a `use` brings into a module.
struct Imported {
    name: String,
    path: Vec<String>,
}

#[derive(Default)]
struct Module {
    file: usize,
    items: BTreeSet<String>,
    imported: Vec<Imported>,
    /// Paths whose names are all brought in.
    globs: Vec<Vec<String>>,
}

#[derive(Default)]
struct Names {
    modules: BTreeMap<ModulePath, Module>,
    /// Modules that only tests have.
    of_tests: BTreeSet<ModulePath>,
}

impl Names {
    fn is_test(&self, module: &[String]) -> bool {
        (1..=module.len()).any(|length| self.of_tests.contains(&module[..length]))
    }

    /// What a path means that is written in `module`.
    fn meant(&self, module: &[String], path: &[String], steps: usize) -> Option<Meant> {
        let mut rest = path;
        let mut meant = match path.first()?.as_str() {
            "crate" => Meant::Module(Vec::new()),
            "self" => Meant::Module(module.to_vec()),
            "super" => Meant::Module(module[..module.len().checked_sub(1)?].to_vec()),
            first => self.named(module, first, path.len() == 1, steps)?,
        };
        rest = &rest[1..];
        while let (Meant::Module(within), [next, ..]) = (&meant, rest) {
            meant = match next.as_str() {
                "super" => Meant::Module(within[..within.len().checked_sub(1)?].to_vec()),
                "self" => meant.clone(),
                next => self.named(within, next, rest.len() == 1, steps)?,
            };
            rest = &rest[1..];
        }
        Some(meant)
    }

    /// What a name means in a module; items come before modules where the path ends.
    fn named(&self, module: &[String], name: &str, ends: bool, steps: usize) -> Option<Meant> {
        let steps = steps.checked_sub(1)?;
        let names = self.modules.get(module)?;
        let mut child = module.to_vec();
        child.push(name.to_owned());
        let item = names.items.contains(name).then(|| Meant::Item(module.to_vec()));
        let child = self.modules.contains_key(&child).then_some(Meant::Module(child));
        let here = if ends { item.or(child) } else { child.or(item) };
        here.or_else(|| {
            let mut imported = names.imported.iter().filter(|imported| imported.name == name);
            imported.find_map(|imported| self.meant(module, &imported.path, steps))
        })
        .or_else(|| {
            names.globs.iter().find_map(|glob| match self.meant(module, glob, steps)? {
                Meant::Module(within) if within != module => self.named(&within, name, ends, steps),
                _ => None,
            })
        })
    }
}

/// Walks the names of one `use`.
fn walk_use(
    tree: &syn::UseTree,
    before: &mut Vec<String>,
    each: &mut dyn FnMut(&[String], Option<&syn::Ident>),
) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            walk_use(&path.tree, before, each);
            before.pop();
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            each(before, None);
        }
        syn::UseTree::Name(name) => {
            before.push(name.ident.to_string());
            each(before, Some(&name.ident));
            before.pop();
        }
        syn::UseTree::Rename(rename) => {
            before.push(rename.ident.to_string());
            each(before, Some(&rename.rename));
            before.pop();
        }
        syn::UseTree::Glob(_) => {
            before.push("*".to_owned());
            each(before, None);
            before.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| walk_use(tree, before, each)),
    }
}

/// Reads what a file defines and imports.
struct Definitions<'a> {
    names: &'a mut Names,
    file: usize,
    module: ModulePath,
}

impl Definitions<'_> {
    fn enter(&mut self) {
        self.names.modules.entry(self.module.clone()).or_default().file = self.file;
    }

    fn here(&mut self) -> &mut Module {
        self.names.modules.entry(self.module.clone()).or_default()
    }

    fn define(&mut self, name: &syn::Ident) {
        let name = name.to_string();
        self.here().items.insert(name);
    }
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(item) => self.define(&item.ident),
            syn::Item::Enum(item) => self.define(&item.ident),
            syn::Item::Fn(item) => self.define(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.iter().for_each(|name| self.define(name)),
            syn::Item::Static(item) => self.define(&item.ident),
            syn::Item::Struct(item) => self.define(&item.ident),
            syn::Item::Trait(item) => self.define(&item.ident),
            syn::Item::Type(item) => self.define(&item.ident),
            syn::Item::Union(item) => self.define(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        if is_test(&module.attrs) {
            self.names.of_tests.insert(self.module.clone());
        } else if module.content.is_some() {
            self.enter();
            visit::visit_item_mod(self, module);
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let here = self.here();
        walk_use(&item.tree, &mut Vec::new(), &mut |path, name| match (path.split_last(), name) {
            (Some((last, path)), None) if last == "*" => here.globs.push(path.to_vec()),
            (Some((last, _)), name) => {
                let name = name.map_or_else(|| last.clone(), syn::Ident::to_string);
                here.imported.push(Imported { name, path: path.to_vec() });
            }
            (None, _) => {}
        });
    }
}

/// The attributes of the kinds of items that may be of tests alone.
fn attributes(item: &syn::Item) -> Option<&[syn::Attribute]> {
    match item {
        syn::Item::Const(item) => Some(&item.attrs),
        syn::Item::Enum(item) => Some(&item.attrs),
        syn::Item::Fn(item) => Some(&item.attrs),
        syn::Item::Impl(item) => Some(&item.attrs),
        syn::Item::Macro(item) => Some(&item.attrs),
        syn::Item::Mod(item) => Some(&item.attrs),
        syn::Item::Static(item) => Some(&item.attrs),
        syn::Item::Struct(item) => Some(&item.attrs),
        syn::Item::Trait(item) => Some(&item.attrs),
        syn::Item::Type(item) => Some(&item.attrs),
        syn::Item::Use(item) => Some(&item.attrs),
        _ => None,
    }
}

/// Reads what a file names of others.
struct Uses<'a> {
    names: &'a Names,
    module: ModulePath,
    file: usize,
    graph: &'a mut Graph,
}

impl Uses<'_> {
    fn note(&mut self, path: &[String], line: usize) {
        let Some(Meant::Item(module)) = self.names.meant(&self.module, path, MOST_STEPS) else { return };
        let Some(module) = self.names.modules.get(&module) else { return };
        if module.file != self.file {
            let name = path.last().cloned().unwrap_or_default();
            self.graph.note(self.file, module.file, name, line);
        }
    }

    /// Paths among the tokens of a macro.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        let mut is_member = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 || path.is_empty() {
                        self.note_of_macro(&path, line);
                        path.clear();
                        line = name.span().start().line;
                    }
                    if !is_member {
                        path.push(name.to_string());
                    }
                    (colons, is_member) = (0, false);
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.note_of_macro(&path, line);
                    path.clear();
                    colons = 0;
                    is_member = matches!(&other, TokenTree::Punct(mark) if mark.as_char() == '.');
                    if let TokenTree::Group(group) = other {
                        self.note_tokens(group.stream());
                    }
                }
            }
        }
        self.note_of_macro(&path, line);
    }

    /// A small name alone in a macro may be a variable.
    fn note_of_macro(&mut self, path: &[String], line: usize) {
        let is_type = path.first().is_some_and(|name| name.starts_with(char::is_uppercase));
        if path.len() > 1 || is_type {
            self.note(path, line);
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_some() {
            self.module.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.module.pop();
        }
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).is_some_and(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    /// A re-export is used by those that name it; what a private import brings in is used here.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        walk_use(&item.tree, &mut Vec::new(), &mut |path, name| {
            let line = name.map_or(0, |name| name.span().start().line);
            self.note(path, line);
        });
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let (None, Some(first)) = (path.leading_colon, path.segments.first()) {
            self.note(&names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.note_tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}
