//! Circles of files: a file names what another one defines, and that one, perhaps by way of others, what the first defines.
//!
//! Circles of up to [`MOST_FILES`] are let be. What is above is in `exceptions.txt`: `circle NUMBER CRATE`, and
//! `circle NUMBER CRATE 2` for the second one of a crate.

mod graph;
mod paths;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use harness::tree;

use self::graph::Graph;

/// Files that may name each other in a circle.
pub const MOST_FILES: usize = 3;
/// Edges that a violation names.
const MOST_CUTS: usize = 8;
/// Names that are shown of an edge.
const MOST_NAMES: usize = 6;

/// The files of each crate by their paths below its `src`, with their texts.
type Crates = BTreeMap<String, (PathBuf, Vec<(PathBuf, String)>)>;

/// How many files are in each circle of each crate, the largest first.
pub fn sizes() -> Result<Vec<(String, usize)>> {
    let mut found = Vec::new();
    for (name, (_, files)) in crates()? {
        found.extend(named(&name, &paths::graph(&files)?));
    }
    Ok(found)
}

/// The circles of a graph that are larger than they may be, as they are called in `exceptions.txt`.
fn named(name: &str, graph: &Graph) -> Vec<(String, usize)> {
    let circles = graph.circles().into_iter().filter(|circle| circle.len() > MOST_FILES);
    let numbered = circles.enumerate().map(|(at, circle)| match at {
        0 => (name.to_owned(), circle.len()),
        _ => (format!("{name} {}", at + 1), circle.len()),
    });
    numbered.collect()
}

/// The edges to cut so that a crate's circles are as small as they may be, those first that make them smallest.
pub fn advice(name: &str) -> Result<Vec<String>> {
    let Some((folder, files)) = crates()?.remove(name) else { return Ok(Vec::new()) };
    let graph = paths::graph(&files)?;
    let circles = graph.circles().into_iter().filter(|circle| circle.len() > MOST_FILES);
    let cuts = circles.flat_map(|circle| graph.cuts(&circle, MOST_FILES));
    Ok(cuts.take(MOST_CUTS).map(|cut| shown(&folder, &cut)).collect())
}

/// All circles of a crate, and of those above the limit the edges to cut. Of all crates, if none is named.
pub fn report(only: Option<&str>) -> Result<String> {
    let mut text = String::new();
    for (name, (folder, files)) in crates()? {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let graph = paths::graph(&files)?;
        for circle in graph.circles() {
            let _ = writeln!(text, "{name}: {} files in a circle", circle.len());
            circle.iter().for_each(|file| {
                let _ = writeln!(text, "    {}", folder.join(graph.file(*file)).display());
            });
            if circle.len() > MOST_FILES {
                let _ = writeln!(text, "  edges to cut, in this order:");
                for cut in graph.cuts(&circle, MOST_FILES) {
                    let _ = writeln!(text, "    {}", shown(&folder, &cut));
                }
            }
        }
    }
    Ok(text)
}

fn shown(folder: &Path, cut: &graph::Cut) -> String {
    let mut names: Vec<String> =
        cut.names.iter().take(MOST_NAMES).map(|(name, line)| format!("{name} (line {line})")).collect();
    if cut.names.len() > MOST_NAMES {
        names.push(format!("{} more", cut.names.len() - MOST_NAMES));
    }
    let (from, to, names) = (folder.join(&cut.from), folder.join(&cut.to), names.join(", "));
    format!("{} names of {}: {names}; without it {} are left", from.display(), to.display(), cut.leaves)
}

