//! What the code may be: where `unsafe` is, how long functions are, how many methods a type has, names of types, circles
//! of files.
//!
//! `exceptions.txt` lists what is above a limit with the number it has; the numbers may only become smaller.
//! A file with `unsafe` counts as 1, however often it has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use anyhow::{Context, Result};
use harness::tree;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::attributes::is_test;
use super::circles;

const EXCEPTIONS: &str = "xtask/src/rules/exceptions.txt";
/// Lines of a function, from its signature to its last brace.
const MOST_LINES: usize = 70;
/// Methods of a type, without those of traits and tests.
const MOST_METHODS: usize = 40;
/// Types of one name in a crate.
const MOST_OF_A_NAME: usize = 1;

/// The head of the list.
const HEAD: &str = "\
# What is above a limit of the rules, with the number it has: `LIMIT NUMBER WHAT`.
# Numbers may only become smaller, and lines may only go; `cargo xtask exceptions` prints the list as it is now.
# `unsafe`: files that may contain it. `lines`: of a function. `methods`: of a type. `names`: types of a name in a crate.
# `circle`: files of a crate that name each other in a circle; `cargo xtask circles CRATE` names edges to cut.
";

/// Looks at all Rust files.
pub fn check() -> Result<Vec<String>> {
    let exceptions = fs::read_to_string(tree::root().join(EXCEPTIONS))
        .with_context(|| format!("cannot read {EXCEPTIONS}"))?;
    let (above, exceptions) = (above_limits()?, parse(&exceptions)?);
    let mut found = judge(&above, &exceptions);
    let grown = above.iter().filter(|((limit, what), number)| {
        *limit == Limit::Circle
            && exceptions.get(&(*limit, what.clone())).is_none_or(|allowed| *number > allowed)
    });
    let crates: BTreeSet<&str> = grown.filter_map(|((_, what), _)| what.split(' ').next()).collect();
    for name in crates {
        found.extend(circles::advice(name)?.into_iter().map(|edge| format!("code: an edge to cut: {edge}")));
    }
    Ok(found)
}

/// The list as it is now.
pub fn exceptions() -> Result<String> {
    let lines = above_limits()?;
    let lines = lines.iter().map(|((limit, what), number)| format!("{} {number} {what}\n", limit.word()));
    Ok(HEAD.to_owned() + &lines.collect::<String>())
}

fn above_limits() -> Result<Numbers> {
    let mut seen = Seen::default();
    for path in tree::files(&["rs"])? {
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        seen.read(&path, &text)?;
    }
    let mut all = seen.measured();
    all.extend(circles::sizes()?.into_iter().map(|(what, number)| ((Limit::Circle, what), number)));
    Ok(all.into_iter().filter(|((limit, _), number)| *number > limit.most()).collect())
}

/// What a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    Unsafe,
    Lines,
    Methods,
    Names,
    Circle,
}

impl Limit {
    const ALL: [Limit; 5] = [Limit::Unsafe, Limit::Lines, Limit::Methods, Limit::Names, Limit::Circle];

    fn word(self) -> &'static str {
        match self {
            Limit::Unsafe => "unsafe",
            Limit::Lines => "lines",
            Limit::Methods => "methods",
            Limit::Names => "names",
            Limit::Circle => "circle",
        }
    }

    fn most(self) -> usize {
        match self {
            Limit::Unsafe => 0,
            Limit::Lines => MOST_LINES,
            Limit::Methods => MOST_METHODS,
            Limit::Names => MOST_OF_A_NAME,
            Limit::Circle => circles::MOST_FILES,
        }
    }

    fn cure(self) -> &'static str {
        match self {
            Limit::Unsafe => {
                "use what `base` offers safely, or put the file into the list with a reason in its record"
            }
            Limit::Lines => "cut the function at its paragraphs",
            Limit::Methods => "give a part of the type a type of its own",
            Limit::Names => "give the types of a crate different names",
            Limit::Circle => {
                "move what other files of the circle name into a file that names none of them, or pass it as an argument"
            }
        }
    }
}

type Numbers = BTreeMap<(Limit, String), usize>;

/// Lines `LIMIT NUMBER WHAT`; `#` begins a comment.
fn parse(text: &str) -> Result<Numbers> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.splitn(3, ' ').collect();
            let [limit, number, what] = fields[..] else { anyhow::bail!("{EXCEPTIONS}: not a line: {line}") };
            let limit = Limit::ALL.into_iter().find(|known| known.word() == limit);
            let limit = limit.with_context(|| format!("{EXCEPTIONS}: no such limit: {line}"))?;
            let number = number.parse().with_context(|| format!("{EXCEPTIONS}: no number: {line}"))?;
            Ok(((limit, what.to_owned()), number))
        })
        .collect()
}

/// What differs between what is above a limit and what may be.
fn judge(above: &Numbers, exceptions: &Numbers) -> Vec<String> {
    let mut found = Vec::new();
    for ((limit, what), number) in above {
        match exceptions.get(&(*limit, what.clone())) {
            Some(allowed) if number < allowed => {
                found.push(format!("code: {EXCEPTIONS}: `{} {number} {what}` is enough now", limit.word()));
            }
            Some(allowed) if number == allowed => {}
            _ => found.push(format!(
                "code: {what}: {number} {} where {} are the most: {}",
                limit.word(),
                limit.most(),
                limit.cure()
            )),
        }
    }
    let gone = exceptions.keys().filter(|of| !above.contains_key(of));
    found
        .extend(gone.map(|(limit, what)| format!("code: {EXCEPTIONS}: not needed: {} {what}", limit.word())));
    found
}

