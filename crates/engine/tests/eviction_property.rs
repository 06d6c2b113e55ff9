//! Whatever clients do: nothing dirty or locked leaves memory, and every document keeps its value.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use base::env::Env;
use base::{Cas, VbId};
use common::{VB, Watched, doc};
use engine::Refusal;
use proptest::prelude::*;

const KEYS: u8 = 60;

#[derive(Clone, Debug)]
enum Act {
    Set(u8, u16),
    Delete(u8),
    Get(u8),
    Lock(u8),
    Flush,
    Wait(u16),
    Keep,
}

fn act() -> impl Strategy<Value = Act> {
    let key = 0..KEYS;
    prop_oneof![
        8 => (key.clone(), 0..2000_u16).prop_map(|(key, bytes)| Act::Set(key, bytes)),
        1 => key.clone().prop_map(Act::Delete),
        4 => key.clone().prop_map(Act::Get),
        2 => key.prop_map(Act::Lock),
        2 => Just(Act::Flush),
        1 => (0..20_000_u16).prop_map(Act::Wait),
        4 => Just(Act::Keep),
    ]
}

fn name(key: u8) -> String {
    format!("key-{key}")
}

struct World {
    watched: Watched,
    model: BTreeMap<u8, String>,
    writes: u32,
}

impl World {
    fn new() -> World {
        let (env, handles) = Env::sim(1);
        World { watched: Watched::open(env, handles, 50_000), model: BTreeMap::new(), writes: 0 }
    }

    fn get(&self, key: u8) -> Option<String> {
        let name = name(key);
        match self.watched.settle(&name, || self.watched.get(&name)) {
            Ok(value) => Some(value),
            Err(Refusal::NotFound) => None,
            Err(refusal) => panic!("{name}: {refusal:?}"),
        }
    }

    /// Keys whose value is in memory, and those of them whose value must stay there.
    fn residents(&self) -> (Vec<u8>, Vec<u8>) {
        let bucket = &self.watched.bucket;
        let now = bucket.now();
        let look = |vb: &vbucket::VBucket| {
            let find = |key: &u8| {
                let name = name(*key);
                let found = vb
                    .find(bucket.hash(doc(&name)), doc(&name))
                    .ok()
                    .flatten()
                    .map(|version| version.clone());
                found.filter(|version| version.is_resident() && !version.is_deleted())
            };
            let residents: Vec<u8> = (0..KEYS).filter(|key| find(key).is_some()).collect();
            let must_stay = |key: &u8| {
                let is_dirty = find(key).is_some_and(|v| v.meta().by_seqno > vb.persisted_seqno());
                is_dirty || vb.is_locked(doc(&name(*key)), now)
            };
            (residents.clone(), residents.into_iter().filter(must_stay).collect())
        };
        bucket.with_vbucket(VB, look).expect("it is there")
    }

    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let bucket = self.watched.bucket.clone();
        match act {
            Act::Set(key, bytes) => {
                self.writes += 1;
                let value = format!("{}:{}", self.writes, "v".repeat(usize::from(*bytes)));
                match self.watched.set_in(VB, &name(*key), &value) {
                    Ok(_) => drop(self.model.insert(*key, value)),
                    Err(refusal) => prop_assert!(
                        matches!(refusal, Refusal::OverQuota | Refusal::Locked | Refusal::Exists),
                        "{refusal:?}"
                    ),
                }
            }
            Act::Delete(key) => {
                if bucket.documents().delete(VB, doc(&name(*key)), Cas::ANY, bucket.now()).is_ok() {
                    self.model.remove(key);
                }
            }
            Act::Get(key) => prop_assert_eq!(self.get(*key), self.model.get(key).cloned()),
            Act::Lock(key) => drop(bucket.documents().get_and_lock(VB, doc(&name(*key)), 10, bucket.now())),
            Act::Flush => prop_assert!(bucket.flushing().flush_all()),
            Act::Wait(ms) => self.watched.handles.clock.advance(Duration::from_millis(u64::from(*ms))),
            Act::Keep => {
                let (_, must_stay) = self.residents();
                bucket.maintenance().keep_step();
                let (left, _) = self.residents();
                let gone: Vec<&u8> = must_stay.iter().filter(|key| !left.contains(key)).collect();
                prop_assert!(gone.is_empty(), "left memory: {:?}", gone);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_dirty_or_locked_leaves_and_nothing_is_lost(acts in proptest::collection::vec(act(), 1..400)) {
        let mut world = World::new();
        for act in &acts {
            world.act(act)?;
        }
        prop_assert!(world.watched.bucket.flushing().flush_all());
        for key in 0..KEYS {
            prop_assert_eq!(world.get(key), world.model.get(&key).cloned());
        }
    }
}

#[test]
fn such_acts_do_evict() {
    let mut world = World::new();
    world.watched.bucket.maintenance().keep_step();
    for n in 0..400_u16 {
        let act = match n % 8 {
            6 => Act::Flush,
            7 => Act::Keep,
            _ => Act::Set((n % u16::from(KEYS)) as u8, 1500),
        };
        world.act(&act).expect("it holds");
    }
    assert!(world.watched.bucket.eviction().eviction_stats().evicted_values > 20);
    assert_eq!(world.watched.bucket.state_of(VbId(0)), Some(base::VbState::Active));
}
