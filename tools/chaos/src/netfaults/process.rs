//! Programs in the namespaces: etcd, the nodes, and what is done to them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use harness::stave::{PASSWORD, USER};
use harness::tree;
use rustix::process::{Pid, Signal, kill_process};

use super::world::{Place, World, program};
use crate::image::Image;

/// Where nodes speak the key-value protocol: each has its own address.
pub const KV: u16 = 11210;
/// Where nodes speak HTTP.
pub const HTTP: u16 = 8091;
/// Where etcd listens.
const ETCD: u16 = 2379;
/// Size of a node's disk; it is sparse.
const DISK_BYTES: u64 = 768 << 20;

/// A child that is killed when it is dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a command; what it says goes to a file.
    pub fn start(mut command: Command, log: &Path) -> Result<Process> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdout(log.try_clone()?).stderr(log);
        Ok(Process { child: command.spawn().with_context(|| format!("cannot run {command:?}"))? })
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it where it is, or lets it go on.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
        kill_process(pid, signal).context("a process cannot be signalled")
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already, or nobody needs it any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The coordination store: one node of etcd.
pub struct Etcd {
    process: Option<Process>,
    folder: PathBuf,
}

impl Etcd {
    /// Starts it with an empty folder.
    pub fn start(world: &World, folder: &Path) -> Result<Etcd> {
        let mut etcd = Etcd { process: None, folder: folder.to_owned() };
        etcd.run(world)?;
        Ok(etcd)
    }

    /// Starts it on what it has.
    pub fn run(&mut self, world: &World) -> Result<()> {
        let mut command = world.command(Place::Etcd, &program("etcd")?);
        let (clients, peers) = (format!("http://{}:{ETCD}", Place::Etcd.address()), "http://127.0.0.1:2380");
        command.arg("--data-dir").arg(self.folder.join("etcd"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        self.process = Some(Process::start(command, &self.folder.join("etcd.log"))?);
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)
    }

    /// What nodes join.
    pub fn address() -> String {
        format!("etcd://{}:{ETCD}/faults", Place::Etcd.address())
    }
}

/// A node of Stave on a disk of its own.
pub struct Node {
    /// From 1.
    pub number: u8,
    /// Its disk.
    pub disk: Image,
    folder: PathBuf,
    process: Option<Process>,
}

impl Node {
    /// Makes its disk and starts it.
    pub fn start(world: &World, number: u8, folder: &Path, vbuckets: u16) -> Result<Node> {
        let (image, at) = (folder.join(format!("image-{number}")), folder.join(format!("disk-{number}")));
        let disk = Image::make(image, DISK_BYTES, "mkfs.ext4", &["-q", "-F", "-m", "0"], at)?;
        std::fs::write(folder.join("stave.toml"), format!("vbuckets = {vbuckets}\n"))?;
        let mut node = Node { number, disk, folder: folder.to_owned(), process: None };
        node.run(world)?;
        Ok(node)
    }

    /// Its namespace.
    pub fn place(&self) -> Place {
        Place::Node(self.number)
    }

    /// Starts it on what it has.
    pub fn run(&mut self, world: &World) -> Result<()> {
        let address = self.place().address();
        let mut command = world.command(self.place(), &tree::release_binary());
        command.arg("serve").arg("--data").arg(self.disk.path().join("data"));
        command.arg("--config").arg(self.folder.join("stave.toml"));
        command.args(["--kv", &format!("{address}:{KV}"), "--http", &format!("{address}:{HTTP}")]);
        command.args(["--username", USER, "--join", &Etcd::address(), "--threads", "2"]);
        command.env("STAVE_PASSWORD", PASSWORD).stdin(Stdio::null());
        self.process = Some(Process::start(command, &self.log())?);
        Ok(())
    }

    /// Where its log is.
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("node-{}.log", self.number))
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)
    }

    /// Takes the power from process and disk, and gives it back to the disk.
    pub fn cut_power(&mut self) -> Result<()> {
        self.disk.power_off()?;
        self.kill()?;
        self.disk.mount_again()
    }

    /// Stops the process where it is, or lets it go on.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the node runs")?.signal(signal)
    }

    /// Whether it ended although nobody killed it.
    pub fn has_crashed(&mut self) -> Result<bool> {
        self.process.as_mut().map_or(Ok(false), Process::has_ended)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A process that waits for its disk does not end.
        let _ = self.disk.thaw();
        drop(self.process.take());
    }
}
