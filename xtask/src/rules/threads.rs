//! The lists of threads and locks in ARCHITECTURE.md name what is in the code: each thread of a node has a row under the
//! name that it is started with, and each row a thread; a lock that is listed with its place is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use harness::tree;
use syn::visit::{self, Visit};

use super::attributes::is_test;

const MAP: &str = "ARCHITECTURE.md";
/// The crates that run in a node's process.
const CRATES: [&str; 8] = ["base", "logstore", "kvstore", "engine", "cluster", "node", "server", "dev"];
/// What runs in a node's process of the crate that has the commands.
const OF_COMMANDS: [&str; 2] = ["crates/stave/src/commands/serve", "crates/stave/src/key_source.rs"];
/// Threads that no `spawn` with a name of its own starts: the process's first, and one of the runtime's.
const OTHERS: [&str; 2] = ["main", "certificates"];
/// Names that are not said where the thread is started, by the file that has them.
const SAID_ELSEWHERE: [(&str, &[&str]); 6] = [
    ("crates/node/src/hosting.rs", &["flush", "file", "keep", "compact", "fetch", "load", "backfill"]),
    ("crates/node/src/cluster/mod.rs", &["lease", "promises", "cluster", "users"]),
    ("crates/node/src/replication/rollback.rs", &["rollback-"]),
    ("crates/node/src/long_work.rs", &["long-work", "overview", "password", "fill"]),
    ("crates/dev/src/cluster.rs", &["open", "stop"]),
    ("crates/server/src/http/threads.rs", &["buckets", "cluster-ask", "blocking"]),
];
/// Where a name that is not said there is taken by a `spawn`.
const DOOR: &str = "crates/base/src/env/spawn.rs";

/// Looks at the code of a node and at the two lists.
pub fn check() -> Result<Vec<String>> {
    let map = fs::read_to_string(tree::root().join(MAP)).with_context(|| format!("cannot read {MAP}"))?;
    let mut code = Code::default();
    for path in tree::files(&["rs"])? {
        let is_of_node =
            CRATES.iter().any(|name| path.starts_with(Path::new("crates").join(name).join("src")))
                || OF_COMMANDS.iter().any(|part| path.starts_with(part));
        let is_of_tests =
            path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests");
        if !is_of_node || is_of_tests || path == Path::new(DOOR) {
            continue;
        }
        let text = fs::read_to_string(tree::root().join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        code.read(&path, &text)?;
    }
    Ok(violations(&map, &code))
}

/// What the code has.
#[derive(Default)]
struct Code {
    /// Names of threads, each with a file that starts one.
    threads: BTreeMap<String, String>,
    /// Files that start a thread whose name is not said there.
    nameless: BTreeSet<String>,
    /// Names from [`SAID_ELSEWHERE`] that their file does not have.
    gone: Vec<String>,
    /// Fields that are locks: crate, file, type, name.
    locks: Vec<[String; 4]>,
}

impl Code {
    fn read(&mut self, path: &Path, text: &str) -> Result<()> {
        let name = path.display().to_string();
        let file = syn::parse_file(text).with_context(|| format!("cannot read {name}"))?;
        let mut walk = Walk::default();
        walk.visit_file(&file);
        for thread in walk.threads {
            match thread {
                Some(thread) => drop(self.threads.insert(thread, name.clone())),
                None => drop(self.nameless.insert(name.clone())),
            }
        }
        for (_, names) in SAID_ELSEWHERE.iter().filter(|(of, _)| *of == name) {
            for thread in *names {
                if text.contains(&format!("\"{thread}")) {
                    self.threads.insert(thread.trim_end_matches('-').to_owned(), name.clone());
                } else {
                    self.gone
                        .push(format!("threads: {name} has no {thread:?} any more: mend SAID_ELSEWHERE"));
                }
            }
        }
        let of = path.iter().nth(1).unwrap_or_default().to_string_lossy().into_owned();
        let locks = walk.locks.into_iter();
        self.locks.extend(locks.map(|(owner, field)| [of.clone(), name.clone(), owner, field]));
        Ok(())
    }
}

#[derive(Default)]
struct Walk {
    /// `None` where the name is not said.
    threads: Vec<Option<String>>,
    locks: Vec<(String, String)>,
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        // A thread of a scope has no name, and ends before what started it.
        if call.method == "spawn" && call.args.len() == 2 {
            self.threads.push(call.args.first().and_then(said));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for field in &item.fields {
            let mut kind = Kind::default();
            kind.visit_type(&field.ty);
            if let Some(name) = field.ident.as_ref().filter(|_| kind.is_lock) {
                self.locks.push((item.ident.to_string(), name.to_string()));
            }
        }
    }
}

/// Whether a lock is in a type.
#[derive(Default)]
struct Kind {
    is_lock: bool,
}

impl<'ast> Visit<'ast> for Kind {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.is_lock |= segment.ident == "Mutex" || segment.ident == "RwLock";
        visit::visit_path_segment(self, segment);
    }
}

/// The name that a thread is started with, up to what differs from one to the next.
fn said(argument: &syn::Expr) -> Option<String> {
    let text = match argument {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => text.value(),
        syn::Expr::Reference(of) => match &*of.expr {
            syn::Expr::Macro(format) if format.mac.path.is_ident("format") => {
                format.mac.tokens.to_string().strip_prefix('"')?.to_owned()
            }
            _ => return None,
        },
        _ => return None,
    };
    let name: String = text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
    let name = name.trim_end_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}

