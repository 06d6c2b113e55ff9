//! What is done to a cluster, and how it is undone.

use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::Signal;

use super::admin::Admin;
use super::process::{Etcd, Node};
use super::world::{Place, World};

/// Everything that faults are done to.
pub struct Field {
    /// The network.
    pub world: World,
    /// The coordination store.
    pub etcd: Etcd,
    /// The nodes, by number.
    pub nodes: Vec<Node>,
    /// Who asks for failovers and rebalances.
    pub admin: Admin,
}

impl Field {
    fn node(&mut self, number: u8) -> &mut Node {
        &mut self.nodes[usize::from(number) - 1]
    }
}

/// A kind of fault; each has one node as its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `kill -9`; started again in the end.
    Kill,
    /// Everything that was not synced is gone; started again in the end.
    PowerLoss,
    /// Stopped where it is, and goes on in the end.
    Freeze,
    /// Nobody hears it, and it hears nobody.
    Isolated,
    /// It hears everybody, and nobody hears it.
    Mute,
    /// Everybody hears it, and it hears nobody.
    Deaf,
    /// It and etcd do not hear each other.
    WithoutEtcd,
    /// It and the clients do not hear each other.
    WithoutClients,
    /// It and the next node do not hear each other.
    WithoutPeer,
    /// It does not hear the next node, which hears it.
    DeafToPeer,
    /// Writes and syncs stand still again and again.
    SlowDisk,
    /// There is no room.
    FullDisk,
    /// It is failed over by command.
    HardFailover,
    /// It hands everything over, and is failed over then.
    GracefulFailover,
    /// Its vBuckets are moved away, and it leaves; comes back in the end.
    Leaves,
    /// etcd is killed, and started again in the end.
    EtcdKilled,
}

/// What a fault does something to, so that two of a kind are not combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Process,
    Network,
    Disk,
    Command,
    Store,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 16] = [
        Fault::Kill,
        Fault::PowerLoss,
        Fault::Freeze,
        Fault::Isolated,
        Fault::Mute,
        Fault::Deaf,
        Fault::WithoutEtcd,
        Fault::WithoutClients,
        Fault::WithoutPeer,
        Fault::DeafToPeer,
        Fault::SlowDisk,
        Fault::FullDisk,
        Fault::HardFailover,
        Fault::GracefulFailover,
        Fault::Leaves,
        Fault::EtcdKilled,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::PowerLoss => "power-loss",
            Fault::Freeze => "freeze",
            Fault::Isolated => "partition-whole",
            Fault::Mute => "partition-out",
            Fault::Deaf => "partition-in",
            Fault::WithoutEtcd => "partition-etcd",
            Fault::WithoutClients => "partition-clients",
            Fault::WithoutPeer => "partition-peer",
            Fault::DeafToPeer => "partition-from-peer",
            Fault::SlowDisk => "slow-disk",
            Fault::FullDisk => "full-disk",
            Fault::HardFailover => "failover",
            Fault::GracefulFailover => "graceful-failover",
            Fault::Leaves => "rebalance",
            Fault::EtcdKilled => "etcd-kill",
        }
    }

    /// The fault of this name.
    pub fn parse(name: &str) -> Result<Fault, String> {
        let all = || Fault::ALL.map(Fault::name).join(", ");
        Fault::ALL
            .into_iter()
            .find(|fault| fault.name() == name)
            .ok_or_else(|| format!("give one of {}", all()))
    }

    fn area(self) -> Area {
        match self {
            Fault::Kill | Fault::PowerLoss | Fault::Freeze => Area::Process,
            Fault::SlowDisk | Fault::FullDisk => Area::Disk,
            Fault::HardFailover | Fault::GracefulFailover | Fault::Leaves => Area::Command,
            Fault::EtcdKilled => Area::Store,
            _ => Area::Network,
        }
    }

    /// Whether the node forgets what it had in memory.
    pub fn forgets(self) -> bool {
        matches!(self, Fault::Kill | Fault::PowerLoss)
    }

    /// Whether two can happen to one node at once.
    pub fn goes_with(self, other: Fault) -> bool {
        let areas = [self.area(), other.area()];
        let both = |one, two| areas.contains(&one) && areas.contains(&two);
        // A process that waits for a disk cannot be killed, and one that is gone cannot be asked to leave.
        self.area() != other.area() && !both(Area::Process, Area::Disk) && !both(Area::Store, Area::Command)
    }

    /// Which directions it cuts.
    fn cuts(self, world: &World, nodes: u8, victim: u8) -> Vec<(Place, Place)> {
        let me = Place::Node(victim);
        let next = Place::Node(victim % nodes + 1);
        let both = |other| vec![(me, other), (other, me)];
        let out = || world.others(me).into_iter().map(|other| (me, other));
        let into = || world.others(me).into_iter().map(|other| (other, me));
        match self {
            Fault::Isolated => out().chain(into()).collect(),
            Fault::Mute => out().collect(),
            Fault::Deaf => into().collect(),
            Fault::WithoutEtcd => both(Place::Etcd),
            Fault::WithoutClients => both(Place::Client),
            Fault::WithoutPeer => both(next),
            Fault::DeafToPeer => vec![(next, me)],
            _ => Vec::new(),
        }
    }
}

