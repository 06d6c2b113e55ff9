//! A node's data: a bucket on a disk of its own, with a clock of its own, and the steps that threads would run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::node::cluster::membership::{self, Seen};
use ::node::config::BucketSpec;
use ::node::replication::Sources;
use ::node::served::Served;
use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Clock as _, SimHandles};
use base::{Heap, VbId, VbState};
use cluster::{Damaged, Fence, State, VbReport};
use engine::{Bucket, BucketConfig, BucketKind, Failure, Progress};
use kvstore::{Couch, CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, Nothing};

use crate::connections::{ClientConnection, Waiting, front_end};
use crate::disks::Inside;
use crate::jobs::Job;
use crate::links::{Links, Runner};
use crate::member::Membership;
use crate::memory::Closed;
use crate::rules::Rules;

/// The bucket's name, everywhere.
pub const BUCKET: &str = "b";

/// A node's folder of data.
const FOLDER: &str = "/data";

/// So small that files are merged and rewritten after a few batches.
fn log_config() -> LogConfig {
    let mut config = LogConfig::default();
    let store = &mut config.store;
    (store.shards, store.most_open_files, store.cache_bytes) = (2, 4, 64 << 10);
    (store.manifest_bytes, store.step_bytes) = (16 << 10, 4 << 10);
    (store.merge_runs, store.small_run_bytes) = (3, 2 << 10);
    (store.small_segments, store.small_segment_bytes, store.rewrite_bytes) = (4, 8 << 10, 32 << 10);
    config
}

/// A node.
pub struct Node {
    /// Its place among the nodes.
    pub at: usize,
    /// Whether its process runs.
    pub is_up: bool,
    /// Until when it stands still, in microseconds.
    pub frozen_until_us: u64,
    /// Until when its disk does nothing, in microseconds.
    pub slow_until_us: u64,
    /// Its clock's rate, in parts of 1,000.
    pub rate: u64,
    /// Whether it was started as one that belongs to no cluster.
    pub is_alone: bool,
    /// Its folder of data but for the bucket: what it has noted of its cluster.
    folder: SimDisk,
    /// Counts its starts: what was meant for an earlier one is dropped.
    pub boot: u64,
    /// Its doors.
    pub handles: SimHandles,
    is_journaled: bool,
    /// Whether a log-structured store is behind the journal.
    is_log: bool,
    /// Its bucket, while the cluster wants it to have one and its process runs.
    pub bucket: Option<Arc<Bucket>>,
    /// What that bucket keeps its documents in.
    pub store: Option<Arc<dyn KvStore>>,
    /// Whether its disk has the bucket.
    has_bucket: bool,
    /// Whether what all vBuckets of its bucket need is damaged.
    pub is_down: bool,
    /// In which snapshots its replicas stood when it ended.
    pub stood_inside: Inside,
    /// Its part in the cluster.
    pub member: Membership,
    /// What follows others for it.
    pub links: Links,
    /// What clients wait for here.
    pub waiting: Vec<Waiting>,
    /// What answers clients.
    pub front_end: Arc<::node::Node>,
    /// By client: its connection.
    pub connections: BTreeMap<usize, ClientConnection>,
    /// Buckets that it had.
    pub closed: Vec<Closed>,
}

