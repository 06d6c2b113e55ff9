//! The commands of the pages for five people in `docs/start`, word for word, in one folder a page.
//!
//! Blocks marked `sh` run one behind the other; the exports of earlier ones hold. A block marked `sh server` runs beside
//! them from its line `ready` on, `sh server restart` takes the place of the last one. A block marked `text` is what the
//! block before it prints, among other lines. Ports are replaced by free ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::totals::Totals;
use harness::tree::{self, Scratch};
use rustix::process::{Pid, Signal, kill_process_group};

/// How long a block may take, and a server until it is ready; each takes seconds, and more on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(180);
/// Hosts whose ports are replaced.
const HOSTS: [&str; 2] = ["127.0.0.1:", "localhost:"];

/// Options of `cargo xtask start`.
#[derive(clap::Args)]
pub struct StartOptions {
    /// The program; the release binary if not given
    #[arg(long)]
    stave: Option<PathBuf>,
    /// Only this page: sdk, tester, node, cluster or stream
    page: Option<String>,
}

/// `cargo xtask start`.
pub fn command(options: &StartOptions) -> Result<bool> {
    let binary = options.stave.clone().unwrap_or_else(tree::release_binary);
    let totals = run(&binary, options.page.as_deref())?;
    println!("{totals}");
    Ok(totals.good())
}

/// Runs the pages, or one of them.
pub fn run(binary: &Path, only: Option<&str>) -> Result<Totals> {
    let binary =
        binary.canonicalize().with_context(|| format!("{} is missing: build it", binary.display()))?;
    let mut ports = Vec::new();
    let mut texts = Vec::new();
    for page in pages()? {
        let name = page.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if only.is_none_or(|only| only == name) {
            texts.push((name, on_free_ports(&fs::read_to_string(&page)?, &mut ports)?));
        }
    }
    // All are chosen, so that they differ; servers take them now.
    drop(ports);
    // Beside each other: they mostly wait.
    let outcomes: Vec<bool> = thread::scope(|scope| {
        let binary = &binary;
        let running: Vec<_> =
            texts.iter().map(|(name, text)| scope.spawn(move || tell(name, text, binary))).collect();
        running.into_iter().map(|page| page.join().unwrap_or(false)).collect()
    });
    let mut totals = Totals::default();
    outcomes.into_iter().for_each(|passed| totals += Totals::one(passed));
    Ok(totals)
}

/// Runs a page and says how that went; whether every command did what it says.
fn tell(name: &str, text: &str, binary: &Path) -> bool {
    let begun = Instant::now();
    let outcome = run_page(name, text, binary);
    let seconds = begun.elapsed().as_secs();
    match &outcome {
        Ok(()) => println!("docs/start/{name}.md: every command did what it says ({seconds} s)"),
        Err(error) => println!("FAIL docs/start/{name}.md: {error:#}"),
    }
    outcome.is_ok()
}

fn pages() -> Result<Vec<PathBuf>> {
    let folder = tree::root().join("docs/start");
    let mut pages = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        pages.extend(Some(path).filter(|path| !path.ends_with("README.md")));
    }
    pages.sort();
    Ok(pages)
}

/// A block of a page.
#[derive(Debug, PartialEq, Eq)]
enum Block<'a> {
    Run { script: &'a str, prints: Option<&'a str> },
    Server { script: &'a str, is_restart: bool },
}

/// The blocks of a page, of which every one is run or compared.
fn blocks(page: &str) -> Result<Vec<Block<'_>>> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some((_, behind)) = rest.split_once("```") {
        let (info, behind) = behind.split_once('\n').context("a block is not closed")?;
        let (content, behind) = behind.split_once("```\n").context("a block is not closed")?;
        rest = behind;
        match info {
            "sh" => found.push(Block::Run { script: content, prints: None }),
            "sh server" => found.push(Block::Server { script: content, is_restart: false }),
            "sh server restart" => found.push(Block::Server { script: content, is_restart: true }),
            "text" => match found.last_mut() {
                Some(Block::Run { prints, .. }) if prints.is_none() => *prints = Some(content),
                _ => bail!("there is no command that prints the block:\n{content}"),
            },
            _ => bail!("a block is marked '{info}': mark it sh, sh server, sh server restart or text"),
        }
    }
    Ok(found)
}

/// The page with free ports in the place of its own. They are free as long as what is put into `taken` is not dropped.
fn on_free_ports(page: &str, taken: &mut Vec<TcpListener>) -> Result<String> {
    let mut ports: BTreeMap<&str, u16> = BTreeMap::new();
    for host in HOSTS {
        for rest in page.split(host).skip(1) {
            let port = rest.split(|next: char| !next.is_ascii_digit()).next().unwrap_or_default();
            if !port.is_empty() && !ports.contains_key(port) {
                let free = TcpListener::bind("127.0.0.1:0")?;
                ports.insert(port, free.local_addr()?.port());
                taken.push(free);
            }
        }
    }
    let mut page = page.to_owned();
    for (port, free) in &ports {
        for host in HOSTS {
            // Marked, so that no later one of them is replaced in it.
            page = page.replace(&format!("{host}{port}"), &format!("{host}\0{free}"));
        }
    }
    Ok(page.replace('\0', ""))
}