fn crates() -> Result<Crates> {
    let mut found = Crates::new();
    for path in tree::files(&["rs"])? {
        let parts: Vec<Component<'_>> = path.components().collect();
        let Some(at) = parts.iter().position(|part| part.as_os_str() == "src") else { continue };
        // What is outside of these is no crate of the workspace.
        let is_ours = match &parts[..at] {
            [top, _] => ["crates", "tools"].iter().any(|ours| top.as_os_str() == *ours),
            [top] => top.as_os_str() == "xtask",
            _ => false,
        };
        let (Some(name), true) = (at.checked_sub(1).map(|at| parts[at].as_os_str()), is_ours) else {
            continue;
        };
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let folder = parts[..=at].iter().collect();
        let (_, files) = found.entry(name).or_insert_with(|| (folder, Vec::new()));
        files.push((parts[at + 1..].iter().collect(), text));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        paths::graph(&files).expect("Rust")
    }

    /// From and to of each edge of a made tree.
    fn edges(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let graph = graph(files);
        graph.edges().map(|(from, to)| (graph.file(from).to_owned(), graph.file(to).to_owned())).collect()
    }

    fn edge(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn each_way_to_name_something_is_an_edge() {
        let b = ("b.rs", "pub struct B; pub fn f() {} pub mod inner { pub const C: u8 = 0; }");
        for a in [
            "use crate::b::B;",
            "use super::b::{self, B as Other};",
            "use crate::b; fn g() { b::f() }",
            "fn g() { crate::b::f() }",
            "fn g(b: super::b::B) {}",
            "use crate::b::*; fn g() { f() }",
            "use crate::b::inner; const D: u8 = inner::C;",
            "fn g() { println!(\"{}\", crate::b::inner::C) }",
            "mod inner { use super::super::b::B; }",
            "use crate::B;",
        ] {
            let root = ("lib.rs", "mod a; mod b; pub use b::B;");
            assert_eq!(edges(&[root, ("a.rs", a), b]), [edge("a.rs", "b.rs")], "{a}");
        }
    }

    #[test]
    fn what_is_of_tests_or_a_module_alone_is_none() {
        let b = ("b.rs", "pub struct B;");
        for a in [
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "#[cfg(test)] use crate::b::B;",
            "#[cfg(test)] fn f(b: crate::b::B) {}",
            "use crate::b;",
            "/// See [`crate::b::B`].\nstruct A;",
            "use other::b::B;",
            "struct B; fn f(b: B) {}",
        ] {
            assert_eq!(edges(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), b]), [], "{a}");
        }
        let test = "use crate::b::B;";
        for file in ["tests.rs", "a/tests.rs", "a/tests/more.rs", "bin/tool.rs", "made.rs"] {
            let root = "mod a; mod b; #[cfg(test)] mod made;";
            assert_eq!(edges(&[("lib.rs", root), ("a.rs", ""), b, (file, test)]), [], "{file}");
        }
    }

    #[test]
    fn a_re_export_is_no_edge_and_hides_none() {
        let files = [
            ("lib.rs", "pub mod a; pub use a::Child;"),
            ("a/mod.rs", "mod child; pub use child::Child; pub struct Parent;"),
            ("a/child.rs", "use super::Parent; pub struct Child(Parent);"),
            ("b.rs", "use crate::a::Child;"),
        ];
        assert_eq!(edges(&files), [edge("a/child.rs", "a/mod.rs"), edge("b.rs", "a/child.rs")]);
        // The parent uses what it re-exports.
        let parent = "mod child; pub use child::Child; pub struct Parent; fn f(child: Child) {}";
        let files = [("lib.rs", "pub mod a;"), ("a/mod.rs", parent), files[2]];
        assert_eq!(edges(&files), [edge("a/mod.rs", "a/child.rs"), edge("a/child.rs", "a/mod.rs")]);
    }

    /// A circle of five files; the sixth one only leads into it.
    fn made() -> Graph {
        graph(&[
            ("main.rs", "mod a; mod b; mod c; mod d; mod e; mod f; fn main() { a::f() }"),
            ("a.rs", "use crate::b::f as g; pub fn f() {}"),
            ("b.rs", "use crate::a::f as g; use crate::c::f as h; pub fn f() {}"),
            ("c.rs", "use crate::d::f as g; pub fn f() {}"),
            ("d.rs", "use crate::e::f as g; pub fn f() {}"),
            ("e.rs", "use crate::c::f as g; use crate::b::f as h; pub fn f() {}"),
            ("f.rs", "use crate::e::f as g;"),
        ])
    }

    #[test]
    fn a_circle_is_as_large_as_its_files_and_has_edges_to_cut() {
        let graph = made();
        let circles = graph.circles();
        assert_eq!(circles.iter().map(|circle| circle.len()).collect::<Vec<_>>(), [5]);
        assert_eq!(named("made", &graph), [("made".to_owned(), 5)]);
        let cuts = graph.cuts(&circles[0], MOST_FILES);
        let cuts: Vec<_> = cuts.iter().map(|cut| (&*cut.from, &*cut.to, cut.leaves)).collect();
        assert_eq!(cuts, [("d.rs", "e.rs", 2)], "what is left of the circle is a.rs and b.rs");
    }
}