/// What was counted in the files so far.
#[derive(Default)]
struct Seen {
    /// Files.
    unsafes: BTreeSet<String>,
    functions: BTreeMap<String, usize>,
    methods: BTreeMap<String, usize>,
    /// Where a crate's types of a name are.
    names: BTreeMap<String, BTreeSet<String>>,
}

impl Seen {
    fn read(&mut self, path: &Path, text: &str) -> Result<()> {
        let shown = path.display().to_string();
        let file = syn::parse_file(text).with_context(|| format!("cannot parse {shown}"))?;
        // Files of tests are held to lines and `unsafe` alone.
        let is_test = path.components().any(|part| {
            let Component::Normal(name) = part else { return false };
            ["tests", "tests.rs", "examples", "suite", "suite.rs"].iter().any(|test| name == *test)
        });
        let of: Vec<_> = path.iter().take(2).map(|part| part.to_string_lossy()).collect();
        let of = if of[0] == "crates" || of[0] == "tools" {
            of[1].clone().into_owned()
        } else {
            of[0].clone().into_owned()
        };
        Reader { seen: self, file: shown, of, is_test }.visit_file(&file);
        Ok(())
    }

    fn measured(self) -> Numbers {
        let of = |limit: Limit| move |(what, number)| ((limit, what), number);
        let names = self.names.into_iter().map(|(name, places)| (name, places.len()));
        let unsafes = self.unsafes.into_iter().map(|file| (file, 1));
        let mut all: Numbers = unsafes.map(of(Limit::Unsafe)).collect();
        all.extend(self.functions.into_iter().map(of(Limit::Lines)));
        all.extend(self.methods.into_iter().map(of(Limit::Methods)));
        all.extend(names.map(of(Limit::Names)));
        all
    }
}

/// Reads one file.
struct Reader<'a> {
    seen: &'a mut Seen,
    file: String,
    of: String,
    is_test: bool,
}

impl Reader<'_> {
    fn note_unsafe(&mut self) {
        self.seen.unsafes.insert(self.file.clone());
    }

    fn note_function(&mut self, signature: &syn::Signature, end: Span) {
        let lines = end.end().line + 1 - signature.span().start().line;
        let longest = self.seen.functions.entry(format!("{} {}", self.file, signature.ident)).or_default();
        *longest = lines.max(*longest);
        if signature.unsafety.is_some() {
            self.note_unsafe();
        }
    }

    fn note_type(&mut self, name: &syn::Ident) {
        if !self.is_test {
            let start = name.span().start();
            let places = self.seen.names.entry(format!("{} {name}", self.of)).or_default();
            places.insert(format!("{}:{}:{}", self.file, start.line, start.column));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let before = self.is_test;
        self.is_test |= is_test(&module.attrs);
        visit::visit_item_mod(self, module);
        self.is_test = before;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note_function(&function.sig, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note_function(&function.sig, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, implementation: &'ast syn::ItemImpl) {
        if implementation.unsafety.is_some() {
            self.note_unsafe();
        }
        if let (None, syn::Type::Path(of)) = (&implementation.trait_, &*implementation.self_ty) {
            let is_method = |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(_));
            let methods = implementation.items.iter().filter(is_method).count();
            if let Some(last) =
                of.path.segments.last().filter(|_| !self.is_test && !is_test(&implementation.attrs))
            {
                *self.seen.methods.entry(format!("{} {}", self.of, last.ident)).or_default() += methods;
            }
        }
        visit::visit_item_impl(self, implementation);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.note_unsafe();
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note_type(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note_type(&item.ident);
        visit::visit_item_enum(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(text: &str) -> Numbers {
        let mut seen = Seen::default();
        seen.read(Path::new("crates/a/src/b.rs"), text).unwrap();
        seen.measured()
    }

    fn number(text: &str, limit: Limit, what: &str) -> usize {
        measured(text).get(&(limit, what.to_owned())).copied().unwrap_or(0)
    }

    #[test]
    fn each_kind_of_unsafe_counts() {
        for text in ["unsafe impl Send for A {}", "fn f() { unsafe { g() } }", "unsafe fn g() {}"] {
            assert_eq!(number(text, Limit::Unsafe, "crates/a/src/b.rs"), 1, "{text}");
        }
        assert_eq!(number("fn f() { g() }", Limit::Unsafe, "crates/a/src/b.rs"), 0);
    }

    #[test]
    fn a_function_is_as_long_as_its_lines() {
        assert_eq!(number("fn f(\n    a: u8,\n) {\n    a;\n}\n", Limit::Lines, "crates/a/src/b.rs f"), 5);
    }

    #[test]
    fn methods_of_all_blocks_count_and_those_of_traits_and_tests_do_not() {
        let text = "struct A;\nimpl A { fn a() {} fn b() {} }\nimpl A { fn c() {} }\nimpl T for A { fn d() {} }\n\
            #[cfg(test)] mod tests { impl A { fn e() {} } struct A; }\n";
        assert_eq!(number(text, Limit::Methods, "a A"), 3);
        assert_eq!(number(text, Limit::Names, "a A"), 1);
        assert_eq!(number("mod b { struct A; } enum A {}", Limit::Names, "a A"), 2);
    }

    #[test]
    fn exceptions_only_shrink() {
        let of = |number| Numbers::from([((Limit::Methods, "a A".to_owned()), number)]);
        assert_eq!(judge(&of(50), &of(50)), [""; 0]);
        let none = Numbers::new;
        for (above, exceptions) in [(of(50), of(51)), (of(51), of(50)), (of(50), none()), (none(), of(50))] {
            assert_eq!(judge(&above, &exceptions).len(), 1, "{above:?} {exceptions:?}");
        }
    }
}
