//! Files beside the documents: the list of buckets, cursors, kept positions, and what a member has seen of its cluster.
//! What they say is what was written last, or they are refused with the file's name; of the first two, which are kept
//! twice, one damaged file costs nothing and is told of.

use std::path::Path;
use std::sync::Arc;

use ::cluster::{Address, Membership, State, command};
use base::env::sim::{SimDisk, SplitMix64};
use base::env::{Disk, Env};
use base::{Seqno, SmallFile, VbUuid};
use engine::{Bucket, BucketKind};
use node::bucket_list::BucketList;
use node::changes::anchor::Anchor;
use node::changes::cursor;
use node::changes::token::{AnchorId, Place, Token};
use node::cluster::{membership::Seen, vouched};
use node::config::BucketSpec;

use super::damage::{Damage, Kind};
use super::log::Log;
use super::start::Started;
use super::tally::Tally;
use super::world::{Contents, DIR, End, Keeper, VBUCKETS, World, contents, open, put};

const DATA: &str = "/data";
/// Starts with one set of files.
const STARTS: u64 = 8;
/// Versions of the files.
const VERSIONS: u64 = 4;
const CURSORS: [&str; 2] = ["a", "b"];
const READER: u32 = 7;
/// By what its cluster knows the node.
const NODE: &str = "4e4f4445";

/// What was written last.
struct Written {
    specs: Vec<BucketSpec>,
    cursors: Vec<Token>,
    positions: Vec<(AnchorId, Token)>,
    seen: Membership,
}

/// Damages files beside the documents, and looks at what they say.
pub fn run(seed: u64, only: Option<Kind>, tally: &mut Tally) {
    let mut rng = SplitMix64::new(seed ^ 0x6e6f_6465);
    let disk = SimDisk::new();
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault is planned");
    let (bucket, handles) = open(seed, &disk, Keeper::Files).expect("no fault is planned");
    let env = handles.env();
    let mut written = Written {
        specs: Vec::new(),
        cursors: Vec::new(),
        positions: Vec::new(),
        seen: Membership::default(),
    };
    let mut older: Vec<Contents> = Vec::new();
    for version in 1..=VERSIONS {
        if version > 1 {
            older.push(node_files(&disk));
        }
        write(&mut rng, &env, &bucket, version, &mut written);
        handles.clock.advance(std::time::Duration::from_secs(1));
    }
    let world = World {
        keeper: Keeper::Files,
        end: End::Stopped,
        files: node_files(&disk),
        older,
        at_last: Contents::new(),
        salt: 0,
        bucket_uuid: String::new(),
        manifest: Arc::default(),
        promised: Default::default(),
    };
    for _ in 0..STARTS {
        let Some(damage) = Damage::choose_of_node(&world, &mut rng, only) else { continue };
        damage.apply(&disk);
        // Lines about one kind of event have their distance.
        handles.clock.advance(std::time::Duration::from_secs(60));
        let (mut started, told) = Log::listen(|| look(&env, &bucket, &written));
        if damage.class.is_kept_twice() && started.is_refused() {
            started.wrong.push("it is refused, and the other of the two copies is whole".to_owned());
        }
        // A file that is one write behind its copy is what a crash between the two leaves, and no damage.
        if damage.class.is_kept_twice() && damage.kind != Kind::Stale && told == 0 {
            started.wrong.push("one of two copies is damaged, and nothing is logged".to_owned());
        }
        tally.judge(seed, damage.kind.name(), damage.class.name(), &started.named(&damage));
        for path in node_files(&disk).keys().filter(|path| !world.files.contains_key(*path)) {
            disk.remove_file(path).expect("no fault is planned");
        }
        world.files.iter().for_each(|(path, bytes)| put(&disk, path, bytes));
    }
    without_list(seed, &env, tally);
}

/// Removes both files of the list: the folder of a bucket says that there was one.
fn without_list(seed: u64, env: &Env, tally: &mut Tally) {
    let folder = Path::new(DATA).join("buckets/b1");
    env.disk.create_dir_all_synced(&folder).expect("no fault is planned");
    SmallFile::new(&folder, "bucket.json").write(&*env.disk, b"{}").expect("no fault is planned");
    SmallFile::new(Path::new(DATA), "buckets.json").remove(&*env.disk).expect("no fault is planned");
    let mut started = Started::default();
    match BucketList::read(Path::new(DATA), env) {
        Err(error) if error.is_damage() => started.bucket_refused = true,
        _ => started.wrong.push("the missing list is taken for a first start".to_owned()),
    }
    tally.judge(seed, "remove both", "buckets.json", &started);
}