fn run_page(name: &str, page: &str, binary: &Path) -> Result<()> {
    let mut scratch = Scratch::new(&format!("start-{name}"))?;
    let mut page_run =
        PageRun { folder: scratch.path().to_owned(), exports: String::new(), servers: Vec::new() };
    let outcome = page_run.prepare(binary).and_then(|()| page_run.go(page));
    if outcome.is_err() {
        scratch.keep();
    }
    outcome
}

/// A page that is being followed.
struct PageRun {
    folder: PathBuf,
    /// Lines that export a variable.
    exports: String,
    servers: Vec<Server>,
}

impl PageRun {
    /// What a page takes for granted: the program and a checkout.
    fn prepare(&self, binary: &Path) -> Result<()> {
        fs::create_dir(self.folder.join("bin"))?;
        symlink(binary, self.folder.join("bin/stave"))?;
        symlink(tree::root(), self.folder.join("stave-src"))?;
        Ok(())
    }

    fn go(&mut self, page: &str) -> Result<()> {
        for block in blocks(page)? {
            let (Block::Run { script, .. } | Block::Server { script, .. }) = block;
            let full = format!("{}{script}", self.exports);
            match block {
                Block::Server { is_restart, .. } => {
                    if is_restart {
                        self.servers.pop().context("there is no server to start again")?.stop()?;
                    }
                    self.servers.push(Server::start(&full, &self.folder)?);
                }
                Block::Run { prints, .. } => self.run(&full, script, prints.unwrap_or_default())?,
            }
            let exports = script.lines().filter(|line| line.starts_with("export "));
            self.exports.extend(exports.flat_map(|line| [line, "\n"]));
        }
        // The last one first: nodes leave before what they depend on.
        while let Some(server) = self.servers.pop() {
            server.stop()?;
        }
        Ok(())
    }

    fn run(&self, full: &str, shown: &str, prints: &str) -> Result<()> {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).args(["bash", "-eu", "-o", "pipefail", "-c"]).arg(full);
        let output = inside(&mut command, &self.folder).output().context("cannot run timeout and bash")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}\n{shown}printed:\n{printed}{errors}", output.status);
        let mut lines = printed.lines();
        let missing = prints.lines().find(|wanted| !lines.any(|line| line.trim_end() == *wanted));
        match missing {
            None => Ok(()),
            Some(line) => bail!("\n{shown}did not print '{line}' where it should, but:\n{printed}{errors}"),
        }
    }
}

fn inside<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.current_dir(folder).env("PATH", format!("{}:{path}", folder.join("bin").display()));
    command.env_remove("STAVE_PASSWORD").env_remove("STAVE_BIN").stdin(Stdio::null())
}

/// A block that runs beside the others, in a process group of its own.
struct Server {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Server {
    fn start(script: &str, folder: &Path) -> Result<Server> {
        let mut command = Command::new("bash");
        command.args(["-eu", "-c"]).arg(format!("exec 2>&1\n{script}")).process_group(0);
        let mut child =
            inside(&mut command, folder).stdout(Stdio::piped()).spawn().context("cannot run bash")?;
        let output = child.stdout.take().context("the output is piped")?;
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // After the page nothing receives it; the pipe is read all the same.
                let _ = told.send(line);
            }
        });
        let mut server = Server { child, lines, said: Vec::new() };
        let is_ready =
            |line: &str| line.starts_with("ready ") || line.contains("ready to serve client requests");
        let begun = Instant::now();
        loop {
            let Ok(line) = server.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) else {
                bail!("\n{script}was not ready, but printed:\n{}", server.said.join("\n"));
            };
            let ready = is_ready(&line);
            server.said.push(line);
            if ready {
                return Ok(server);
            }
        }
    }

    /// SIGTERM, after which it must end.
    fn stop(self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let begun = Instant::now();
        // Its output ends with the last of its processes.
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("a server did not end after SIGTERM"),
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let group =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
        Ok(kill_process_group(group, signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself already.
        let _ = self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_every_page_is_run_or_compared() {
        let pages = pages().unwrap();
        assert_eq!(pages.len(), 5);
        let index = fs::read_to_string(tree::root().join("docs/start/README.md")).unwrap();
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let blocks = blocks(&text).unwrap();
            assert!(blocks.len() >= 3, "{}", page.display());
            assert!(index.contains(&format!("({})", page.file_name().unwrap().to_string_lossy())));
        }
    }

    #[test]
    fn blocks_are_told_apart() {
        let page = "a\n```sh server\nserve\n```\nb\n```sh\nask\n```\n\n```text\nyes\n```\n";
        let expected = [
            Block::Server { script: "serve\n", is_restart: false },
            Block::Run { script: "ask\n", prints: Some("yes\n") },
        ];
        assert_eq!(blocks(page).unwrap(), expected);
        assert!(blocks("```\nls\n```\n").is_err());
        assert!(blocks("```text\nyes\n```\n").is_err());
    }

    #[test]
    fn each_port_has_one_in_its_place() {
        let page =
            on_free_ports("127.0.0.1:8091 localhost:8091 127.0.0.1:11210 8091", &mut Vec::new()).unwrap();
        let words: Vec<&str> = page.split(' ').collect();
        let port = |at: usize| words[at].split_once(':').unwrap().1;
        assert_eq!(port(0), port(1));
        assert!(port(0) != port(2) && port(0) != "8091");
        assert_eq!(words[3], "8091");
    }
}