impl Node {
    /// A node that has nothing, and does not run yet.
    pub fn new(at: usize, rules: &Rules, rng: &mut SplitMix64) -> Node {
        let handles = SimHandles::new(rng.next_u64());
        let skew_ns = rng.below(3_000_000_000);
        let unix_ns = handles.clock.unix_ns() + skew_ns;
        handles.clock.set_unix_ns(unix_ns);
        let (rate, is_journaled) = (rng.between(950, 1_050), rng.chance(1, 2) && !rules.is_ephemeral);
        let is_log = is_journaled && rate.is_multiple_of(2);
        let member = Membership::new(at, rng.next_u64());
        let runner = Arc::new(Runner::new(at, 0));
        Node {
            at,
            is_up: true,
            frozen_until_us: 0,
            slow_until_us: 0,
            rate,
            is_alone: false,
            folder: SimDisk::new(),
            boot: 0,
            front_end: front_end(at, handles.env(), Arc::clone(member.held.fence()), &runner),
            connections: BTreeMap::new(),
            handles,
            is_journaled,
            is_log,
            bucket: None,
            store: None,
            has_bucket: false,
            is_down: false,
            stood_inside: Inside::new(),
            member,
            links: Links::of(runner),
            waiting: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Whether it does anything.
    pub fn is_awake(&self, now_us: u64) -> bool {
        self.is_up && now_us >= self.frozen_until_us
    }

    /// Its monotonic clock, in nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        self.handles.clock.monotonic_ns()
    }

    /// Whether it may serve documents by its lease.
    pub fn may_serve(&self) -> bool {
        self.is_alone || self.member.held.fence().may_serve(self.clock_ns())
    }

    /// Whether it serves a vBucket.
    pub fn serves(&self, vb: u16, now_us: u64) -> bool {
        let is_active = |bucket: &Arc<Bucket>| bucket.state_of(VbId(vb)) == Some(VbState::Active);
        self.is_awake(now_us) && self.may_serve() && self.bucket.as_ref().is_some_and(is_active)
    }

    /// A vBucket's role; nothing if there is nothing to say of it.
    pub fn role(&self, vb: u16) -> Option<VbState> {
        Some(self.bucket.as_ref()?.standing(VbId(vb))?.role)
    }

    /// What it reports of a vBucket, as a server does.
    pub fn report_of(&self, vb: u16) -> VbReport {
        let standing = self.bucket.as_ref().and_then(|bucket| bucket.standing(VbId(vb)));
        let Some(at) = standing else { return VbReport::NOTHING };
        let report = VbReport {
            state: Some(at.role),
            high_seqno: at.high_seqno.0,
            persisted: at.saved.0,
            high_prepared: at.high_prepared.0,
            uuid: at.uuid.0,
        };
        report.whole_up_to(at.whole.0)
    }

    /// Up to here all prepares that came in whole snapshots are on its disk, or in memory if it has none. Unlike
    /// documents no prepare is left out of a snapshot from memory, so that it counts before the rest of it is saved.
    pub fn prepares_saved(&self, vb: u16) -> u64 {
        let (Some(bucket), Some(role)) = (&self.bucket, self.role(vb)) else { return 0 };
        let has_disk = bucket.config().kind == BucketKind::Persistent;
        let of = bucket.inspect(VbId(vb), |vb| {
            let saved = if has_disk { vb.persisted_seqno() } else { vb.high_seqno() };
            if role == VbState::Active { saved.0 } else { saved.min(vb.snapshot().start).0 }
        });
        of.unwrap_or(0)
    }

    /// Which copies it says are damaged, as a server does.
    pub fn damaged(&self) -> Damaged {
        let Some(bucket) = &self.bucket else {
            return if self.is_down { Damaged::down() } else { Damaged::default() };
        };
        let (damaged, unreadable) = (bucket.damaged(), bucket.unreadable());
        let is_dead = |vb: &VbId| unreadable.iter().any(|(of, _)| of == vb);
        let is_served = |vb: &VbId| bucket.state_of(*vb) == Some(VbState::Active) && !is_dead(vb);
        let served: Vec<u16> = damaged.iter().filter(|vb| is_served(vb)).map(|vb| vb.0).collect();
        let refused = unreadable.iter().map(|(vb, _)| vb).filter(|vb| !damaged.contains(vb));
        let refused: Vec<u16> = refused.map(|vb| vb.0).collect();
        Damaged::of(damaged.into_iter().map(|vb| vb.0)).and_refused(refused).and_served(served)
    }

    /// Opens the bucket that is on its disk, or makes one; one whose disk is damaged as a whole is down.
    pub fn open(&mut self, rules: &Rules) -> Result<(), String> {
        let opened = self.open_bucket(rules);
        self.is_down = matches!(&opened, Err(failure) if failure.is_damage());
        opened.map_err(|failure| format!("node {} cannot open its bucket: {failure}", self.at))
    }

    fn open_bucket(&mut self, rules: &Rules) -> Result<(), Failure> {
        let env = self.handles.env().with_heap(Heap::default());
        let mut config =
            BucketConfig { vbuckets: rules.vbuckets, ..BucketConfig::new(BUCKET, PathBuf::from("/data/b")) };
        config.first_role = VbState::Dead;
        // Without a cluster nobody gives it one.
        config.needs_topology = rules.streams.is_none();
        config.compact_min_waste_bytes = 4_096;
        if rules.is_ephemeral {
            config.kind = BucketKind::Ephemeral;
        }
        let store: Arc<dyn KvStore> = match (rules.is_ephemeral, self.is_journaled) {
            (true, _) => Arc::new(Nothing),
            (_, true) => {
                let files = if self.is_log { FilesConfig::Log(log_config()) } else { FilesConfig::default() };
                let config_of = JournaledConfig { files, ..JournaledConfig::default() };
                Arc::new(Journaled::open(env.clone(), &config.dir, config_of)?)
            }
            _ => Arc::new(Couch::open(env.clone(), &config.dir, CouchConfig::default())?),
        };
        let bucket = Bucket::open_cold(config, env, Arc::clone(&store))?;
        let policy = if rules.full_eviction { "full_eviction" } else { "value_only" };
        let quota = if rules.is_tight { "3145728" } else { "268435456" };
        let policy = ("item_eviction_policy", policy);
        let others = [("exp_pager_stime", "1"), ("max_size", quota)];
        let all: Vec<(&str, &str)> =
            others.into_iter().chain((!rules.is_ephemeral).then_some(policy)).collect();
        bucket.set_params(&all).expect("settings that there are");
        self.has_bucket = true;
        self.store = Some(store);
        let bucket = Arc::new(bucket);
        let spec = BucketSpec::parse(BUCKET).expect("a valid name");
        self.front_end.served().serve(Served { spec, bucket: Arc::clone(&bucket) });
        self.front_end.map().show_manifests();
        self.bucket = Some(bucket);
        Ok(())
    }

    /// Before a cluster says what it serves it serves nothing, and nobody may follow it.
    pub fn hold_all(&self) {
        let Some(bucket) = &self.bucket else { return };
        for vb in (0..bucket.vbuckets()).map(VbId) {
            if matches!(bucket.state_of(vb), Some(VbState::Active | VbState::Pending)) {
                // There is such a vBucket, which is all that could be refused.
                let _ = bucket.roles().set_vbucket_state(vb, VbState::Replica, None);
            }
        }
    }

    /// The bucket goes with its files.
    pub fn drop_bucket(&mut self) {
        self.front_end.replication().forget(BUCKET);
        // What rolls back is brought to its end.
        while self.handles.spawn.run_one() {}
        self.links.end();
        self.close();
        (self.has_bucket, self.is_down) = (false, false);
        self.stood_inside.clear();
        // Its files go with their folder: nothing else is on this disk.
        self.handles = self.handles.with_disk(SimDisk::new());
    }

    /// The process that serves clients and follows others is there.
    fn begin_front_end(&mut self, fence: Arc<Fence>) {
        let runner = Arc::new(Runner::new(self.at, self.boot));
        self.front_end = front_end(self.at, self.handles.env(), fence, &runner);
        self.links = Links::of(runner);
    }

    /// The links are gone with all that they do.
    pub fn end_links(&mut self) {
        self.front_end.replication().stop();
        self.links = Links::default();
        self.handles.spawn.clear();
    }

    /// It follows nobody.
    pub fn follow_nobody(&self) {
        let Some(bucket) = &self.bucket else { return };
        let refused = self.front_end.replication().want_each(bucket, &Sources::new());
        assert!(refused.is_empty(), "to follow nobody is not refused: {refused:?}");
    }

    /// The process ends without a word; with `power`, a seed, what was not synced is lost or torn.
    pub fn crash(&mut self, power: Option<u64>) {
        (self.is_up, self.is_alone) = (false, false);
        self.boot += 1;
        self.end_links();
        self.waiting.clear();
        self.connections.clear();
        self.close();
        self.member.crash();
        self.slow_until_us = 0;
        self.frozen_until_us = 0;
        if let Some(seed) = power {
            let disk = self.handles.disk.crash(seed);
            self.handles = self.handles.with_disk(disk);
        } else {
            self.handles.disk.heal();
        }
    }

    /// Notes durably that it belongs to the cluster.
    pub fn note_cluster(&self, state: &State) -> Result<(), String> {
        let env = self.handles.with_disk(self.folder.clone()).env();
        let noted = env.disk.create_dir_all_synced(Path::new(FOLDER)).and_then(|()| {
            let mut seen = Seen::read(&env, PathBuf::from(FOLDER))?;
            if seen.get().is_some() { Ok(()) } else { seen.note(&env, state) }
        });
        noted.map_err(|error| format!("node {} cannot note its cluster: {error}", self.at))
    }

    /// Starts the process without its cluster; whether the node permits it. Then it serves what it served before.
    pub fn start_alone(&mut self, rules: &Rules) -> Result<bool, String> {
        let env = self.handles.with_disk(self.folder.clone()).env();
        let may = membership::may_start_alone(&env, Path::new(FOLDER)).map_err(|error| error.to_string())?;
        if may {
            (self.is_up, self.is_alone) = (true, true);
            self.begin_front_end(Arc::new(Fence::open()));
            if self.has_bucket {
                self.open(rules)?;
            }
        }
        Ok(may)
    }

    /// The process starts again.
    pub fn start(&mut self, rules: &Rules, random: u64) -> Result<(), String> {
        self.is_up = true;
        self.begin_front_end(Arc::clone(self.member.held.fence()));
        let now_ns = self.clock_ns();
        let seen = cluster::Membership { revision: self.member.seen, ..Default::default() };
        self.member.held.restart(random, &seen, now_ns);
        if self.has_bucket {
            match self.open(rules) {
                // The cluster decides what becomes of it.
                Err(_) if self.is_down && rules.damages => {}
                opened => opened?,
            }
            self.hold_all();
        }
        Ok(())
    }

    /// Some of what threads would do, by chance; what has worked.
    pub fn work(&mut self, now_us: u64, rng: &mut SplitMix64) -> Vec<Job> {
        let mut worked = Vec::new();
        let Some(bucket) = self.bucket.clone() else { return worked };
        let evicted = |bucket: &Bucket| {
            let stats = bucket.eviction().eviction_stats();
            stats.evicted_values + stats.evicted_documents
        };
        let expired = |bucket: &Bucket| {
            let stats = bucket.documents().expiry_stats();
            stats.by_access + stats.by_pager + stats.by_compactor
        };
        let before = (evicted(&bucket), expired(&bucket));
        bucket.maintenance().keep_step();
        let has_worked = |progress: Progress| progress == Progress::Worked;
        if now_us >= self.slow_until_us {
            for (times, step, job) in [
                (6, (|bucket| bucket.flushing().flush_step()) as fn(&Bucket) -> Progress, Some(Job::Flush)),
                (3, |bucket| bucket.flushing().file_step(), None),
                (4, |bucket| bucket.compaction().compact_step(), Some(Job::Compaction)),
                (6, |bucket| bucket.streams().backfills().step(), Some(Job::Backfill)),
                (5, |bucket| bucket.loading().load_step(), Some(Job::Warmup)),
                (5, |bucket| bucket.loading().warm_step(), Some(Job::Warmup)),
                (7, |bucket| bucket.fetching().fetch_step(), None),
            ] {
                if rng.chance(times, 10) && has_worked(step(&bucket)) {
                    worked.extend(job);
                }
            }
        }
        let after = (evicted(&bucket), expired(&bucket));
        worked.extend((after.0 > before.0).then_some(Job::Eviction));
        worked.extend((after.1 > before.1).then_some(Job::Expiry));
        worked
    }
}