/// A fault that is under way.
pub struct UnderWay {
    fault: Fault,
    victim: u8,
    cuts: Vec<(Place, Place)>,
    begun: Instant,
    stands_still: bool,
    /// Why the cluster did not do what it was asked to.
    pub refused: Option<String>,
}

/// How long a slow disk stands still, and works then.
const STANDS_STILL: Duration = Duration::from_millis(450);
const WORKS: Duration = Duration::from_millis(50);

impl UnderWay {
    /// Lets it happen.
    pub fn begin(field: &mut Field, fault: Fault, victim: u8) -> Result<UnderWay> {
        let nodes = u8::try_from(field.nodes.len())?;
        let cuts = fault.cuts(&field.world, nodes, victim);
        for (from, to) in &cuts {
            field.world.cut(*from, *to)?;
        }
        let mut refused = None;
        match fault {
            Fault::Kill => field.node(victim).kill()?,
            Fault::PowerLoss => field.node(victim).cut_power()?,
            Fault::Freeze => field.node(victim).signal(Signal::STOP)?,
            Fault::FullDisk => field.node(victim).disk.fill()?,
            Fault::EtcdKilled => field.etcd.kill()?,
            Fault::HardFailover => refused = command(field, victim, "/controller/failOver", "otpNode"),
            Fault::GracefulFailover => {
                refused = command(field, victim, "/controller/startGracefulFailover", "otpNode");
            }
            Fault::Leaves => refused = command(field, victim, "/controller/rebalance", "ejectedNodes"),
            _ => {}
        }
        Ok(UnderWay { fault, victim, cuts, begun: Instant::now(), stands_still: false, refused })
    }

    /// To be called often while it lasts.
    pub fn go_on(&mut self, field: &mut Field) -> Result<()> {
        if self.fault != Fault::SlowDisk {
            return Ok(());
        }
        let round = (STANDS_STILL + WORKS).as_millis();
        let shall_stand = self.begun.elapsed().as_millis() % round < STANDS_STILL.as_millis();
        if shall_stand != self.stands_still {
            let disk = &field.node(self.victim).disk;
            if shall_stand {
                disk.freeze()?
            } else {
                disk.thaw()?
            }
            self.stands_still = shall_stand;
        }
        Ok(())
    }

    /// Undoes it, as far as it does not heal by itself.
    pub fn end(self, field: &mut Field) -> Result<()> {
        for (from, to) in self.cuts {
            field.world.join(from, to)?;
        }
        let Field { world, etcd, nodes, .. } = field;
        let node = &mut nodes[usize::from(self.victim) - 1];
        match self.fault {
            Fault::Kill | Fault::PowerLoss => node.run(world),
            Fault::Freeze => node.signal(Signal::CONT),
            Fault::FullDisk => node.disk.empty(),
            Fault::SlowDisk => node.disk.thaw(),
            Fault::EtcdKilled => etcd.run(world),
            _ => Ok(()),
        }
    }
}

/// Asks the cluster to do something with a node; why it is not done, if it is not.
fn command(field: &Field, victim: u8, path: &str, parameter: &str) -> Option<String> {
    let asked = field.admin.look(&field.world).and_then(|cluster| {
        field.admin.post(&field.world, path, &format!("{parameter}={}", cluster.member(victim)?.name))
    });
    asked.err().map(|why| format!("{why:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_names_of_their_own() {
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.name()), Ok(fault));
        }
        assert!(Fault::parse("meteor").is_err());
    }

    #[test]
    fn no_two_faults_do_the_same_thing_twice() {
        assert!(Fault::Kill.goes_with(Fault::Deaf));
        assert!(!Fault::Mute.goes_with(Fault::Deaf));
        assert!(!Fault::SlowDisk.goes_with(Fault::PowerLoss));
        assert!(Fault::HardFailover.goes_with(Fault::Isolated));
    }
}