/// The first cells of the rows of the table whose head begins with this word.
fn rows(map: &str, head: &str) -> Vec<String> {
    let table = map.lines().skip_while(|line| !line.starts_with(&format!("| {head} |"))).skip(2);
    let cells = table.take_while(|line| line.starts_with('|'));
    cells.filter_map(|line| Some(line.split(" | ").next()?.trim_start_matches("| ").to_owned())).collect()
}

fn violations(map: &str, code: &Code) -> Vec<String> {
    let listed: BTreeSet<String> =
        rows(map, "thread").iter().flat_map(|cell| cell.split(", ")).map(str::to_owned).collect();
    let missing = code.threads.iter().filter(|(name, _)| !listed.contains(*name));
    let missing =
        missing.map(|(name, file)| format!("threads: {MAP}: list the thread {name:?}, which {file} starts"));
    let is_started = |name: &&String| code.threads.contains_key(*name) || OTHERS.contains(&name.as_str());
    let gone = listed.iter().filter(|name| !is_started(name));
    let gone = gone.map(|name| format!("threads: {MAP}: no code of a node starts a thread {name:?}"));
    let is_known = |file: &&String| SAID_ELSEWHERE.iter().any(|(of, _)| of == file);
    let nameless = code.nameless.iter().filter(|file| !is_known(file));
    let nameless = nameless.map(|file| {
        format!(
            "threads: {file}: say the thread's name where it is started, or put the file into SAID_ELSEWHERE"
        )
    });
    let locks = rows(map, "lock").into_iter().flat_map(|cell| missing_locks(&cell, code));
    missing.chain(gone).chain(nameless).chain(code.gone.iter().cloned()).chain(locks).collect()
}

/// What a row of the locks says that is not so. A row `name, name (`crate::module` or `crate::Type`)` is about fields there;
/// names of several words are prose.
fn missing_locks(cell: &str, code: &Code) -> Vec<String> {
    let Some((names, rest)) = cell.split_once(" (") else { return Vec::new() };
    let Some(place) = rest.split('`').nth(1) else { return Vec::new() };
    let parts: Vec<&str> = place.split("::").collect();
    let [of, inside @ ..] = &parts[..] else { return Vec::new() };
    if !CRATES.contains(of) {
        return vec![format!("threads: {MAP}: `{place}`, of the locks, is in no crate of a node")];
    }
    let last = inside.last().copied().unwrap_or_default();
    let is_type = last.starts_with(|c: char| c.is_ascii_uppercase());
    let modules = if is_type { &inside[..inside.len() - 1] } else { inside };
    let folder: PathBuf = ["crates", of, "src"].iter().chain(modules).collect();
    let is_there = |[in_crate, file, owner, _]: &&[String; 4]| {
        let file = Path::new(file);
        let is_in = file.starts_with(&folder) || file.with_extension("") == folder;
        in_crate == of && is_in && (!is_type || owner == last)
    };
    let found: BTreeSet<&str> = code.locks.iter().filter(is_there).map(|lock| lock[3].as_str()).collect();
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let absent = names.split(", ").filter(is_name).filter(|name| !found.contains(name));
    absent.map(|name| format!("threads: {MAP}: there is no lock {name:?} in `{place}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
        struct Pool { queue: Mutex<Queue>, plain: u64, map: Arc<RwLock<Map>> }
        fn f(env: &Env) {
            env.spawn.spawn("audit", Box::new(job));
            env.spawn.spawn(&format!("worker-{at}"), Box::new(job));
            scope.spawn(|| ());
        }
        #[cfg(test)]
        mod tests { fn g(env: &Env) { env.spawn.spawn("only-here", Box::new(job)); } }
    "#;

    fn judged(threads: &[&str], locks: &[&str], code: &str) -> Vec<String> {
        let table = |head: &str, rows: &[&str]| {
            let rows: String = rows.iter().map(|row| format!("| {row} | 1 | does |\n")).collect();
            format!("| {head} | how many | does |\n|---|---|---|\n{rows}\n")
        };
        let map = table("thread", threads) + &table("lock", locks);
        let mut read = Code::default();
        read.read(Path::new("crates/node/src/pool.rs"), code).expect("it is Rust");
        violations(&map, &read)
    }

    #[test]
    fn threads_are_listed_under_the_names_that_they_are_started_with() {
        assert_eq!(judged(&["main", "audit, worker"], &[], CODE), Vec::<String>::new());
        let told = judged(&["audit", "writer"], &[], CODE);
        assert!(told.iter().any(|told| told.contains("list the thread \"worker\"")), "{told:?}");
        assert!(
            told.iter().any(|told| told.contains("no code of a node starts a thread \"writer\"")),
            "{told:?}"
        );
        assert_eq!(told.len(), 2);
        let told = judged(&[], &[], "fn f() { env.spawn.spawn(&name, Box::new(job)); }");
        assert!(told.len() == 1 && told[0].contains("SAID_ELSEWHERE"), "{told:?}");
    }

    #[test]
    fn locks_that_are_listed_with_their_place_are_there() {
        let judge = |lock: &str| judged(&["audit", "worker"], &[lock], CODE);
        for lock in
            ["queue, map (`node::Pool`)", "map (one each, `node::pool`)", "a node's life", "x of y (`node`)"]
        {
            assert_eq!(judge(lock), Vec::<String>::new(), "{lock}");
        }
        for lock in
            ["plain (`node::Pool`)", "queue (`node::other`)", "queue (`node::Other`)", "queue (`stave`)"]
        {
            assert_eq!(judge(lock).len(), 1, "{lock}");
        }
    }
}
