//! A network of its own: a namespace for each node, for etcd and for the clients, and one in the middle that forwards
//! between them and drops what a partition says.
//!
//! Nothing is connected to the machine's own network, so that addresses clash with nobody's.
//! A partition is a rule of the one in the middle by source and destination (`ip rule ... blackhole`): packets in this
//! direction disappear, without a word to either side, on new connections as on old ones.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";
/// What the names of all of ours begin with.
const PREFIX: &str = "stave-faults-";

/// Who has a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A node of Stave, from 1.
    Node(u8),
    /// The coordination store.
    Etcd,
    /// Everybody who uses the SDK.
    Client,
}

impl Place {
    /// Its address.
    pub fn address(self) -> String {
        format!("10.211.{}.2", self.net())
    }

    fn net(self) -> u8 {
        match self {
            Place::Node(number) => number,
            Place::Etcd => 201,
            Place::Client => 202,
        }
    }

    fn name(self) -> String {
        match self {
            Place::Node(number) => format!("n{number}"),
            Place::Etcd => "etcd".to_owned(),
            Place::Client => "client".to_owned(),
        }
    }
}

/// The namespaces of one run; whoever made them lets `janitor` remove them.
pub struct World {
    run: u32,
    places: Vec<Place>,
    /// Directions that are cut, each as often as somebody asked for it.
    cuts: Vec<(Place, Place)>,
}

impl World {
    /// Makes everything, for so many nodes.
    pub fn make(run: u32, nodes: u8) -> Result<World> {
        let places: Vec<Place> = (1..=nodes).map(Place::Node).chain([Place::Etcd, Place::Client]).collect();
        let world = World { run, places, cuts: Vec::new() };
        let middle = name(run, "middle");
        ip(&["netns", "add", &middle])?;
        ip(&["-n", &middle, "link", "set", "lo", "up"])?;
        for place in &world.places {
            let (namespace, net, link) = (name(run, &place.name()), place.net(), format!("v{}", place.net()));
            ip(&["netns", "add", &namespace])?;
            ip(&[
                "link", "add", &link, "netns", &middle, "type", "veth", "peer", "name", "eth0", "netns",
                &namespace,
            ])?;
            let (ours, theirs) = (format!("10.211.{net}.1"), format!("10.211.{net}.2/24"));
            ip(&["-n", &middle, "addr", "add", &format!("{ours}/24"), "dev", &link])?;
            ip(&["-n", &middle, "link", "set", &link, "up"])?;
            ip(&["-n", &namespace, "addr", "add", &theirs, "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "route", "add", "default", "via", &ours])?;
        }
        world.in_the_middle(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        Ok(world)
    }

    /// A program in a namespace.
    pub fn command(&self, place: Place, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={NAMESPACES}/{}", name(self.run, &place.name()))).arg("--").arg(program);
        command.stdin(Stdio::null());
        command
    }

    /// Does something on a thread in the middle, from where everybody can be reached whatever is cut.
    pub fn in_the_middle<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let path = Path::new(NAMESPACES).join(name(self.run, "middle"));
        let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        std::thread::scope(|scope| {
            let job = scope.spawn(move || -> io::Result<T> {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            job.join()
                .map_err(|_| anyhow::anyhow!("a thread in the middle panicked"))?
                .context("cannot enter a namespace")
        })
    }

    /// Everybody but one.
    pub fn others(&self, than: Place) -> Vec<Place> {
        self.places.iter().copied().filter(|place| *place != than).collect()
    }

    /// What one place sends to another disappears from now on.
    pub fn cut(&mut self, from: Place, to: Place) -> Result<()> {
        if !self.cuts.contains(&(from, to)) {
            self.rule("add", from, to)?;
        }
        self.cuts.push((from, to));
        Ok(())
    }

    /// Takes a cut back.
    pub fn join(&mut self, from: Place, to: Place) -> Result<()> {
        let at = self.cuts.iter().position(|cut| *cut == (from, to)).context("what is joined was cut")?;
        self.cuts.swap_remove(at);
        if self.cuts.contains(&(from, to)) { Ok(()) } else { self.rule("del", from, to) }
    }

    fn rule(&self, what: &str, from: Place, to: Place) -> Result<()> {
        let middle = name(self.run, "middle");
        // Before the rule that looks up the machine's own routes, which has 32766.
        ip(&[
            "-n",
            &middle,
            "rule",
            what,
            "pref",
            "100",
            "from",
            &from.address(),
            "to",
            &to.address(),
            "blackhole",
        ])
    }
}

fn name(run: u32, who: &str) -> String {
    format!("{PREFIX}{run}-{who}")
}

/// The namespaces that there are, with the runs that made them.
pub fn namespaces() -> Vec<(u32, String)> {
    let entries = std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let run = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
            Some((run, name))
        })
        .collect()
}

/// The processes in a namespace.
pub fn processes(namespace: &str) -> Vec<i32> {
    let said = Command::new("ip").args(["netns", "pids", namespace]).output();
    let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Removes a namespace, with its links.
pub fn remove(namespace: &str) -> Result<()> {
    ip(&["netns", "del", namespace])
}

/// Why there can be no namespaces here, if so.
pub fn cannot() -> Option<&'static str> {
    if !rustix::process::getuid().is_root() {
        Some("only root can make network namespaces")
    } else if !["ip", "nsenter"].iter().all(|program| harness::child::is_installed(program)) {
        Some("ip or nsenter is missing: install iproute2 and util-linux")
    } else {
        let trial = name(std::process::id(), "trial");
        let made = ip(&["netns", "add", &trial]).and_then(|()| {
            ip(&[
                "-n",
                &trial,
                "rule",
                "add",
                "pref",
                "100",
                "from",
                "10.211.1.2",
                "to",
                "10.211.2.2",
                "blackhole",
            ])
        });
        // Without a namespace there is nothing to remove.
        let _ = remove(&trial);
        made.is_err().then_some("network namespaces cannot be made here")
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let said = Command::new("ip").args(arguments).output().context("cannot run ip")?;
    let error = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "ip {}: {}", arguments.join(" "), error.trim());
    Ok(())
}

/// Where the programs of the world are found: as the shell would.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed"))
}