impl Started {
    /// A position is refused; who reads the log has to find its file.
    fn refuse(&mut self, error: &std::io::Error, name: &str) {
        self.values_refused += 1;
        if !error.to_string().contains(name) {
            self.wrong.push(format!("{name} is refused without its name: {error}"));
        }
    }
}

fn node_files(disk: &SimDisk) -> Contents {
    let mut all = contents(disk);
    all.retain(|path, _| super::damage::is_of_node(path));
    all
}

fn write(rng: &mut SplitMix64, env: &Env, bucket: &Bucket, version: u64, written: &mut Written) {
    let mut list = BucketList::read(Path::new(DATA), env).expect("it is sound");
    let quota = (100 + rng.below(100)) << 20;
    let spec = BucketSpec::made(&format!("b{}", version % 3), quota, BucketKind::Persistent, &[]);
    list.put(&spec.expect("valid"), env).expect("no fault is planned");
    written.specs = list.specs();
    let mut at = || -> Token {
        let mut place = || Place::at(VbUuid(rng.next_u64()), Seqno(1 + rng.below(1 << 40)));
        Token((0..VBUCKETS).map(|_| place()).collect())
    };
    written.cursors = CURSORS.iter().map(|_| at()).collect();
    for (name, at) in CURSORS.iter().zip(&written.cursors) {
        cursor::write(bucket, name, at).expect("no fault is planned");
    }
    let kept = Anchor::keep(bucket, at(), READER).expect("no fault is planned");
    written.positions.push((kept.id, kept.token));
    let mut seen = Seen::read(env, DATA.into()).expect("it is sound");
    seen.note(env, &state(version)).expect("no fault is planned");
    written.seen = Membership::of(&state(version));
    vouched::write(bucket.env(), Path::new(DIR), NODE, &written.seen).expect("no fault is planned");
}

fn state(version: u64) -> State {
    let found = command::found(NODE, &Address::new("h".to_owned(), 1, 2), 7);
    (1..version).fold(found, |state, _| state.next())
}

fn look(env: &Env, bucket: &Bucket, written: &Written) -> Started {
    let mut started = Started::default();
    match BucketList::read(Path::new(DATA), env) {
        Ok(list) if list.specs() == written.specs && list.removing().is_empty() => {}
        Ok(_) => started.wrong.push("the list names other buckets".to_owned()),
        Err(error) if !error.to_string().contains("buckets.json") => {
            started.wrong.push(format!("it is refused without its name: {error}"));
        }
        Err(_) => started.bucket_refused = true,
    }
    for (name, at) in CURSORS.iter().zip(&written.cursors) {
        match cursor::read(bucket, name) {
            Ok(Some(found)) if found == *at => {}
            Ok(Some(_)) => started.wrong.push(format!("cursor {name} is elsewhere")),
            Ok(None) => started.wrong.push(format!("cursor {name} is absent")),
            Err(error) => started.refuse(&error, name),
        }
    }
    for (id, at) in &written.positions {
        match Anchor::read(bucket, id) {
            Ok(Some(found)) if found == *at => {}
            Ok(Some(_)) => started.wrong.push(format!("position {} is another", id.name())),
            // Its reader is told to begin again.
            Ok(None) => started.values_refused += 1,
            Err(error) => started.refuse(&error, &id.name()),
        }
    }
    match seen(env, bucket) {
        Ok(Some(found)) if found == written.seen => {}
        Ok(found) => started.wrong.push(format!("the node has seen {found:?} of its cluster")),
        Err(error) => started.refuse(&error, "cluster-membership"),
    }
    started
}

/// What a member that starts has seen of its cluster.
fn seen(env: &Env, bucket: &Bucket) -> std::io::Result<Option<Membership>> {
    let mut seen = Seen::read(env, DATA.into())?;
    vouched::put_right(env, &mut seen, NODE, [(bucket.env(), Path::new(DIR))].into_iter())?;
    Ok(seen.get().cloned())
}
