//! The engines, each behind the same few calls.

mod fjall;
mod lmdb;
mod raw;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod stave;

use std::path::Path;

use anyhow::{Result, bail};

use crate::work::Item;

/// A store of keys and values. What is saved is durable when the call returns.
pub trait Engine {
    /// Takes the next batch over, in the form in which documents wait in memory to be saved. Not on the clock.
    fn stage(&mut self, items: Vec<Item>);

    /// Saves what was staged, sorting it first: that is on the clock for all, whether they need it or not.
    fn save(&mut self) -> Result<()>;

    /// Does what was put off until later: files behind a journal, compactions. On a clock of its own.
    fn settle(&mut self) -> Result<()>;

    /// The value of a key, to see that the work was done.
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>>;
}

/// All of them, by name, ours first; the raw append is no engine but what the machine can do.
pub const NAMES: &[&str] = &[
    "stave",
    "stave-files",
    "fjall",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
    "lmdb",
    "redb",
    "raw",
];

/// Opens an engine in an empty folder.
pub fn open(name: &str, dir: &Path) -> Result<Box<dyn Engine>> {
    Ok(match name {
        "stave" => Box::new(stave::Stave::journaled(dir)?),
        "stave-files" => Box::new(stave::Stave::files(dir)?),
        "fjall" => Box::new(fjall::Fjall::open(dir)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(dir)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(dir)?),
        "redb" => Box::new(redb::Redb::open(dir)?),
        "raw" => Box::new(raw::Raw::open(dir)?),
        _ => bail!("no engine is called `{name}`; there are {}", NAMES.join(", ")),
    })
}

/// Sorts by key.
fn sort(items: &mut [Item]) {
    items.sort_unstable_by(|a, b| a.key.cmp(&b.key));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Random;

    #[test]
    fn every_engine_gives_back_what_was_saved() {
        for name in NAMES {
            let dir = std::env::temp_dir().join(format!("engines-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let mut engine = open(name, &dir).unwrap();
            let mut random = Random::new(300, 100, 1);
            let mut last = Vec::new();
            for round in 0..2 {
                for _ in 0..3 {
                    let items = random.batch(100);
                    last = items.iter().map(|item| (item.key.clone(), item.value.clone())).collect();
                    engine.stage(items);
                    engine.save().unwrap();
                }
                if round == 0 {
                    random.again();
                }
            }
            engine.settle().unwrap();
            for (key, value) in &last {
                let found = engine.get(key).unwrap();
                assert_eq!(found.as_ref(), Some(value), "{name}");
            }
            assert_eq!(engine.get(b"nobody").unwrap(), None, "{name}");
            drop(engine);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn an_unknown_engine_is_refused() {
        assert!(open("oracle", Path::new("nowhere")).is_err());
    }
}
